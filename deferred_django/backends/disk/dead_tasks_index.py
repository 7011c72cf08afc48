"""Where the newest record of each id is: an index in memory, extended by what was appended.

An entry costs about 130 bytes: the id is kept as a hash alone, and is read from the file wherever
two hashes meet or an id is looked up. Readers take no lock, so what they read at the end of the
file can change under them (an unfinished write that is repaired, a failed one that is taken back).
What looks wrong is therefore read twice before it is believed, and the index is built anew once the
file is another, its last record is not at its place, or records have gone.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from deferred_django.backends.disk import files, records
from deferred_django.backends.disk.dead_tasks_file import beginning, id_of
from deferred_django.backends.disk.long_line import HEAD_BYTES
from deferred_django.backends.disk.scanner import Scanner

_HASH_MASK = (1 << 60) - 1  # an int of two digits in CPython: 32 bytes
_TRIES = 5
_HEADS_BYTES = 64 * 1024

Span = tuple[int, int]
"""The offset and the length of a line, without its newline."""


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


@dataclass(slots=True)
class _Found:
    """What one pass over new bytes found."""

    end: int
    records: int
    flaws: Flaws


class _Heads:
    """Looks at the beginnings of many lines, in the order of the file, with few reads."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._start = 0
        self._block = b""

    def is_of(self, task_id: bytes, offset: int) -> bool:
        """Whether the line at ``offset`` is a record of that id."""
        position = offset - self._start
        if position < 0 or position + HEAD_BYTES > len(self._block):
            self._start, position = offset, 0
            self._block = files.read_at(self._fd, _HEADS_BYTES, offset)
        return self._block.startswith(beginning(task_id), position + records.CRC_BYTES)


class Index:
    """The index of one store's file. Not thread-safe: its owner has a lock."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all: the next :meth:`refresh` reads the whole file."""
        self._identity: tuple[int, int, int] | None = None
        self._offsets = array("Q")
        self._lengths = array("Q")
        self._rows: dict[int, int] = {}
        self._older: dict[int, list[int]] = {}
        self._superseded: set[int] = set()
        self._end = 0
        self._last_head = b""
        self.flaws = Flaws()

    @property
    def is_cold(self) -> bool:
        """Whether nothing was read yet."""
        return self._identity is None

    def __len__(self) -> int:
        """How many ids there are."""
        return len(self._rows)

    # -- reading the file ----------------------------------------------------------------------

    def refresh(self, fd: int, generation: int) -> None:
        """Read what is new. ``generation`` is what the file said before it was opened."""
        for attempt in range(_TRIES):
            info = os.fstat(fd)
            identity = (generation, info.st_dev, info.st_ino)
            if not self._fits(fd, identity, info.st_size):
                self.clear()
                self._identity = identity
            start = self._end
            found = self._read(fd, start, info.st_size)
            if (
                not found.flaws.damaged
                or attempt == _TRIES - 1
                or found == self._count(fd, start, info.st_size)
            ):
                return
            self.clear()

    def _fits(self, fd: int, identity: tuple[int, int, int], size: int) -> bool:
        if self._identity != identity or size < self._end or not self._offsets:
            return False
        head = files.read_at(fd, len(self._last_head), self._offsets[-1])
        return head == self._last_head

    def _read(self, fd: int, start: int, end: int) -> _Found:
        scanner = Scanner(start, newline_in_front=False)
        rows = len(self._offsets)
        unknown = 0
        for offset, length, body in scanner.read(fd, end):
            task_id = id_of(body)
            if task_id is None:
                unknown += 1
            else:
                self._add(fd, offset, length, task_id)
        if len(self._offsets) > rows:
            size = min(self._lengths[-1], HEAD_BYTES)
            self._last_head = files.read_at(fd, size, self._offsets[-1])
        self._end = scanner.offset
        flaws = _flaws(scanner, unknown)
        self.flaws.add(flaws)
        return _Found(scanner.offset, len(self._offsets) - rows + unknown, flaws)

    def _count(self, fd: int, start: int, end: int) -> _Found:
        scanner = Scanner(start, newline_in_front=False)
        kinds = [id_of(body) is not None for _, _, body in scanner.read(fd, end)]
        return _Found(scanner.offset, len(kinds), _flaws(scanner, kinds.count(False)))

    def _add(self, fd: int, offset: int, length: int, task_id: bytes) -> None:
        row = len(self._offsets)
        self._offsets.append(offset)
        self._lengths.append(length)
        key = hash(task_id) & _HASH_MASK
        while (other := self._rows.get(key)) is not None:
            if self._id_at(fd, other) == task_id:
                self._older[row] = [*self._older.pop(other, ()), other]
                self._superseded.add(other)
                break
            key = (key + 1) & _HASH_MASK  # another id of the same hash
        self._rows[key] = row

    def _id_at(self, fd: int, row: int) -> bytes | None:
        size = min(self._lengths[row], HEAD_BYTES)
        head = files.read_at(fd, size, self._offsets[row])
        return id_of(head[records.CRC_BYTES :])

    # -- looking up ----------------------------------------------------------------------------

    def _row(self, fd: int, task_id: bytes) -> int | None:
        key = hash(task_id) & _HASH_MASK
        while (row := self._rows.get(key)) is not None:
            if self._id_at(fd, row) == task_id:
                return row
            key = (key + 1) & _HASH_MASK
        return None

    def span(self, fd: int, task_id: str) -> Span | None:
        """Where the newest record of the id is."""
        row = self._row(fd, task_id.encode("utf-8", "replace"))
        return None if row is None else (self._offsets[row], self._lengths[row])

    def spans_below(self, fd: int, ids: Iterable[str], end: int) -> dict[str, list[Span]]:
        """All records before ``end`` of each id that has any, the newest last; for many ids."""
        names = {task_id: task_id.encode("utf-8", "replace") for task_id in ids}
        guesses = {
            task_id: guess
            for task_id, name in names.items()
            if (guess := self._rows.get(hash(name) & _HASH_MASK)) is not None
        }
        heads = _Heads(fd)
        found = {}
        for task_id in sorted(guesses, key=guesses.__getitem__):  # in the file's order
            row: int | None = guesses[task_id]
            if not heads.is_of(names[task_id], self._offsets[guesses[task_id]]):
                row = self._row(fd, names[task_id])
            if row is not None:
                rows = [*self._older.get(row, ()), row] if self._older else [row]
                found[task_id] = [
                    (self._offsets[r], self._lengths[r]) for r in rows if self._offsets[r] < end
                ]
        return {task_id: spans for task_id in guesses if (spans := found.get(task_id))}

    def newest_first(self, skip: int = 0, limit: int | None = None) -> Iterable[Span]:
        """The newest record of each id, from the end of the file. A copy: it does not change."""
        if not self._superseded:
            last = max(0, len(self._offsets) - skip)
            first = 0 if limit is None else max(0, last - limit)
            rows = slice(first, last)
            return zip(self._offsets[rows][::-1], self._lengths[rows][::-1], strict=True)
        return list(self._pick(skip, limit))

    def _pick(self, skip: int, limit: int | None) -> Iterator[Span]:
        left = len(self._offsets) if limit is None else limit
        for row in range(len(self._offsets) - 1, -1, -1):
            if row in self._superseded:
                continue
            if skip:
                skip -= 1
            elif left == 0:
                return
            else:
                left -= 1
                yield self._offsets[row], self._lengths[row]


def _flaws(scanner: Scanner, unknown: int) -> Flaws:
    first = scanner.damage[0].offset if scanner.damage else None
    return Flaws(scanner.damaged, first, unknown)
