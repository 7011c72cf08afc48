"""What operators do to the tasks' log while processes use it: removed, moved, cut, replaced.

The outcomes are those of the table in ``docs/operations.md``.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from deferred_django.backends.base import BackendConfig
from deferred_django.backends.disk import files, log_records, names
from deferred_django.backends.disk.backend import DiskBackend
from deferred_django.backends.disk.tasks_storage import TasksStorage
from tests.disk.conftest import Opener
from tests.disk.support import (
    FUTURE,
    add,
    claim,
    in_child,
    only_segment,
    open_storage,
    run_all,
    segments,
)
from tests.support import wait_until

LONG = 600
"""A period of the sync timer that does not come in a test: what it would do is called."""


def remove_segment(store: Path) -> None:
    only_segment(store).unlink()


def remove_directory(store: Path) -> None:
    shutil.rmtree(store)


def make_directory_again(store: Path) -> None:
    shutil.rmtree(store)
    store.mkdir(mode=0o700)


def move_directory(store: Path) -> None:
    store.rename(store.parent / "moved")


def lead_link_elsewhere(store: Path) -> None:
    """Only for a store that is a link to ``real``."""
    (store.parent / "other").mkdir()
    (store.parent / "new").symlink_to("other")
    os.replace(store.parent / "new", store)


def replace_by_file(store: Path) -> None:
    shutil.rmtree(store)
    store.touch()


def replace_by_link_to_nowhere(store: Path) -> None:
    shutil.rmtree(store)
    store.symlink_to("nowhere/at/all")


REMOVALS = [remove_segment, remove_directory, make_directory_again, move_directory]


def everything(opener: Opener) -> list[bytes]:
    """What a worker that starts now runs."""
    return sorted(run_all(opener()))


# -- removed: what was added ---------------------------------------------------------------------


@pytest.mark.parametrize("how", REMOVALS)
def test_what_was_not_durable_yet_is_written_anew(
    opener: Opener, store: Path, how: Callable[[Path], None]
) -> None:
    """At most what was durable goes with the file; what came behind it comes back."""
    producer = opener(fsync_frequency=LONG)
    add(producer, b"durable")
    producer.sync()
    add(producer, b"before")
    how(store)
    add(producer, b"after")
    producer.sync()
    add(producer, b"later")
    assert everything(opener) == [b"after", b"before", b"later"]


@pytest.mark.parametrize("how", REMOVALS)
def test_the_end_of_the_process_does_not_lose_it_either(
    opener: Opener, store: Path, how: Callable[[Path], None]
) -> None:
    producer = opener(fsync_frequency=LONG)
    add(producer, b"before")
    how(store)
    add(producer, b"after")
    producer.close()
    assert everything(opener) == [b"after", b"before"]


def test_nothing_is_made_again_where_the_parent_is_gone_too(tmp_path: Path) -> None:
    """A test's or a container's whole directory was removed: nobody wants a store there."""
    parent = tmp_path / "project"
    producer = open_storage(parent / "store", fsync_frequency=LONG)
    add(producer)
    shutil.rmtree(parent)
    producer.close()
    assert not parent.exists()


def test_the_space_of_a_removed_segment_is_freed(opener: Opener, store: Path) -> None:
    """Nobody needs its descriptor once its tasks are elsewhere."""
    producer = opener(fsync_frequency=LONG)
    add(producer, b"1")
    inode = only_segment(store).stat().st_ino
    only_segment(store).unlink()
    producer._tick()
    producer._tick()
    assert inode not in open_inodes()
    assert everything(opener) == [b"1"]


def open_inodes() -> set[int]:
    from deferred_django.backends.disk import descriptors

    return {os.fstat(fd).st_ino for fd in descriptors.open_descriptors()}


@pytest.mark.parametrize("how", [replace_by_file, replace_by_link_to_nowhere])
def test_each_enqueue_fails_while_no_directory_can_be_made(
    opener: Opener, store: Path, how: Callable[[Path], None]
) -> None:
    for frequency in (0, LONG):
        producer = opener(fsync_frequency=frequency)
        add(producer, b"%d" % frequency)
        producer.sync()
        how(store)
        if frequency:
            add(producer, b"after")
            with pytest.raises(OSError, match="store"):
                producer.sync()
        else:
            with pytest.raises(OSError, match="was removed in use"):
                add(producer, b"refused")
        with pytest.raises(OSError, match="store"):
            add(producer, b"refused")
        store.unlink()
        producer.sync()
        add(producer, b"again")
        assert everything(opener) == ([b"after", b"again"] if frequency else [b"again"])
        producer.close()


# -- removed: what runs --------------------------------------------------------------------------


@pytest.mark.parametrize("how", REMOVALS)
@pytest.mark.parametrize("end", ["success", "retry", "put back"])
def test_a_task_whose_file_goes_while_it_runs(
    opener: Opener, store: Path, how: Callable[[Path], None], end: str
) -> None:
    """It runs to its end; a retry is not lost with the file, nor there twice if that comes back."""
    producer, worker = opener(), opener()
    add(producer, b"1")
    producer.close()
    [entry] = claim(worker)
    worker.start(entry)
    how(store)
    if end == "success":
        worker.complete(entry)
    elif end == "retry":
        worker.reschedule(entry, b"again", 0.0)
    else:
        worker.release(entry, hold=False)
    worker.sync()
    expected = [b"again"] if end == "retry" else []
    assert everything(opener) == expected
    if how is move_directory:
        shutil.copytree(store.parent / "moved", store, dirs_exist_ok=True)
        assert everything(opener) == ([b"1"] if end == "put back" else [])


@pytest.mark.parametrize("how", REMOVALS)
def test_a_retry_in_a_removed_file_that_this_process_owns(
    opener: Opener, store: Path, how: Callable[[Path], None]
) -> None:
    both = opener(fsync_frequency=LONG)
    add(both, b"1")
    both.sync()
    [entry] = claim(both)
    both.start(entry)
    how(store)
    both.reschedule(entry, b"again", 0.0)
    both.sync()
    assert everything(opener) == [b"again"]
    assert everything(opener) == []


def test_a_worker_goes_on_in_the_directory_that_is_made_again(
    opener: Opener, worker: TasksStorage, store: Path
) -> None:
    first = opener()
    add(first, b"1")
    assert run_all(worker) == [b"1"]
    shutil.rmtree(store)
    assert run_all(worker) == []
    worker.maintain()
    add(opener(), b"2")
    assert run_all(worker) == [b"2"]


# -- cut -----------------------------------------------------------------------------------------


def cut(path: Path) -> None:
    os.truncate(path, 0)


def copy_and_cut(path: Path) -> None:
    """As logrotate's copytruncate does."""
    shutil.copy2(path, path.with_name("rotated"))
    os.truncate(path, 0)


