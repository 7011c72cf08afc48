"""Timeouts that come in the middle of what must not be interrupted."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from deferred_django import TaskTimeout, cancel, deadlines, enqueue_many, guard
from deferred_django.backends.base import Backend
from deferred_django.backends.disk.dead_tasks_storage import DeadTasksStorage
from deferred_django.backends.disk.tasks_storage import TasksStorage
from deferred_django.shield import shield
from deferred_django.thread_guard import ThreadGuard
from tests.support import wait_until
from tests.worker import limited_tasks as tasks

SECONDS = 0.02


def guarded(
    func: Callable[[], object], on_stuck: Callable[[], object] = lambda: None
) -> tuple[ThreadGuard, object, BaseException | None]:
    deadlines.process_timer().start()
    limited = ThreadGuard(time.monotonic() + SECONDS, "too long", on_stuck)
    result, error = limited.run(func, (), {})
    return limited, result, error


def spin() -> None:
    """Long enough for an exception to come."""
    end = time.monotonic() + 3 * SECONDS
    while time.monotonic() < end:
        time.sleep(0.0005)


def test_it_comes_when_the_shielded_block_ends() -> None:
    noted: list[str] = []

    def func() -> None:
        with shield():
            with shield():
                spin()
            noted.append("inner")
            spin()
            noted.append("outer")
        noted.append("never reached")

    _, _, error = guarded(func)
    assert type(error) is TaskTimeout
    assert noted == ["inner", "outer"]


def test_what_cleans_up_after_it_is_not_interrupted_again() -> None:
    noted: list[str] = []

    def func() -> None:
        try:
            with shield():
                spin()
        finally:
            with shield():
                spin()
            noted.append("cleaned up")

    _, _, error = guarded(func)
    assert type(error) is TaskTimeout
    assert noted == ["cleaned up"]


def test_in_time_nothing_comes() -> None:
    def func() -> str:
        with shield():
            return "done"

    assert guarded(func)[1:] == ("done", None)


def test_a_shielded_call_that_does_not_return_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "GRACE_SECONDS", 0.05)
    stuck = threading.Event()

    def func() -> bool:
        with shield():
            return stuck.wait(20)

    limited, _, _ = guarded(func, stuck.set)
    assert stuck.is_set()
    assert limited.interrupted


def bury(backend: Backend, task_id: str) -> None:
    backend.add_dead_task(task_id, b"x", ValueError(), task_class="a.b", attempts=1)


def purge(backend: Backend, task_id: str) -> None:
    backend.remove_dead_tasks([task_id])


@pytest.mark.parametrize(
    ("storage", "method", "call"),
    [
        (TasksStorage, "add", lambda backend, task_id: tasks.in_time.enqueue()),
        (TasksStorage, "add_together", lambda backend, task_id: enqueue_many([call_of()])),
        (TasksStorage, "remove", lambda backend, task_id: cancel(task_id)),
        (TasksStorage, "sync", lambda backend, task_id: backend.sync()),
        (DeadTasksStorage, "remove", purge),
        (DeadTasksStorage, "add", bury),
        (DeadTasksStorage, "count", lambda backend, task_id: backend.count_dead_tasks()),
    ],
)
def test_calls_on_the_store_are_done_whole(
    storage: type,
    method: str,
    call: Callable[[Backend, str], object],
    deferred_store: Backend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task_id = tasks.in_time.enqueue()
    original = getattr(storage, method)
    done: list[str] = []

    def slow(self: Any, *args: Any, **kwargs: Any) -> Any:
        spin()
        result = original(self, *args, **kwargs)
        done.append(method)
        return result

    monkeypatch.setattr(storage, method, slow)
    _, _, error = guarded(lambda: call(deferred_store, task_id))
    assert type(error) is TaskTimeout
    assert done == [method]


def call_of() -> Any:
    return tasks.in_time.call()


def test_a_read_of_dead_tasks_is_interrupted_between_two(deferred_store: Backend) -> None:
    for number in range(3):
        bury(deferred_store, str(number))
    seen: list[str] = []

    def read() -> None:
        for record in deferred_store.iterate_dead_tasks():
            seen.append(record["id"])
            spin()

    _, _, error = guarded(read)
    assert type(error) is TaskTimeout
    assert len(seen) == 1
    assert [each["id"] for each in deferred_store.iterate_dead_tasks()] == ["2", "1", "0"]


def test_tasks_that_enqueue_at_their_deadline_leave_the_store_usable(
    deferred_store: Backend,
) -> None:
    acknowledged: list[str] = []

    def enqueue_on() -> None:
        while True:
            acknowledged.append(tasks.in_time.enqueue())

    def work() -> None:
        for _ in range(15):
            _, _, error = guarded(enqueue_on)
            assert type(error) is TaskTimeout
        ended.append(None)

    ended: list[None] = []
    for _ in range(3):
        threading.Thread(target=work, daemon=True).start()
    wait_until(lambda: len(ended) == 3)
    tasks.in_time.enqueue()
    pending = [task.id for task in deferred_store.pending_tasks()]
    assert len(pending) == len(set(pending))
    assert set(acknowledged) <= set(pending)


def test_a_handler_of_the_log_is_not_left_locked() -> None:
    handler = logging.StreamHandler()

    def func() -> None:
        handler.acquire()
        logging._lock.acquire()  # type: ignore[attr-defined]
        spin()

    _, _, error = guarded(func)
    assert type(error) is TaskTimeout
    free: list[bool] = []

    def look() -> None:
        assert handler.lock is not None
        for lock in (handler.lock, logging._lock):  # type: ignore[attr-defined]
            free.append(lock.acquire(timeout=5))
            lock.release()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert free == [True, True]
