"""Where all records of some ids are, in little memory: they may be a million."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from deferred_django.backends.disk.dead_tasks_file import KIND, beginning_match
from deferred_django.backends.disk.dead_tasks_rows import Span
from deferred_django.backends.disk.records import CRC_BYTES, is_valid
from deferred_django.backends.disk.scanner import Scanner

_ID_AT = CRC_BYTES + len(KIND) + 1


@dataclass(frozen=True, slots=True)
class Located:
    """The records of some ids, as lines of the file."""

    ids: list[str]
    """Those that were found, in the order asked for."""
    newest: array[int]
    """For each of them, which line is its newest record."""
    offsets: array[int]
    lengths: array[int]
    """Of all lines, in the order of the file, without their newlines."""

    def newest_spans(self) -> Iterator[tuple[str, Span]]:
        """Each id with its newest record."""
        for task_id, line in zip(self.ids, self.newest, strict=True):
            yield task_id, (self.offsets[line], self.lengths[line])


class LocatedBuilder:
    """Makes a :class:`Located` for ids, which are numbered from 0 in their order."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = ids
        self._newest = array("q", [-1]) * len(ids)
        self._offsets = array("Q")
        self._lengths = array("I")

    def add(self, number: int, offset: int, length: int) -> None:
        """Add a line of the id with this number; they come in the order of the file."""
        self._newest[number] = len(self._offsets)
        self._offsets.append(offset)
        self._lengths.append(length)

    def finish(self) -> Located:
        """What was found."""
        there = [
            task_id for task_id, line in zip(self._ids, self._newest, strict=True) if line >= 0
        ]
        newest = array("q", (line for line in self._newest if line >= 0))
        return Located(there, newest, self._offsets, self._lengths)


class _Sieve(Scanner):
    """Reads the records of some ids. All other lines are passed by, their checksums unread."""

    __slots__ = ("_ids",)

    def __init__(self, ids: Mapping[str, int]) -> None:
        super().__init__(newline_in_front=False)
        self._ids = ids

    def _records(self, block: bytes, start: int, stop: int) -> Iterator[tuple[int, int, bytes]]:
        find, ids, base = block.find, self._ids, self.offset - start
        while start <= stop:
            end = find(b"\n", start, stop)
            if end < 0:
                end = stop
            id_at = start + _ID_AT
            task_id = block[id_at : find(b":", id_at, end)].decode("ascii", "replace")
            if self._long is not None:
                yield from super()._records(block, start, end)
            else:
                if task_id in ids and is_valid(line := block[start:end]):
                    yield base + start, end - start, line[CRC_BYTES:]
                self.offset = base + end + 1
            start = end + 1


def scan(fd: int, ids: Mapping[str, int], end: int) -> Located:
    """All records before ``end`` of the ids, found by reading the file through once."""
    found = LocatedBuilder(ids)
    add, number_of = found.add, ids.get
    for offset, length, body in _Sieve(ids).read(fd, end):
        match = beginning_match(body)
        if match is not None and (number := number_of(match[1].decode("ascii"))) is not None:
            add(number, offset, length)
    return found.finish()
