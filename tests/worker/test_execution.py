"""One attempt and its outcome, on a backend in memory."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace

import pytest

from deferred_django import UnknownTask, event_loop
from deferred_django.context import TaskContext
from deferred_django.exceptions import DeadTasksLockTimeout
from deferred_django.execution import Outcome, execute
from deferred_django.hold import Abandoned, Hold
from deferred_django.queue import UNREADABLE_TASK, Queue
from tests.support import wait_until
from tests.worker import tasks
from tests.worker.fakes import MemoryBackend, add

ASYNC = [False, True]


def run_all(queue: Queue) -> list[Outcome]:
    """Execute what is due until nothing is."""
    outcomes = []
    while claims := queue.claim(1):
        outcomes.append(execute(queue, claims[0], loop=event_loop.process_loop()))
    return outcomes


@pytest.mark.parametrize("kind", sorted(tasks.RAISED))
@pytest.mark.parametrize("is_async", ASYNC)
def test_whatever_is_raised_is_a_failed_attempt(
    queue: Queue, backend: MemoryBackend, kind: str, is_async: bool
) -> None:
    """C37: retried once, then a dead task; the task behind it runs."""
    add(backend, tasks.async_fail_with if is_async else tasks.fail_with, kind)
    add(backend, tasks.note, "behind")
    assert sorted(outcome.value for outcome in run_all(queue)) == ["died", "retried", "succeeded"]
    (dead,) = backend.dead.values()
    assert dead["attempts"] == 2
    assert dead["exception_class"].rpartition(".")[2] == type(tasks.RAISED[kind]()).__name__
    assert TaskContext.from_bytes(dead["context"]).attempts == 2
    assert ("attempt", kind, 1) in tasks.ran
    assert ("attempt", kind, 2) in tasks.ran
    assert "behind" in tasks.ran
    assert backend.tasks == {}


def test_the_first_failure_is_logged_with_its_cause(
    queue: Queue, backend: MemoryBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """The last attempt may be days away."""
    add(backend, tasks.fail_each_time)
    run_all(queue)
    first, second, died = caplog.records
    assert "attempt 1 with ValueError: the cause; it runs again in 0.0 s" in first.getMessage()
    assert "attempt 2 with ValueError: the cause; " in second.getMessage()
    assert "attempt 3 with ValueError; it is a dead task" in died.getMessage()
    assert [bool(record.exc_info) for record in caplog.records] == [True, False, True]


@pytest.mark.parametrize("is_async", ASYNC)
def test_an_async_task_can_run_on_a_loop_of_its_own(
    queue: Queue, backend: MemoryBackend, is_async: bool
) -> None:
    add(backend, tasks.async_fail_with if is_async else tasks.fail_with, "value")
    (claim,) = queue.claim(1)
    assert execute(queue, claim) is Outcome.RETRIED


@pytest.mark.parametrize("kind", sorted(tasks.STRANGE))
def test_strange_exceptions_become_dead_tasks(
    queue: Queue, backend: MemoryBackend, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """C33: the attempt is counted and the next task runs."""
    add(backend, tasks.fail_strangely, kind)
    add(backend, tasks.note, "next")
    assert run_all(queue) == [Outcome.DIED, Outcome.SUCCEEDED]
    (dead,) = backend.dead.values()
    assert dead["exception_class"].endswith(kind)
    assert dead["attempts"] == 1
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.exc_info
    logging.Formatter().format(record)


def test_a_strange_error_in_retry_interval_falls_back_to_the_default(
    queue: Queue, backend: MemoryBackend
) -> None:
    """C33, the same inside retry_interval."""
    add(backend, tasks.fail_with_strange_interval)
    before = time.time()
    assert run_all(queue) == [Outcome.RETRIED]
    (task,) = backend.tasks.values()
    assert task.publish_at >= before + 10


def test_a_retry_interval_may_ask_about_the_retry(queue: Queue, backend: MemoryBackend) -> None:
    """It is what answers that question: the usual answer is given, and its own counts."""
    add(backend, tasks.fail_with_asking_interval)
    before = time.time()
    assert run_all(queue) == [Outcome.RETRIED]
    assert tasks.ran == [True]
    (task,) = backend.tasks.values()
    assert task.publish_at == pytest.approx(before + 7, abs=2)


def test_the_backtrace_begins_with_the_task(queue: Queue, backend: MemoryBackend) -> None:
    add(backend, tasks.fail_strangely, "ValueError")
    run_all(queue)
    (dead,) = backend.dead.values()
    text = "\n".join(dead["backtrace"])
    assert "tests/worker/tasks.py" in text
    assert "attempt.py" not in text


@pytest.mark.parametrize("is_async", ASYNC)
def test_nothing_of_a_task_reaches_the_next(
    queue: Queue, backend: MemoryBackend, is_async: bool
) -> None:
    """Language, time zone, decimal context and context variables."""
    for _ in range(3):
        add(backend, tasks.async_leak if is_async else tasks.leak)
    run_all(queue)
    assert len(tasks.ran) == 3
    assert len(set(tasks.ran)) == 1
    assert tasks.ran[0][3] == "clean"


def test_current_task(queue: Queue, backend: MemoryBackend) -> None:
    task_id = add(backend, tasks.who)
    run_all(queue)
    assert tasks.ran == [(task_id, "tests.worker.tasks.who", 1, 0, False)]


# -- what cannot be run ------------------------------------------------------------------------


def test_bytes_that_are_no_context_become_a_dead_task(queue: Queue, backend: MemoryBackend) -> None:
    backend.add_task(b"\xff no context", task_id="1-2-a-3")
    assert run_all(queue) == [Outcome.DIED]
    dead = backend.dead["1-2-a-3"]
    assert dead["context"] == b"\xff no context"
    assert dead["task_class"] == UNREADABLE_TASK
    assert backend.calls.of("start_task") == []


def unknown(backend: MemoryBackend, **changes: object) -> str:
    context = TaskContext.build("app.gone.task", (1,), {})
    context = replace(context, **changes)  # type: ignore[arg-type]
    return backend.add_task(context.to_bytes())


def test_an_unknown_task_is_put_back_with_a_growing_delay(
    queue: Queue, backend: MemoryBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """C41: it uses up no attempt, is not recorded as run, and its name is logged once."""
    task_id = unknown(backend, attempts=2)
    delays = []
    first_seen = time.time()
    for _ in range(10):
        backend.tasks[task_id].publish_at = 0
        assert run_all(queue) == [Outcome.PUT_BACK]
        delays.append(round(backend.tasks[task_id].publish_at - time.time()))
    assert delays[:7] == [10, 20, 40, 80, 160, 320, 600]
    assert delays[9] == 600
    context = TaskContext.from_bytes(backend.tasks[task_id].context)
    assert context.attempts == 2
    assert context.unknown_since == pytest.approx(first_seen, abs=2)
    assert backend.calls.of("start_task") == []
    assert len([record for record in caplog.records if "app.gone" in record.getMessage()]) <= 1


def test_an_unknown_task_dies_after_24_hours(queue: Queue, backend: MemoryBackend) -> None:
    """C41: with its arguments and a clear reason, and it can be retried."""
    day = 24 * 3600
    unknown(backend, unknown_since=time.time() - day + 60)
    assert run_all(queue) == [Outcome.PUT_BACK]
    task_id = unknown(backend, unknown_since=time.time() - day - 60, put_backs=150)
    assert run_all(queue) == [Outcome.DIED]
    dead = backend.dead[task_id]
    assert dead["exception_class"].endswith(UnknownTask.__name__)
    assert "app.gone.task" in dead["exception_message"]
    assert dead["task_class"] == "app.gone.task"
    assert TaskContext.from_bytes(dead["context"]).args == [1]
    assert queue.retry_dead_tasks([task_id]) == [task_id]
    again = TaskContext.from_bytes(backend.tasks[task_id].context)
    assert (again.unknown_since, again.put_backs, again.attempts) == (None, 0, 0)


@pytest.mark.parametrize("crashes", [1, 2, 3, 4])
def test_the_third_crash_is_the_last(queue: Queue, backend: MemoryBackend, crashes: int) -> None:
    """C39: then it is a dead task and never run again."""
    task_id = add(backend, tasks.note, "ran", crashes=crashes)
    run_all(queue)
    if crashes < 3:
        assert tasks.ran == ["ran"]
        return
    assert tasks.ran == []
    assert backend.calls.of("start_task") == []
    dead = backend.dead[task_id]
    assert dead["exception_class"].endswith("WorkerLost")
    assert str(crashes) in dead["exception_message"]
    assert dead["attempts"] == crashes


# -- errors of the store -----------------------------------------------------------------------


def test_a_start_that_cannot_be_recorded_is_no_start(queue: Queue, backend: MemoryBackend) -> None:
    """C05 a: not executed without its run record; the claim is let go."""
    task_id = add(backend, tasks.note, "ran")
    backend.failing["start_task"] = OSError(28, "No space left on device")
    (claim,) = queue.claim(1)
    assert execute(queue, claim) is Outcome.NOT_STARTED
    assert tasks.ran == []
    assert not backend.tasks[task_id].claimed
    backend.failing.clear()
    assert run_all(queue) == [Outcome.SUCCEEDED]


@pytest.mark.parametrize(
    ("method", "error", "task"),
    [
        ("complete_task", OSError(28, "No space left on device"), tasks.note),
        ("reschedule_task", OSError(28, "No space left on device"), tasks.fail_with),
        ("add_dead_task", OSError(28, "No space left on device"), tasks.fail_strangely),
        ("add_dead_task", DeadTasksLockTimeout("busy"), tasks.fail_strangely),
    ],
)
def test_an_outcome_that_cannot_be_written_is_kept(
    queue: Queue,
    backend: MemoryBackend,
    method: str,
    error: Exception,
    task: object,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """C05 b, c: the task is not executed again, and is not lost."""
    task_id = add(backend, task, "value" if task is tasks.fail_with else "ValueError")  # type: ignore[arg-type]
    backend.failing[method] = error
    (claim,) = queue.claim(1)
    outcomes: list[Outcome] = []
    hold = Hold(threading.Event())
    thread = threading.Thread(target=lambda: outcomes.append(execute(queue, claim, hold=hold)))
    thread.start()
    wait_until(lambda: backend.calls.of(method).count(task_id) >= 3)
    assert backend.calls.of("start_task") == [task_id]
    assert task_id in backend.tasks
    assert outcomes == []
    backend.failing.clear()
    thread.join(10)
    assert len(outcomes) == 1
    assert hold.claim is None
    assert len([record for record in caplog.records if "outcome" in record.getMessage()]) <= 1


def test_a_dead_task_is_handed_over_once(queue: Queue, backend: MemoryBackend) -> None:
    """R5, the queue's side: when the removal alone fails, the dead task is not written again."""
    task_id = add(backend, tasks.fail_strangely, "ValueError")
    backend.failing["complete_task"] = OSError(28, "No space left on device")
    (claim,) = queue.claim(1)
    hold = Hold(threading.Event())
    thread = threading.Thread(target=execute, args=(queue, claim), kwargs={"hold": hold})
    thread.start()
    wait_until(lambda: backend.calls.of("complete_task").count(task_id) >= 3)
    backend.failing.clear()
    thread.join(10)
    assert backend.calls.of("add_dead_task") == [task_id]
    assert task_id not in backend.tasks


