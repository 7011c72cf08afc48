"""The backend that keeps nothing, and the tasks that run without a store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core import management
from django.test import override_settings

from deferred_django import get_backend, get_queue
from deferred_django.backends.base import BackendConfig
from deferred_django.backends.none import NoneBackend
from deferred_django.testing.contract import BackendContract
from tests.support import wait_until
from tests.testapp import tasks


class TestNoneBackend(BackendContract):
    """It passes what every backend passes that need not keep anything."""

    def open_backend(self, directory: Path) -> NoneBackend:
        return NoneBackend(BackendConfig(path=directory))

    def test_nothing_is_kept(self, backend: NoneBackend) -> None:
        task_id = backend.add_task(b"x")
        assert backend.pending_tasks() == []
        assert backend.claim_tasks(1) == []
        backend.add_dead_task(task_id, b"x", ValueError(), task_class="a.b", attempts=1)
        assert backend.list_dead_tasks() == []
        assert backend.take_dead_tasks([task_id], lambda record: None) == []


@pytest.fixture
def no_store() -> Iterator[None]:
    """The setting, and an empty list of calls."""
    tasks.calls.clear()
    with override_settings(DEFERRED={"BACKEND": None}):
        yield
    tasks.calls.clear()


@pytest.mark.usefixtures("no_store")
def test_an_enqueued_task_runs_on_a_thread_of_this_process() -> None:
    assert tasks.record_thread.enqueue()
    (thread,) = wait_until(lambda: tasks.calls, what="the task runs")
    assert thread != threading.current_thread().name


@pytest.mark.usefixtures("no_store")
def test_delays_and_arguments_are_those_of_every_backend() -> None:
    tasks.record.using(delay=0.05).enqueue((1, 2), key={1: b"x"})
    wait_until(lambda: tasks.calls, what="the task runs")
    assert tasks.calls == [(((1, 2),), {"key": {1: b"x"}})]
    with pytest.raises(TypeError):
        tasks.record.enqueue(object())


def test_another_setting_ends_the_runner_and_drops_what_waits() -> None:
    tasks.calls.clear()  # what tests of other modules have left
    others = set(threading.enumerate())

    def runs() -> list[str]:
        names = [thread.name for thread in threading.enumerate() if thread not in others]
        return [name for name in names if name.startswith("deferred-local")]

    with override_settings(DEFERRED={"BACKEND": None}):
        tasks.record.using(delay=60).enqueue("dropped")
        tasks.record.using(delay=0.2).enqueue("dropped too")
        assert runs()
    wait_until(lambda: not runs(), what="the threads end")
    assert tasks.calls == []


@pytest.mark.usefixtures("no_store")
def test_there_is_nothing_for_a_worker_to_do() -> None:
    assert get_queue().claim(1) == []
    assert get_backend().keeps_tasks is False
    with pytest.raises(management.CommandError) as raised:
        management.call_command("deferred_worker", "--drain")
    assert raised.value.returncode == 2
