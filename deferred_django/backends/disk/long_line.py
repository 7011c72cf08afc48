"""A line that is not held in memory as a whole: its checksum is computed as it passes."""

from __future__ import annotations

from zlib import crc32

from deferred_django.backends.disk.records import CRC_BYTES, looks_torn

HEAD_BYTES = 512
"""What is kept of a line that is only looked through: its checksum and all its names are in it."""
_ZEROS = bytes(4096)


def without_zeros_behind(data: bytes) -> bytes:
    """``data`` up to its last byte that is not NUL; fast also where it ends in millions of them."""
    end = len(data)
    while end >= len(_ZEROS) and data.startswith(_ZEROS, end - len(_ZEROS)):
        end -= len(_ZEROS)
    return data[:end].rstrip(b"\0")


def _crc_of_zeros(count: int, crc: int) -> int:
    """``crc`` carried on over so many NUL bytes."""
    while count >= len(_ZEROS):
        crc = crc32(_ZEROS, crc)
        count -= len(_ZEROS)
    return crc32(_ZEROS[:count], crc)


class LongLine:
    """The beginning of a line, its length, and whether it is a record.

    NUL bytes are counted until others follow, since those at the end may not be the record's.
    """

    __slots__ = ("_crc", "_crc_but_last", "_limit", "_zeros", "head", "length", "start")

    def __init__(self, start: int, limit: int, data: bytes) -> None:
        """``data`` is the line's beginning: its checksum and more."""
        self.start = start
        self.head = data[:CRC_BYTES]
        self.length = CRC_BYTES
        self._limit = limit
        self._zeros = self._crc = self._crc_but_last = 0
        self.feed(data[CRC_BYTES:])

    def feed(self, data: bytes) -> None:
        """Take in what follows."""
        self.length += len(data)
        if len(self.head) < HEAD_BYTES:
            self.head += data[: HEAD_BYTES - len(self.head)]
        kept = without_zeros_behind(data)
        zeros = self._zeros
        self._zeros = len(data) - len(kept) + (0 if kept else zeros)
        if kept and self.length - self._zeros <= self._limit:
            view = memoryview(kept)
            self._crc_but_last = crc32(view[:-1], _crc_of_zeros(zeros, self._crc))
            self._crc = crc32(view[-1:], self._crc_but_last)

    def _has(self, crc: int) -> bool:
        return self.head[:CRC_BYTES] == b"%08x:" % crc

    def is_valid(self) -> bool:
        """Whether the whole line is a record."""
        if self.length > self._limit:
            return False
        return self._has(_crc_of_zeros(self._zeros, self._crc))

    def zeros_behind_record(self) -> int:
        """How many NUL bytes stand behind a whole record."""
        whole = self.length - self._zeros <= self._limit and self._has(self._crc)
        return self._zeros if whole else 0

    def is_rest_of(self, given_to: int) -> bool:
        """Whether these are the zeros behind a record that was given already."""
        zeros = self._zeros + self.head[:CRC_BYTES].count(0)
        return self.start == given_to and zeros == self.length

    def looks_torn(self) -> bool:
        """As :func:`records.looks_torn`."""
        if self.length > self._limit:
            return False
        if self._zeros:
            crc_but_last = _crc_of_zeros(self._zeros - 1, self._crc)
        else:
            crc_but_last = self._crc_but_last
        return looks_torn(self.head) and not self._has(crc_but_last)
