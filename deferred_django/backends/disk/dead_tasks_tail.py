"""The end of a dead-tasks file: its lines backwards, and how the last one ends."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from deferred_django.backends.disk import files
from deferred_django.backends.disk.scanner import MAX_LONG_LINE_BYTES, Scanner, first_nul

BACKWARD_BYTES = 64 * 1024


def lines_backwards(fd: int, end: int) -> Iterator[tuple[int, int]]:
    """Where each line before ``end`` begins and ends (without its newline), the last one first."""
    position = line_end = end
    while position > 0:
        size = min(BACKWARD_BYTES, position)
        position -= size
        chunk = files.read_at(fd, size, position)
        cut = len(chunk)
        while (cut := chunk.rfind(b"\n", 0, cut)) >= 0:
            yield position + cut + 1, line_end
            line_end = position + cut
    yield 0, line_end


def is_valid_at(fd: int, start: int, end: int) -> bool:
    """Whether these bytes are one whole line with a good checksum, whatever its length."""
    if end - start > MAX_LONG_LINE_BYTES:
        return False
    scanner = Scanner(start, newline_in_front=False)
    return any(length == end - start for _, length, _ in scanner.read(fd, end))


@dataclass(frozen=True, slots=True)
class Tail:
    """How a file ends."""

    end: int
    """Where its last whole record ends."""
    size: int
    """Its size: larger than ``end`` if a write was not finished."""
    newline_missing: bool
    """The last record is whole but for its newline."""


def find_tail(fd: int) -> Tail:
    """Look at the file's last line, in bounded memory. Certain for the holder of the lock."""
    size = files.status(fd).st_size
    if size == 0 or files.read_at(fd, 1, size - 1) == b"\n":
        return Tail(size, size, newline_missing=False)
    start, _ = next(lines_backwards(fd, size))
    # NUL bytes are what a power cut has left where what was appended did not arrive.
    for end in (size, first_nul(fd, start, size)):
        if start < end and is_valid_at(fd, start, end):
            return Tail(end, size, newline_missing=True)
    return Tail(start, size, newline_missing=False)
