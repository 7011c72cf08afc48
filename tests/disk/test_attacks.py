"""Faults, some in the middle of a recovery: nothing is forgotten, repeated or leaked by them."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest

from deferred_django.backends.base import BackendConfig
from deferred_django.backends.disk import descriptors, files, tidy, verify, watch
from deferred_django.backends.disk.backend import DiskBackend
from deferred_django.backends.disk.tasks_storage import TasksStorage
from tests.disk.conftest import Opener
from tests.disk.support import (
    FUTURE,
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
from tests.support import wait_until

EIO = OSError(errno.EIO, "Input/output error", "injected")


def fail_always(
    monkeypatch: pytest.MonkeyPatch, call: str, error: OSError, *, when: Any = None
) -> list[int]:
    """Let a function of ``files`` fail until the list that is returned is cleared."""
    failing = [1]
    real = getattr(files, call)

    def fail(*arguments: Any, **options: Any) -> Any:
        if failing and (when is None or when(*arguments)):
            raise OSError(error.errno, error.strerror, error.filename)
        return real(*arguments, **options)

    monkeypatch.setattr(files, call, fail)
    return failing


# -- failed fsyncs -----------------------------------------------------------------------------


def test_a_retry_in_a_segment_that_this_process_owns_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, opener: Opener
) -> None:
    """Written anew into its own segment, it would be removed there together with the old one."""
    both = opener(fsync_frequency=600)
    add(both, b"first")
    both.sync()
    [entry] = claim(both)
    both.start(entry)
    both.reschedule(entry, b"again", 0.0)
    segment = entry.segment
    fail_once(monkeypatch, "fsync", EIO, when=lambda fd: fd == segment.fd)
    both.sync()
    assert run_all(opener()) == [b"again"]


def test_a_retry_that_was_compacted_and_run_is_not_rescued(
    monkeypatch: pytest.MonkeyPatch, opener: Opener, producer: TasksStorage
) -> None:
    """Its bytes in the file that was replaced say that it waits."""
    monkeypatch.setattr(tidy, "COMPACT_BYTES", 100)
    task_id = add(producer, b"first")
    for _ in range(20):
        add(producer)
    producer.close()
    worker, other = opener(fsync_frequency=600), opener()
    for entry in claim(worker):
        worker.start(entry)
        if entry.id == task_id:
            worker.reschedule(entry, b"again", 0.0)
        else:
            worker.complete(entry)
    failing = fail_always(monkeypatch, "fsync", EIO)
    with pytest.raises(OSError, match="Input/output"):
        worker.sync()
    failing.clear()
    other.maintain()
    assert run_all(other) == [b"again"]
    worker.sync()
    assert run_all(opener()) == []


def test_a_failed_rescue_forgets_nothing_else(
    monkeypatch: pytest.MonkeyPatch, opener: Opener
) -> None:
    """What another thread adds meanwhile is in the segment of the copies: it is rescued too."""
    producer = opener(fsync_frequency=600)
    add(producer, b"1")
    real_lock, real_fsync = files.try_lock, files.fsync
    meanwhile: list[str] = []

    def lock(fd: int, start: int, length: int) -> bool:
        if length > 1 and not meanwhile:
            meanwhile.append(add(producer, b"2"))
        return real_lock(fd, start, length)

    failing = fail_always(monkeypatch, "fsync", EIO)
    monkeypatch.setattr(files, "try_lock", lock)
    with pytest.raises(OSError, match="Input/output"):
        producer.sync()
    assert meanwhile
    failing.clear()
    synced: set[int] = set()

    def fsync(fd: int) -> None:
        real_fsync(fd)
        synced.add(os.fstat(fd).st_ino)

    monkeypatch.setattr(files, "fsync", fsync)
    producer.sync()
    claimed = opener().claim(10, None, (), None)
    assert sorted(payload for _, payload in claimed) == [b"1", b"2"]
    assert {os.fstat(entry.segment.fd).st_ino for entry, _ in claimed} <= synced


def test_a_sync_that_a_signal_handler_ends_is_made_up_for(
    monkeypatch: pytest.MonkeyPatch, opener: Opener
) -> None:
    """A time limit by SIGALRM, or Ctrl-C: what others have added waits for it too."""
    before = descriptors.open_descriptors().keys()
    producer = opener(fsync_frequency=600)
    producer._writer.rotate_bytes = 1000
    producer._writer.reset()
    for _ in range(20):
        add(producer, b"x" * 200)
    expected = {os.fstat(fd).st_ino for fd in descriptors.open_descriptors().keys() - before}

    def interrupt(fd: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(files, "fsync", interrupt)
        producer.sync()
    synced: set[int] = set()
    monkeypatch.setattr(files, "fsync", lambda fd: synced.add(os.fstat(fd).st_ino))
    producer.sync()
    assert len(expected) > 1
    assert synced >= expected
    producer.close()
    assert descriptors.open_descriptors().keys() == before


def test_a_copy_that_runs_already_is_not_made_again(
    monkeypatch: pytest.MonkeyPatch, opener: Opener
) -> None:
    """A rescue fails after its copy was appended, and a worker was faster than its withdrawal."""
    producer, worker = opener(fsync_frequency=600), opener()
    add(producer, b"1")
    ran: list[bytes] = []
    failing = [1]
    real = files.fsync

    def fsync(fd: int) -> None:
        if failing:
            if len(segments(Path(producer.names.path))) == 2:
                ran.extend(run_all(worker))
            raise EIO
        real(fd)

    monkeypatch.setattr(files, "fsync", fsync)
    with contextlib.suppress(OSError):
        producer.sync()
    assert ran == [b"1"]
    failing.clear()
    for _ in range(3):
        producer.sync()
    assert run_all(opener()) == []


def test_a_rescue_onto_a_full_disk_runs_the_task_once(
    monkeypatch: pytest.MonkeyPatch, opener: Opener
) -> None:
    """The old record cannot be removed yet: its claim keeps it from running beside its copy."""
    producer, worker = opener(fsync_frequency=600), opener()
    add(producer, b"1")
    failed = fail_once(monkeypatch, "fsync", EIO)
    failing = fail_always(
        monkeypatch,
        "write",
        OSError(errno.ENOSPC, "No space left on device", "injected"),
        when=lambda fd, data: b":rem:" in data,
    )
    with pytest.raises(OSError, match="Input/output"):
        producer.sync()
    assert failed
    claimed = claim(worker)
    assert len(claimed) == 1
    failing.clear()
    finish(worker, claimed[0])
    producer.sync()
    producer.close()
    assert run_all(opener()) == []


def test_a_short_read_leaves_no_task_alone(
    monkeypatch: pytest.MonkeyPatch, producer: TasksStorage, worker: TasksStorage
) -> None:
    add(producer, b"1")
    [(entry, _)] = worker.survey()
    real = files.read_at
    shortened: list[int] = []

    def short(fd: int, size: int, offset: int) -> bytes:
        data = real(fd, size, offset)
        if size == entry.length and not shortened:
            shortened.append(1)
            return data[:-1]
        return data

    monkeypatch.setattr(files, "read_at", short)
    assert run_all(worker) == []
    assert shortened
    assert wait_until(lambda: run_all(worker)) == [b"1"]
    assert worker.problems() == []


def test_an_error_of_a_close_closes_nothing_else(
    monkeypatch: pytest.MonkeyPatch, opener: Opener
) -> None:
    worker, producers = opener(), [opener() for _ in range(3)]
    for producer in producers:
        add(producer)
    assert len(run_all(worker)) == 3
    for producer in producers:
        producer.close()
    real = os.close
    failed: list[int] = []

    def close(fd: int) -> None:
        real(fd)
        failed.append(fd)
        raise EIO

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", close)
        worker.close()
    others = [os.open(os.devnull, os.O_RDONLY) for _ in failed]
    worker.close()
    for fd in others:
        os.close(fd)


def test_a_store_that_fails_in_every_way_leaks_no_descriptor(
    monkeypatch: pytest.MonkeyPatch, opener: Opener
) -> None:
    """What was refused cannot be withdrawn either."""
    before = len(descriptors.open_descriptors())
    producer = opener(fsync_frequency=0)
    add(producer)
    failing = fail_always(monkeypatch, "fsync", EIO)
    fail_always(monkeypatch, "read_at", EIO, when=lambda *_: failing)
    for _ in range(20):
        with pytest.raises(OSError, match="Input/output"):
            add(producer)
    assert len(descriptors.open_descriptors()) < before + 8
    failing.clear()
    add(producer, b"after")
    assert b"after" in run_all(opener())


def test_a_disk_that_fails_for_long_is_not_filled_with_copies(
    monkeypatch: pytest.MonkeyPatch, opener: Opener, store: Path
) -> None:
    producer = opener(fsync_frequency=600)
    add(producer, b"1")
    failing = fail_always(monkeypatch, "fsync", EIO)
    for _ in range(50):
        producer._tick()
    assert len(segments(store)) < 6
    failing.clear()
    producer.sync()
    assert run_all(opener()) == [b"1"]


def test_a_run_that_is_written_again_is_one_crash(
    monkeypatch: pytest.MonkeyPatch, opener: Opener, producer: TasksStorage, store: Path
) -> None:
    """A failed fsync has the run repeated: its worker died once, all the same."""
    task_id = add(producer)
    producer.close()

    def work_and_die() -> None:
        worker = open_storage(store, fsync_frequency=600)
        worker.start(claim_one(worker, task_id))
        failing = fail_always(monkeypatch, "fsync", EIO)
        for _ in range(3):
            with pytest.raises(OSError, match="Input/output"):
                worker.sync()
        failing.clear()

    in_child(work_and_die)
    entry = claim_one(opener(), task_id)
    assert entry.crashes(entry.runs[0].boot_id) == 1


def test_too_much_unsynced_is_refused_before_it_is_written(
    monkeypatch: pytest.MonkeyPatch, opener: Opener
) -> None:
    """An enqueue that failed must not run: the sync that bounds memory comes first."""
    from deferred_django.backends.disk import writer

    monkeypatch.setattr(writer, "UNSYNCED_BYTES", 1000)
    producer, worker = opener(fsync_frequency=600), opener()
    added = [add(producer, b"x" * 600) for _ in range(2)]
    failing = fail_always(monkeypatch, "fsync", EIO)
    refused = 0
    for _ in range(5):
        try:
            added.append(add(producer, b"y" * 600))
        except OSError:
            refused += 1
    assert refused
    failing.clear()
    producer.sync()
    assert len(run_all(worker)) == len(added)


def test_full_segments_do_not_pile_up_until_the_timer_comes(opener: Opener) -> None:
    before = len(descriptors.open_descriptors())
    producer = opener(fsync_frequency=600)
    producer._writer.rotate_bytes = 100_000
    producer._writer.reset()
    for _ in range(30):
        add(producer, b"x" * 999_000)
    assert len(descriptors.open_descriptors()) < before + 12


# -- one call fails, the rest goes on ----------------------------------------------------------


def test_claims_that_were_taken_before_a_failure_are_not_lost(
    monkeypatch: pytest.MonkeyPatch, producer: TasksStorage, worker: TasksStorage, opener: Opener
) -> None:
    gone = add(producer, b"gone")
    for number in range(5):
        add(producer, b"%d" % number, priority=-1)
    assert worker.survey()
    worker.claim(0, None, (), None)
    other = opener()
    finish(other, claim_one(other, gone))
    # One of the six turns out to be gone, so a second round is begun, which fails.
    calls: list[int] = []
    real = files.try_lock

    def lock(fd: int, start: int, length: int) -> bool:
        calls.append(1)
        if len(calls) == 4:
            raise OSError(errno.ENOLCK, "No locks available", "injected")
        return real(fd, start, length)

    monkeypatch.setattr(files, "try_lock", lock)
    monkeypatch.setattr(worker._segments, "_look_at", lambda name: None)  # not noticed yet
    try:
        taken = claim(worker, 3)
    except OSError:
        taken = []
    monkeypatch.undo()
    for entry in taken:
        finish(worker, entry)
    assert len(run_all(other)) + len(taken) == 5


def test_a_failed_look_at_an_owner_loses_no_task(
    monkeypatch: pytest.MonkeyPatch, producer: TasksStorage, worker: TasksStorage
) -> None:
    monkeypatch.setattr(tidy, "GROWN_BYTES", 100)
    for number in range(9):
        add(producer, b"%d" % number * 50)
    for entry, payload in worker.claim(8, None, (), None):
        worker.start(entry)
        worker.reschedule(entry, payload, FUTURE)
    failed = fail_once(monkeypatch, "lock_is_held", OSError(errno.ENOLCK, "No locks", "injected"))
    ran: list[bytes] = []

    def work() -> bool:
        with contextlib.suppress(OSError):
            ran.extend(run_all(worker))
        return bool(ran)

    wait_until(work)
    assert failed


def test_a_failed_look_at_one_segment_keeps_the_others_in_the_books(
    monkeypatch: pytest.MonkeyPatch, opener: Opener
) -> None:
    """What was appended is fsynced by a later sync, and no segment stays in use for ever."""
    worker = opener(fsync_frequency=600)
    producers = [opener() for _ in range(3)]
    for producer in producers:
        add(producer)
    assert len(run_all(worker)) == 3
    own = {segment.fd for segment in worker._segments.segments()}
    held = [0]
    real = files.lock_is_held

    def is_held(fd: int, start: int, length: int) -> bool:
        if fd not in own:
            return real(fd, start, length)
        held[0] += 1
        if held[0] == 2:
            raise OSError(errno.ENOLCK, "No locks available", "injected")
        return real(fd, start, length)

    synced: list[int] = []
    monkeypatch.setattr(files, "lock_is_held", is_held)
    monkeypatch.setattr(files, "fsync", synced.append)
    worker.sync()
    assert held[0] == 3
    worker.sync()
    segments = worker._segments.segments()
    assert {segment.fd for segment in segments} <= set(synced)
    worker._claims.settle()
    assert [segment.users for segment in segments] == [0, 0, 0]


def test_tasks_read_before_a_read_failed_are_not_forgotten(
    monkeypatch: pytest.MonkeyPatch, producer: TasksStorage, worker: TasksStorage
) -> None:
    for number in range(4):
        add(producer, b"%d" % number * 200_000)
    failed = fail_once(monkeypatch, "read_at", EIO, when=lambda fd, size, offset: offset > 500_000)
    ran = run_all(worker)
    assert failed
    ran += run_all(worker)
    assert len(ran) == 4


def test_a_free_segment_that_cannot_be_read_does_not_fail_an_enqueue(
    monkeypatch: pytest.MonkeyPatch, opener: Opener, producer: TasksStorage, store: Path
) -> None:
    add(producer, b"1")
    producer.close()
    before = len(descriptors.open_descriptors())
    failing = fail_always(monkeypatch, "read_at", EIO)
    other = opener()
    add(other, b"2")
    failing.clear()
    other.close()
    assert len(descriptors.open_descriptors()) == before
    assert sorted(run_all(opener())) == [b"1", b"2"]


def test_a_copy_that_cannot_be_read_whole_replaces_nothing(
    monkeypatch: pytest.MonkeyPatch, producer: TasksStorage, worker: TasksStorage, store: Path
) -> None:
    monkeypatch.setattr(tidy, "COMPACT_BYTES", 100)
    add(producer, b"keep", publish_at=FUTURE)
    for _ in range(20):
        add(producer)
    run_all(worker)
    producer.close()
    worker._claims.settle()
    [entry] = [entry for entry, _ in worker.survey()]
    real = files.read_at

    def short(fd: int, size: int, offset: int) -> bytes:
        return real(fd, size, offset)[: 10 if size == entry.length else None]

    before = only_segment(store).stat().st_ino
    monkeypatch.setattr(files, "read_at", short)
    worker.maintain()
    monkeypatch.undo()
    assert only_segment(store).stat().st_ino == before
    assert [payload for _, _, payload in worker.survey_with_payloads()] == [b"keep"]


def test_a_look_that_failed_once_is_no_problem_for_ever(
    monkeypatch: pytest.MonkeyPatch, producer: TasksStorage, worker: TasksStorage, store: Path
) -> None:
    add(producer)
    claim(worker, 1)
    real = os.stat
    path = str(only_segment(store))

    def refuse(name: Any, *arguments: Any, **options: Any) -> os.stat_result:
        if name == path:
            raise OSError(errno.EACCES, "Permission denied", path)
        return real(name, *arguments, **options)

    monkeypatch.setattr(os, "stat", refuse)
    assert worker.problems()
    monkeypatch.undo()
    assert worker.problems() == []


def test_a_segment_that_may_be_written_again_is_worked_off(
    monkeypatch: pytest.MonkeyPatch, producer: TasksStorage, worker: TasksStorage, store: Path
) -> None:
    """An operator sets its mode right: nobody has to restart the workers."""
    add(producer)
    producer.close()
    failing = fail_always(
        monkeypatch,
        "open_file",
        OSError(errno.EACCES, "Permission denied", "injected"),
        when=lambda path, flags: flags & os.O_RDWR,
    )
    assert run_all(worker) == []
    failing.clear()
    ran = wait_until(lambda: run_all(worker))
    assert ran == [b"x"]


# -- memory, descriptors, numbers --------------------------------------------------------------


def test_the_own_retries_count_when_a_segment_has_grown(
    monkeypatch: pytest.MonkeyPatch, opener: Opener, producer: TasksStorage, store: Path
) -> None:
    """R15 with one worker that is never without a claim: it gets to a compaction nonetheless."""
    monkeypatch.setattr(tidy, "COMPACT_BYTES", 100)
    monkeypatch.setattr(tidy, "GROWN_BYTES", 30_000)
    for number in range(10):
        add(producer, b"%d" % number * 100)
    producer.close()
    worker = opener()
    running = claim(worker, 1)
    for _ in range(2000):
        claimed = worker.claim(1, None, (), None)
        running += [entry for entry, _ in claimed]
        if running:
            entry = running.pop(0)
            worker.start(entry)
            worker.reschedule(entry, b"y" * 100, 0.0)
        worker.maintain()
    assert only_segment(store).stat().st_size < 60_000


def test_compactions_leave_no_trace_in_memory(
    monkeypatch: pytest.MonkeyPatch, opener: Opener, store: Path
) -> None:
    """Delayed tasks are found again in each new file: the old entries do not wait till then."""
    monkeypatch.setattr(tidy, "COMPACT_BYTES", 100)
    worker = opener()
    first = opener()
    for _ in range(100):
        add(first, publish_at=FUTURE)
    first.close()
    for _ in range(100):
        producer = opener()
        for _ in range(70):
            add(producer, b"x" * 100)
        producer.close()
        run_all(worker)
        worker.maintain()
    only_segment(store)
    assert len(worker._index._delayed) == 100


def test_waiting_with_many_descriptors_open(tmp_path: Path) -> None:
    """``select`` takes none above 1023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1200:
        pytest.skip("not so many may be opened")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1050)]
    try:
        looking = watch.DirectoryWatch(str(tmp_path))
        looking.wait_for_wake(0.001)
        looking.close()
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_signal_that_comes_while_the_watch_is_closed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The second SIGTERM wakes a worker that is on its way out: no pipe is broken by that."""
    looking = watch.DirectoryWatch(str(tmp_path))
    real = files.close

    def close(fd: int) -> None:
        real(fd)
        looking.wake()

    monkeypatch.setattr(files, "close", close)
    looking.close()


def test_a_store_that_was_removed_leaves_no_descriptor(tmp_path: Path) -> None:
    before = descriptors.open_descriptors().keys()
    storage = open_storage(tmp_path / "store")
    add(storage)
    run_all(storage)
    shutil.rmtree(tmp_path / "store")
    storage.close()
    assert descriptors.open_descriptors().keys() == before
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("when", [1e306, -1e306, 10**400, float("nan"), float("inf")])
def test_times_that_are_none(tmp_path: Path, when: float) -> None:
    backend = DiskBackend(BackendConfig(path=tmp_path / "store", prefix="t-"))
    with pytest.raises(ValueError, match="publish_at"):
        backend.add_task(b"x", publish_at=when)
    assert not (tmp_path / "store").exists()


# -- forks -------------------------------------------------------------------------------------


def test_a_child_that_ends_its_parents_task_writes_into_no_file(
    producer: TasksStorage, worker: TasksStorage, tmp_path: Path
) -> None:
    """Its descriptors are closed, and their numbers are soon other files'."""
    task_id = add(producer)
    entry = claim_one(worker, task_id)
    worker.start(entry)
    mine = tmp_path / "mine"

    def leave_the_task() -> None:
        opened = [os.open(mine, os.O_RDWR | os.O_CREAT) for _ in range(20)]
        assert opened
        with pytest.raises(OSError, match="Bad file descriptor"):
            worker.complete(entry)
        assert mine.read_bytes() == b""

    in_child(leave_the_task, kill=False)
    worker.complete(entry)