def overwrite(path: Path) -> None:
    """As ``cp`` of a backup onto the file does: cut, and written by its own offsets."""
    path.write_bytes(b"")
    with path.open("r+b") as file:
        file.write(b"x" * 10)


@pytest.mark.parametrize("how", [cut, copy_and_cut, overwrite])
def test_what_was_not_durable_when_the_file_was_cut_is_written_anew(
    opener: Opener, store: Path, how: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    producer = opener(fsync_frequency=LONG)
    add(producer, b"durable")
    producer.sync()
    add(producer, b"before")
    how(only_segment(store))
    for number in range(9):  # so many that the file is as long as before
        add(producer, b"after%d" % number)
    producer.sync()
    assert "was cut by another program" in caplog.text
    add(producer, b"later")
    ran = everything(opener)
    assert ran == sorted([b"before", b"later", *(b"after%d" % number for number in range(9))])
    assert everything(opener) == []


def test_a_synced_enqueue_notices_that_the_file_was_cut(
    opener: Opener, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = opener(fsync_frequency=0)
    add(producer, b"durable")
    real = files.fsync

    def fsync(fd: int) -> None:
        monkeypatch.undo()
        cut(only_segment(store))
        real(fd)

    monkeypatch.setattr(files, "fsync", fsync)
    with pytest.raises(OSError, match="was cut by another program"):
        add(producer, b"refused")
    add(producer, b"next")
    assert everything(opener) == [b"next"]


def test_a_file_that_is_cut_again_while_its_tasks_wait_to_be_moved(
    opener: Opener, store: Path
) -> None:
    """One of them runs elsewhere meanwhile, so that the first try leaves it."""
    producer, worker = opener(fsync_frequency=LONG), opener()
    add(producer, b"durable")
    producer.sync()
    runs = add(producer, b"runs")
    segment = only_segment(store)
    cut(segment)
    copy = add(producer, b"2")
    [entry] = claim(worker, 1, copy)
    worker.start(entry)
    with pytest.raises(OSError, match="durable|cut"):
        producer.sync()
    cut(segment)
    worker.release(entry, hold=False)
    producer.sync()
    ran = everything(opener)
    assert sorted(ran) == [b"2", b"runs"]
    assert runs


@pytest.mark.parametrize("grown", [False, True])
def test_a_retry_in_a_file_that_was_cut_is_written_anew(
    opener: Opener, store: Path, producer: TasksStorage, grown: bool
) -> None:
    add(producer, b"1")
    producer.sync()
    worker = opener(fsync_frequency=LONG)
    [entry] = claim(worker)
    worker.start(entry)
    worker.reschedule(entry, b"again", FUTURE)
    cut(only_segment(store))
    if grown:
        for number in range(9):
            add(producer, b"more%d" % number)
    assert len(run_all(worker)) == (9 if grown else 0)
    worker.sync()
    assert [payload for _, _, payload in opener().survey_with_payloads()] == [b"again"]
    assert claim(worker) == []
    assert worker._segments._dropped == []


def test_a_claim_in_a_file_that_was_cut_holds_up_nothing_for_long(
    opener: Opener, store: Path, producer: TasksStorage
) -> None:
    """Its bytes are other tasks' now: they wait for it, and it concerns its own task only."""
    add(producer, b"1")
    worker, other = opener(), opener()
    [entry] = claim(worker)
    worker.start(entry)
    cut(only_segment(store))
    add(producer, b"2")
    assert run_all(other) == []
    worker.complete(entry)
    assert wait_until(lambda: run_all(other)) == [b"2"]
    assert everything(opener) == []


# -- replaced ------------------------------------------------------------------------------------


def test_a_file_that_an_editor_saved_anew(opener: Opener, store: Path) -> None:
    """Renamed over it: what the editor read is there, what came behind is written anew, once."""
    producer = opener(fsync_frequency=LONG)
    add(producer, b"durable")
    producer.sync()
    add(producer, b"read by the editor")
    segment = only_segment(store)
    (store / "new").write_bytes(segment.read_bytes())
    add(producer, b"behind")
    os.replace(store / "new", segment)
    producer.sync()
    add(producer, b"later")
    assert everything(opener) == [b"behind", b"durable", b"later", b"read by the editor"]
    assert everything(opener) == []


def test_files_put_back_from_a_backup_run_again(
    opener: Opener, store: Path, tmp_path: Path
) -> None:
    """A copy of a running store is whole but for its last record; restored, it is at least once."""
    producer, worker = opener(fsync_frequency=LONG), opener()
    add(producer, b"1")
    producer.sync()
    shutil.copytree(store, tmp_path / "backup")
    assert run_all(worker) == [b"1"]
    producer.close()
    worker.maintain()
    assert segments(store) == []
    shutil.copytree(tmp_path / "backup", store, dirs_exist_ok=True)
    add(opener(fsync_frequency=LONG), b"2")
    assert sorted(wait_until(lambda: run_all(worker))) == [b"1", b"2"]
    worker.maintain()
    assert everything(opener) == []


def test_a_store_that_is_moved_away_and_back_between_two_looks(
    opener: Opener, store: Path, worker: TasksStorage
) -> None:
    producer = opener(fsync_frequency=LONG)
    add(producer, b"1")
    assert claim(worker, 0) == []
    store.rename(store.parent / "moved")
    assert claim(worker) == []
    (store.parent / "moved").rename(store)
    add(producer, b"2")
    producer.sync()
    assert sorted(wait_until(lambda: run_all(worker))) == [b"1", b"2"]
    assert everything(opener) == []


def test_idle_processes_make_nothing_where_the_store_was(tmp_path: Path) -> None:
    """So that it can be moved back as long as nobody enqueues."""
    path = tmp_path / "store"
    config = BackendConfig(path=path, prefix="t-", fsync_frequency=LONG)
    web, worker = DiskBackend(config), DiskBackend(config)
    worker.worker_started(threads=1)
    web.add_task(b"1")
    web.sync()
    assert worker.claim_tasks(0) == []
    path.rename(tmp_path / "moved")
    for _ in range(3):
        web.tasks._tick()
        web.maintain()
        worker.tasks._tick()
        worker.maintain()
        assert worker.claim_tasks(10) == []
        assert worker.list_dead_tasks() == []
        assert worker.status().pending == 0
    assert not path.exists()
    (tmp_path / "moved").rename(path)
    web.add_task(b"2")
    claims = wait_until(lambda: worker.claim_tasks(10))
    assert sorted(claim.context for claim in claims) == [b"1", b"2"]
    for claim_ in claims:
        worker.start_task(claim_)
        worker.complete_task(claim_)
    assert len(worker.status().workers) == 1
    web.close()
    worker.maintain()
    worker.close()
    assert list(path.iterdir()) == []


# -- links ---------------------------------------------------------------------------------------


def test_a_store_behind_a_link_that_leads_elsewhere(tmp_path: Path) -> None:
    """Tasks of the last period move along, the others wait at the old place, and run once."""
    (tmp_path / "real").mkdir()
    (tmp_path / "store").symlink_to("real")
    store = tmp_path / "store"
    producer = open_storage(store, fsync_frequency=LONG)
    worker, other = open_storage(store), open_storage(store)
    add(producer, b"old", publish_at=FUTURE)
    retried = add(producer, b"1")
    producer.sync()
    add(producer, b"new", publish_at=FUTURE)
    [entry] = claim(worker, 1, retried)
    worker.start(entry)
    worker.wait(0)
    lead_link_elsewhere(store)
    producer.sync()
    worker.reschedule(entry, b"again", FUTURE)
    worker.sync()
    waiting = [payload for _, _, payload in other.survey_with_payloads()]
    assert sorted(waiting) == [b"again", b"new"]
    (tmp_path / "new").symlink_to("real")
    os.replace(tmp_path / "new", store)
    assert [payload for _, _, payload in other.survey_with_payloads()] == [b"old"]
    for storage in (producer, worker, other):
        storage.close()


def test_the_watch_follows_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No event tells of it; a task in the new place must still wake an idle worker at once."""
    from deferred_django.backends.disk import waiter, watch

    (tmp_path / "real").mkdir()
    (tmp_path / "store").symlink_to("real")
    worker = open_storage(tmp_path / "store")
    assert claim(worker) == []
    worker.wait(0)
    lead_link_elsewhere(tmp_path / "store")
    worker._waiter.watch._look_again_at = 0.0  # type: ignore[union-attr]
    worker.wait(0)
    assert claim(worker) == []
    monkeypatch.setattr(waiter, "POLL_SECONDS", 30.0)  # only an event ends the wait
    monkeypatch.setattr(watch, "POLL_SECONDS", 30.0)
    producer = open_storage(tmp_path / "store")
    add(producer, b"1")
    began = time.monotonic()
    worker.wait(30.0)
    assert time.monotonic() - began < 20.0
    assert run_all(worker) == [b"1"]
    producer.close()
    worker.close()


# -- damaged segments that were kept, files of workers -------------------------------------------


@pytest.mark.parametrize("what", ["removed", "repaired and put back"])
def test_a_kept_segment_can_be_removed_or_put_back(
    store: Path, worker: TasksStorage, what: str
) -> None:
    def leave() -> None:
        storage = open_storage(store)
        add(storage, b"1")
        only_segment(store).open("ab").write(b"foreign\n")
        add(storage, b"2", publish_at=time.time() + 3600)

    in_child(leave)
    assert run_all(worker) == [b"1"]
    [waits] = [entry for entry, _ in worker.survey()]
    assert worker.remove(waits.id)
    worker.maintain()
    [kept] = store.iterdir()
    assert kept.suffix == names.ASIDE_SUFFIX
    assert any("damaged segment was kept" in problem for problem in worker.problems())
    if what == "removed":
        kept.unlink()
    else:
        repaired = kept.read_bytes().replace(b"foreign\n", b"")
        again = log_records.add("repaired", "1-2", 0, 0, "default", b"3")
        kept.write_bytes(repaired + again)
        kept.rename(kept.with_suffix(""))
        assert run_all(worker) == [b"3"]
        worker.maintain()
    assert worker.problems() == []
    assert list(store.iterdir()) == []


@pytest.mark.parametrize("how", ["file", "directory", "backup", "cut"])
def test_a_worker_whose_file_was_removed_is_listed_again(tmp_path: Path, how: str) -> None:
    path = tmp_path / "store"
    backend = DiskBackend(BackendConfig(path=path, prefix="t-"))
    backend.worker_started(threads=3)
    [file] = path.iterdir()
    if how == "directory":
        shutil.rmtree(path)
        backend.maintain()
        assert not path.exists()
        path.mkdir()
    elif how == "cut":
        os.truncate(file, 0)
    else:
        content = file.read_bytes()
        file.unlink()
        if how == "backup":
            file.write_bytes(content)
    assert backend.status().workers == []
    backend.maintain()
    [info] = backend.status().workers
    assert info.threads == 3
    backend.maintain()
    backend.worker_stopped()
    assert list(path.iterdir()) == []
    backend.close()
