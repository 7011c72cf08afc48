"""What the signals tell, when, and that their receivers harm nothing."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from django.db import connection, transaction
from django.db import connections as connections_by_alias
from django.db.backends.base.base import BaseDatabaseWrapper

from deferred_django import (
    UnknownTask,
    WorkerLost,
    connections,
    enqueue_many,
    event_loop,
    signals,
)
from deferred_django.backends.base import Backend, BackendConfig
from deferred_django.backends.none import NoneBackend
from deferred_django.context import TaskContext
from deferred_django.execution import Outcome, execute
from deferred_django.housekeeping import tell
from deferred_django.local import LocalRunner
from deferred_django.queue import UNREADABLE_TASK, Queue
from deferred_django.queue_choice import QueueChoice
from deferred_django.signals import TASK_SIGNALS, WORKER_SIGNALS, EventSignal
from deferred_django.testing import run_enqueued
from deferred_django.worker import Worker
from tests.harness import children_of
from tests.support import wait_until
from tests.worker import tasks
from tests.worker.conftest import MakeProject
from tests.worker.fakes import MemoryBackend, Running, add

ALL_SIGNALS = (*TASK_SIGNALS, *WORKER_SIGNALS)
Connect = Callable[[EventSignal, Callable[..., Any]], None]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Connects receivers for the length of the test."""
    connected: list[tuple[EventSignal, Callable[..., Any]]] = []

    def connect(signal: EventSignal, receiver: Callable[..., Any]) -> None:
        signal.connect(receiver, weak=False)
        connected.append((signal, receiver))

    yield connect
    for signal, receiver in connected:
        assert signal.disconnect(receiver)


class Told(list[dict[str, Any]]):
    """The arguments of each signal that was sent, with its ``name``."""

    @property
    def names(self) -> list[str]:
        return [told["name"] for told in self]


@pytest.fixture
def told(connect: Connect) -> Iterator[Told]:
    """Everything that the signals tell during the test, with the arguments that they declare."""
    told, wrong = Told(), []
    for signal in ALL_SIGNALS:

        def note(signal: EventSignal, **arguments: Any) -> None:
            if arguments.keys() != {"sender", *signal.arguments}:
                wrong.append((signal.name, sorted(arguments)))
            told.append({"name": signal.name, **arguments})

        connect(signal, note)
    yield told
    assert wrong == []


def run_all(queue: Queue) -> list[Outcome]:
    outcomes = []
    while claims := queue.claim(1):
        outcomes.append(execute(queue, claims[0], loop=event_loop.process_loop()))
    return outcomes


# -- tasks -------------------------------------------------------------------------------------


def test_a_task_that_succeeds(queue: Queue, backend: MemoryBackend, told: Told) -> None:
    task_id = add(backend, tasks.note, "x", queue="mail", priority=3, publish_at=time.time() - 5)
    run_all(queue)
    assert told.names == ["task_enqueued", "task_started", "task_succeeded"]
    about = {"sender": tasks.note, "task": "tests.worker.tasks.note", "task_id": task_id}
    assert [{key: event[key] for key in about} for event in told] == [about] * 3
    assert [event["queue"] for event in told] == ["mail"] * 3
    enqueued, started, succeeded = told
    assert enqueued["priority"] == 3
    assert enqueued["publish_at"] == pytest.approx(time.time() - 5, abs=2)
    assert started["attempt"] == succeeded["attempt"] == 1
    assert started["latency"] == pytest.approx(5, abs=2)
    assert 0 <= succeeded["duration"] < 5


@pytest.mark.parametrize("task", [tasks.fail_with, tasks.async_fail_with])
def test_a_task_that_fails_and_dies(
    queue: Queue, backend: MemoryBackend, told: Told, task: Any
) -> None:
    add(backend, task, "value")
    assert run_all(queue) == [Outcome.RETRIED, Outcome.DIED]
    assert told.names == [
        "task_enqueued",
        "task_started",
        "task_retried",
        "task_started",
        "task_died",
    ]
    _, _, retried, again, died = told
    assert [event["sender"] for event in told] == [task] * 5
    assert (retried["attempt"], again["attempt"], died["attempt"]) == (1, 2, 2)
    assert retried["wait"] == 0
    assert [str(event["exception"]) for event in (retried, died)] == ["no", "no"]
    assert retried["duration"] >= 0
    assert died["duration"] >= 0
    assert died["kept"] is True


