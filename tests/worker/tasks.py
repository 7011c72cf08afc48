"""Tasks that the tests of the worker run inside this process."""

from __future__ import annotations

import asyncio
import contextvars
import decimal
import threading
from collections.abc import Callable
from typing import Any

from django.utils import timezone, translation

from deferred_django import current_task, deferred

ran: list[Any] = []
"""What tasks noted; emptied before each test."""
gates: dict[str, threading.Event] = {}
"""Events that tasks wait for and that tests set."""

leaked: contextvars.ContextVar[str] = contextvars.ContextVar("leaked", default="clean")


def gate(name: str) -> threading.Event:
    return gates.setdefault(name, threading.Event())


@deferred
def note(what: Any) -> None:
    ran.append(what)


@deferred
def wait_for(name: str) -> None:
    ran.append(("begun", name))
    assert gate(name).wait(20)
    ran.append(("ended", name))


@deferred
async def async_wait_for(name: str) -> None:
    ran.append(("begun", name))
    while not gate(name).is_set():
        await asyncio.sleep(0.005)
    ran.append(("ended", name))


RAISED: dict[str, Callable[[], BaseException]] = {
    "exit": lambda: SystemExit(0),
    "exit3": lambda: SystemExit(3),
    "interrupt": KeyboardInterrupt,
    "generator": GeneratorExit,
    "cancelled": asyncio.CancelledError,
    "value": lambda: ValueError("no"),
}


@deferred(max_retries=1, retry_interval=lambda error, attempt: 0)
def fail_with(kind: str) -> None:
    ran.append(("attempt", kind, current_task().attempt))
    error = RAISED[kind]()
    raise error


@deferred(max_retries=1, retry_interval=lambda error, attempt: 0)
async def async_fail_with(kind: str) -> None:
    ran.append(("attempt", kind, current_task().attempt))
    error = RAISED[kind]()
    raise error


@deferred(max_retries=2, retry_interval=lambda error, attempt: 0)
def fail_each_time() -> None:
    raise ValueError("the cause\nand more")


class BadStrError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no str")


class BadReprError(Exception):
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class IntStrError(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


def _circular() -> Exception:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


STRANGE: dict[str, Callable[[], Exception]] = {
    "BadStrError": BadStrError,
    "BadReprError": BadReprError,
    "IntStrError": IntStrError,
    "ValueError": _circular,
}


@deferred(max_retries=0)
def fail_strangely(kind: str) -> None:
    error = STRANGE[kind]()
    raise error


def _strange_interval(error: BaseException, attempt: int) -> float:
    raise BadStrError


@deferred(max_retries=1, retry_interval=_strange_interval)
def fail_with_strange_interval() -> None:
    raise ValueError


def _asking_interval(error: BaseException, attempt: int) -> float:
    ran.append(current_task().will_retry)
    return 7


@deferred(max_retries=1, retry_interval=_asking_interval)
def fail_with_asking_interval() -> None:
    raise ValueError


@deferred
def leak() -> None:
    look()
    translation.activate("de")
    timezone.activate("Asia/Tokyo")
    decimal.getcontext().prec = 3
    leaked.set("dirty")


@deferred
async def async_leak() -> None:
    look()
    translation.activate("de")
    timezone.activate("Asia/Tokyo")
    decimal.getcontext().prec = 3
    leaked.set("dirty")


def look() -> None:
    ran.append(
        (
            translation.get_language(),
            timezone.get_current_timezone_name(),
            decimal.getcontext().prec,
            leaked.get(),
        )
    )


@deferred
def who() -> None:
    current = current_task()
    ran.append((current.id, current.name, current.attempt, current.retries, current.is_retry))
