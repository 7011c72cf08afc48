"""Interleavings of the tasks log, forced by stopping one side at a named call."""

from __future__ import annotations

import errno
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from deferred_django.backends.disk import descriptors, files, locks, tidy, watch
from deferred_django.backends.disk.tasks_storage import TasksStorage
from tests.disk.conftest import Opener
from tests.disk.support import (
    FUTURE,
    Gate,
    add,
    claim,
    claim_one,
    fail_once,
    finish,
    in_child,
    only_segment,
    open_storage,
    run_all,
    running,
    segments,
)
from tests.support import wait_until

EIO = OSError(errno.EIO, "Input/output error", "injected")


@pytest.fixture(autouse=True)
def compact_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidy, "COMPACT_BYTES", 100)


def inode(path: Path) -> int:
    return path.stat().st_ino


# -- compaction and erasure --------------------------------------------------------------------


def test_a_segment_whose_owner_lives_is_not_compacted(
    producer: TasksStorage, worker: TasksStorage, store: Path
) -> None:
    """R3."""
    add(producer, b"live", publish_at=FUTURE)
    for _ in range(20):
        add(producer)
    assert len(run_all(worker)) == 20
    before = inode(only_segment(store))
    worker.maintain()
    assert inode(only_segment(store)) == before
    add(producer, b"more")
    producer.close()
    worker.maintain()  # free, but the new task is neither claimed nor dead
    assert run_all(worker) == [b"more"]
    assert [entry.publish_ms for entry, _ in worker.survey()] == [FUTURE * 1000]


def test_an_append_between_the_look_and_the_lock_is_seen(
    monkeypatch: pytest.MonkeyPatch, opener: Opener, producer: TasksStorage, worker: TasksStorage
) -> None:
    """R4: the owner appends and leaves just before the drained segment is locked."""
    add(producer, b"1")
    assert run_all(worker) == [b"1"]
    producer.close()
    gate = Gate(monkeypatch, "try_lock", when=lambda fd, start, length: length == 0)
    with running(worker.maintain) as results:
        gate.wait()
        late = opener()
        add(late, b"2")
        late.close()
        gate.open()
    assert results == [None]
    assert run_all(worker) == [b"2"]


def test_an_adopter_that_comes_late_does_not_write_into_an_erased_file(
    monkeypatch: pytest.MonkeyPatch, opener: Opener, producer: TasksStorage, worker: TasksStorage
) -> None:
    """C09: stopped between open and lock, while the segment is drained and unlinked."""
    add(producer, b"1")
    producer.close()
    adopter = opener()
    gate = Gate(monkeypatch, "try_lock", when=lambda fd, start, length: start > 0 and length == 1)
    with running(lambda: add(adopter, b"2")) as results:
        gate.wait()
        assert run_all(worker) == [b"1"]
        worker.maintain()
        gate.open()
    assert isinstance(results[0], str)
    assert run_all(worker) == [b"2"]


def test_a_claimer_that_comes_late_does_not_hold_a_replaced_file(
    monkeypatch: pytest.MonkeyPatch, opener: Opener, producer: TasksStorage, worker: TasksStorage
) -> None:
    """C09: stopped before the lock of a claim, while the segment is compacted."""
    task_id = add(producer, b"keep")
    for _ in range(20):
        add(producer)
    other = opener()
    for entry in claim(other):
        if entry.id == task_id:
            other.release(entry, hold=False)
        else:
            finish(other, entry)
    producer.close()
    gate = Gate(monkeypatch, "try_lock", when=lambda fd, start, length: length > 1)
    with running(lambda: claim(worker)) as results:
        gate.wait()
        before = inode(only_segment(Path(worker.names.path)))
        other.maintain()
        assert inode(only_segment(Path(worker.names.path))) != before
        gate.open()
    claimed = results[0] or claim(worker)
    assert [entry.id for entry in claimed] == [task_id]
    assert claim(other) == []
    finish(worker, claimed[0])
    assert other.survey() == []


def test_a_claim_keeps_the_file_from_being_replaced(
    producer: TasksStorage, worker: TasksStorage, opener: Opener, store: Path
) -> None:
    """C17 (a): the finish of a claimed task never goes into a replaced file."""
    for _ in range(20):
        add(producer)
    task_id = add(producer, b"held")
    held = claim_one(worker, task_id)
    other = opener()
    assert len(run_all(other)) == 20
    producer.close()
    before = inode(only_segment(store))
    other.maintain()
    assert inode(only_segment(store)) == before
    finish(worker, held)
    assert other.survey() == []


