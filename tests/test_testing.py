"""The helpers for the tests of projects."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings
from django.db import transaction
from django.test import TestCase, override_settings

from deferred_django import get_backend
from deferred_django.backends.base import Backend
from deferred_django.backends.disk import DiskBackend
from deferred_django.execution import Outcome
from deferred_django.testing import own_store, run_enqueued
from tests.testapp import tasks
from tests.testapp.models import Note


@pytest.fixture(autouse=True)
def calls() -> Iterator[list[object]]:
    """What the test application's tasks were called with, empty at the start."""
    tasks.calls.clear()
    yield tasks.calls
    tasks.calls.clear()


# -- stores ----------------------------------------------------------------------------------------


def test_the_fixture_gives_a_store_of_its_own(deferred_store: Backend, tmp_path: Path) -> None:
    assert deferred_store is get_backend()
    assert deferred_store.pending_tasks() == []
    task_id = tasks.record.enqueue(1)
    assert [task.id for task in deferred_store.pending_tasks()] == [task_id]
    assert deferred_store.config.path == tmp_path / "deferred"
    assert any((tmp_path / "deferred").iterdir())


@pytest.mark.parametrize("run", [1, 2])
def test_the_fixture_gives_an_empty_store_each_time(deferred_store: Backend, run: int) -> None:
    assert deferred_store.pending_tasks() == []
    tasks.record.enqueue(run)


def test_own_store_keeps_what_else_the_setting_says(tmp_path: Path) -> None:
    outside = get_backend()
    with override_settings(DEFERRED={"BACKEND": None, "PREFIX": "x-", "FILE_PERMISSIONS": 0o640}):
        with own_store(tmp_path) as backend:
            assert isinstance(backend, DiskBackend)
            assert backend.config.prefix == "x-"
            assert backend.config.file_permissions == 0o640
            assert backend.config.path == tmp_path
        assert get_backend() is not backend
    assert type(get_backend()) is type(outside)


def test_own_store_without_a_path_leaves_nothing() -> None:
    with own_store() as backend:
        path = backend.config.path
        tasks.record.enqueue(1)
        assert os.listdir(path)
    assert not path.exists()


def test_own_store_needs_no_setting(tmp_path: Path) -> None:
    with override_settings():
        del settings.DEFERRED
        with own_store(tmp_path) as backend:
            assert backend.config.prefix == "deferred-"


# -- run_enqueued ----------------------------------------------------------------------------------


def test_it_runs_what_is_due_and_says_what(deferred_store: Backend, calls: list[object]) -> None:
    first = tasks.record.enqueue(1, two=2)
    second = tasks.record_async.enqueue("x")
    later = tasks.record.using(delay=60).enqueue("later")
    runs = run_enqueued()
    assert [(run.id, run.task, run.outcome, run.exception) for run in runs] == [
        (first, "tests.testapp.tasks.record", Outcome.SUCCEEDED, None),
        (second, "tests.testapp.tasks.record_async", Outcome.SUCCEEDED, None),
    ]
    assert calls == [((1,), {"two": 2}), "x"]
    assert [task.id for task in deferred_store.pending_tasks()] == [later]
    assert run_enqueued() == []


def test_it_runs_what_the_tasks_enqueue(deferred_store: Backend, calls: list[object]) -> None:
    tasks.enqueue_more.enqueue(3)
    assert len(run_enqueued()) == 4
    assert calls == [3, 2, 1, 0]


def test_it_ends_although_the_tasks_do_not(deferred_store: Backend) -> None:
    tasks.enqueue_more.enqueue(1000)
    with pytest.raises(RuntimeError, match="5 tasks have run"):
        run_enqueued(max_tasks=5)
    assert len(run_enqueued(max_tasks=1000)) == 996


def test_failures_are_recorded_as_by_a_worker(deferred_store: Backend) -> None:
    dead = tasks.die.enqueue("for good")
    failed = tasks.fail_once.enqueue("for now")
    tasks.record.enqueue("fine")
    runs = run_enqueued()
    assert [run.outcome for run in runs] == [Outcome.DIED, Outcome.RETRIED, Outcome.SUCCEEDED]
    assert str(runs[0].exception) == "for good"
    assert isinstance(runs[1].exception, LookupError)
    assert [record["id"] for record in deferred_store.list_dead_tasks()] == [dead]
    (pending,) = deferred_store.pending_tasks()
    assert (pending.id, pending.status) == (failed, "delayed")


def test_an_exception_is_raised_on_demand(deferred_store: Backend, calls: list[object]) -> None:
    tasks.die.enqueue("for good")
    tasks.record.enqueue("behind it")
    with pytest.raises(ValueError, match="for good"):
        run_enqueued(raise_exceptions=True)
    assert deferred_store.count_dead_tasks() == 1
    assert calls == []
    run_enqueued(raise_exceptions=True)
    assert len(calls) == 1


def test_bytes_that_are_no_task(deferred_store: Backend) -> None:
    deferred_store.add_task(b"nonsense")
    (run,) = run_enqueued()
    assert (run.task, run.outcome) == (None, Outcome.DIED)


def test_a_backend_that_keeps_nothing_is_refused() -> None:
    with (
        override_settings(DEFERRED={"BACKEND": None}),
        pytest.raises(RuntimeError, match="keeps no tasks"),
    ):
        run_enqueued()


class InATransaction(TestCase):
    """C53: what a ``TestCase`` sees, whose tests never commit."""

    databases = "__all__"

    def setUp(self) -> None:
        self.store = self.enterContext(own_store())
        tasks.calls.clear()

    def test_held_enqueues_are_run(self) -> None:
        note = Note.objects.create(text="before")
        task_id = tasks.change_note.enqueue(note, "after")
        assert self.store.pending_tasks() == []
        assert [run.id for run in run_enqueued()] == [task_id]
        note.refresh_from_db()
        assert note.text == "after"
        assert run_enqueued() == []

    def test_what_a_task_enqueues_is_held_and_run_too(self) -> None:
        tasks.enqueue_more.enqueue(2)
        assert [run.outcome for run in run_enqueued()] == [Outcome.SUCCEEDED] * 3
        assert tasks.calls == [2, 1, 0]

    def test_a_rolled_back_enqueue_is_dropped(self) -> None:
        with transaction.atomic():
            tasks.record.enqueue("dropped")
            transaction.set_rollback(True)
        tasks.record.enqueue("kept")
        run_enqueued()
        assert tasks.calls == [(("kept",), {})]

    def test_other_databases(self) -> None:
        tasks.record.using(on_commit="other").enqueue(1)
        assert len(run_enqueued()) == 1

    def test_captured_callbacks_are_neither_missed_nor_run_twice(self) -> None:
        ran: list[str] = []
        tasks.record.enqueue("before")
        with self.captureOnCommitCallbacks(execute=True):
            tasks.record.enqueue("inside")
            run_enqueued()
            transaction.on_commit(lambda: ran.append("own"))
        assert ran == ["own"]
        assert run_enqueued() == []
        assert tasks.calls == [(("before",), {}), (("inside",), {})]

    def test_an_enqueue_from_a_hook(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            transaction.on_commit(lambda: tasks.record.enqueue("from a hook"))
        assert len(run_enqueued()) == 1