def test_a_hold_that_was_taken_prevents_every_further_call(
    queue: Queue, backend: MemoryBackend
) -> None:
    """R10: what the old thread does after a stop changes nothing."""
    task_id = add(backend, tasks.wait_for, "door")
    (claim,) = queue.claim(1)
    hold = Hold(threading.Event())
    raised: list[BaseException] = []

    def work() -> None:
        try:
            execute(queue, claim, hold=hold)
        except Abandoned as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    wait_until(lambda: ("begun", "door") in tasks.ran)
    assert hold.abandon(1.0) is claim
    queue.release(claim, hold=True)
    tasks.gate("door").set()
    thread.join(10)
    assert len(raised) == 1
    assert task_id in backend.tasks
    assert backend.calls.of("complete_task") == []


# -- dead tasks --------------------------------------------------------------------------------


def test_a_retried_dead_task_begins_anew(queue: Queue, backend: MemoryBackend) -> None:
    task_id = add(backend, tasks.fail_strangely, "ValueError", queue="mail", priority=7)
    run_all(queue)
    old = TaskContext.from_bytes(backend.dead[task_id]["context"])
    assert queue.retry_dead_tasks([task_id, "gone"]) == [task_id]
    assert backend.tasks[task_id].priority == 7
    assert backend.dead == {}
    task = backend.tasks[task_id]
    context = TaskContext.from_bytes(task.context)
    assert task.queue == "mail"
    assert context.attempts == 0
    assert context.args == old.args
    assert context.enqueued_at >= old.enqueued_at
