"""The least that a durable queue must do for a record: JSON, a checksum and a ``write``.

A measurement's ratio to its floor says what the package costs on any machine; the rate alone says
how fast the machine is.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any
from zlib import crc32


def first_record(path: Path) -> tuple[bytes, Any]:
    """The first record of a file of the store: all before its JSON, checksum left out, and that."""
    with path.open("rb") as file:
        line = next(line for line in file if line.strip())
    body = line[line.index(b":") + 1 :]
    start = body.index(b"{")
    return body[:start], json.loads(body[start:])


def line(prefix: bytes, content: Any) -> bytes:
    """A record as the log holds it."""
    body = prefix + json.dumps(content, separators=(",", ":")).encode()
    return b"\n%08x:%b\n" % (crc32(body), body)


def records_per_second(path: Path, record: tuple[bytes, Any], count: int, *, fsync: bool) -> float:
    """Append the record ``count`` times, each by one ``write`` and, if asked, one ``fsync``."""
    prefix, content = record
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        start = time.perf_counter()
        for _ in range(count):
            os.write(fd, line(prefix, content))
            if fsync:
                os.fsync(fd)
        return count / (time.perf_counter() - start)
    finally:
        os.close(fd)
        path.unlink()
