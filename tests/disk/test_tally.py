"""How many tasks there are, as a process that only enqueues counts them."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deferred_django.backends.disk import descriptors, tally, tidy
from deferred_django.backends.disk.segment import Entry, Segment
from deferred_django.backends.disk.tasks_storage import TasksStorage
from tests.disk import support
from tests.disk.support import FUTURE, PAST, open_storage
from tests.support import wait_until


@pytest.fixture
def producer(tmp_path: Path) -> Iterator[TasksStorage]:
    storage = open_storage(tmp_path)
    yield storage
    storage.close()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[TasksStorage]:
    storage = open_storage(tmp_path)
    yield storage
    storage.close()


def count(storage: TasksStorage) -> int:
    return storage.pending_count(0)


def truth(path: Path) -> int:
    """The count of a process that starts now."""
    storage = open_storage(path)
    counts, _ = storage.overview()
    storage.close()
    return counts.due + counts.running


def test_counting_makes_nothing(tmp_path: Path) -> None:
    storage = open_storage(tmp_path / "store")
    assert count(storage) == 0
    assert list(tmp_path.iterdir()) == []
    storage.close()


def test_own_adds_count_without_reading(
    producer: TasksStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    support.add(producer)
    assert producer.pending_count(1) == 1
    monkeypatch.setattr(producer.tally, "_refresh", None)
    for _ in range(3):
        support.add(producer)
    support.add(producer, publish_at=FUTURE)
    assert producer.pending_count(1000) == 4


def test_a_backlog_is_read_once(
    producer: TasksStorage, worker: TasksStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(500):
        support.add(worker, b"x" * 1000)
    assert count(producer) == 500
    read: list[int] = []
    real = Segment.read_on

    def note(segment: Segment, budget: int | None = None) -> bool:
        before = segment.scanner.offset
        try:
            return real(segment, budget)
        finally:
            read.append(segment.scanner.offset - before)

    monkeypatch.setattr(Segment, "read_on", note)
    for _ in range(50):
        support.add(producer, b"y")
        assert count(producer) == 501 + len(read) - 1
    assert 0 < sum(read) < 50 * 200


def test_a_large_backlog_is_read_a_part_at_a_time(
    producer: TasksStorage, worker: TasksStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not read to its end is not counted, and each call goes on."""
    worker._writer.rotate_bytes = 50_000
    worker._writer.reset()
    for _ in range(300):
        support.add(worker, b"x" * 1000)
    monkeypatch.setattr(tally, "READ_BYTES", 20_000)
    monkeypatch.setattr(tally, "READ_SECONDS", 0.0)
    counted: list[int] = []
    while not counted or counted[-1] < 300:
        counted.append(producer.pending_count(1000))
        assert len(counted) < 100
    assert counted == sorted(counted)
    assert len(set(counted)) > 3
    for _ in range(2):
        support.add(producer)
    assert producer.pending_count(1000) == 302


