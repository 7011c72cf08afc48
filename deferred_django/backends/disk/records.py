"""The framing of records, for the write-ahead log and the dead-tasks store alike.

A record is a line: ``{crc}:{body}``, with the CRC-32 of the body as 8 lower-case hex digits. The
body's fields are joined by colons; all but the last hold ``[A-Za-z0-9_.-]`` only, and the last, the
payload, has its backslashes, newlines and NUL bytes escaped. Lines are split at ``\\n`` alone.

No record holds a NUL byte, so that one always tells where a file grew and its bytes did not arrive.

How a file of them is read is in :mod:`.scanner`.
"""

from __future__ import annotations

import re
from zlib import crc32

from deferred_django.backends.base import MAX_RECORD_BYTES

CRC_BYTES = 9
"""The checksum and its colon."""

_BEGINNING = re.compile(
    rb"[0-9a-f]{0,7}\Z|[0-9a-f]{8}(?:\Z|:[a-z_]{0,20}(?:\Z|:[A-Za-z0-9_.-]{0,200}(?:\Z|:)))"
)
_ESCAPED = re.compile(rb"\\(.?)", re.DOTALL)
_UNESCAPES = {b"n": b"\n", b"0": b"\0", b"\\": b"\\"}


def escape(payload: bytes) -> bytes:
    """The payload without raw newlines and NUL bytes."""
    if b"\\" in payload:
        payload = payload.replace(b"\\", b"\\\\")
    if b"\n" in payload:
        payload = payload.replace(b"\n", b"\\n")
    if b"\0" in payload:
        payload = payload.replace(b"\0", b"\\0")
    return payload


def unescape(payload: bytes) -> bytes:
    """What :func:`escape` was given; ``ValueError`` for an escape that it does not write."""
    if b"\\" not in payload:
        return payload
    try:
        return _ESCAPED.sub(lambda match: _UNESCAPES[match[1]], payload)
    except KeyError as error:
        raise ValueError(f"unknown escape in a record: {error}") from None


def encode(body: bytes, limit: int = MAX_RECORD_BYTES) -> bytes:
    """The line of a body, without newlines around it; ``ValueError`` if it is over the limit."""
    if len(body) > limit:
        raise ValueError(
            f"a record of {len(body):,} bytes is over the limit of {limit:,}: "
            "pass a reference to the data instead of the data"
        )
    return b"%08x:%b" % (crc32(body), body)


def is_valid(line: bytes) -> bool:
    """Whether the line has the checksum that it says."""
    return line[:CRC_BYTES] == b"%08x:" % crc32(line[CRC_BYTES:])


def before_nul(line: bytes) -> bytes | None:
    """The record that stands before the line's first NUL byte, if one does.

    A power cut leaves zeros where what was appended did not arrive: behind a record that was whole
    but for its newline, and in front of what arrived of the next ones.
    """
    record, nul, _ = line.partition(b"\0")
    return record if nul and is_valid(record) else None


def looks_torn(line: bytes) -> bool:
    """Whether a bad line may be the beginning of a record, rather than foreign bytes.

    A whole record with one byte behind it is not: its newline was overwritten.
    """
    return _BEGINNING.match(line) is not None and not is_valid(line[:-1])
