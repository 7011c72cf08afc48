"""The runner of the ``None`` backend."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from deferred_django import ids
from deferred_django.backends.base import BackendConfig
from deferred_django.backends.none import NoneBackend
from deferred_django.context import TaskContext
from deferred_django.local import MAX_THREADS, LocalRunner
from deferred_django.queue import Queue
from deferred_django.task import DeferredTask
from tests.support import wait_until
from tests.worker import tasks


@pytest.fixture
def runner() -> Iterator[LocalRunner]:
    made = LocalRunner()
    yield made
    made.close()


def enqueue(runner: LocalRunner, task: DeferredTask[..., Any], *args: object) -> str:
    queue = Queue(NoneBackend(BackendConfig(path=".")), local_runner=runner)  # type: ignore[arg-type]
    return queue.enqueue(TaskContext.build(task.name, args, {}), task_id=ids.new_id())


@pytest.mark.parametrize("task", [tasks.fail_with, tasks.async_fail_with])
def test_retries_are_honoured_and_a_dead_task_is_logged(
    runner: LocalRunner, task: DeferredTask[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    enqueue(runner, task, "exit3")
    wait_until(lambda: "it is dropped" in caplog.text)
    assert tasks.ran == [("attempt", "exit3", 1), ("attempt", "exit3", 2)]


def test_a_slow_task_does_not_hold_up_the_next(runner: LocalRunner) -> None:
    for number in range(MAX_THREADS - 1):
        enqueue(runner, tasks.wait_for, f"slow{number}")
    enqueue(runner, tasks.note, "next")
    wait_until(lambda: "next" in tasks.ran)
    wait_until(lambda: len(tasks.ran) == MAX_THREADS)
    for number in range(MAX_THREADS - 1):
        tasks.gate(f"slow{number}").set()
    wait_until(lambda: len(tasks.ran) == 2 * MAX_THREADS - 1)  # none ends in another test
    runner.close()


def test_nothing_is_inherited_by_a_forked_child(runner: LocalRunner) -> None:
    """The child runs what it enqueues and nothing of its parent's."""
    enqueue(runner, tasks.note, "parent")
    wait_until(lambda: tasks.ran == ["parent"])
    read, write = os.pipe()
    with (
        warnings.catch_warnings()
    ):  # newer Pythons warn of forks beside threads: they are the point
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            enqueue(runner, tasks.note, "child")
            end = time.monotonic() + 10
            while len(tasks.ran) < 2 and time.monotonic() < end:
                time.sleep(0.005)
            os.write(write, repr(tasks.ran).encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with open(read, "rb") as answer:
        assert answer.read() == b"['parent', 'child']"
    assert tasks.ran == ["parent"]
