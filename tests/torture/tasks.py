"""Tasks that succeed, fail and are tried again, or die; each writes its run into the ledger."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from deferred_django import current_task, deferred
from tests.torture import ledger


class IntendedError(Exception):
    """What a task raises that is to fail."""


def soon(exception: BaseException, attempt: int) -> float:
    """The wait before the next attempt, in seconds."""
    return random.uniform(0.0, 0.3)


@contextmanager
def run() -> Iterator[Callable[[bool], None]]:
    """The first and the last line of a run; the function that is given ends it by a failure."""
    task = current_task()
    words = task.id, task.attempt, os.getpid()
    ledger.write(ledger.RUNS, "start", *words)
    failing: list[bool] = []
    yield failing.append
    if not any(failing):
        ledger.write(ledger.RUNS, "end", *words, "ok")
        return
    ledger.write(ledger.RUNS, "end", *words, "fail" if task.will_retry else "die")
    raise IntendedError(f"{task.name} fails on purpose, attempt {task.attempt}")


def reprieve(task_id: str) -> Path:
    """The file that lets a mortal task live when it is run again."""
    return ledger.directory() / "reprieves" / task_id


@deferred(max_retries=0)
def fine(seconds: float, blob: bytes) -> None:
    """Succeed."""
    with run():
        time.sleep(seconds)


@deferred(max_retries=0)
async def fine_async(seconds: float, blob: bytes) -> None:
    """Succeed on the event loop."""
    with run():
        await asyncio.sleep(seconds)


@deferred(max_retries=3, retry_interval=soon)
def flaky(seconds: float, blob: bytes, failures: int) -> None:
    """Fail so many times, then succeed."""
    with run() as fail:
        time.sleep(seconds)
        fail(current_task().attempt <= failures)


@deferred(max_retries=1, retry_interval=soon)
def doomed(seconds: float, blob: bytes) -> None:
    """Die, and die again whenever it is run again."""
    with run() as fail:
        time.sleep(seconds)
        fail(True)


@deferred(max_retries=0)
def mortal(seconds: float, blob: bytes) -> None:
    """Die, but live when it is run again."""
    with run() as fail:
        time.sleep(seconds)
        fail(not reprieve(current_task().id).exists())
