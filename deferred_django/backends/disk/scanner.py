"""Reading a file of records from where it was last read to.

A bad line is one of two things. *Torn* is the beginning of a record whose writer did not finish:
it runs straight into the next record (in the log each record brings a newline of its own in
front, so the fragment harms nobody else). Anything else is *damage*: bytes that no write left.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from zlib import crc32

from deferred_django.backends.base import MAX_RECORD_BYTES
from deferred_django.backends.disk import files
from deferred_django.backends.disk.long_line import LongLine
from deferred_django.backends.disk.records import CRC_BYTES, before_nul, is_valid, looks_torn

CHUNK_BYTES = 256 * 1024
MAX_LINE_BYTES = MAX_RECORD_BYTES + CRC_BYTES
MAX_LONG_LINE_BYTES = 7 * MAX_RECORD_BYTES + CRC_BYTES
"""A line that is longer, of the log or the dead-tasks file, is no record, whatever its checksum."""
MAX_DAMAGE_KEPT = 100


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes in a file that no write left there."""

    offset: int
    length: int
    reason: str


def first_nul(fd: int, start: int, end: int) -> int:
    """Where the first NUL byte from ``start`` to ``end`` is; ``end`` if there is none."""
    while start < end:
        chunk = files.read_at(fd, min(CHUNK_BYTES, end - start), start)
        if not chunk:
            break
        if (cut := chunk.find(b"\0")) >= 0:
            return start + cut
        start += len(chunk)
    return end


