"""Several adds by one write: all of them or none, and nobody has one before all are there."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from deferred_django.backends.base import BackendConfig, NewTask
from deferred_django.backends.disk import files, locks
from deferred_django.backends.disk.backend import DiskBackend
from deferred_django.backends.disk.tasks_storage import TasksStorage
from tests.disk import support
from tests.disk.support import PAST, open_storage
from tests.support import wait_until

NAMES = [f"t{number}" for number in range(10)]


def add_together(storage: TasksStorage, names: list[str], payload: bytes = b"x") -> None:
    storage.add_together([NewTask(payload, PAST, name) for name in names])


def ids_in(path: Path) -> list[str]:
    """What a process that starts now finds."""
    storage = open_storage(path)
    try:
        return sorted(entry.id for entry, _ in storage.survey())
    finally:
        storage.close()


def claimable(path: Path) -> list[str]:
    """What another process could claim now."""
    storage = open_storage(path)
    try:
        claimed = support.claim(storage)
        for entry in claimed:
            storage.release(entry, hold=False)
        return sorted(entry.id for entry in claimed)
    finally:
        storage.close()


def cut_short(monkeypatch: pytest.MonkeyPatch, storage: TasksStorage, after: int) -> list[int]:
    """The next write takes ``after`` bytes, and so much is all room there is: for removals none."""
    real = files.write
    sizes: list[int] = []

    def write(fd: int, data: bytes) -> int:
        sizes.append(len(data))
        if len(sizes) == 1:
            return real(fd, data[:after])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), files._path_of(fd))

    monkeypatch.setattr(files, "write", write)
    return sizes


@pytest.fixture
def storage(tmp_path: Path) -> TasksStorage:
    return open_storage(tmp_path, fsync_frequency=600)


def test_one_write_and_one_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = open_storage(tmp_path, fsync_frequency=0)
    support.add(storage, task_id="first")
    calls: list[str] = []
    write, fsync = files.write, files.fsync

    def counted_write(fd: int, data: bytes) -> int:
        calls.append("write")
        return write(fd, data)

    def counted_fsync(fd: int) -> None:
        calls.append("fsync")
        fsync(fd)

    monkeypatch.setattr(files, "write", counted_write)
    monkeypatch.setattr(files, "fsync", counted_fsync)
    add_together(storage, NAMES)
    assert calls == ["write", "fsync"]
    monkeypatch.undo()
    storage.close()
    assert ids_in(tmp_path) == sorted(["first", *NAMES])


def test_a_full_segment_is_followed_by_another(storage: TasksStorage, tmp_path: Path) -> None:
    storage._writer.rotate_bytes = 2000
    storage._writer.reset()
    add_together(storage, NAMES, b"x" * 1000)
    add_together(storage, ["next"])
    assert len(storage.names.segments()) == 2
    storage.close()
    assert ids_in(tmp_path) == sorted([*NAMES, "next"])


def test_nobody_claims_one_before_all_are_written(
    storage: TasksStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is quick sees the records while the write's result is not known yet."""
    seen: list[list[str]] = []
    real = files.append_record

    def look(fd: int, record: bytes) -> None:
        real(fd, record)
        monkeypatch.setattr(files, "append_record", real)
        seen.append(claimable(tmp_path))

    monkeypatch.setattr(files, "append_record", look)
    add_together(storage, NAMES)
    assert seen == [[]]
    assert claimable(tmp_path) == NAMES
    storage.close()


