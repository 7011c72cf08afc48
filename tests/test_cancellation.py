"""cancel(): what had not started does not run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.test import override_settings

from deferred_django import acancel, cancel
from deferred_django.backends.base import Backend
from deferred_django.backends.disk import files
from deferred_django.testing import run_enqueued
from tests.support import wait_until
from tests.testapp import tasks


@pytest.fixture(autouse=True)
def no_calls() -> None:
    tasks.calls.clear()


def pending(backend: Backend) -> list[str]:
    return [task.id for task in backend.pending_tasks()]


def test_a_pending_task_is_removed_once(deferred_store: Backend) -> None:
    task_id, other = tasks.record.enqueue(1), tasks.record.enqueue(2)
    assert cancel(task_id) is True
    assert cancel(task_id) is False
    assert pending(deferred_store) == [other]
    run_enqueued()
    assert tasks.calls == [((2,), {})]
    assert cancel(other) is False  # it has finished


def test_a_delayed_task_and_one_that_waits_for_its_next_attempt(deferred_store: Backend) -> None:
    task_id = tasks.record.using(delay=500).enqueue(1)
    assert asyncio.run(acancel(task_id)) is True
    failing = tasks.fail_once.enqueue("x")
    run_enqueued()
    assert pending(deferred_store) == [failing]
    assert cancel(failing) is True
    assert pending(deferred_store) == []


def test_a_task_that_a_worker_has_in_hand_is_not_removed(deferred_store: Backend) -> None:
    task_id = tasks.record.enqueue(1)
    [claim] = deferred_store.claim_tasks(1)
    assert cancel(task_id) is False
    deferred_store.release_task(claim)
    assert cancel(task_id) is True


@pytest.mark.parametrize("task_id", ["", "nope", "1-2-a-3", "a:b", "a\n", "é", "x" * 1000])
def test_ids_that_nothing_has(deferred_store: Backend, task_id: str) -> None:
    tasks.record.enqueue(1)
    assert cancel(task_id) is False
    assert len(pending(deferred_store)) == 1


@pytest.mark.parametrize("task_id", [None, 7, b"1-2-a-3"])
def test_what_is_no_id(task_id: Any) -> None:
    with pytest.raises(TypeError, match="task_id must be a str"):
        cancel(task_id)


def test_a_removal_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the timer does: the removal is fsynced, and the task in the same file with it."""
    with override_settings(DEFERRED={"PATH": tmp_path, "FSYNC_FREQUENCY": 500}):
        task_id = tasks.record.enqueue(1)
        synced: list[bytes] = []
        fsync = files.fsync

        def note(fd: int) -> None:
            fsync(fd)
            [segment] = tmp_path.iterdir()
            synced.append(segment.read_bytes())

        monkeypatch.setattr(files, "fsync", note)
        assert cancel(task_id) is True
        assert f":rem:{task_id}:".encode() in synced[-1]


@pytest.mark.django_db(transaction=True)
def test_what_a_transaction_holds_is_dropped(deferred_store: Backend) -> None:
    with transaction.atomic():
        first, second = tasks.record.enqueue(1), tasks.record.enqueue(2)
        assert cancel(first) is True
        assert cancel(first) is False
        third = tasks.record.enqueue(3)
        with transaction.atomic():
            fourth = tasks.record.enqueue(4)
            assert cancel(fourth) is True
            assert cancel(third) is True
    assert pending(deferred_store) == [second]


@pytest.mark.django_db(transaction=True)
def test_a_rollback_brings_nothing_back(deferred_store: Backend) -> None:
    stored = tasks.record.enqueue(1)
    with transaction.atomic():
        held = tasks.record.enqueue(2)
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            assert cancel(held) is True
            assert cancel(stored) is True
            raise ZeroDivisionError
    assert pending(deferred_store) == []


@pytest.mark.django_db
def test_inside_of_a_test_case(deferred_store: Backend) -> None:
    first = tasks.record.enqueue(1)
    tasks.record.enqueue(2)
    assert cancel(first) is True
    run_enqueued()
    assert tasks.calls == [((2,), {})]


def test_without_a_store() -> None:
    with override_settings(DEFERRED={"BACKEND": None}):
        later = [tasks.record.using(delay=delay).enqueue(delay) for delay in (500, 0.2, 600)]
        assert cancel(later[0]) is True
        assert cancel(later[0]) is False
        assert cancel("nope") is False
        wait_until(lambda: tasks.calls, what="the task runs")
        assert cancel(later[1]) is False
        assert cancel(later[2]) is True
