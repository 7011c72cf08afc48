"""The tasks that are measured. Times are ``time.monotonic_ns``, one clock for all processes."""

from __future__ import annotations

import os
import time

from deferred_django import deferred


@deferred
def nothing(number: int, last: int) -> None:
    """Do nothing, but let the first and the last task leave the time when they started."""
    if number in (0, last):
        _append(os.environ["BENCHMARK_TIMES"], f"{number} {time.monotonic_ns()}\n")


@deferred
def note_start(number: int) -> None:
    """Leave the time of the task's first line."""
    now = time.monotonic_ns()
    _append(os.environ["BENCHMARK_TIMES"], f"{number} {now}\n")


@deferred
def mark(number: int, every: int, padding: str) -> None:
    """Do nothing, but let each ``every``-th task leave the time when it started."""
    if number % every == 0:
        _append(os.environ["BENCHMARK_TIMES"], f"{number} {time.monotonic_ns()}\n")


@deferred
def fail(number: int) -> None:
    """A task that is only ever named by dead-task records."""
    raise ValueError(f"no. {number}")


def _append(path: str, line: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)
