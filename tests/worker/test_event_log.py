"""The log line of each signal."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import django
import pytest
from django.core import mail
from django.test import override_settings
from django.utils.log import AdminEmailHandler

from deferred_django import event_log, event_loop, logs, signals
from deferred_django.execution import execute
from deferred_django.housekeeping import tell
from deferred_django.queue import Queue
from deferred_django.queue_choice import QueueChoice
from deferred_django.worker import Worker
from tests.worker import tasks
from tests.worker.fakes import MemoryBackend, Running, add

SECRET = "a-secret-argument"


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """Every line of the logger, from DEBUG on."""
    with caplog.at_level(logging.DEBUG, logger="deferred_django"):
        yield caplog


def run_all(queue: Queue) -> None:
    while claims := queue.claim(1):
        execute(queue, claims[0], loop=event_loop.process_loop())


def extra(record: logging.LogRecord) -> dict[str, Any]:
    return {key: getattr(record, key) for key in event_log.KEYS}


def test_the_lines_of_tasks(
    queue: Queue, backend: MemoryBackend, log: pytest.LogCaptureFixture
) -> None:
    task_id = add(backend, tasks.note, SECRET, queue="mail")
    run_all(queue)
    assert [record.getMessage() for record in log.records][:2] == [
        f"Task tests.worker.tasks.note ({task_id}) is enqueued.",
        f"Task tests.worker.tasks.note ({task_id}) starts with attempt 1.",
    ]
    assert [record.levelname for record in log.records] == ["DEBUG", "DEBUG", "INFO"]
    enqueued, started, succeeded = map(extra, log.records)
    same = {"task_id": task_id, "task": "tests.worker.tasks.note", "queue": "mail"}
    here = {"worker": signals.worker_name()}
    nothing = {"attempt": None, "worker": None, "duration_ms": None}
    assert enqueued == {"event": "task_enqueued", **same, **nothing}
    assert started == {**enqueued, "event": "task_started", "attempt": 1, **here}
    duration = succeeded["duration_ms"]
    assert succeeded == {**started, "event": "task_succeeded", "duration_ms": duration}
    assert 0 <= duration < 5000
    assert f"succeeded in attempt 1 after {duration / 1000:.3f} s." in log.records[2].getMessage()


def test_the_lines_of_failures(
    queue: Queue, backend: MemoryBackend, log: pytest.LogCaptureFixture
) -> None:
    add(backend, tasks.fail_with, "value")
    run_all(queue)
    add(backend, tasks.note, SECRET, crashes=3)
    backend.add_task(b"no context")
    run_all(queue)
    told = [record for record in log.records if record.levelno >= logging.WARNING]
    assert [(record.levelname, extra(record)["event"]) for record in told] == [
        ("WARNING", "task_retried"),
        ("ERROR", "task_died"),
        ("ERROR", "task_died"),
        ("ERROR", "task_died"),
    ]
    assert [extra(record)["attempt"] for record in told] == [1, 2, 3, 0]
    assert [extra(record)["duration_ms"] is None for record in told] == [False, False, True, True]
    assert all(record.exc_info and record.exc_info[1] for record in told)
    _, died, lost, unreadable = [record.getMessage() for record in told]
    assert died.endswith("failed in attempt 2 with ValueError; it is a dead task now.")
    assert "is given up after 3 attempts: WorkerLost: the worker process died 3" in lost
    assert "(unreadable)" in unreadable
    assert unreadable.endswith("it is a dead task now.")


def test_the_lines_of_workers(queue: Queue, log: pytest.LogCaptureFixture) -> None:
    with Running(queue, choice=QueueChoice.of(["mail", "slow"]), drain=True) as running:
        running.join()
    tell(Worker, signals.worker_lost, pid=71, exit_code=-9, replaced=True)
    tell(Worker, signals.worker_lost, pid=72, exit_code=-250, replaced=False)
    name = signals.worker_name()
    assert [(record.levelname, record.getMessage()) for record in log.records] == [
        ("INFO", f"Worker {name} starts: 2 threads, queues mail, slow."),
        ("INFO", f"Worker {name} ends (drained) after 0 attempts."),
        ("ERROR", "Worker process 71 was killed by SIGKILL; another one takes its place."),
        ("ERROR", "Worker process 72 was killed by signal 250; no other takes its place."),
    ]
    assert [extra(record)["worker"] for record in log.records] == [
        name,
        name,
        signals.worker_name(71),
        signals.worker_name(72),
    ]


def test_one_is_no_plural(queue: Queue, log: pytest.LogCaptureFixture) -> None:
    tell(Worker, signals.worker_started, threads=1, queues=None)
    tell(Worker, signals.worker_stopped, reason="max tasks", attempts=1)
    starts, ends = (record.getMessage() for record in log.records)
    assert starts.endswith("starts: 1 thread, all queues.")
    assert ends.endswith("ends (max tasks) after 1 attempt.")


def test_arguments_are_in_no_line(
    queue: Queue, backend: MemoryBackend, log: pytest.LogCaptureFixture
) -> None:
    add(backend, tasks.note, SECRET)
    add(backend, tasks.fail_each_time, SECRET)  # a TypeError of Python's own
    run_all(queue)
    assert len(log.records) == 10
    formatter = logging.Formatter()
    for record in log.records:
        assert SECRET not in formatter.format(record)
        assert SECRET not in str(vars(record))


@pytest.mark.filterwarnings("ignore:.*will not have a default mailer")
def test_admins_get_a_mail_of_a_task_that_dies(queue: Queue, backend: MemoryBackend) -> None:
    """Django's own handler needs nothing but the level and the exception."""
    handler = AdminEmailHandler()
    handler.setLevel(logging.ERROR)
    logger = logging.getLogger("deferred_django")
    logger.addHandler(handler)
    try:
        ada = "ada@example.com"
        with override_settings(ADMINS=[ada if django.VERSION >= (6,) else ("Ada", ada)]):
            add(backend, tasks.fail_with, "value")
            add(backend, tasks.note, SECRET)
            run_all(queue)
    finally:
        logger.removeHandler(handler)
    (message,) = mail.outbox
    assert "Task tests.worker.tasks.fail_with" in message.subject
    assert "failed in attempt 2 with ValueError" in message.subject
    assert "ValueError at" in message.body or "Exception Type: ValueError" in message.body
    assert "in fail_with" in message.body


def test_a_handler_that_fails_harms_no_task(queue: Queue, backend: MemoryBackend) -> None:
    """AdminEmailHandler lets what its mail backend raises through."""

    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("no mail server")

    handler = Broken()
    logger = logging.getLogger("deferred_django")
    logger.addHandler(handler)
    try:
        add(backend, tasks.fail_strangely, "ValueError")
        add(backend, tasks.note, "next")
        run_all(queue)
        logs.store_error("Trying it", OSError("once more"))
    finally:
        logger.removeHandler(handler)
    assert tasks.ran == ["next"]
    assert len(backend.dead) == 1