def test_a_child_that_closes_leaves_its_parents_name_on_the_list(tmp_path: Path) -> None:
    backend = DiskBackend(BackendConfig(path=tmp_path / "store", prefix="t-"))
    backend.worker_started(threads=1)

    def leave() -> None:
        other = os.dup(1)  # has the number that the entry's descriptor had
        backend.close()
        os.fstat(other)

    in_child(leave, kill=False)
    assert [worker.pid for worker in backend.status().workers] == [os.getpid()]
    backend.worker_stopped()
    backend.close()


@pytest.mark.parametrize("taken", [0, 5])
def test_a_worker_that_cannot_write_its_file_leaves_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, taken: int
) -> None:
    backend = DiskBackend(BackendConfig(path=tmp_path / "store", prefix="t-"))
    real = files.write
    full = OSError(errno.ENOSPC, "No space left on device", "injected")

    def write(fd: int, data: bytes) -> int:
        if not taken:
            raise full
        return real(fd, data[:taken])

    monkeypatch.setattr(files, "write", write)
    with pytest.raises(OSError, match="space|disk full"):
        backend.worker_started(threads=1)
    monkeypatch.undo()
    assert list((tmp_path / "store").iterdir()) == []
    backend.worker_started(threads=1)
    assert len(backend.status().workers) == 1
    backend.close()