class Scanner:
    """Reads the records of an append-only file, going on where it last stopped.

    A line longer than 256 KiB is checked while it passes, and only the first bytes of its body are
    given: memory is bounded by that, whatever the length of a line.

    In the log, where many append at once, each record has a newline of its own in front, and an
    unfinished one may stand anywhere. With ``newline_in_front=False``, for the dead-tasks file,
    only the last line can be torn, since each writer repairs it before it writes: any other bad
    line is damage.
    """

    __slots__ = (
        "_bad",
        "_given_to",
        "_limit",
        "_long",
        "_newline_in_front",
        "_own",
        "_tail",
        "damage",
        "damaged",
        "offset",
        "stopped",
        "torn",
    )

    def __init__(
        self, offset: int = 0, *, newline_in_front: bool = True, own: set[bytes] | None = None
    ) -> None:
        """``own`` are lines that the caller has written and need not be told of; each once."""
        self.offset = offset
        """Where the first byte not yet understood is: the beginning of a line."""
        self.torn = 0
        self.stopped = False
        self.damage: list[Damage] = []
        """The first hundred bad places; ``damaged`` counts them all."""
        self.damaged = 0
        # A bad line is judged by the line behind it, which may come with a later read.
        self._bad: tuple[int, int, bool] | None = None
        self._long: LongLine | None = None
        self._newline_in_front = newline_in_front
        self._own = own if own is not None else set()
        self._limit = MAX_LINE_BYTES if newline_in_front else MAX_LONG_LINE_BYTES
        # An unended last line: its length, and whether it may be the beginning of a record.
        self._tail: tuple[int, bool] | None = None
        # Where a record ends that was given without its newline: zeros may follow on its line.
        self._given_to = -1

    @property
    def torn_in_all(self) -> int:
        """Unfinished records, with the one that may stand at the end of the file."""
        return self.torn + (1 if self._tail is not None else 0)

    def read(
        self, fd: int, end: int | None = None, *, budget: int | None = None
    ) -> Iterator[tuple[int, int, bytes]]:
        """Yield (offset of the line, its length, its body) of each good record, up to ``end``.

        After ``budget`` bytes it stops early, between records, and is ``stopped``.
        A last line without its newline counts if its checksum is good; else it is left for the
        next call, when its writer may have finished it. Memory is bounded by a record's limit.
        """
        self.stopped = False
        # A long unended line is not gone through again for nothing.
        known_to = None if end is not None or self._tail is None else self.offset + self._tail[0]
        if known_to is not None and not files.read_at(fd, 1, known_to):
            return
        self._tail = None
        begin = position = self.offset
        most = CHUNK_BYTES if budget is None else min(CHUNK_BYTES, max(budget, 4096))
        parts: list[bytes] = []
        held = 0
        while True:
            size = most if end is None else min(most, end - position)
            chunk = files.read_at(fd, size, position) if size > 0 else b""
            if not chunk:
                break
            position += len(chunk)
            cut = chunk.rfind(b"\n")
            if cut < 0:
                held += len(chunk)
                parts.append(chunk)
                if held > CHUNK_BYTES:
                    self._pass_by(b"".join(parts))
                    parts, held = [], 0
                continue
            if self._newline_in_front:
                parts.append(chunk[:cut])
                yield from self._lines(b"".join(parts))
            else:
                first = chunk.find(b"\n")
                parts.append(chunk[:first])
                line = b"".join(parts)
                yield from self._records(line, 0, len(line))
                if first < cut:
                    yield from self._records(chunk, first + 1, cut)
            parts = [chunk[cut + 1 :]]
            held = len(parts[0])
            self.stopped = budget is not None and self.offset - begin >= budget
            if self.stopped:
                return
        tail = b"".join(parts)
        if self._long is not None:
            self._pass_by(tail)
            yield from self._unended_long_line()
        elif tail and is_valid(tail):
            start = self._good_line()
            self.offset = self._given_to = start + len(tail)
            yield start, len(tail), tail[CRC_BYTES:]
        elif tail and (whole := before_nul(tail)) is not None:
            start = self._good_line()
            self._give_unended(start, len(whole), len(tail))
            yield start, len(whole), whole[CRC_BYTES:]
        elif tail:
            torn = looks_torn(tail) or self._is_rest(self.offset, nul_first=tail[0] == 0)
            self._tail = (len(tail), torn)

    def _lines(self, block: bytes) -> Iterator[tuple[int, int, bytes]]:
        for line in block.split(b"\n"):
            start = self.offset
            if self._long is not None:
                yield from self._end_long_line(line)
            elif not line:
                if self._bad is not None:
                    self._judge_bad(followed_by_record=False)
            elif self._own and line in self._own:
                self._own.discard(line)
                self._good_line()
            elif line[:CRC_BYTES] == b"%08x:" % crc32(body := line[CRC_BYTES:]):
                if self._bad is not None:
                    self._judge_bad(followed_by_record=True)
                self.offset = start + len(line) + 1
                yield start, len(line), body
                continue
            elif self._newline_in_front and (whole := before_nul(line)) is not None:
                self._good_line()
                self.torn += 1
                yield start, len(whole), whole[CRC_BYTES:]
            elif self._newline_in_front and self._is_rest(start, nul_first=line[0] == 0):
                self.torn += 1
            else:
                self._bad_line(start, line)
            self.offset = start + len(line) + 1

    def _records(self, block: bytes, start: int, stop: int) -> Iterator[tuple[int, int, bytes]]:
        # As _lines, where each bad line stands for itself; for lines of 1 kB in half the time.
        find, base = block.find, self.offset - start
        while start <= stop:
            end = find(b"\n", start, stop)
            if end < 0:
                end = stop
            body_start = start + CRC_BYTES
            body = block[body_start:end]
            if block[start:body_start] == b"%08x:" % crc32(body) and self._long is None:
                self.offset = base + end + 1
                yield base + start, end - start, body
            else:
                yield from self._lines(block[start:end])
            start = end + 1

    def _good_line(self) -> int:
        if self._bad is not None:
            self._judge_bad(followed_by_record=True)
        return self.offset

    def _bad_line(self, start: int, line: bytes) -> None:
        if self._bad is not None:
            self._judge_bad(followed_by_record=True)
        self._bad = (start, len(line), looks_torn(line))
        if not self._newline_in_front:
            self._judge_bad(followed_by_record=False)

    def _judge_bad(self, *, followed_by_record: bool) -> None:
        assert self._bad is not None
        start, length, torn = self._bad
        self._bad = None
        if torn and followed_by_record:
            self.torn += 1
        else:
            self.note_damage(Damage(start, length, "a line with a wrong checksum"))

    def _pass_by(self, data: bytes) -> None:
        if self._long is None:
            self._long = LongLine(self.offset, self._limit, data)
        else:
            self._long.feed(data)
        self.offset += len(data)

    def _end_long_line(self, rest: bytes) -> Iterator[tuple[int, int, bytes]]:
        assert self._long is not None
        line, self._long = self._long, None
        line.feed(rest)
        if self._bad is not None:
            self._judge_bad(followed_by_record=True)
        if line.is_valid():
            self.offset = line.start + line.length
            yield line.start, line.length, line.head[CRC_BYTES:]
        elif self._newline_in_front and (length := line.record_before_nul()):
            self.torn += 1
            yield line.start, length, line.head[:length][CRC_BYTES:]
        elif self._newline_in_front and self._is_rest(line.start, nul_first=line.begins_with_nul()):
            self.torn += 1
        elif self._newline_in_front and line.looks_torn():
            self._bad = (line.start, line.length, True)
        else:
            self.note_damage(Damage(line.start, line.length, "a long line that is no record"))

    def _unended_long_line(self) -> Iterator[tuple[int, int, bytes]]:
        assert self._long is not None
        line = self._long
        if line.is_valid():
            self._given_to = line.start + line.length
            yield from self._end_long_line(b"")
            return
        self._long = None
        self.offset = line.start
        if length := line.record_before_nul():
            self._good_line()
            self._give_unended(line.start, length, line.length)
            yield line.start, length, line.head[:length][CRC_BYTES:]
        else:
            rest = self._is_rest(line.start, nul_first=line.begins_with_nul())
            self._tail = (line.length, line.looks_torn() or rest)

    def _give_unended(self, start: int, length: int, whole: int) -> None:
        # What stands behind the record on its line is judged when the line has its end.
        self.offset = self._given_to = start + length
        self._tail = (whole - length, True)

    def _is_rest(self, start: int, *, nul_first: bool) -> bool:
        """Whether this stands behind a record that was given already, with zeros between."""
        return start == self._given_to and nul_first

    def note_damage(self, damage: Damage) -> None:
        """Count a bad place: also a record that its reader can make nothing of."""
        self.damaged += 1
        if len(self.damage) < MAX_DAMAGE_KEPT:
            self.damage.append(damage)

    def at_end(self) -> None:
        """Judge what nothing follows, now that nobody can append behind it.

        A line that has its own newline is no record that was begun and not finished.
        """
        if self._bad is not None:
            self._judge_bad(followed_by_record=self._tail is not None)
        if self._tail is not None and self._newline_in_front and not self._tail[1]:
            self.note_damage(Damage(self.offset, self._tail[0], "bytes that are no record"))
            self._tail = None