def test_a_segment_that_was_mostly_worked_off_is_not_overrated(
    producer: TasksStorage, worker: TasksStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its removals stand behind its adds."""
    for _ in range(200):
        support.add(worker, b"x" * 1000)
    for entry in support.claim(worker)[:190]:
        support.finish(worker, entry)
    monkeypatch.setattr(tally, "READ_BYTES", 20_000)
    monkeypatch.setattr(tally, "READ_SECONDS", 0.0)
    counted = [producer.pending_count(1000) for _ in range(30)]
    assert set(counted) == {0, 10}


def test_erased_and_compacted_segments(
    tmp_path: Path,
    producer: TasksStorage,
    worker: TasksStorage,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tidy, "COMPACT_BYTES", 100)
    other = open_storage(tmp_path)
    for number in range(20):
        support.add(other, b"x" * 100, task_id=f"t{number}")
    other.close()
    assert count(producer) == 20
    for number in range(15):
        support.finish(worker, support.claim_one(worker, f"t{number}"))
    worker.maintain()
    assert count(producer) == 5
    assert truth(tmp_path) == 5
    support.run_all(worker)
    worker.maintain()
    assert support.segments(tmp_path) == []
    assert count(producer) == 0


def test_retries_count_when_they_are_due(
    producer: TasksStorage, worker: TasksStorage, tmp_path: Path
) -> None:
    support.add(producer, task_id="a")
    for _ in range(20):
        assert count(producer) == 1
        entry = support.claim_one(worker, "a")
        worker.start(entry)
        worker.reschedule(entry, b"again", PAST)
    assert count(producer) == 1
    entry = support.claim_one(worker, "a")
    worker.start(entry)
    worker.reschedule(entry, b"again", time.time() + 0.2)
    assert count(producer) == 0
    wait_until(lambda: count(producer) == 1, what="it is due")


def test_delayed_tasks_that_are_removed_before_they_are_due(
    producer: TasksStorage, worker: TasksStorage
) -> None:
    soon = time.time() + 0.3
    for number in range(6):
        support.add(producer, task_id=f"t{number}", publish_at=soon)
    assert count(producer) == 0
    for number in range(2):
        assert worker.remove(f"t{number}")
    support.add(producer, task_id="t2", publish_at=FUTURE)  # instead of the one before
    assert count(producer) == 0
    wait_until(lambda: count(producer) == 3, what="the rest is due")
    assert worker.remove("t3")
    assert count(producer) == 2


def test_a_killed_producer_and_a_torn_record(producer: TasksStorage, tmp_path: Path) -> None:
    def add_and_die() -> None:
        storage = open_storage(tmp_path)
        for _ in range(3):
            support.add(storage)
        os.write(storage._writer._current.fd, b"\n01234567:add:torn:")  # type: ignore[union-attr]

    assert count(producer) == 0
    support.in_child(add_and_die)
    assert count(producer) == 3
    support.add(producer)
    assert count(producer) == truth(tmp_path) == 4


def test_a_cut_segment_is_counted_anew(producer: TasksStorage, tmp_path: Path) -> None:
    other = open_storage(tmp_path)
    for _ in range(10):
        support.add(other, b"x" * 100)
    other.close()
    assert count(producer) == 10
    path = support.only_segment(tmp_path)
    os.truncate(path, path.stat().st_size // 2)
    assert count(producer) == truth(tmp_path)
    assert 3 < count(producer) < 6


def test_a_child_counts_for_itself(producer: TasksStorage, tmp_path: Path) -> None:
    support.add(producer)
    assert count(producer) == 1

    def in_the_child() -> None:
        assert producer.pending_count(1000) == 1
        support.add(producer)
        assert producer.pending_count(1000) == 2

    support.in_child(in_the_child)
    assert producer.pending_count(1000) == 1
    assert count(producer) == 2


def test_an_idle_process_keeps_no_file_open(
    producer: TasksStorage, worker: TasksStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would keep the space of files that others erase."""
    support.add(worker)
    before = set(descriptors.open_descriptors())
    assert count(producer) == 1
    assert set(descriptors.open_descriptors()) > before
    assert producer._tick() is True
    monkeypatch.setattr(tally, "IDLE_SECONDS", 0.0)
    assert producer._tick() is False
    assert set(descriptors.open_descriptors()) == before
    support.add(worker)
    assert count(producer) == 2


def test_a_signal_handler_that_counts_waits_for_nobody(producer: TasksStorage) -> None:
    support.add(producer)
    assert count(producer) == 1
    with producer.tally._lock:  # the thread that it interrupts is in the middle of a reading
        support.add(producer)
        assert count(producer) == 2
    assert count(producer) == 2


def test_any_history_is_counted_right(tmp_path: Path) -> None:
    seed = random.randrange(1_000_000)
    chance = random.Random(seed)
    storages = [open_storage(tmp_path) for _ in range(3)]
    for storage in storages:
        storage._writer.rotate_bytes = 1500
        storage._writer.reset()
    producer, worker, other = storages
    held: list[Entry] = []
    for number in range(200):
        action = chance.randrange(8)
        who = chance.choice(storages)
        if action < 3:
            at = chance.choice([PAST, PAST, FUTURE, time.time() + chance.random() / 2])
            support.add(who, b"x" * chance.randrange(200), publish_at=at)
        elif action == 3 and not held:
            held = support.claim(worker, chance.randrange(1, 6))
            for entry in held:
                worker.start(entry)
        elif action in (4, 5) and held:
            entry = held.pop()
            end = chance.randrange(3)
            if end == 0:
                worker.complete(entry)
            elif end == 1:
                worker.reschedule(entry, b"again", chance.choice([PAST, FUTURE]))
            else:
                worker.release(entry, hold=False)
        elif action == 6:
            found = other.survey()
            if found:
                other.remove(chance.choice(found)[0].id)
        elif action == 7 and number % 3 == 0:
            worker.maintain()
            if chance.random() < 0.2:
                other.close()
        before = truth(tmp_path)
        counted = count(producer)
        assert before <= counted <= truth(tmp_path), f"seed {seed}, step {number}"
    for storage in storages:
        storage.close()
