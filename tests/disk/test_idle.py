"""What a worker does not do that has nothing to do, and what it does all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from deferred_django.backends.base import BackendConfig
from deferred_django.backends.disk import DiskBackend, files, tasks_storage, worker_files
from deferred_django.backends.disk.tasks_storage import TasksStorage
from tests.disk.conftest import Opener
from tests.disk.support import add, claim, finish, in_child, open_storage
from tests.support import wait_until


def is_syncing(storage: TasksStorage) -> bool:
    return storage._syncer._thread is not None


def test_an_empty_store_has_no_timer(
    monkeypatch: pytest.MonkeyPatch, opener: Opener, producer: TasksStorage
) -> None:
    """It runs from the first task on, and ends when its file was erased."""
    monkeypatch.setattr(tasks_storage, "WORKER_SYNC_SECONDS", 0.01)
    worker = opener(fsync_frequency=0)
    for _ in range(3):
        assert claim(worker) == []
        worker.maintain()
    assert not is_syncing(worker)
    add(producer)
    producer.close()
    [entry] = claim(worker)
    assert is_syncing(worker)
    finish(worker, entry)
    worker.maintain()
    wait_until(lambda: not is_syncing(worker))
    assert claim(worker) == []
    assert not is_syncing(worker)


def test_what_a_killed_producer_left_is_made_durable_by_a_worker_that_wants_none_of_it(
    monkeypatch: pytest.MonkeyPatch, opener: Opener
) -> None:
    """R7, for a worker of other queues."""
    monkeypatch.setattr(tasks_storage, "WORKER_SYNC_SECONDS", 0.01)
    worker = opener(fsync_frequency=0)
    path = worker.names.path

    in_child(lambda: add(open_storage(Path(path)), queue="deep"))
    synced: list[int] = []
    fsync = files.fsync

    def note(fd: int) -> None:
        synced.append(fd)
        fsync(fd)

    monkeypatch.setattr(files, "fsync", note)
    assert worker.claim(1, ["mail"], (), None) == []
    [segment] = worker._segments.segments()
    wait_until(lambda: segment.fd in synced)


def test_the_files_of_dead_workers_are_looked_for_now_and_then(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    looked: list[str] = []
    open_file = files.open_file

    def note(path: str, flags: int) -> int:
        looked.append(path)
        return open_file(path, flags)

    workers = [DiskBackend(BackendConfig(path=tmp_path)) for _ in range(2)]
    stale = tmp_path / "deferred-worker-0-aaaaaaaaaaaaa"
    try:
        workers[0].worker_started(threads=1)
        stale.write_text("{}")
        monkeypatch.setattr(files, "open_file", note)
        workers[1].maintain()
        assert not stale.exists()
        looked.clear()
        stale.write_text("{}")
        workers[1].maintain()
        assert looked == []
        monkeypatch.setattr(worker_files, "STALE_SECONDS", 0.0)
        workers[1]._workers._stale_at = 0.0
        workers[1].maintain()
        assert not stale.exists()
    finally:
        for worker in workers:
            worker.close()