@pytest.mark.parametrize("call", ["fsync", "rename", "fsync_directory"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_compactor_killed_at_a_call(
    producer: TasksStorage, worker: TasksStorage, store: Path, call: str, after: bool
) -> None:
    """C17 (b): before and after each; the temp is never read, and is removed later."""
    add(producer, b"delayed", publish_at=FUTURE)
    add(producer, b"due")
    for _ in range(20):
        add(producer)
    for entry, payload in worker.claim(100, None, (), None):
        if payload == b"due":
            worker.start(entry)
            worker.reschedule(entry, b"again", FUTURE)
        else:
            finish(worker, entry)
    producer.close()
    worker.close()

    def compact() -> None:
        real = getattr(files, call)

        def die(*arguments: Any) -> None:
            if after:
                real(*arguments)
            os.kill(os.getpid(), signal.SIGKILL)

        setattr(files, call, die)
        open_storage(store).maintain()

    in_child(compact)
    assert sorted(payload_of(worker)) == [b"again", b"delayed"]
    worker.maintain()
    assert not list(store.glob("*.tmp"))
    assert sorted(payload_of(worker)) == [b"again", b"delayed"]
    assert only_segment(store).stat().st_size < 400


def payload_of(storage: TasksStorage) -> list[bytes]:
    return [payload for _, _, payload in storage.survey_with_payloads()]


def test_a_producer_that_adopts_while_a_segment_is_compacted(
    monkeypatch: pytest.MonkeyPatch, opener: Opener, producer: TasksStorage, worker: TasksStorage
) -> None:
    """C17 (c)."""
    add(producer, b"live", publish_at=FUTURE)
    for _ in range(20):
        add(producer)
    run_all(worker)
    producer.close()
    adopter = opener()
    gate = Gate(monkeypatch, "rename")
    with running(worker.maintain):
        gate.wait()
        add(adopter, b"new")  # the segment is locked whole: another one is made
        gate.open()
    assert run_all(worker) == [b"new"]
    assert payload_of(worker) == [b"live"]


def test_crashes_are_counted_across_a_compaction(
    producer: TasksStorage, worker: TasksStorage, store: Path
) -> None:
    """C39: a compacted segment still says who died running what."""
    task_id = add(producer, b"killer")
    for _ in range(20):
        add(producer)

    def die_running() -> None:
        storage = open_storage(store)
        storage.start(claim_one(storage, task_id))

    in_child(die_running)
    in_child(die_running)
    for entry in claim(worker):
        if entry.id == task_id:
            worker.release(entry, hold=False)
        else:
            finish(worker, entry)
    producer.close()
    before = inode(only_segment(store))
    worker.maintain()
    assert inode(only_segment(store)) != before
    [(entry, _)] = worker.survey()
    assert len(entry.runs) == 2
    assert entry.crashes(entry.runs[0].boot_id) == 2
    assert entry.crashes("another boot") == 0


def test_tight_retries_do_not_grow_a_segment_without_bound(
    monkeypatch: pytest.MonkeyPatch, opener: Opener, producer: TasksStorage, store: Path
) -> None:
    """R15: four busy workers on a segment full of retries; nobody else would let it shrink."""
    monkeypatch.setattr(tidy, "GROWN_BYTES", 30_000)
    for number in range(40):
        add(producer, b"%d" % number * 20)
    producer.close()
    workers = [opener() for _ in range(4)]
    largest = 0
    for _ in range(60):
        for worker in workers:
            for entry, payload in worker.claim(10, None, (), None):
                worker.start(entry)
                worker.reschedule(entry, payload, 0.0)
            worker.maintain()
        largest = max(largest, *(path.stat().st_size for path in segments(store)))
    assert largest < 60_000
    assert len(workers[0].survey()) == 40


def test_an_own_claim_withstands_the_own_compactor(
    producer: TasksStorage, worker: TasksStorage, opener: Opener, store: Path
) -> None:
    """R8: locks on one descriptor would not exclude it."""
    for _ in range(20):
        add(producer)
    task_id = add(producer)
    held = claim_one(worker, task_id)
    run_all(worker)
    producer.close()
    worker.maintain()
    fd = files.open_file(str(only_segment(store)), os.O_RDWR)
    assert not locks.try_whole(fd)
    files.close(fd)
    assert claim(opener()) == []
    finish(worker, held)


def test_a_late_removal_concerns_the_old_add_only(
    monkeypatch: pytest.MonkeyPatch, producer: TasksStorage, worker: TasksStorage, opener: Opener
) -> None:
    """R5: the removal fails, the dead task is run again under its id, the removal is repeated."""
    task_id = add(producer, b"first")
    old = claim_one(worker, task_id)
    worker.start(old)
    full = OSError(errno.ENOSPC, "No space left on device", "injected")
    fail_once(monkeypatch, "write", full, when=lambda fd, data: b":rem:" in data)
    with pytest.raises(OSError, match="No space"):
        worker.complete(old)
    add(producer, b"second", task_id=task_id)
    worker.complete(old)
    other = opener()
    assert run_all(other) == [b"second"]


def test_removing_a_task_that_runs_or_moves(
    monkeypatch: pytest.MonkeyPatch, producer: TasksStorage, worker: TasksStorage, opener: Opener
) -> None:
    """R12."""
    task_id = add(producer, b"x")
    for _ in range(20):
        add(producer)
    entry = claim_one(worker, task_id)
    other = opener()
    assert not other.remove(task_id)
    assert not worker.remove(task_id)
    worker.release(entry, hold=False)
    run_all_but(worker, task_id)
    producer.close()
    gate = Gate(monkeypatch, "rename")
    with running(worker.maintain):
        gate.wait()
        removed = other.remove(task_id)
        gate.open()
    assert not removed  # refused while its file is being replaced
    assert other.remove(task_id)
    assert worker.survey() == other.survey() == []


def run_all_but(storage: TasksStorage, task_id: str) -> None:
    for entry in claim(storage):
        if entry.id == task_id:
            storage.release(entry, hold=False)
        else:
            finish(storage, entry)


# -- durability --------------------------------------------------------------------------------


def test_the_directory_is_synced_by_whoever_acknowledges_first(
    monkeypatch: pytest.MonkeyPatch, opener: Opener, store: Path
) -> None:
    """R6: the maker of the segment is killed before its own fsync of the directory."""

    def make_and_die() -> None:
        def die(path: str) -> None:
            if path == str(store):
                os.kill(os.getpid(), signal.SIGKILL)

        store.mkdir()
        files.fsync_directory = die
        add(open_storage(store))

    in_child(make_and_die)
    calls: list[str] = []
    monkeypatch.setattr(files, "fsync_directory", calls.append)
    real = files.write

    def write(fd: int, data: bytes) -> int:
        calls.append("write")
        return real(fd, data)

    monkeypatch.setattr(files, "write", write)
    adopter = opener()
    add(adopter)
    assert calls == [str(store.parent), str(store), "write"]
    only_segment(store)


def test_a_made_directory_is_synced_into_its_parent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(files, "fsync_directory", calls.append)
    storage = open_storage(tmp_path / "a" / "b")
    add(storage)
    storage.close()
    path, parent = str(tmp_path / "a" / "b"), str(tmp_path / "a")
    assert calls == [str(tmp_path.parent), str(tmp_path), parent, parent, path]


def test_a_worker_syncs_what_a_killed_producer_left(
    monkeypatch: pytest.MonkeyPatch, opener: Opener, store: Path
) -> None:
    """R7."""
    in_child(lambda: add(open_storage(store), b"x", publish_at=FUTURE))
    synced: list[int] = []
    real = files.fsync

    def fsync(fd: int) -> None:
        real(fd)
        synced.append(os.fstat(fd).st_ino)

    monkeypatch.setattr(files, "fsync", fsync)
    worker = opener(fsync_frequency=0.02)
    assert claim(worker) == []
    wait_until(lambda: inode(only_segment(store)) in synced)


def test_a_failed_fsync_moves_what_did_not_run(
    monkeypatch: pytest.MonkeyPatch, opener: Opener, store: Path
) -> None:
    """R11, C21: 50 unsynced, 40 finished; the 40 do not run again, the 10 run once."""
    producer, worker = opener(fsync_frequency=600), opener()
    for number in range(50):
        add(producer, b"%d" % number)
    done = []
    for entry, payload in worker.claim(40, None, (), None):
        finish(worker, entry)
        done.append(payload)
    running_entry = claim(worker, 1)[0]
    old = only_segment(store)
    failed = fail_once(monkeypatch, "fsync", EIO)
    with pytest.raises(OSError, match="Input/output"):
        producer.sync()  # one of them runs: it is not durable anywhere yet
    assert failed
    assert len(segments(store)) == 2
    finish(worker, running_entry)
    producer.sync()
    other = opener()
    rest = run_all(other)
    assert len(rest) == 9
    assert not set(rest) & set(done)
    add(producer, b"new")
    assert b":new" not in old.read_bytes()
    producer.close()
    adopter = opener()
    add(adopter, b"adopted")
    assert sorted(run_all(worker)) == [b"adopted", b"new"]


def test_the_timer_outlives_a_failed_fsync(
    monkeypatch: pytest.MonkeyPatch,
    opener: Opener,
    caplog: pytest.LogCaptureFixture,
    store: Path,
) -> None:
    """C21."""
    producer, worker = opener(fsync_frequency=0.02), opener()
    failed = fail_once(monkeypatch, "fsync", EIO)
    add(producer, b"1")
    wait_until(lambda: failed and len(segments(store)) == 2)
    add(producer, b"2")
    producer.sync()
    assert "not durable" in caplog.text
    assert sorted(run_all(worker)) == [b"1", b"2"]


def test_a_synced_enqueue_fails_with_its_fsync(
    monkeypatch: pytest.MonkeyPatch, opener: Opener
) -> None:
    """C21: the caller is told, and what it was told has failed does not run."""
    producer, worker = opener(fsync_frequency=0), opener()
    add(producer, b"1")
    fail_once(monkeypatch, "fsync", EIO)
    with pytest.raises(OSError, match="Input/output"):
        add(producer, b"2")
    add(producer, b"3")
    assert sorted(run_all(worker)) == [b"1", b"3"]


def test_a_rescue_whose_own_fsync_fails_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, opener: Opener
) -> None:
    producer, worker = opener(fsync_frequency=600), opener()
    add(producer, b"1")
    real = files.fsync
    left = [1] * 4  # the file's, the copy's, that of the copy's withdrawal; again the copy's

    def fail(fd: int) -> None:
        if left:
            left.pop()
            raise OSError(errno.EIO, "Input/output error", "injected")
        real(fd)

    monkeypatch.setattr(files, "fsync", fail)
    for _ in range(2):
        with pytest.raises(OSError, match="Input/output"):
            producer.sync()
    producer.sync()
    producer.sync()
    assert run_all(worker) == [b"1"]


def test_a_retry_whose_fsync_fails_is_moved(
    monkeypatch: pytest.MonkeyPatch, opener: Opener, producer: TasksStorage, store: Path
) -> None:
    """What a worker appends is no less than what a producer does."""
    add(producer, b"1")
    add(producer, b"2")
    producer.close()
    worker = opener(fsync_frequency=600)
    first, second = claim(worker)
    worker.start(first)
    worker.reschedule(first, b"1 again", 0.0)
    finish(worker, second)
    failed = fail_once(monkeypatch, "fsync", EIO)
    worker.sync()
    assert failed
    assert len(segments(store)) == 2
    assert run_all(opener()) == [b"1 again"]


# -- forks -------------------------------------------------------------------------------------


def test_children_own_nothing_of_their_parent(store: Path) -> None:
    """C47: all three go on enqueueing; each in a segment of its own, none twice."""
    storage = open_storage(store)
    add(storage, b"parent-first")

    def enqueue(name: str) -> None:
        for number in range(100):
            add(storage, f"{name}-{number}".encode())

    in_child(lambda: enqueue("a"))
    in_child(lambda: enqueue("b"))
    enqueue("parent")
    worker = open_storage(store)
    ran = run_all(worker)
    assert len(ran) == len(set(ran)) == 301
    storage.close()
    worker.close()


def test_forking_while_another_thread_enqueues(store: Path) -> None:
    """C47: no child hangs on a lock that a thread of its parent held."""
    storage = open_storage(store)
    stop: list[int] = []

    def produce() -> int:
        count = 0
        while not stop:
            add(storage, b"p%d" % count)
            count += 1
            time.sleep(0.0002)  # a busy web process, not an endless queue
        return count

    with running(produce) as results:
        for number in range(60):
            in_child(partial(add, storage, b"c%d" % number), kill=number % 2 == 0)
        stop.append(1)
    worker = open_storage(store)
    ran = run_all(worker)
    assert len(ran) == len(set(ran)) == results[0] + 60
    storage.close()
    worker.close()


def test_a_child_that_leaves_does_not_free_its_parents_segment(store: Path) -> None:
    """C48 (a): neither its close, nor its end, nor an unlock."""
    storage = open_storage(store)
    add(storage, b"1")

    def leave() -> None:
        storage.close()

    in_child(leave, kill=False)
    other = open_storage(store)
    add(other, b"2")
    assert len(segments(store)) == 2
    other.close()
    storage.close()


@pytest.mark.parametrize("what", ["claim", "ownership"])
def test_a_child_that_outlives_its_parent_keeps_nothing(store: Path, what: str) -> None:
    """C48 (b): open-file-description locks would stay with it."""
    producer = open_storage(store)
    add(producer, b"x")
    if what == "claim":
        producer.close()
    told, tell = os.pipe()

    def hold_and_die() -> None:
        storage = open_storage(store)
        if what == "claim":
            storage.start(claim(storage)[0])
        else:
            add(storage, b"y")
        if os.fork() == 0:
            os.write(tell, b"%d" % os.getpid())  # by now the fork hooks have run here
            time.sleep(60)
            os._exit(0)

    in_child(hold_and_die)
    grandchild = int(os.read(told, 100))
    os.close(told)
    os.close(tell)
    try:
        worker = open_storage(store)
        if what == "claim":
            assert [entry.crashes(entry.runs[0].boot_id) for entry in claim(worker)] == [1]
        else:
            add(worker, b"z")
            assert len(segments(store)) == 2  # the one that its dead maker left was adopted
        worker.close()
    finally:
        os.kill(grandchild, signal.SIGKILL)
        producer.close()


def test_no_child_is_made_between_open_and_register(
    monkeypatch: pytest.MonkeyPatch, store: Path
) -> None:
    """R13: a thread is in the middle of an open when another forks."""
    store.mkdir()
    path = store / "file"
    path.write_bytes(b"x")
    real, order = os.open, []

    def slow_open(name: str, *arguments: Any, **options: Any) -> int:
        fd = real(name, *arguments, **options)
        if name == str(path):
            order.append("opened")
            time.sleep(0.05)  # the window that a fork must not fall into
            order.append("registering")
        return fd

    monkeypatch.setattr(os, "open", slow_open)
    with running(lambda: files.open_file(str(path), os.O_RDWR)) as results:
        wait_until(lambda: order)

        def child() -> None:
            assert order == ["opened", "registering"]
            assert descriptors.open_descriptors() == {}

        in_child(child, kill=False)
    files.close(results[0])


def test_without_threads_an_enqueue_syncs_by_itself(
    monkeypatch: pytest.MonkeyPatch, opener: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    """C47: an embedding server that allows no threads."""
    import threading

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    synced: list[int] = []
    monkeypatch.setattr(files, "fsync", synced.append)
    producer = opener()
    add(producer)
    add(producer)
    assert len(synced) == 2
    assert caplog.text.count("no sync thread") == 1


# -- waiting -----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC])
def test_without_a_watch_the_directory_is_polled(
    monkeypatch: pytest.MonkeyPatch,
    opener: Opener,
    caplog: pytest.LogCaptureFixture,
    number: int,
) -> None:
    """R23: a limit is reached; one warning, and tasks start all the same."""

    def refuse(fd: int, path: str) -> int:
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(watch.calls, "add_watch", refuse)
    producer, worker = opener(), opener()
    worker.wait(0)
    add(producer, b"1")
    assert wait_and_claim(worker) == b"1"
    with running(lambda: wait_and_claim(worker)) as results:
        add(producer, b"2")
    assert results == [b"2"]
    assert caplog.text.count("cannot be watched") == 1


def wait_and_claim(worker: TasksStorage) -> bytes:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        for entry, payload in worker.claim(1, None, (), None):
            finish(worker, entry)
            return payload
        worker.wait(1.0)
    raise AssertionError("nothing came")


def test_a_lost_event_costs_a_second_at_most(
    monkeypatch: pytest.MonkeyPatch, producer: TasksStorage, worker: TasksStorage
) -> None:
    """R23: the queue of events overflowed."""
    add(producer, b"1")
    assert wait_and_claim(worker) == b"1"
    worker.wait(0)
    assert worker._waiter.watch is not None
    descriptor = worker._waiter.watch._inotify
    real = os.read

    def overflow(fd: int, size: int) -> bytes:
        data = real(fd, size)
        if fd == descriptor and data:
            return watch._HEADER.pack(-1, watch._OVERFLOW, 0, 0)
        return data

    monkeypatch.setattr(os, "read", overflow)
    add(producer, b"2")
    assert wait_and_claim(worker) == b"2"


def test_a_directory_that_is_removed_and_made_again(
    opener: Opener, worker: TasksStorage, store: Path
) -> None:
    """R23."""
    assert worker.claim(1, None, (), None) == []
    worker.wait(0)
    first = opener()
    add(first, b"1")
    assert wait_and_claim(worker) == b"1"
    worker.wait(0)
    first.close()
    worker.maintain()
    store.rmdir()
    add(opener(), b"2")
    assert wait_and_claim(worker) == b"2"