def test_tasks_that_die_without_an_attempt(
    queue: Queue, backend: MemoryBackend, told: Told
) -> None:
    add(backend, tasks.note, "x", crashes=3)
    backend.add_task(b"no context", task_id="1-2-a-3")
    gone = TaskContext.build("app.gone.task", (1,), {})
    backend.add_task(gone.to_bytes())
    told.clear()
    assert Outcome.PUT_BACK in run_all(queue)
    backend.add_task(replace(gone, attempts=2, unknown_since=1.0).to_bytes(), task_id="1-2-a-4")
    run_all(queue)
    assert told.names == ["task_died"] * 3
    by_task = {event["task"]: event for event in told}
    lost = by_task["tests.worker.tasks.note"]
    assert (lost["sender"], lost["attempt"]) == (tasks.note, 3)
    assert isinstance(lost["exception"], WorkerLost)
    unreadable = by_task[UNREADABLE_TASK]
    assert (unreadable["sender"], unreadable["attempt"]) == (None, 0)
    unknown = by_task["app.gone.task"]
    assert (unknown["sender"], unknown["attempt"]) == (None, 2)
    assert isinstance(unknown["exception"], UnknownTask)
    assert [event["duration"] for event in told] == [None] * 3


def test_they_are_sent_after_what_they_tell_is_written(
    queue: Queue, backend: MemoryBackend, connect: Connect
) -> None:
    seen: list[tuple[str, bool, bool]] = []

    def look(signal: EventSignal, task_id: str, **told: Any) -> None:
        seen.append((signal.name, task_id in backend.tasks, task_id in backend.dead))

    for signal in TASK_SIGNALS:
        connect(signal, look)
    add(backend, tasks.note, "x")
    run_all(queue)
    task_id = add(backend, tasks.fail_strangely, "ValueError")
    run_all(queue)
    assert seen == [
        ("task_enqueued", True, False),
        ("task_started", True, False),
        ("task_succeeded", False, False),
        ("task_enqueued", True, False),
        ("task_started", True, False),
        ("task_died", False, True),
    ]
    seen.clear()
    queue.retry_dead_tasks([task_id])
    assert seen == [("task_enqueued", True, False)]


def test_dead_tasks_that_are_enqueued_again(
    queue: Queue, backend: MemoryBackend, told: Told
) -> None:
    """Also those that are, where another then fails."""
    for _ in range(2):
        add(backend, tasks.fail_strangely, "ValueError", queue="mail", priority=7)
    run_all(queue)
    told.clear()
    first, second = backend.dead
    queue.retry_dead_tasks([first])
    (event,) = told
    assert (event["name"], event["task_id"]) == ("task_enqueued", first)
    assert (event["queue"], event["priority"], event["publish_at"]) == ("mail", 7, None)
    assert event["sender"] is tasks.fail_strangely
    told.clear()
    backend.dead[first] = backend.dead[second]
    del backend.dead[second]
    backend.dead["broken"] = {**backend.dead[first], "queue": None}
    original = backend.add_task

    def add_task(context: bytes, *, queue: str = "default", **options: Any) -> str:
        if queue is None:
            raise OSError(28, "No space left on device")
        return original(context, queue=queue, **options)

    backend.add_task = add_task  # type: ignore[method-assign]
    with pytest.raises(OSError, match="No space"):
        queue.retry_dead_tasks([first, "broken"])
    assert told.names == ["task_enqueued"]


def test_nothing_is_told_of_what_could_not_be_written(
    queue: Queue, backend: MemoryBackend, told: Told
) -> None:
    backend.failing["add_task"] = OSError(28, "No space left on device")
    with pytest.raises(OSError, match="No space"):
        add(backend, tasks.note, "x")
    backend.failing.clear()
    add(backend, tasks.note, "x")
    told.clear()
    backend.failing["start_task"] = OSError(28, "No space left on device")
    (claim,) = queue.claim(1)
    assert execute(queue, claim) is Outcome.NOT_STARTED
    assert told == []


def test_a_backend_that_keeps_nothing(told: Told) -> None:
    runner = LocalRunner()
    backend = NoneBackend(BackendConfig(path="."))  # type: ignore[arg-type]
    add_to = Queue(backend, local_runner=runner)
    try:
        context = TaskContext.build(tasks.fail_with.name, ("value",), {})
        add_to.enqueue(context, task_id="1-2-a-3")
        wait_until(lambda: "task_died" in told.names)
    finally:
        runner.close()
    # The task is started by another thread, before or after the enqueue has returned.
    assert sorted(told.names) == sorted(
        ["task_enqueued", "task_started", "task_retried", "task_started", "task_died"]
    )
    assert [event["kept"] for event in told if event["name"] == "task_died"] == [False]