# -- damage ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "harm", ["flipped last record", "zeros at the end", "foreign bytes at the end"]
)
def test_damage_at_the_end_is_kept(store: Path, worker: TasksStorage, harm: str) -> None:
    """C03 (b) in the last line: nothing follows that would tell it from an unfinished write."""
    in_child(lambda: add(open_storage(store), b"1"))
    assert run_all(worker) == [b"1"]
    good = only_segment(store).read_bytes()
    if harm == "flipped last record":
        harmed = good[: good.index(b"\n\n") - 1] + b"2\n"
    elif harm == "zeros at the end":
        harmed = bytes(4096)
    else:
        harmed = b"hello"
    with only_segment(store).open("ab") as end:
        end.write(harmed)
    worker.maintain()
    assert [path.suffix for path in segments(store)] == [".damaged"]
    [finding] = verify.verify_segments(worker.names)
    assert (finding.kind, finding.offset is not None) == ("damage", True)


def test_a_file_cut_off_and_grown_again_between_two_looks(
    producer: TasksStorage, worker: TasksStorage, store: Path
) -> None:
    """An operator's truncate: what is added afterwards is not erased unseen.

    The first may run again: it was not durable yet, and its removal is cut off with it.
    """
    add(producer, b"1")
    assert run_all(worker) == [b"1"]
    os.truncate(only_segment(store), 0)
    add(producer, b"2")
    for number in range(10):
        add(producer, b"more%d" % number)
    producer.close()
    ran = run_all(worker)
    worker.maintain()
    ran += run_all(worker)
    ran += run_all(worker)
    assert b"2" in ran
    assert len([payload for payload in ran if payload != b"1"]) == 11
