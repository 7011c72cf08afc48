"""BACKPRESSURE: who waits, until when, and who never does."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.test import override_settings

from deferred_django import PushTimeout, enqueue_many, get_backend, get_queue
from deferred_django.backends.base import Backend, NewTask
from deferred_django.backends.disk import DiskBackend
from deferred_django.queue_choice import QueueChoice
from deferred_django.signals import task_succeeded
from deferred_django.testing import run_enqueued
from tests.harness import Project
from tests.support import wait_until
from tests.testapp import tasks
from tests.worker.fakes import Running


@contextmanager
def marks(path: Path, high: int, low: int, timeout: float = 0.1) -> Iterator[Backend]:
    """A store with these water marks."""
    pressure = {"HIGH_WATER_MARK": high, "LOW_WATER_MARK": low, "TIMEOUT": timeout}
    with override_settings(DEFERRED={"PATH": path, "BACKPRESSURE": pressure}):
        yield get_backend()


@pytest.fixture(autouse=True)
def no_calls() -> None:
    tasks.calls.clear()


@pytest.fixture
def other(tmp_path: Path) -> Iterator[DiskBackend]:
    """Another process on the same store."""
    with override_settings(DEFERRED={"PATH": tmp_path}):
        config = get_backend().config
    backend = DiskBackend(config)
    yield backend
    backend.close()


def work_off(backend: Backend, count: int) -> None:
    claims = backend.claim_tasks(count)
    assert len(claims) == count
    for claim in claims:
        backend.start_task(claim)
        backend.complete_task(claim)


def in_thread(call: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    answers: list[Any] = []

    def run() -> None:
        try:
            answers.append(call())
        except Exception as error:
            answers.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, answers


def test_without_the_setting_nothing_is_counted(
    deferred_store: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(deferred_store), "pending_count", None)
    assert get_queue().gate is None
    for number in range(3):
        tasks.record.enqueue(number)


def test_at_the_high_water_mark_an_enqueue_gives_up_in_time(tmp_path: Path) -> None:
    with marks(tmp_path, 5, 3, timeout=0.3) as backend:
        for number in range(5):
            tasks.record.enqueue(number)
        before = [path.read_bytes() for path in tmp_path.iterdir()]
        began = time.monotonic()
        with pytest.raises(PushTimeout, match=r"5 tasks .* from 5 on .* are 3, for 0\.3 s"):
            tasks.record.enqueue(5)
        assert 0.3 <= time.monotonic() - began < 5
        assert [path.read_bytes() for path in tmp_path.iterdir()] == before
        assert len(backend.pending_tasks()) == 5


def test_it_waits_until_the_low_water_mark(tmp_path: Path, other: DiskBackend) -> None:
    with marks(tmp_path, 5, 2, timeout=60) as backend:
        for number in range(5):
            tasks.record.enqueue(number)
        thread, answers = in_thread(lambda: tasks.record.enqueue("waited"))
        gate = get_queue().gate
        assert gate is not None
        wait_until(lambda: gate._is_closed, what="it waits")
        work_off(other, 2)
        looked = backend.pending_count(max_age=0)
        thread.join(0.3)
        assert looked == 3
        assert thread.is_alive()  # 3 are less than the high mark, and more than the low one
        work_off(other, 1)
        thread.join(30)
        assert len(answers) == 1
        assert isinstance(answers[0], str)
        assert backend.pending_count() == 3
        tasks.record.enqueue("and the next does not wait")


def test_those_who_come_while_others_wait_do_not_pass(tmp_path: Path, other: DiskBackend) -> None:
    with marks(tmp_path, 4, 1) as backend:
        for number in range(4):
            tasks.record.enqueue(number)
        with pytest.raises(PushTimeout):
            tasks.record.enqueue(4)
        work_off(other, 2)
        with pytest.raises(PushTimeout, match="2 tasks"):
            tasks.record.enqueue(5)
        work_off(other, 1)
        tasks.record.enqueue(6)
        assert len(backend.pending_tasks()) == 2


def test_tasks_of_other_processes_count_within_a_second(tmp_path: Path, other: DiskBackend) -> None:
    with marks(tmp_path, 10, 8, timeout=0):
        tasks.record.enqueue(0)
        other.add_tasks([NewTask(b"x") for _ in range(20)])
        began = time.monotonic()
        with pytest.raises(PushTimeout):  # 10 of its own would be there sooner
            while time.monotonic() - began < 5:
                tasks.record.using(delay=500).enqueue(1)
        assert time.monotonic() - began < 3


def test_what_workers_have_done_since_counts_at_once(tmp_path: Path, other: DiskBackend) -> None:
    """Nobody waits for what was so a second ago."""
    with marks(tmp_path, 5, 3, timeout=0):
        for _ in range(3):
            for number in range(5):
                tasks.record.enqueue(number)
            work_off(other, 5)


def test_delayed_tasks_do_not_count_before_they_are_due(tmp_path: Path) -> None:
    with marks(tmp_path, 3, 2, timeout=0) as backend:
        for number in range(20):
            tasks.record.using(delay=500).enqueue(number)
        assert backend.pending_count() == 0
        tasks.record.enqueue(0)


def test_running_tasks_count(tmp_path: Path, other: DiskBackend) -> None:
    with marks(tmp_path, 2, 1, timeout=0):
        tasks.record.enqueue(0)
        tasks.record.enqueue(1)
        claims = other.claim_tasks(2)
        for claim in claims:
            other.start_task(claim)
        with pytest.raises(PushTimeout):
            tasks.record.enqueue(2)


def test_wrong_arguments_are_refused_without_waiting(tmp_path: Path) -> None:
    with marks(tmp_path, 1, 0, timeout=60):
        tasks.record.enqueue(0)
        with pytest.raises(TypeError):
            tasks.record.enqueue(object())


def test_many_wait_once_and_are_enqueued_whole(tmp_path: Path) -> None:
    with marks(tmp_path, 5, 3) as backend:
        enqueue_many(tasks.record.call(number) for number in range(20))
        assert backend.pending_count() == 20
        with pytest.raises(PushTimeout):
            enqueue_many([tasks.record.call(20)])
        assert enqueue_many([]) == []
        assert len(backend.pending_tasks()) == 20


def test_an_event_loop_goes_on_meanwhile(tmp_path: Path, other: DiskBackend) -> None:
    async def main() -> tuple[int, list[Any]]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.create_task(tick())
        waiting = [
            asyncio.create_task(tasks.record.aenqueue("first")),
            asyncio.create_task(tasks.record.using(queue="mail").aenqueue("second")),
        ]
        while ticks < 30:
            await asyncio.sleep(0.01)
        # Nor is the thread held up that everybody's database calls are made in.
        assert await asyncio.wait_for(sync_thread(), 5)
        assert not any(task.done() for task in waiting)
        await asyncio.to_thread(work_off, other, 2)
        answers = await asyncio.wait_for(asyncio.gather(*waiting), 30)
        with pytest.raises(PushTimeout), marks(tmp_path, 1, 0, timeout=0.1):
            await tasks.record.aenqueue("third")
        ticking.cancel()
        return ticks, answers

    async def sync_thread() -> bool:
        from asgiref.sync import sync_to_async

        return await sync_to_async(lambda: True)()

    with marks(tmp_path, 2, 1, timeout=60):
        enqueue_many([tasks.record.call(0), tasks.record.call(1)])
        ticks, answers = asyncio.run(main())
    assert ticks >= 30
    assert len(set(answers)) == 2


@pytest.mark.django_db(transaction=True)
def test_inside_a_transaction_the_enqueue_waits_and_the_commit_does_not(
    tmp_path: Path, other: DiskBackend, caplog: pytest.LogCaptureFixture
) -> None:
    with marks(tmp_path, 2, 1) as backend:
        with transaction.atomic():
            held = [tasks.record.enqueue(number) for number in range(4)]  # they are not there yet
            other.add_tasks([NewTask(b"x") for _ in range(5)])
            assert backend.pending_count(max_age=0) == 5
            with pytest.raises(PushTimeout):
                tasks.record.enqueue("too many")
        assert {task.id for task in backend.pending_tasks()} >= set(held)
        assert backend.pending_count() == 9
    assert not [each for each in caplog.records if each.levelno >= logging.ERROR]


def test_a_task_that_enqueues_never_waits(tmp_path: Path) -> None:
    with marks(tmp_path, 1, 0, timeout=60) as backend:
        tasks.enqueue_more.enqueue(3)
        began = time.monotonic()
        run_enqueued()
        assert time.monotonic() - began < 30
        assert tasks.calls == [3, 2, 1, 0]
        assert backend.pending_tasks() == []


def test_what_workers_add_never_waits(tmp_path: Path) -> None:
    with marks(tmp_path, 1, 0, timeout=60) as backend:
        tasks.fail_once.enqueue("x")
        began = time.monotonic()
        run_enqueued()  # its retry
        assert len(backend.pending_tasks()) == 1
        backend.add_task(b"x")
        backend.add_dead_task("dead", b"x", ValueError(), task_class="a.b", attempts=1)
        assert get_queue().retry_dead_tasks(["dead"]) == ["dead"]
        assert time.monotonic() - began < 30


def test_a_receiver_of_a_workers_signals_never_waits(tmp_path: Path) -> None:
    """What it enqueues after each task would hold up the threads that work the queue off."""
    followed: list[str] = []

    def follow(**told: Any) -> None:
        if len(followed) < 3:
            followed.append(tasks.record.enqueue("follows"))

    with marks(tmp_path, 1, 0, timeout=60) as backend:
        tasks.record.enqueue("first")
        backend.add_task(b"x", queue="left")
        task_succeeded.connect(follow)
        try:
            with Running(get_queue(), threads=1, choice=QueueChoice.of(["default"])):
                wait_until(lambda: len(tasks.calls) == 4, 10)
        finally:
            task_succeeded.disconnect(follow)
        assert [task.queue for task in backend.pending_tasks()] == ["left"]


def test_without_a_store_nothing_waits() -> None:
    with override_settings(DEFERRED={"BACKEND": None, "BACKPRESSURE": {"HIGH_WATER_MARK": 1}}):
        for number in range(5):
            tasks.record.enqueue(number)
        wait_until(lambda: len(tasks.calls) == 5, what="they run")


def test_with_real_processes(tmp_path: Path) -> None:
    """A producer that is faster than its worker is held to its pace, and loses nothing."""
    settings = """
        DEFERRED = {"BACKPRESSURE": {"HIGH_WATER_MARK": 40, "LOW_WATER_MARK": 20, "TIMEOUT": 60}}
    """
    code = """
        @deferred
        def work(number):
            time.sleep(0.01)  # so that the producer is the faster one on any machine
            note(number)
    """
    with Project(tmp_path, settings=settings, tasks=code) as project:
        project.worker()
        done = project.run(
            """
            from app.tasks import work
            from deferred_django import get_backend
            most = 0
            for number in range(400):
                work.enqueue(number)
                most = max(most, get_backend().pending_count(max_age=0))
            print(most)
            """
        )
        assert 20 < int(done.stdout) <= 41
        wait_until(lambda: len(project.notes()) == 400, 60)
