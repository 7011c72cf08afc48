"""A line that is not held in memory as a whole: its checksum is computed as it passes."""

from __future__ import annotations

from zlib import crc32

from deferred_django.backends.disk.records import CRC_BYTES, looks_torn

HEAD_BYTES = 512
"""What is kept of a line that is only looked through: its checksum and all its names are in it."""


class LongLine:
    """The beginning of a line, its length, and whether it is a record or begins with one."""

    __slots__ = (
        "_before_nul",
        "_crc",
        "_crc_before_nul",
        "_crc_but_last",
        "_limit",
        "head",
        "length",
        "start",
    )

    def __init__(self, start: int, limit: int, data: bytes) -> None:
        """``data`` is the line's beginning: its checksum and more."""
        self.start = start
        self.head = data[:CRC_BYTES]
        self.length = CRC_BYTES
        self._limit = limit
        self._crc = self._crc_but_last = self._crc_before_nul = 0
        # The length of what stands before the first NUL byte; -1 until there is one.
        self._before_nul = self.head.find(b"\0")
        self.feed(data[CRC_BYTES:])

    def feed(self, data: bytes) -> None:
        """Take in what follows."""
        if not data:
            return
        view = memoryview(data)
        if self._before_nul < 0 and (cut := data.find(b"\0")) >= 0:
            self._before_nul = self.length + cut
            self._crc_before_nul = crc32(view[:cut], self._crc)
        self.length += len(data)
        if len(self.head) < HEAD_BYTES:
            self.head += data[: HEAD_BYTES - len(self.head)]
        if self.length <= self._limit:
            self._crc_but_last = crc32(view[:-1], self._crc)
            self._crc = crc32(view[-1:], self._crc_but_last)

    def _has(self, crc: int) -> bool:
        return self.head[:CRC_BYTES] == b"%08x:" % crc

    def is_valid(self) -> bool:
        """Whether the whole line is a record."""
        return self.length <= self._limit and self._has(self._crc)

    def record_before_nul(self) -> int:
        """The length of the record that stands before the first NUL byte; 0 if there is none."""
        length = self._before_nul
        if not CRC_BYTES <= length <= self._limit or not self._has(self._crc_before_nul):
            return 0
        return length

    def begins_with_nul(self) -> bool:
        """Whether its first byte is NUL."""
        return self._before_nul == 0

    def looks_torn(self) -> bool:
        """As :func:`records.looks_torn`."""
        if self.length > self._limit:
            return False
        return looks_torn(self.head) and not self._has(self._crc_but_last)
