"""When a worker process has done its part: after so many tasks, or with so much memory in use.

Tasks leak: the next process begins anew. Nothing is cut off for it; what runs is finished first.
"""

from __future__ import annotations

import enum
import os
import re
import resource
import sys
import time
from typing import Final

from deferred_django.pool import Pool

LOOK_SECONDS = 0.005
"""How often memory is looked at while tasks end: some microseconds each time."""
_UNITS: Final = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_STATM = "/proc/self/statm"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Ended(enum.Enum):
    """Why a worker ended."""

    STOPPED = "stopped"
    DRAINED = "drained"
    MAX_TASKS = "max tasks"
    MAX_MEMORY = "max memory"
    STUCK = "stuck task"


RECYCLED = frozenset({Ended.MAX_TASKS, Ended.MAX_MEMORY, Ended.STUCK})
"""Another worker goes on where this one has ended."""


class Limits:
    """What one worker may do before another takes its place."""

    def __init__(
        self, pool: Pool, *, max_tasks: int | None = None, max_memory: int | None = None
    ) -> None:
        """``max_memory`` is in bytes of resident memory."""
        self._pool = pool
        self._max_tasks = max_tasks
        self._max_memory = max_memory
        self._look_at = 0.0
        self._looked_after = 0
        self.any = max_tasks is not None or max_memory is not None
        self.reached: Ended | None = None
        """Set when there is too much memory in use: nothing more is to be begun."""
        self.memory = 0
        """The bytes in use when ``max_memory`` was found to be reached."""

    def task_ended(self) -> bool:
        """Look at the memory, if it is time to; whether a limit was reached by that.

        For the thread that ran the task: those that were claimed in advance may each leak.
        """
        if self._max_memory is None or self.reached is not None:
            return False
        now = time.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + LOOK_SECONDS
        memory = resident_bytes()
        if memory < self._max_memory:
            return False
        self.memory, self.reached = memory, Ended.MAX_MEMORY
        return True

    def room(self, wanted: int) -> int:
        """How many of ``wanted`` claims may still be taken. For the thread that feeds the pool.

        At least one task is run by each worker, however much memory it begins with.
        """
        if self._max_memory is not None and time.monotonic() >= self._look_at:
            finished = self._pool.finished
            if finished != self._looked_after:  # the last to end came too early for a look
                self._looked_after = finished
                self.task_ended()
        if self.reached is not None:
            return 0
        if self._max_tasks is not None:
            wanted = min(wanted, self._max_tasks - self._pool.started - self._pool.waiting)
        return wanted


def resident_bytes() -> int:
    """The memory that this process has in use; where that is not told, the most it ever had."""
    try:
        fd = os.open(_STATM, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    try:
        return int(os.read(fd, 200).split()[1]) * _PAGE_BYTES
    finally:
        os.close(fd)


def parse_size(text: str) -> int:
    """Bytes from ``512M``, ``2G`` or a plain number of bytes; ``ValueError`` for anything else."""
    match = re.fullmatch(
        r"([0-9]{1,15})(?:([KMGT])(?:i?B)?|B)?", text.strip(), re.ASCII | re.IGNORECASE
    )
    if match is None or int(match[1]) == 0:
        raise ValueError("it must be a size such as 512M or 2G")
    return int(match[1]) * _UNITS[(match[2] or "").upper()]


def format_size(number: int) -> str:
    """Bytes for a person: ``512 MiB``."""
    return f"{number / (1 << 20):.0f} MiB"
