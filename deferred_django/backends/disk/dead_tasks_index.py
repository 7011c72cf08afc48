"""Where the newest record of each id is: an index in memory, extended by what was appended.

Readers take no lock, so what they read at the end of the file can change under them (an unfinished
write that is repaired, a failed one that is taken back). What looks wrong is therefore read twice
before it is believed, and the index is built anew once the file is another, its last record is not
at its place, or records have gone. Who removes records knows which, and tells the index.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from deferred_django.backends.disk import files, records
from deferred_django.backends.disk.dead_tasks_file import (
    Identity,
    beginning,
    beginning_match,
    id_of,
)
from deferred_django.backends.disk.dead_tasks_located import Located, LocatedBuilder
from deferred_django.backends.disk.dead_tasks_rows import ROW_BITS, ROW_MASK, Rows, Span, hash_of
from deferred_django.backends.disk.long_line import HEAD_BYTES
from deferred_django.backends.disk.scanner import Scanner

_TRIES = 5
_HEADS_BYTES = 64 * 1024


@dataclass(slots=True)
class Flaws:
    """What was skipped."""

    damaged: int = 0
    """Lines with a wrong checksum."""
    first_damage: int | None = None
    """The offset of the first."""
    unknown: int = 0
    """Records with a good checksum that are no dead tasks."""

    def add(self, other: Flaws) -> None:
        """Count those of a later part of the file too."""
        self.damaged += other.damaged
        self.unknown += other.unknown
        if self.first_damage is None:
            self.first_damage = other.first_damage

    def sentences(self) -> list[str]:
        """For a person."""
        said = []
        if self.damaged:
            lines = (
                "1 damaged line is" if self.damaged == 1 else f"{self.damaged:,} damaged lines are"
            )
            said.append(f"{lines} skipped, the first at byte {self.first_damage:,}")
        if self.unknown:
            said.append(f"records of an unknown kind are skipped: {self.unknown:,}")
        return said


@dataclass(frozen=True, slots=True)
class Replacement:
    """A removal put a copy in the file's place."""

    before: Identity
    after: Identity
    starts: Sequence[int]
    ends: Sequence[int]
    """What the copy lacks: lines, in the order of the file."""


@dataclass(slots=True)
class _Found:
    """What one pass over new bytes found."""

    end: int
    records: int
    flaws: Flaws


class _Heads:
    """Looks at the beginnings of lines; of many in the order of the file with few reads."""

    def __init__(self, fd: int, rows: Rows, read_bytes: int = HEAD_BYTES) -> None:
        self._fd = fd
        self._rows = rows
        self._read_bytes = read_bytes
        self._start = 0
        self._block = b""

    def _position(self, offset: int) -> int:
        position = offset - self._start
        if position < 0 or position + HEAD_BYTES > len(self._block):
            self._start, position = offset, 0
            self._block = files.read_at(self._fd, self._read_bytes, offset)
        return position

    def is_of(self, task_id: bytes, offset: int) -> bool:
        """Whether the line at ``offset`` is a record of that id."""
        position = self._position(offset) + records.CRC_BYTES
        return self._block.startswith(beginning(task_id), position)

    def id_at(self, row: int) -> bytes | None:
        """The id in the line of a row."""
        offset, length = self._rows.span(row)
        position = self._position(offset)
        head = self._block[position : position + min(length, HEAD_BYTES)]
        return id_of(head[records.CRC_BYTES :])