@pytest.mark.django_db(transaction=True)
def test_an_enqueue_that_waits_for_a_commit(deferred_store: Backend, told: Told) -> None:
    with transaction.atomic():
        tasks.note.enqueue("x")
        assert told.names == []
    assert told.names == ["task_enqueued"]
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        tasks.note.enqueue("dropped")
        raise ZeroDivisionError
    assert told.names == ["task_enqueued"]
    run_enqueued()
    assert told.names == ["task_enqueued", "task_started", "task_succeeded"]
    assert asyncio.run(tasks.note.aenqueue("y")) == told[-1]["task_id"]


def test_each_task_of_a_bulk_is_told(deferred_store: Backend, told: Told) -> None:
    ids = enqueue_many([tasks.note.call(1), tasks.who.using(queue="mail").call()])
    assert [event["task_id"] for event in told] == ids
    assert [event["sender"] for event in told] == [tasks.note, tasks.who]
    assert [event["queue"] for event in told] == ["default", "mail"]


def test_receivers_of_one_task(
    queue: Queue, backend: MemoryBackend, request: pytest.FixtureRequest
) -> None:
    seen: list[str] = []

    def note(task: str, **told: Any) -> None:
        seen.append(task)

    signals.task_succeeded.connect(note, sender=tasks.who)
    request.addfinalizer(lambda: signals.task_succeeded.disconnect(note, sender=tasks.who))
    add(backend, tasks.note, "x")
    add(backend, tasks.who)
    run_all(queue)
    assert seen == ["tests.worker.tasks.who"]


# -- workers -----------------------------------------------------------------------------------


def test_a_worker_starts_and_stops(queue: Queue, backend: MemoryBackend, told: Told) -> None:
    add(backend, tasks.note, "x", queue="mail")
    told.clear()
    with Running(queue, choice=QueueChoice.of(["mail"]), drain=True) as running:
        running.join()
    assert told.names == ["worker_started", "task_started", "task_succeeded", "worker_stopped"]
    started, stopped = told[0], told[-1]
    assert started["sender"] is stopped["sender"] is Worker
    assert started["worker"] == stopped["worker"] == signals.worker_name()
    assert started["worker"].endswith(f":{os.getpid()}")
    assert (started["threads"], started["queues"]) == (2, ["mail"])
    assert (stopped["reason"], stopped["attempts"]) == ("drained", 1)


def test_a_worker_is_lost(make_project: MakeProject) -> None:
    """The supervisor tells it; workers tell their starts and ends."""
    project = make_project(
        tasks="""
        from django.dispatch import receiver
        from deferred_django import signals

        @receiver(signals.worker_started)
        def begun(worker, **told):
            note("started", worker.rpartition(":")[2])

        @receiver(signals.worker_stopped)
        def ended(worker, reason, **told):
            note("stopped", worker.rpartition(":")[2], reason)

        @receiver(signals.worker_lost)
        def lost(worker, exit_code, replaced, **told):
            note("lost", worker.rpartition(":")[2], exit_code, replaced, "in", os.getpid())
            raise SystemExit("of the receiver")
        """
    )
    worker = project.worker()
    wait_until(lambda: len(project.notes()) == 1)
    (first,) = children_of(worker.pid)
    os.kill(first, 9)
    wait_until(lambda: len(project.notes()) == 3)
    (second,) = children_of(worker.pid)
    worker.terminate()
    assert worker.wait(20) == 0
    assert project.notes() == [
        f"started {first}",
        f"lost {first} -9 True in {worker.pid}",
        f"started {second}",
        f"stopped {second} stopped",
    ]
    assert "The receiver lost of the signal worker_lost failed." in project.log()
    assert f"ERROR deferred_django: Worker process {first} was killed by SIGKILL" in project.log()


# -- receivers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_what_receivers_raise_harms_nothing(
    queue: Queue,
    backend: MemoryBackend,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
    error: type[BaseException],
) -> None:
    def harmful(**told: Any) -> None:
        raise error("of the receiver")

    for signal in ALL_SIGNALS:
        if signal is not signals.task_enqueued:
            connect(signal, harmful)
    with Running(queue, threads=1) as running:
        add(backend, tasks.fail_with, "value")
        add(backend, tasks.note, "behind")
        wait_until(lambda: not backend.tasks)
    assert running.join().value == "stopped"
    assert "behind" in tasks.ran
    assert len(backend.dead) == 1
    failed = [record for record in caplog.records if "of the signal" in record.getMessage()]
    assert all(record.levelno == logging.ERROR and record.exc_info for record in failed)
    assert all("harmful of the signal" in record.getMessage() for record in failed)
    # 3 starts, 1 success, 1 retry, 1 death, the worker's start and its end.
    assert len(failed) == 8
    assert "failed in the worker itself" not in caplog.text


