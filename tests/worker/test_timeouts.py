"""Timeouts: what a function meets at its limit, and what becomes of the attempt."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest

from deferred_django import TaskTimeout, deadlines, event_loop, guard
from deferred_django.backends.base import Backend, BackendConfig
from deferred_django.backends.none import NoneBackend
from deferred_django.context import TaskContext
from deferred_django.deadlines import Deadline, DeadlineTimer
from deferred_django.event_loop import EventLoop
from deferred_django.execution import Outcome, execute
from deferred_django.local import LocalRunner
from deferred_django.queue import Queue
from deferred_django.task import DeferredTask, deferred
from deferred_django.testing import run_enqueued
from deferred_django.thread_guard import ThreadGuard
from deferred_django.time_limit import TimeLimit
from tests.support import wait_until
from tests.torture import timeouts
from tests.worker import limited_tasks as tasks
from tests.worker.fakes import MemoryBackend, Running, add


@pytest.fixture(autouse=True)
def nothing_noted() -> Iterator[None]:
    tasks.noted.clear()
    tasks.gate.clear()
    yield
    tasks.gate.set()


def run(queue: Queue, backend: MemoryBackend, task: DeferredTask[..., Any]) -> Outcome:
    add(backend, task)
    (claim,) = queue.claim(1)
    return execute(queue, claim, loop=event_loop.process_loop())


def backtrace(backend: MemoryBackend) -> str:
    (dead,) = backend.dead.values()
    assert dead["exception_class"] == "deferred_django.exceptions.TaskTimeout"
    assert dead["exception_message"] == "the task ran longer than its timeout of 0.05 s"
    return "\n".join(dead["backtrace"])


# -- declaring -----------------------------------------------------------------------------------


def named() -> None: ...


@pytest.mark.parametrize(
    ("given", "seconds"), [(30, 30.0), (0.5, 0.5), (timedelta(minutes=5), 300.0), (None, None)]
)
def test_the_option(given: Any, seconds: float | None) -> None:
    assert deferred(timeout=given)(named).timeout == seconds
    assert deferred(named).timeout is None


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (0, ValueError),
        (-1, ValueError),
        (timedelta(0), ValueError),
        (float("nan"), ValueError),
        (float("inf"), ValueError),
        pytest.param(10**5000, ValueError, id="huge"),
        (True, TypeError),
        ("30", TypeError),
        (Decimal(30), TypeError),
    ],
)
def test_a_wrong_timeout_is_named(given: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="timeout must be"):
        deferred(timeout=given)(named)


# -- the function ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "task", [tasks.runs_on, tasks.awaits_on, tasks.hidden_coroutine], ids=lambda task: task.name
)
def test_the_traceback_shows_where_the_code_was(
    queue: Queue, backend: MemoryBackend, task: DeferredTask[..., Any]
) -> None:
    assert run(queue, backend, task) is Outcome.DIED
    text = backtrace(backend)
    first, second = text.split("\n")[:2]
    assert first == "Traceback (most recent call last):"
    assert "tests/worker/limited_tasks.py" in second
    assert "_guard.py" not in text
    assert "in spin" in text or "await asyncio.sleep(20)" in text


@pytest.mark.parametrize("task", [tasks.swallows, tasks.async_swallows], ids=lambda task: task.name)
def test_to_catch_it_does_not_undo_it(
    queue: Queue, backend: MemoryBackend, task: DeferredTask[..., Any]
) -> None:
    assert run(queue, backend, task) is Outcome.DIED
    assert tasks.noted == ["caught"]
    text = backtrace(backend)
    assert "limited_tasks.py" in text
    assert "_guard.py" not in text


@pytest.mark.parametrize("task", [tasks.converts, tasks.async_converts], ids=lambda task: task.name)
def test_what_the_function_makes_of_it_is_the_cause(
    queue: Queue, backend: MemoryBackend, task: DeferredTask[..., Any]
) -> None:
    assert run(queue, backend, task) is Outcome.DIED
    text = backtrace(backend)
    assert "ValueError: converted" in text
    assert "direct cause" in text
    assert "_guard.py" not in text


@pytest.mark.parametrize("task", [tasks.in_time, tasks.async_in_time], ids=lambda task: task.name)
def test_a_task_that_ends_in_time(
    queue: Queue, backend: MemoryBackend, task: DeferredTask[..., Any]
) -> None:
    assert run(queue, backend, task) is Outcome.SUCCEEDED
    assert tasks.noted == ["in time"]
    far = time.monotonic() + 50
    assert [
        at for deadline in deadlines.process_timer()._watched if (at := deadline.at) > far
    ] == []


def test_a_cancellation_of_its_own_is_no_timeout(queue: Queue, backend: MemoryBackend) -> None:
    assert run(queue, backend, tasks.cancels_itself) is Outcome.DIED
    (dead,) = backend.dead.values()
    assert dead["exception_class"] == "asyncio.exceptions.CancelledError"


def test_a_timeout_of_its_own_works(queue: Queue, backend: MemoryBackend) -> None:
    assert run(queue, backend, tasks.has_a_timeout_of_its_own) is Outcome.SUCCEEDED
    assert tasks.noted == ["its own"]


def test_the_retry_policy_decides(queue: Queue, backend: MemoryBackend) -> None:
    assert run(queue, backend, tasks.tried_again) is Outcome.RETRIED
    assert tasks.noted == [("asked", TaskTimeout, 1)]
    (claim,) = queue.claim(1)
    assert TaskContext.from_bytes(claim.context).attempts == 1
    assert execute(queue, claim) is Outcome.DIED


def test_a_failed_coroutines_context_may_still_be_in_use(
    queue: Queue, backend: MemoryBackend
) -> None:
    """The loop's thread says that the task has ended before it has left its context."""
    release = threading.Event()
    entered = threading.Event()

    class Slow(EventLoop):
        def run(self, make: Any, context: Any = None) -> BaseException:
            def stay() -> None:
                entered.set()
                release.wait(10)

            threading.Thread(target=context.run, args=(stay,)).start()
            entered.wait(10)
            return ValueError("failed")

    add(backend, tasks.awaits_on)
    (claim,) = queue.claim(1)
    try:
        assert execute(queue, claim, loop=Slow()) is Outcome.DIED
    finally:
        release.set()


