"""What happened, written down by those to whom it happened: a line each, by one write.

A line is ``{monotonic seconds} {what} {words}``. A process that is killed has written a line or has
not; lines of many processes never mix. The clock is the host's, so lines of different processes
can be compared.

=========  =====================================================================================
acks.txt   producers: ``ack id``, and ``removing id`` before, ``removed id`` or ``refused id`` after
runs.txt   tasks: ``start id attempt pid`` first, ``end id attempt pid outcome`` last
hands.txt  purges and retries: ``purging ids`` and ``retrying ids`` before, ``purged ids`` and
           ``retried ids`` after
=========  =====================================================================================
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

ACKS, RUNS, HANDS = "acks.txt", "runs.txt", "hands.txt"
DIRECTORY = "TORTURE_DIRECTORY"
"""The environment variable with the directory of the ledgers."""

_descriptors: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a ledger."""

    at: float
    """Seconds of the host's monotonic clock."""
    what: str
    words: tuple[str, ...]


def directory() -> Path:
    """Where the ledgers are."""
    return Path(os.environ[DIRECTORY])


def write(name: str, what: str, *words: object) -> None:
    """Append a line."""
    fd = _descriptors.get(name)
    if fd is None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        fd = _descriptors[name] = os.open(directory() / name, flags, 0o600)
    line = " ".join([f"{time.monotonic():.6f}", what, *map(str, words)])
    os.write(fd, line.encode() + b"\n")


def read(name: str) -> list[Line]:
    """All lines, in the order in which they were written."""
    try:
        text = (directory() / name).read_text()
    except FileNotFoundError:
        return []
    lines = []
    for line in text.splitlines():
        at, what, *words = line.split()
        lines.append(Line(float(at), what, tuple(words)))
    return lines
