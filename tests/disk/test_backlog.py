"""Many pending tasks: they are kept in columns, tried in order, and read in slices."""

from __future__ import annotations

import errno
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deferred_django.backends.disk import (
    claims,
    row_heap,
    segment,
    segment_set,
    tasks_storage,
    tidy,
)
from deferred_django.backends.disk.tasks_storage import TasksStorage
from tests.disk.conftest import Opener
from tests.disk.support import (
    FUTURE,
    PAST,
    add,
    claim,
    claim_one,
    fail_once,
    finish,
    in_child,
    only_segment,
    open_storage,
    run_all,
    segments,
)

Clock = Callable[[float], None]


@pytest.fixture(params=["blocks", "rows"], autouse=True)
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything twice: blocks of a few rows, packed all the time, and single rows only."""
    blocks = request.param == "blocks"
    monkeypatch.setattr(row_heap, "BLOCK_ROWS", 2 if blocks else 1 << 60)
    monkeypatch.setattr(row_heap, "PACK_AT", 4 if blocks else 1 << 60)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Sets the time that decides what is due."""

    def set_to(seconds: float) -> None:
        monkeypatch.setattr(tasks_storage, "_now_ms", lambda: int(seconds * 1000))

    return set_to


@pytest.fixture(params=["hashes differ", "all hashes equal"])
def hashes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hash proves nothing."""
    if request.param == "all hashes equal":
        monkeypatch.setattr(segment, "hash_of", lambda name: 7)


def ids_of(storage: TasksStorage) -> list[str]:
    return sorted(entry.id for entry, _ in storage.survey())


# -- what others do to tasks that were read ------------------------------------------------------


@pytest.mark.usefixtures("hashes")
def test_what_another_process_does_to_tasks_that_were_read(
    producer: TasksStorage, worker: TasksStorage, store: Path
) -> None:
    names = [add(producer, b"%d" % number) for number in range(30)]
    assert worker.claim(0, None, (), None) == []  # all are read, in columns

    def work() -> None:
        other = open_storage(store)
        for entry in claim(other, 1000, *names[:5]):
            finish(other, entry)
        for entry in claim(other, 1000, *names[5:10]):
            other.start(entry)
            other.reschedule(entry, b"again", 0.0)
        for entry in claim(other, 1000, *names[10:15]):
            other.start(entry)
            other.release(entry, hold=False)
        assert other.remove(names[15])
        for entry in claim(other, 1000, *names[16:20]):
            other.start(entry)  # and is killed

    in_child(work)
    claimed = dict(worker.claim(1000, None, (), None))
    by_id = {entry.id: (payload, len(entry.runs)) for entry, payload in claimed.items()}
    expected = dict.fromkeys(names[5:10], (b"again", 0))
    expected |= {
        name: (b"%d" % number, 0)
        for number, name in enumerate(names)
        if 10 <= number < 15 or number >= 20
    }
    expected |= {
        name: (b"%d" % number, 1) for number, name in enumerate(names) if 16 <= number < 20
    }
    assert by_id == expected
    assert [entry.publish_ms for entry in claimed][:5] == [0] * 5
    for entry in claimed:
        finish(worker, entry)
    assert worker.survey() == []


@pytest.mark.usefixtures("hashes")
def test_a_late_removal_concerns_the_old_add_of_a_task_that_was_read(
    producer: TasksStorage, worker: TasksStorage, opener: Opener, store: Path
) -> None:
    name = add(producer, b"first")
    worker.claim(0, None, (), None)
    other = opener()
    [(_, nonce)] = [(entry.id, entry.nonce) for entry, _ in other.survey()]
    add(producer, b"second", task_id=name)
    from deferred_django.backends.disk import log_records

    with only_segment(store).open("ab") as file:
        file.write(log_records.rem(name, nonce))
    assert run_all(worker) == [b"second"]


def test_a_change_that_cannot_be_looked_up_is_read_again(
    monkeypatch: pytest.MonkeyPatch, producer: TasksStorage, worker: TasksStorage, opener: Opener
) -> None:
    """A ``rem`` is compared with its task's record, which cannot be read at the first try."""
    names = [add(producer, b"%d" % number) for number in range(3)]
    worker.claim(0, None, (), None)
    assert opener().remove(names[0])
    failed = fail_once(
        monkeypatch,
        "read_at",
        OSError(errno.EIO, "Input/output error", "injected"),
        when=lambda fd, size, offset: offset == 10 and size < 200,
    )
    worker.claim(0, None, (), None)
    assert failed
    assert sorted(run_all(worker)) == [b"1", b"2"]


