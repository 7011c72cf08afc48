"""A way to write records without their checksums, for a fuzzer that could never guess one.

The first byte chooses how the rest is read. A line that begins with ``!`` gets a right checksum in
the place of that; every other line stays as it is.
"""

from __future__ import annotations

from zlib import crc32

SMALL, CUT, CHANGE = 1, 2, 4
"""Bits of the first byte: small blocks; read in steps; (dead tasks) add and remove, too."""


def sealed(text: bytes) -> bytes:
    """The content of a file."""
    lines = text.split(b"\n")
    return b"\n".join(
        b"%08x:%b" % (crc32(line[1:]), line[1:]) if line.startswith(b"!") else line
        for line in lines
    )


def unpack(data: bytes) -> tuple[int, list[int], bytes]:
    """The bits, the places to stop reading at, and the content."""
    if not data:
        return 0, [], b""
    bits, rest = data[0], data[1:]
    if not bits & CUT or len(rest) < 4:
        return bits, [], sealed(rest)
    first = int.from_bytes(rest[:2], "big")
    second = int.from_bytes(rest[2:4], "big")
    content = sealed(rest[4:])
    length = len(content) + 1
    return bits, [first % length, second % length], content