def test_a_short_write_leaves_nothing(
    storage: TasksStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk had room for some; then for a removal again."""
    support.add(storage, task_id="before")
    real = files.write
    writes: list[int] = []

    def write(fd: int, data: bytes) -> int:
        writes.append(fd)
        return real(fd, data[: len(data) // 2] if len(writes) == 1 else data)

    monkeypatch.setattr(files, "write", write)
    with pytest.raises(OSError, match="could be written"):
        add_together(storage, NAMES)
    assert len(writes) == 2  # the removals are one write too
    assert ids_in(tmp_path) == ["before"]
    support.add(storage, task_id="behind")
    add_together(storage, ["a", "b"])
    assert claimable(tmp_path) == ["a", "b", "before", "behind"]
    storage.close()


def test_on_a_full_disk_they_stay_claimed_until_they_are_removed(
    storage: TasksStorage,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    support.add(storage, task_id="before")
    with monkeypatch.context() as patch:
        cut_short(patch, storage, 300)
        with pytest.raises(OSError, match="could be written"):
            add_together(storage, NAMES)
        left = set(ids_in(tmp_path)) - {"before"}
        assert 1 < len(left) < len(NAMES)
        assert claimable(tmp_path) == ["before"]
        assert "cannot be removed" in caplog.text
        lines = len(caplog.records)
        storage._tick()
        assert len(caplog.records) - lines <= 3, "a line each would be thousands"
        assert claimable(tmp_path) == ["before"]
    # There is room again: what comes next is unharmed, and goes to another segment.
    add_together(storage, ["a", "b"])
    assert claimable(tmp_path) == ["a", "b", "before"]
    storage._writer._rescues._again_at = 0.0
    storage._tick()
    assert ids_in(tmp_path) == ["a", "b", "before"]
    assert storage._writer._failed == []
    storage.close()
    assert claimable(tmp_path) == ["a", "b", "before"]


def test_a_write_that_fails_at_once_costs_no_segment(
    storage: TasksStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    support.add(storage, task_id="before")

    def refuse(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "here")

    with monkeypatch.context() as patch:
        patch.setattr(files, "write", refuse)
        for _ in range(3):
            with pytest.raises(OSError, match="No space"):
                add_together(storage, NAMES)
    add_together(storage, ["a"])
    assert len(storage.names.segments()) == 1
    assert claimable(tmp_path) == ["a", "before"]
    storage.close()


def test_a_retry_that_is_claimed_behind_the_end_is_in_nobodys_way(
    storage: TasksStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker appends a retry, and claims it, between the look at the end and the lock."""
    support.add(storage, task_id="retried")
    worker = open_storage(tmp_path)
    entry = support.claim_one(worker, "retried")
    worker.start(entry)
    real = locks.try_tail

    def late(fd: int, start: int) -> bool:
        monkeypatch.setattr(locks, "try_tail", real)
        worker.reschedule(entry, b"again", PAST)
        support.claim_one(worker, "retried")
        return real(fd, start)

    monkeypatch.setattr(locks, "try_tail", late)
    add_together(storage, NAMES)
    assert claimable(tmp_path) == NAMES
    assert len(storage.names.segments()) == 2
    worker.close()
    storage.close()


def test_a_producer_killed_in_the_write(tmp_path: Path) -> None:
    """Whole records that were written are tasks, the one that was cut is torn, no more."""
    child = os.fork()
    if child == 0:
        storage = open_storage(tmp_path)
        real = files.write

        def die(fd: int, data: bytes) -> int:
            real(fd, data[: len(data) * 2 // 3])
            os._exit(0)

        files.write = die
        add_together(storage, NAMES, b"x" * 100)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    there = ids_in(tmp_path)
    assert there == NAMES[: len(there)]
    assert 0 < len(there) < len(NAMES)
    assert claimable(tmp_path) == there
    backend = DiskBackend(BackendConfig(path=tmp_path, prefix=support.PREFIX))
    assert {finding.kind for finding in backend.verify()} <= {"torn"}
    backend.add_tasks([NewTask(b"", task_id="next")])
    assert claimable(tmp_path) == sorted([*there, "next"])
    backend.close()


def test_a_worker_is_not_held_up(tmp_path: Path) -> None:
    """A worker that watches the store has all of them soon."""
    storage, worker = open_storage(tmp_path), open_storage(tmp_path)
    assert support.claim(worker) == []
    taken: list[str] = []

    def all_taken() -> bool:
        worker.wait(0.05)
        taken.extend(entry.id for entry in support.claim(worker))
        return len(taken) == 300

    add_together(storage, [f"t{number}" for number in range(300)])
    wait_until(all_taken, what="all are claimed")
    assert len(set(taken)) == 300
    worker.close()
    storage.close()