# -- order -------------------------------------------------------------------------------------


def test_the_order_is_by_priority_and_time_wherever_the_tasks_are(
    opener: Opener, clock: Clock
) -> None:
    chance = random.Random(5)
    clock(PAST + 1000)
    producers, worker = [opener() for _ in range(3)], opener()
    keys: list[tuple[int, float]] = []

    def produce(count: int) -> None:
        for _ in range(count):
            priority, at = chance.choice((-3, 0, 0, 0, 9)), PAST + chance.randrange(900)
            queue = chance.choice(("a", "b", "c"))
            add(chance.choice(producers), priority=priority, publish_at=at, queue=queue)
            keys.append((-priority, at))

    taken: list[tuple[int, float]] = []
    for _ in range(20):
        produce(12)
        keys.sort()
        for entry in claim(worker, 7):
            taken.append((-entry.priority, entry.publish_ms / 1000))
            assert taken[-1] == keys.pop(0)
            finish(worker, entry)
    taken = [(-entry.priority, entry.publish_ms / 1000) for entry in claim(worker)]
    assert taken == keys


def test_delayed_tasks_fall_due(opener: Opener, clock: Clock) -> None:
    clock(PAST)
    producer, worker = opener(), opener()
    chance = random.Random(7)
    times = [chance.randrange(100) for _ in range(200)]
    for at in times:
        add(producer, b"%d" % at, publish_at=PAST + at, priority=at % 3)
    early = add(producer, b"-1", publish_at=PAST + 200)
    assert worker.remove(early)
    ran: list[int] = []
    for now in (0, 1, 30, 31, 80, 99):
        clock(PAST + now)
        got = [int(payload) for payload in run_all(worker)]
        assert sorted(got) == sorted(at for at in times if at <= now and at not in ran)
        assert [at % 3 for at in got] == sorted((at % 3 for at in got), reverse=True)
        ran += got
    assert len(ran) == len(times)


def test_a_wait_ends_when_the_next_task_falls_due(opener: Opener, clock: Clock) -> None:
    clock(PAST)
    producer, worker = opener(), opener()
    for second in range(20, 40):
        add(producer, publish_at=PAST + second)
    assert claim(worker) == []
    assert worker._index.seconds_to_next(int(PAST * 1000), 0.0) == 20
    clock(PAST + 22)
    assert len(claim(worker)) == 3
    assert worker._index.seconds_to_next(int((PAST + 22) * 1000), 0.0) == 1


def test_a_long_queue_that_nobody_asks_for_costs_nothing(
    monkeypatch: pytest.MonkeyPatch, opener: Opener
) -> None:
    producer, worker = opener(), opener()
    for number in range(600):
        add(producer, queue="blocked", priority=9)
        if number % 30 == 0:
            add(producer, b"%d" % number, queue="wanted")
    worker.claim(0, None, (), None)
    made: list[int] = []
    real = row_heap.RowHeap._item

    def item(*arguments: object) -> row_heap.Item:
        made.append(1)
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(row_heap.RowHeap, "_item", item)
    ran = []
    while claimed := worker.claim(2, ["wanted"], (), None):
        for entry, payload in claimed:
            ran.append(int(payload))
            finish(worker, entry)
    assert ran == list(range(0, 600, 30))
    assert len(made) <= 20
    assert len(worker.claim(1000, None, ["wanted"], None)) == 600


def test_a_segment_that_may_not_be_used_is_left_alone_as_a_whole(
    monkeypatch: pytest.MonkeyPatch, opener: Opener
) -> None:
    producer, worker = opener(), opener()
    for _ in range(50):
        add(producer)
    monkeypatch.setattr(claims, "HELD_RETRY_SECONDS", 0.0)
    monkeypatch.setattr(tidy, "is_overgrown", lambda segment: True)
    for _ in range(3):
        assert claim(worker) == []
    monkeypatch.setattr(tidy, "is_overgrown", lambda segment: False)
    assert len(claim(worker)) == 50


