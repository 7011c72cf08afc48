"""enqueue_many(): many calls, one write, all or none."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import pytest
from django.db import transaction
from django.test import override_settings

from deferred_django import TaskCall, aenqueue_many, cancel, enqueue_many, get_backend
from deferred_django.backends.base import Backend
from deferred_django.backends.disk import files
from deferred_django.enqueue_call import EnqueueCall
from deferred_django.signals import task_enqueued
from deferred_django.testing import run_enqueued
from tests.support import wait_until
from tests.testapp import tasks


@pytest.fixture(autouse=True)
def no_calls() -> None:
    tasks.calls.clear()


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the records that are appended."""
    sizes: list[int] = []
    real = files.append_record

    def note(fd: int, record: bytes) -> None:
        sizes.append(len(record))
        real(fd, record)

    monkeypatch.setattr(files, "append_record", note)
    return sizes


def pending(backend: Backend) -> list[str]:
    return [task.id for task in backend.pending_tasks()]


def test_calls_of_several_tasks_with_their_options(
    deferred_store: Backend, writes: list[int]
) -> None:
    before = time.time()
    ids = enqueue_many(
        [
            tasks.record.call(1, key="a"),
            tasks.record.using(queue="mail", priority=3).using(delay=500).call(2),
            tasks.record_async.call(3),
        ]
    )
    assert len(writes) == 1
    found = {task.id: task for task in deferred_store.pending_tasks()}
    assert len(ids) == len(found) == 3
    second = found[ids[1]]
    assert (second.queue, second.priority, second.status) == ("mail", 3, "delayed")
    assert before + 499 < second.publish_at < time.time() + 501
    assert [run.id for run in run_enqueued()] == [ids[0], ids[2]]
    assert tasks.calls == [((1,), {"key": "a"}), 3]


def test_no_calls_touch_nothing(deferred_store: Backend, writes: list[int]) -> None:
    assert enqueue_many([]) == []
    assert enqueue_many(iter(())) == []
    assert writes == []


def test_a_call_is_a_value_that_runs_nothing(deferred_store: Backend) -> None:
    call = tasks.record.call(1)
    assert isinstance(call, TaskCall)
    assert "record" in repr(call)
    assert tasks.calls == []
    assert pending(deferred_store) == []
    first, second = enqueue_many([call, call])
    assert first != second
    assert asyncio.run(aenqueue_many(call for _ in range(2)))
    assert len(pending(deferred_store)) == 4


def test_arguments_are_those_of_the_moment_of_the_enqueue(deferred_store: Backend) -> None:
    values = [1]
    call = tasks.record.call(values)
    values.append(2)
    enqueue_many([call])
    values.append(3)
    run_enqueued()
    assert tasks.calls == [(([1, 2],), {})]


def test_arguments_that_do_not_fit_refuse_all(deferred_store: Backend) -> None:
    with pytest.raises(TypeError, match=r"tests\.testapp\.tasks\.die") as raised:
        enqueue_many([tasks.record.call(1), tasks.die.call()])  # type: ignore[call-arg]
    assert raised.value.__notes__ == ["In call number 1 (from 0) of enqueue_many."]
    with pytest.raises(TypeError, match=r"tests\.testapp\.tasks\.die"):
        enqueue_many([tasks.die.using(delay=3).call("a", "b")])  # type: ignore[call-arg]
    assert pending(deferred_store) == []


seen: list[str] = []


def see(call: EnqueueCall) -> None:
    """Enqueue middleware."""
    seen.append(call.id)
    call.kwargs["more"] = len(seen)


def test_middleware_sees_each_call(deferred_store: Backend) -> None:
    seen.clear()
    call = tasks.record.call(1, key="a")
    path, middleware = deferred_store.config.path, ["tests.test_bulk.see"]
    with override_settings(DEFERRED={"PATH": path, "ENQUEUE_MIDDLEWARE": middleware}):
        assert enqueue_many([call, call]) == seen
        run_enqueued()
    assert tasks.calls == [((1,), {"key": "a", "more": 1}), ((1,), {"key": "a", "more": 2})]


@pytest.mark.parametrize(
    "wrong",
    [7, None, tasks.record, lambda: tasks.record.enqueue(1)],
    ids=["int", "None", "task", "function"],
)
def test_what_is_no_call(deferred_store: Backend, wrong: Any) -> None:
    with pytest.raises(TypeError, match=r"such as send\.call\(7\).*number 1"):
        enqueue_many([tasks.record.call(1), wrong])
    assert pending(deferred_store) == []