def test_what_receivers_of_an_enqueue_raise(
    queue: Queue, backend: MemoryBackend, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    """What ends the caller's process or request is the caller's; the rest is logged."""
    errors: list[BaseException] = [SystemExit(), ValueError()]
    receiver = functools.partial(lambda **told: (_ for _ in ()).throw(errors.pop()))
    connect(signals.task_enqueued, receiver)
    task_id = add(backend, tasks.note, "x")
    assert task_id in backend.tasks
    assert "functools.partial" in caplog.text
    with pytest.raises(SystemExit):
        add(backend, tasks.note, "x")
    assert len(backend.tasks) == 2


def test_the_error_of_one_receiver_keeps_no_other_from_hearing(
    queue: Queue, backend: MemoryBackend, connect: Connect
) -> None:
    seen: list[str] = []

    def harmful(**told: Any) -> None:
        raise ValueError

    connect(signals.task_succeeded, harmful)
    connect(signals.task_succeeded, lambda task_id, **told: seen.append(task_id))
    task_id = add(backend, tasks.note, "x")
    run_all(queue)
    assert seen == [task_id]


def test_async_receivers(
    queue: Queue, backend: MemoryBackend, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str] = []

    async def note(task_id: str, **told: Any) -> None:
        seen.append(task_id)

    connect(signals.task_enqueued, note)
    connect(signals.task_succeeded, note)
    task_id = add(backend, tasks.note, "x")
    run_all(queue)
    assert seen == [task_id, task_id]

    async def enqueue_here() -> str:
        return add(backend, tasks.note, "y")

    # A sync call on an event loop's thread can wait for no coroutine.
    assert asyncio.run(enqueue_here()) in backend.tasks
    assert seen == [task_id, task_id]
    assert "of the signal task_enqueued failed" in caplog.text


def test_what_nobody_would_notice_is_not_sent(connect: Connect) -> None:
    """The log's own receivers count only while its logger has their level."""
    logger = logging.getLogger("deferred_django")
    before = logger.level
    try:
        levels = {}
        for level in (logging.DEBUG, logging.INFO, logging.ERROR, logging.CRITICAL):
            logger.setLevel(level)
            levels[level] = {signal.name for signal in ALL_SIGNALS if signal.is_heard}
    finally:
        logger.setLevel(before)
    everything = {signal.name for signal in ALL_SIGNALS}
    assert levels[logging.DEBUG] == everything
    assert levels[logging.INFO] == everything - {"task_enqueued", "task_started"}
    assert levels[logging.ERROR] == {"task_died", "worker_lost"}
    assert levels[logging.CRITICAL] == set()
    logger.setLevel(logging.CRITICAL)
    try:
        connect(signals.task_started, lambda **told: None)
        assert signals.task_started.is_heard
    finally:
        logger.setLevel(before)


@pytest.mark.django_db(transaction=True)
def test_connections_of_receivers(
    queue: Queue,
    backend: MemoryBackend,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A receiver in a worker's thread finds one that works, and leaves none open for ever."""
    answers: list[Any] = []

    def ask(**told: Any) -> None:
        with connection.cursor() as cursor:
            answers.append(cursor.execute("SELECT 1").fetchone())

    def is_usable(self: BaseDatabaseWrapper) -> bool:
        try:
            self.connection.execute("SELECT 1")
        except Exception:
            return False
        return True

    monkeypatch.setattr(type(connections_by_alias["default"]), "is_usable", is_usable)
    for signal in (signals.task_started, signals.task_succeeded, signals.worker_started):
        connect(signal, ask)

    def work() -> None:
        tell(Worker, signals.worker_started, threads=1, queues=None)
        answers.append(connection.connection)
        connection.ensure_connection()
        tell(Worker, signals.worker_started, threads=1, queues=None)
        answers.append(connection.connection is not None)
        connections.watch_thread()
        connection.connection.close()
        add(backend, tasks.note, "x")
        execute(queue, *queue.claim(1), check_connections=True)
        connections.unwatch_thread()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(20)
    assert answers == [(1,), None, (1,), True, (1,), (1,)]
    assert "of the signal" not in caplog.text