def test_claims_that_are_let_go_come_again_once(opener: Opener) -> None:
    producer, worker, other = opener(), opener(), opener()
    names = [add(producer, b"%d" % number) for number in range(40)]
    for _ in range(5):
        for entry in claim(worker, 10):
            worker.release(entry, hold=False)
        for entry in claim(worker, 10, *names[5:15]):
            worker.release(entry, hold=False)
    held = claim(other, 10)
    assert [entry.id for entry in held] == names[:10]
    assert [entry.id for entry in claim(worker)] == names[10:]


# -- reading in slices -------------------------------------------------------------------------


@pytest.fixture
def backlog(store: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Six segments of twenty tasks, the one that was made last has the oldest tasks."""
    monkeypatch.setattr(tasks_storage, "SLICE_BYTES", 1)
    names = []
    keep = []
    for number in range(6):
        storage = open_storage(store)
        for _ in range(20):
            at = PAST - number
            names.append(add(storage, b"%d" % number, publish_at=at, queue=f"q{number}"))
        keep.append(storage)  # so that the next does not adopt it
    for storage in keep:
        storage.close()
    return names


def test_the_first_claim_reads_one_segment_the_oldest(
    backlog: list[str], worker: TasksStorage
) -> None:
    assert [payload for _, payload in worker.claim(3, None, (), None)] == [b"5"] * 3
    read = [each for each in worker._segments.segments() if each.scanner.offset]
    assert len(read) == 1
    assert len(claim(worker, 1000)) == 17 + 20  # and each call the next
    worker.maintain()
    assert len(claim(worker, 1000)) == 80


@pytest.mark.parametrize("queue", ["q0", "q3"])
def test_nothing_is_said_to_be_there_only_after_all_was_read(
    backlog: list[str], worker: TasksStorage, queue: str
) -> None:
    assert len(worker.claim(1000, [queue], (), None)) == 20
    assert worker.claim(1000, ["none"], (), None) == []
    assert all(each.size_read > 0 for each in worker._segments.segments())


@pytest.fixture
def woken(worker: TasksStorage, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The worker is woken while it reads the third slice; how often it has read one."""
    monkeypatch.setattr(tasks_storage, "HURRY_BYTES", 1)
    monkeypatch.setattr(segment_set, "FRESH_BYTES", 1)
    reads: list[int] = []
    real = worker._segments.refresh

    def refresh(*arguments: Any) -> bool:
        reads.append(len(reads))
        if len(reads) == 3:
            worker.wake()
        return real(*arguments)

    monkeypatch.setattr(worker._segments, "refresh", refresh)
    return reads


def was_cut_short(worker: TasksStorage) -> bool:
    return worker.cut_short


def test_a_wake_ends_a_claim_that_has_found_nothing_and_the_wait_behind_it(
    backlog: list[str], worker: TasksStorage, woken: list[int]
) -> None:
    """A worker that is stopped does not read all tasks of other queues first."""
    assert worker.claim(1, ["q0"], (), None) == []
    assert was_cut_short(worker)
    assert len(woken) == 3
    assert worker.claim(1, ["q0"], (), None) == []  # still: nobody has taken note of the wake
    worker.wait(30)
    assert len(worker.claim(1000, ["q0"], (), None)) == 20
    assert not was_cut_short(worker)
    assert worker.claim(1, ["none"], (), None) == []
    assert not was_cut_short(worker)


def test_a_wake_hides_nothing_that_was_found(
    backlog: list[str], worker: TasksStorage, woken: list[int]
) -> None:
    for _ in range(6):
        worker.wake()
        assert len(worker.claim(1000, None, (), None)) == 20
        assert not was_cut_short(worker)
    assert worker.claim(1, None, (), None) == []
    assert not was_cut_short(worker)  # nothing was left to be read


def test_a_task_that_is_asked_for_by_its_id_is_found_in_what_was_not_read_yet(
    backlog: list[str], worker: TasksStorage, opener: Opener
) -> None:
    assert claim_one(worker, backlog[0]).id == backlog[0]
    assert opener().remove(backlog[1])
    assert not opener().remove(backlog[0])
    assert ids_of(worker) == sorted({*backlog} - {backlog[1]})


def test_a_large_segment_is_read_in_slices_and_claimed_from_at_its_end(
    monkeypatch: pytest.MonkeyPatch, opener: Opener
) -> None:
    monkeypatch.setattr(tasks_storage, "SLICE_BYTES", 1)
    producer, worker = opener(), opener()
    names = [add(producer, b"x" * 50_000, priority=number) for number in range(40)]
    slices = 1
    while not worker._read_a_slice():
        slices += 1
        assert worker._segments.segments()[0].indexed == 0
    assert slices >= 7
    worker._segments.close()
    assert [entry.id for entry in claim(worker, 2)] == names[:-3:-1]  # in order all the same


def test_a_segment_that_was_not_read_yet_is_not_tidied(
    backlog: list[str], worker: TasksStorage, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim(worker, 1)
    monkeypatch.setattr(tasks_storage.TasksStorage, "_read_a_slice", lambda storage: True)
    worker.maintain()
    assert len(segments(store)) == 6
    assert len(ids_of(worker)) == 120


# -- sizes -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("hashes")
def test_compaction_keeps_what_is_pending(
    monkeypatch: pytest.MonkeyPatch, producer: TasksStorage, worker: TasksStorage, store: Path
) -> None:
    monkeypatch.setattr(tidy, "COMPACT_BYTES", 100)
    chance = random.Random(3)
    left = {add(producer, b"%d" % number, publish_at=PAST + number): number for number in range(60)}
    late = [add(producer, b"late", publish_at=FUTURE) for _ in range(5)]
    producer.close()
    before = only_segment(store).stat().st_size
    while len(left) > 10:
        name = chance.choice(list(left))
        finish(worker, claim_one(worker, name))
        del left[name]
        worker.maintain()
        assert ids_of(worker) == sorted([*left, *late])
    assert only_segment(store).stat().st_size < before  # it was only appended to otherwise
    assert [int(payload) for payload in run_all(worker)] == sorted(left.values())
    assert ids_of(worker) == sorted(late)


def test_the_books_of_bytes_are_exact(
    producer: TasksStorage, worker: TasksStorage, opener: Opener
) -> None:
    names = [add(producer, b"%d" % (number % 10)) for number in range(40)]
    length = claim_one(worker, names[0]).length
    worker.release(worker._segments.segments()[0].claimed[0], hold=False)
    for entry, payload in worker.claim(30, None, (), None):
        worker.start(entry)
        if entry.id in names[:10]:
            worker.reschedule(entry, payload, FUTURE)
        else:
            worker.complete(entry)
    fresh = opener()
    for storage in (worker, fresh):
        storage.claim(0, None, (), None)
    books = [
        (each.live_bytes, each.superseded_bytes, each.table.live, each.scanner.offset)
        for storage in (worker, fresh)
        for each in storage._segments.segments()
    ]
    assert books[0] == books[1]
    live = sum(entry.length for entry, _ in fresh.survey())
    assert books[0][:3] == (live, 10 * length, 20)
    assert worker._segments.segments()[0].own_lines == set()


@pytest.mark.parametrize("at", [PAST, FUTURE], ids=["due", "delayed"])
def test_a_pending_task_takes_little_memory(opener: Opener, at: float) -> None:
    count = 4_000
    producer, worker = opener(), opener()
    for _ in range(count):
        add(producer, b"x" * 100, publish_at=at)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        worker.claim(0, None, (), None)
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used / count < 100 + (row_heap.BLOCK_ROWS > 2) * 250


def test_a_far_delayed_task_keeps_no_space(opener: Opener, store: Path) -> None:
    """Beside it thousands come and go: what is left is a segment of its size."""
    producer, worker = opener(fsync_frequency=600), opener(fsync_frequency=600)  # no timer
    producer._writer.rotate_bytes = 100_000
    producer._writer.reset()
    late = add(producer, b"late", publish_at=FUTURE)
    for _ in range(5):
        for _ in range(1000):
            add(producer, b"x" * 100)
        assert len(run_all(worker)) == 1000
        producer.sync()
        worker.maintain()
        assert sum(path.stat().st_size for path in segments(store)) < 700_000  # two of these rounds
    producer.close()
    worker.maintain()
    assert ids_of(worker) == [late]
    assert sum(path.stat().st_size for path in segments(store)) < 1000