class Index:
    """The index of one store's file. Not thread-safe: its owner has a lock."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all: the next :meth:`refresh` reads the whole file."""
        self._identity: Identity | None = None
        self._replacement: Replacement | None = None
        self._rows = Rows()
        self._end = 0
        self._last_head = b""
        self.flaws = Flaws()

    def __len__(self) -> int:
        """How many ids there are."""
        return len(self._rows)

    # -- reading the file ----------------------------------------------------------------------

    def unread(self, fd: int, generation: int) -> int:
        """How many bytes :meth:`refresh` would have to read."""
        info = files.status(fd)
        self._follow((generation, info.st_dev, info.st_ino))
        fits = self._fits(fd, (generation, info.st_dev, info.st_ino), info.st_size)
        return info.st_size - self._end if fits else info.st_size

    def refresh(self, fd: int, generation: int) -> None:
        """Read what is new. ``generation`` is what the file said before it was opened."""
        for attempt in range(_TRIES):
            info = files.status(fd)
            identity = (generation, info.st_dev, info.st_ino)
            self._follow(identity)
            if not self._fits(fd, identity, info.st_size):
                self.clear()
                self._identity = identity
            start = self._end
            try:
                found = self._read(fd, start, info.st_size)
            except BaseException:  # some of it is among the rows
                self.clear()
                raise
            if (
                not found.flaws.damaged
                or attempt == _TRIES - 1
                or found == self._count(fd, start, info.st_size)
            ):
                return
            self.clear()

    def replaced(self, replacement: Replacement) -> None:
        """Another file is in the place of the one that was read, which lacks some of its lines.

        What follows from that is done when the index is used next: that may be never.
        """
        if self._identity == replacement.before:
            self._replacement = replacement

    def _follow(self, identity: Identity) -> None:
        replacement = self._replacement
        if replacement is None or identity == replacement.before:  # a reader of the old file
            return
        self._replacement = None
        if replacement.after != identity:
            return
        if not self._rows.take_out(replacement.starts, replacement.ends):
            self.clear()
            return
        self._end -= sum(replacement.ends) - sum(replacement.starts)
        if self.flaws.first_damage is not None:
            before = bisect_left(replacement.starts, self.flaws.first_damage)
            self.flaws.first_damage -= sum(replacement.ends[:before])
            self.flaws.first_damage += sum(replacement.starts[:before])
        self._identity = identity
        self._last_head = b""  # of a line that may have gone

    def _fits(self, fd: int, identity: Identity, size: int) -> bool:
        if self._identity != identity or size < self._end or not self._rows.offsets:
            return False
        if not self._last_head:
            self._note_last_head(fd)
        head = files.read_at(fd, len(self._last_head), self._rows.offsets[-1])
        return head == self._last_head

    def _note_last_head(self, fd: int) -> None:
        offset, length = self._rows.span(-1)
        self._last_head = files.read_at(fd, min(length, HEAD_BYTES), offset)

    def _read(self, fd: int, start: int, end: int) -> _Found:
        scanner = Scanner(start, newline_in_front=False)
        rows = len(self._rows.offsets)
        unknown = 0
        add = self._rows.adder()
        for offset, length, body in scanner.read(fd, end):
            match = beginning_match(body)
            if match is None:
                unknown += 1
            else:
                add(offset, length, match[1])
        new = len(self._rows.offsets) - rows
        if new:
            self._rows.settle(_Heads(fd, self._rows, _HEADS_BYTES).id_at)
            self._note_last_head(fd)
        self._end = scanner.offset
        flaws = _flaws(scanner, unknown)
        self.flaws.add(flaws)
        return _Found(scanner.offset, new + unknown, flaws)

    def _count(self, fd: int, start: int, end: int) -> _Found:
        scanner = Scanner(start, newline_in_front=False)
        number = unknown = 0
        for _, _, body in scanner.read(fd, end):
            number += 1
            unknown += id_of(body) is None
        return _Found(scanner.offset, number, _flaws(scanner, unknown))

    # -- looking up ----------------------------------------------------------------------------

    def span(self, fd: int, task_id: str) -> Span | None:
        """Where the newest record of the id is."""
        name = task_id.encode("utf-8", "replace")
        candidates = self._rows.candidates(hash_of(name))
        heads = _Heads(fd, self._rows)
        for row in reversed(candidates):
            if heads.id_at(row) == name:
                return self._rows.span(row)
        return None

    def locate(self, fd: int, ids: Mapping[str, int], end: int) -> Located:
        """All records before ``end`` of the ids, which are numbered from 0 in their order."""
        found = LocatedBuilder(ids)
        names = [task_id.encode("utf-8", "replace") for task_id in ids]
        # In the order of the file, so that it is read through once.
        guesses = sorted(
            row << ROW_BITS | number
            for number, name in enumerate(names)
            for row in self._rows.candidates(hash_of(name))
        )
        heads = _Heads(fd, self._rows, _HEADS_BYTES)
        for guess in guesses:
            offset, length = self._rows.span(guess >> ROW_BITS)
            number = guess & ROW_MASK
            if offset < end and heads.is_of(names[number], offset):
                found.add(number, offset, length)
        return found.finish()

    def newest_first(self, skip: int = 0) -> Iterable[Span]:
        """The newest record of each id but ``skip``, from the end of the file. A copy."""
        return self._rows.newest_first(skip)


def _flaws(scanner: Scanner, unknown: int) -> Flaws:
    first = scanner.damage[0].offset if scanner.damage else None
    return Flaws(scanner.damaged, first, unknown)
