"""Tasks with timeouts that the tests run inside this process."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable
from typing import Any

from deferred_django import TaskTimeout, current_task, deferred

SECONDS = 0.05

noted: list[Any] = []
gate = threading.Event()
"""What stuck tasks wait for, in vain as far as they are concerned."""


def spin(seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.0005)


def at_once(error: BaseException, attempt: int) -> float:
    noted.append(("asked", type(error), current_task().attempt))
    return 0


limited = deferred(timeout=SECONDS, max_retries=0)


@limited
def runs_on() -> None:
    spin()


@limited
async def awaits_on() -> None:
    await asyncio.sleep(20)


@limited
def swallows() -> None:
    try:
        spin()
    except TaskTimeout:
        noted.append("caught")


@limited
async def async_swallows() -> None:
    try:
        await asyncio.sleep(20)
    except asyncio.CancelledError:
        noted.append("caught")


@limited
def converts() -> None:
    try:
        spin()
    except TaskTimeout as error:
        raise ValueError("converted") from error


@limited
async def async_converts() -> None:
    try:
        await asyncio.sleep(20)
    except asyncio.CancelledError as error:
        raise ValueError("converted") from error


def plain_wrapper(func: Callable[[], Any]) -> Callable[[], Any]:
    @functools.wraps(func)
    def wrapper() -> Any:
        return func()

    # What hides that the function behind it is an ``async def`` one.
    return wrapper


@limited
@plain_wrapper
async def hidden_coroutine() -> None:
    await asyncio.sleep(20)


@limited
async def cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(20)


@limited
async def has_a_timeout_of_its_own() -> None:
    try:
        async with asyncio.timeout(SECONDS / 5):
            await asyncio.sleep(20)
    except TimeoutError:
        noted.append("its own")


@deferred(timeout=SECONDS, max_retries=1, retry_interval=at_once)
def tried_again() -> None:
    spin()


@deferred(timeout=60)
def in_time() -> None:
    noted.append("in time")


@deferred(timeout=60)
async def async_in_time() -> None:
    await asyncio.sleep(0)
    noted.append("in time")


@limited
def stuck() -> None:
    noted.append("stuck")
    gate.wait(20)
    noted.append("never reached")


@limited
async def async_stuck() -> None:
    noted.append("stuck")
    while not gate.is_set():
        try:
            await asyncio.sleep(0.005)
        except asyncio.CancelledError:
            noted.append("refused")