def test_one_argument_that_cannot_be_carried_refuses_all(
    deferred_store: Backend, writes: list[int]
) -> None:
    calls = [tasks.record.call(1), tasks.record.call(object()), tasks.record.call(3)]
    with pytest.raises(TypeError, match="object") as raised:
        enqueue_many(calls)
    assert raised.value.__notes__ == ["In call number 1 (from 0) of enqueue_many."]
    assert writes == []


def test_an_error_of_the_disk_refuses_all(
    deferred_store: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, record: bytes) -> None:
        raise OSError(28, "No space left on device", "segment")

    with monkeypatch.context() as patch:
        patch.setattr(files, "append_record", refuse)
        with pytest.raises(OSError, match="No space"):
            enqueue_many(tasks.record.call(number) for number in range(10))
    assert pending(deferred_store) == []
    enqueue_many(tasks.record.call(number) for number in range(10))
    assert len(pending(deferred_store)) == 10


@pytest.mark.parametrize("held", [False, True])
@pytest.mark.django_db(transaction=True)
def test_more_than_one_write_takes(
    deferred_store: Backend, monkeypatch: pytest.MonkeyPatch, held: bool
) -> None:
    monkeypatch.setattr("deferred_django.bulk.MAX_RECORD_BYTES", 10_000)
    monkeypatch.setattr("deferred_django.backends.disk.tasks_storage.MAX_RECORD_BYTES", 10_000)
    calls = [tasks.record.using(on_commit=held).call("x" * 1000) for _ in range(11)]
    with transaction.atomic():
        with pytest.raises(ValueError, match=r"11 tasks of [\d,]+ bytes .* in several parts"):
            enqueue_many(calls)
        enqueue_many(calls[:5])
        enqueue_many(calls[5:])
    assert len(pending(deferred_store)) == 11


@pytest.mark.django_db(transaction=True)
def test_what_waits_for_a_commit_is_held_as_one(deferred_store: Backend, writes: list[int]) -> None:
    with transaction.atomic():
        ids = enqueue_many(
            [
                tasks.record.call(1),
                tasks.record.using(on_commit=False).call(2),
                tasks.record.call(3),
                tasks.record.call(4),
            ]
        )
        assert pending(deferred_store) == [ids[1]]
        assert cancel(ids[2]) is True
        assert cancel(ids[2]) is False
        writes.clear()
    assert len(writes) == 1
    assert sorted(pending(deferred_store)) == sorted([ids[0], ids[1], ids[3]])


@pytest.mark.django_db(transaction=True)
def test_a_rollback_drops_all(deferred_store: Backend) -> None:
    with transaction.atomic():
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            enqueue_many([tasks.record.call(1), tasks.record.call(2)])
            raise ZeroDivisionError
        kept = enqueue_many([tasks.record.call(3)])
    assert pending(deferred_store) == kept


@pytest.mark.django_db(transaction=True)
def test_all_cancelled_before_the_commit(deferred_store: Backend, writes: list[int]) -> None:
    with transaction.atomic():
        for task_id in enqueue_many([tasks.record.call(1), tasks.record.call(2)]):
            assert cancel(task_id) is True
    assert writes == []


@pytest.mark.django_db(transaction=True)
def test_an_error_after_the_commit_is_logged_for_each(
    deferred_store: Backend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(fd: int, record: bytes) -> None:
        raise OSError(28, "No space left on device", "segment")

    with transaction.atomic():
        ids = enqueue_many([tasks.record.call(1), tasks.record.call(2)])
        monkeypatch.setattr(files, "append_record", refuse)
    logged = [each for each in caplog.records if "after the commit" in each.getMessage()]
    assert [each.levelno for each in logged] == [logging.ERROR] * 2
    assert all(task_id in each.getMessage() for task_id, each in zip(ids, logged, strict=True))


@pytest.mark.django_db
def test_inside_of_a_test_case(deferred_store: Backend) -> None:
    enqueue_many([tasks.record.call(1), tasks.record.call(2)])
    run_enqueued()
    assert tasks.calls == [((1,), {}), ((2,), {})]


def test_the_signal_is_sent_for_each(deferred_store: Backend) -> None:
    heard: list[str] = []

    def hear(**kwargs: Any) -> None:
        heard.append(kwargs["task_id"])

    task_enqueued.connect(hear)
    try:
        ids = enqueue_many([tasks.record.call(1), tasks.record_async.call(2)])
    finally:
        task_enqueued.disconnect(hear)
    assert heard == ids


def test_without_a_store() -> None:
    with override_settings(DEFERRED={"BACKEND": None}):
        assert get_backend().keeps_tasks is False
        first, second = enqueue_many([tasks.record.using(delay=500).call(1), tasks.record.call(2)])
        assert first != second
        wait_until(lambda: tasks.calls == [((2,), {})], what="the task runs")
