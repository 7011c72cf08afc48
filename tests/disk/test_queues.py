"""Queues beside each other: one that is blocked, excluded or deep holds up no other."""

from __future__ import annotations

import threading
import time

import pytest

from deferred_django.backends.disk import due_index, row_heap, tasks_storage
from deferred_django.backends.disk.tasks_storage import TasksStorage
from tests.disk.conftest import Opener
from tests.disk.support import BOUND, PAST, add, finish
from tests.support import wait_until


def payloads(storage: TasksStorage, limit: int, **choice: object) -> list[bytes]:
    options = {"queues": None, "exclude": (), "task_ids": None, **choice}
    return [payload for _, payload in storage.claim(limit, **options)]  # type: ignore[arg-type]


def test_claims_of_one_batch_come_in_the_order_of_the_queues(opener: Opener) -> None:
    """Their segments are different ones, and the preferred task is the latest."""
    worker = opener()
    for number, queue in enumerate(("rest", "second", "first")):
        producer = opener()
        add(producer, queue.encode(), queue=queue, publish_at=PAST + number)
        add(producer, b"urgent", queue="rest", priority=9)
    order = [b"first", b"second", b"urgent", b"urgent", b"urgent", b"rest"]
    assert payloads(worker, 9, prefer=("first", "second")) == order


@pytest.mark.parametrize("choice", [{"queues": ["mail"]}, {"exclude": ["deep"]}])
def test_a_deep_queue_costs_another_nothing(
    monkeypatch: pytest.MonkeyPatch,
    producer: TasksStorage,
    worker: TasksStorage,
    choice: dict[str, list[str]],
) -> None:
    """Once it is read, none of its tasks is looked at for a claim that does not want it."""
    for _ in range(3000):
        add(producer, queue="deep", priority=5)
    worker.claim(0, None, (), None)
    steps = 0
    take, take_item = row_heap.RowHeap.take, row_heap.RowHeap.take_item

    def counted(original: object) -> object:
        def call(heap: row_heap.RowHeap) -> object:
            nonlocal steps
            steps += 1
            return original(heap)  # type: ignore[operator]

        return call

    monkeypatch.setattr(row_heap.RowHeap, "take", counted(take))
    monkeypatch.setattr(row_heap.RowHeap, "take_item", counted(take_item))
    for number in range(50):
        add(producer, b"%d" % number, queue="mail")
        assert payloads(worker, 10, **choice) == [b"%d" % number]
    assert steps == 50


def test_a_preferred_queue_that_is_held_elsewhere_is_asked_for_now_and_then(
    monkeypatch: pytest.MonkeyPatch, opener: Opener
) -> None:
    """Not at each claim: each of its tasks is tried once in a quarter of a second."""
    producer, other, worker = opener(), opener(), opener()
    for _ in range(200):
        add(producer, queue="held", priority=9)
    assert len(payloads(other, 200)) == 200
    for number in range(100):
        add(producer, b"%d" % number, queue="free")
    tried = 0
    hold = due_index.DueIndex.hold

    def count(*arguments: object) -> None:
        nonlocal tried
        tried += 1
        hold(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(due_index.DueIndex, "hold", count)
    monkeypatch.setattr("deferred_django.backends.disk.claims.HELD_RETRY_SECONDS", 3600.0)
    for number in range(100):
        assert payloads(worker, 1, prefer=["held"]) == [b"%d" % number]
    assert tried == 200


@pytest.fixture
def backlog(monkeypatch: pytest.MonkeyPatch, opener: Opener) -> None:
    """Several segments of one queue's tasks, which are read in slices."""
    for number in range(6):
        producer = opener()
        for _ in range(50):
            add(producer, publish_at=PAST + number, queue="deep")
    monkeypatch.setattr("deferred_django.backends.disk.segment_set.FRESH_BYTES", 1)
    monkeypatch.setattr(tasks_storage, "SLICE_BYTES", 1)
    monkeypatch.setattr(tasks_storage, "HURRY_BYTES", 1)


@pytest.mark.usefixtures("backlog")
def test_the_first_task_of_a_queue_is_found_behind_the_backlog_of_another(opener: Opener) -> None:
    worker = opener()
    add(opener(), b"mail", queue="mail", publish_at=PAST + 1000)
    assert payloads(worker, 5, queues=["mail"]) == [b"mail"]


@pytest.mark.usefixtures("backlog")
def test_a_stop_does_not_wait_for_a_backlog_to_be_read(
    monkeypatch: pytest.MonkeyPatch, opener: Opener
) -> None:
    """A claim that finds nothing for its queues reads on, until the worker is told to stop."""
    worker = opener()
    refresh = worker._segments.refresh
    reading = threading.Event()

    def never_done(*arguments: object) -> bool:
        refresh(*arguments)  # type: ignore[arg-type]
        reading.set()
        return False

    monkeypatch.setattr(worker._segments, "refresh", never_done)
    claimed: list[object] = []
    thread = threading.Thread(target=lambda: claimed.append(payloads(worker, 1, queues=["mail"])))
    thread.start()
    assert reading.wait(BOUND)
    assert claimed == []
    began = time.monotonic()
    worker.wake()
    thread.join(BOUND)
    assert claimed == [[]]
    assert time.monotonic() - began < 2
    monkeypatch.undo()
    worker.wait(0)
    [(entry, _)] = worker.claim(1, ["deep"], (), None)
    finish(worker, entry)


def test_a_worker_wakes_for_its_own_queue_while_another_is_busy(opener: Opener) -> None:
    """Tasks that come all the time into a queue that it does not want keep nobody waiting."""
    producer, worker = opener(), opener()
    end = threading.Event()

    def produce() -> None:
        while not end.is_set():
            add(producer, queue="busy")

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        for number in range(5):
            other = opener()
            add(other, b"%d" % number, queue="mail")
            began = time.monotonic()

            def claimed() -> list[bytes]:
                worker.wait(0.05)
                return payloads(worker, 5, exclude=["busy"])

            assert wait_until(claimed) == [b"%d" % number]
            assert time.monotonic() - began < 2
    finally:
        end.set()
        thread.join()
