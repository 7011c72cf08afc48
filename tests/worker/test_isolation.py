"""What one task leaves behind does not reach the next, whichever of the two is async.

The same for database connections is in ``test_connections``.
"""

from __future__ import annotations

import asyncio
import contextvars
import decimal
import itertools
import threading

import pytest
from asgiref.sync import sync_to_async
from django.urls import get_script_prefix, get_urlconf, set_script_prefix, set_urlconf
from django.utils import timezone, translation

from deferred_django import current_task, deferred
from deferred_django.queue import Queue
from tests.support import wait_until
from tests.worker import tasks
from tests.worker.fakes import MemoryBackend, Running, add

mine: contextvars.ContextVar[str] = contextvars.ContextVar("mine", default="clean")
CLEAN = ("en-us", "UTC", 28, False, "clean", "/", None)


def state() -> tuple[object, ...]:
    context = decimal.getcontext()
    return (
        translation.get_language(),
        timezone.get_current_timezone_name(),
        context.prec,
        context.flags[decimal.Inexact],
        mine.get(),
        get_script_prefix(),
        get_urlconf(),
    )


def spoil() -> None:
    translation.activate("de")
    timezone.activate("Asia/Tokyo")
    decimal.getcontext().prec = 3
    decimal.getcontext().flags[decimal.Inexact] = True
    mine.set("dirty")
    set_script_prefix("/left/")
    set_urlconf("tests.none")


def look() -> None:
    tasks.ran.append((current_task().name.rpartition(".")[2], state()))


@deferred(max_retries=0)
def leave(fails: bool) -> None:
    look()
    spoil()
    if fails:
        raise ValueError


@deferred(max_retries=0)
async def leave_async(fails: bool) -> None:
    look()
    await sync_to_async(spoil)()  # asgiref carries it back into the task's context
    spoil()
    if fails:
        raise ValueError


@deferred
async def leave_running(gate: str) -> None:
    """Its child goes on beside the tasks that follow, and spoils its own context only."""
    look()

    async def child() -> None:
        while not tasks.gate(gate).is_set():
            spoil()
            await asyncio.sleep(0.001)
        tasks.ran.append(("child", state()[4]))

    children.add(asyncio.get_running_loop().create_task(child()))


children: set[asyncio.Task[None]] = set()


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(
    "pair",
    list(itertools.product([leave, leave_async], repeat=2)),
    ids=lambda pair: "-".join(task.name.rpartition(".")[2] for task in pair),
)
def test_the_next_task_finds_nothing(
    queue: Queue, backend: MemoryBackend, pair: tuple[object, object], fails: bool
) -> None:
    for task in pair * 3:
        add(backend, task, fails)  # type: ignore[arg-type]
    with Running(queue, threads=1):
        wait_until(lambda: len(tasks.ran) == 6 and not backend.tasks)
    assert [found for _, found in tasks.ran] == [CLEAN] * 6
    assert len(backend.dead) == (6 if fails else 0)


def test_what_an_async_task_leaves_running_has_its_own_context(
    queue: Queue, backend: MemoryBackend
) -> None:
    with Running(queue, threads=1):
        add(backend, leave_running, "door")
        for task in (leave_async, leave, leave_async):
            add(backend, task, False)
        wait_until(lambda: len(tasks.ran) == 4)
        tasks.gate("door").set()
        wait_until(lambda: ("child", "dirty") in tasks.ran)
    assert [found for name, found in tasks.ran if name != "child"] == [CLEAN] * 4


def test_tasks_at_the_same_time_do_not_see_each_other(queue: Queue, backend: MemoryBackend) -> None:
    """Two async ones on one event loop, and two in threads."""
    meetings["now"] = threading.Barrier(2, timeout=10)
    arrived.clear()
    for name in ("a", "b"):
        add(backend, meet, name)
        add(backend, meet_async, name)
    with Running(queue, threads=4):
        wait_until(lambda: len(tasks.ran) == 4)
    assert sorted(tasks.ran) == [("a", "a"), ("a", "a"), ("b", "b"), ("b", "b")]


meetings: dict[str, threading.Barrier] = {}
arrived: list[str] = []


@deferred
def meet(name: str) -> None:
    mine.set(name)
    meetings["now"].wait()
    tasks.ran.append((name, mine.get()))


@deferred
async def meet_async(name: str) -> None:
    mine.set(name)
    arrived.append(name)
    while len(arrived) < 2:
        await asyncio.sleep(0.001)
    tasks.ran.append((name, mine.get()))