# -- nowhere else --------------------------------------------------------------------------------


def test_a_sample_of_the_races() -> None:
    """``make timeouts`` runs a hundred times as many."""
    with timeouts.watching() as books:
        timeouts.run(books, aimed=800, asynchronous=80)
    assert books.violations == []
    assert books.counts["timed out"] > 50
    assert books.counts["ended in time"] > 50


def test_the_races_notice_an_exception_that_comes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the timer looked whether the function has ended, and nobody waited for it."""

    def leave(left: ThreadGuard) -> None:
        left.over = True
        left._timer.remove(left)

    monkeypatch.setattr(ThreadGuard, "_leave", leave)
    with timeouts.watching() as books:
        for _ in range(20):
            timeouts.run(books, aimed=200, asynchronous=0)
            if books.violations:
                break
    assert books.violations


# -- stuck, where no process can be replaced -------------------------------------------------------


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "GRACE_SECONDS", 0.1)


@pytest.mark.usefixtures("short_grace")
@pytest.mark.parametrize("task", [tasks.stuck, tasks.async_stuck], ids=lambda task: task.name)
def test_a_stuck_thread_is_left_behind(
    queue: Queue,
    backend: MemoryBackend,
    task: DeferredTask[..., Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Another one takes its place, and what the old one does later changes nothing."""
    task_id = add(backend, task)
    with Running(queue, threads=1) as running:
        wait_until(lambda: task_id in backend.dead)
        assert "limited_tasks.py" in backtrace(backend)
        add(backend, tasks.in_time)
        wait_until(lambda: "in time" in tasks.noted)
        assert running.worker._pool.left_behind == 1
        tasks.gate.set()
        wait_until(lambda: running.worker._pool.left_behind == 0)
    assert "never reached" not in tasks.noted
    assert backend.calls.of("complete_task").count(task_id) == 1
    assert "its thread is left behind" in caplog.text


@pytest.mark.usefixtures("short_grace")
def test_a_stuck_thread_of_the_local_runner_is_left_behind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    runner = LocalRunner()
    queue = Queue(NoneBackend(BackendConfig(path=".")), local_runner=runner)  # type: ignore[arg-type]
    for task in [tasks.stuck] * 4 + [tasks.in_time]:
        queue.enqueue(TaskContext.build(task.name, (), {}), task_id="1-1-a-1")
    wait_until(lambda: "in time" in tasks.noted)
    wait_until(lambda: caplog.text.count("TaskTimeout; it is dropped") == 4)
    runner.close()


def test_run_enqueued_has_timeouts(deferred_store: Backend) -> None:
    for task in (tasks.runs_on, tasks.awaits_on):
        task.enqueue()
    runs = run_enqueued()
    assert [type(run.exception) for run in runs] == [TaskTimeout, TaskTimeout]


def test_a_stuck_limit_says_so_once() -> None:
    limit = TimeLimit(1.0)
    assert not limit.passed
    assert limit.elapsed() == 0.0


# -- the timer -----------------------------------------------------------------------------------


class Noted(Deadline):
    __slots__ = ("again", "calls", "fails")

    def __init__(self, at: float, *, again: float | None = None, fails: bool = False) -> None:
        self.at = at
        self.again = again
        self.fails = fails
        self.calls = 0

    def passed(self) -> float | None:
        self.calls += 1
        if self.fails:
            raise RuntimeError("no")
        again, self.again = self.again, None
        return again


def test_one_thread_calls_every_deadline(caplog: pytest.LogCaptureFixture) -> None:
    timer = DeadlineTimer()
    timer.start()
    timer.start()
    now = time.monotonic()
    far, soon = Noted(now + 60), Noted(now + 0.1)
    twice, bad = Noted(now + 0.02, again=now + 0.05), Noted(now, fails=True)
    for deadline in (far, soon, twice, bad):
        timer.add(deadline)
    gone = Noted(now + 0.05)
    timer.add(gone)
    timer.remove(gone)
    wait_until(lambda: soon.calls)
    wait_until(lambda: twice.calls == 2)
    assert (far.calls, bad.calls, gone.calls) == (0, 1, 0)
    assert list(timer._watched) == [far]
    assert "could not be enforced" in caplog.text
    # What is added and removed again does not wake the thread each time.
    wait_until(lambda: timer._wakes_at == far.at)
    timer.remove(far)
    timer.add(later := Noted(far.at + 1))
    assert not timer._bell.wait(0)
    timer.remove(later)
    names = [thread.name for thread in threading.enumerate()]
    assert names.count("deferred-deadlines") <= 2  # this one, and that of the process
