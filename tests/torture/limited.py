"""Tasks that end as nearly as they can at the moment of their timeout. Run in this process."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from django.db import connection

from deferred_django import deferred

SECONDS = 0.0005
"""The timeout of every task here."""


class Aim(threading.local):
    """How long a task of this thread runs: longer after one that ended in time, else shorter."""

    seconds = SECONDS
    started = 0.0
    """When (monotonic) the thread's last task began."""
    step = 0.00002
    in_finalizer = False
    """Whether the exception was raised in one that the interpreter ran inside of the function."""

    def missed(self, *, too_long: bool) -> None:
        """Come nearer to the moment at which half of the tasks are interrupted."""
        self.seconds += -self.step if too_long else self.step
        self.seconds = min(max(self.seconds, 0.0), 0.05)


aim = Aim()
use_database = False
"""Whether tasks leave the thread's connection something to clean up."""


def begin() -> float:
    """The moment at which the task is to end."""
    aim.started = time.monotonic()
    if use_database:
        connection.force_debug_cursor = True
        connection.ensure_connection()
    return aim.started + aim.seconds


def no_wait(error: BaseException, attempt: int) -> float | None:
    """A policy that runs Python for a while, so that something could reach it."""
    return 0 if sum(range(50)) else None


def spin(until: float) -> None:
    while time.monotonic() < until:
        pass


@deferred(timeout=SECONDS, retry_interval=no_wait)
def returns() -> None:
    spin(begin())


@deferred(timeout=SECONDS, retry_interval=no_wait)
def sleeps() -> None:
    """Its last line is one of C code."""
    until = begin()
    time.sleep(max(until - time.monotonic(), 0.0))


@deferred(timeout=SECONDS, retry_interval=no_wait)
def raises() -> None:
    spin(begin())
    raise ValueError


@deferred(timeout=SECONDS, retry_interval=no_wait)
def cleans_up() -> None:
    try:
        spin(begin())
    finally:
        sum(range(50))


@deferred(timeout=SECONDS, retry_interval=no_wait)
def in_c_code() -> None:
    """Between its code and the worker's is some that is none of Python's."""
    list(map(spin, [begin()]))


@deferred(retry_interval=no_wait)
def unlimited() -> None:
    """The next task on the same thread."""
    begin()
    sum(range(50))


@deferred(timeout=60)
def with_time() -> None:
    """Another one, with a limit that is far away."""
    begin()
    sum(range(50))


@deferred(timeout=SECONDS, retry_interval=no_wait)
async def awaits() -> None:
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        await asyncio.sleep(0)


@deferred(timeout=SECONDS, retry_interval=no_wait)
async def async_sleeps() -> None:
    await asyncio.sleep(SECONDS)


AIMED: list[Any] = [returns, sleeps, raises, cleans_up, in_c_code]
BESIDE: list[Any] = [unlimited, with_time]
ASYNC: list[Any] = [awaits, async_sleeps]
