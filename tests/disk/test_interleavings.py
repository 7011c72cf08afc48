"""Interleavings that ``test_races.py`` has from one side only, from the other or as a whole."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from deferred_django.backends.base import BackendConfig
from deferred_django.backends.disk import DiskBackend, tidy, verify, watch
from deferred_django.backends.disk.scanner import CHUNK_BYTES
from deferred_django.backends.disk.segment import Entry
from deferred_django.backends.disk.tasks_storage import TasksStorage
from deferred_django.context import TaskContext
from deferred_django.queue import Queue
from tests.disk.conftest import Opener
from tests.disk.support import (
    FUTURE,
    Gate,
    add,
    claim,
    in_child,
    let_others_in,
    only_segment,
    open_storage,
    run_all,
    running,
    segments,
)
from tests.support import wait_until

CONTEXT = TaskContext.build("app.tasks.x", (), {}).to_bytes()


def bury(backend: DiskBackend, task_id: str, why: str) -> None:
    backend.add_dead_task(task_id, CONTEXT, ValueError(why), task_class="app.tasks.x", attempts=1)


def test_a_retried_task_that_dies_again_before_its_first_death_is_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """R1, through both stores: enqueued, run by another process, dead again, only then removed."""
    config = BackendConfig(path=tmp_path / "store")
    person, worker = DiskBackend(config), DiskBackend(config)
    for task_id in ("other", "x"):
        bury(person, task_id, "first")
    real = person.tasks.sync

    def sync() -> None:
        real()
        [again] = worker.claim_tasks(9)
        worker.start_task(again)
        bury(worker, again.id, "second")
        worker.complete_task(again)

    monkeypatch.setattr(person.tasks, "sync", sync)
    assert Queue(person).retry_dead_tasks(["x"]) == ["x"]
    monkeypatch.undo()
    dead = {task["id"]: task["exception_message"] for task in worker.list_dead_tasks()}
    assert dead == {"other": "first", "x": "second"}
    assert worker.pending_tasks() == []
    assert Queue(worker).retry_dead_tasks(["x"]) == ["x"]
    assert [task.id for task in person.pending_tasks()] == ["x"]
    person.close()
    worker.close()


def test_an_owner_that_comes_before_the_whole_lock_keeps_its_segment(
    monkeypatch: pytest.MonkeyPatch,
    opener: Opener,
    producer: TasksStorage,
    worker: TasksStorage,
    store: Path,
) -> None:
    """R3: the compactor has seen a free segment; an owner comes and appends before its lock."""
    monkeypatch.setattr(tidy, "COMPACT_BYTES", 100)
    add(producer, b"live", publish_at=FUTURE)
    for _ in range(20):
        add(producer)
    run_all(worker)
    producer.close()
    before = only_segment(store).stat().st_ino
    gate = Gate(monkeypatch, "try_lock", when=lambda fd, start, length: length == 0)
    with running(worker.maintain) as results:
        gate.wait()
        owner = opener()
        add(owner, b"1")
        gate.open()
    assert results == [None]
    assert only_segment(store).stat().st_ino == before
    add(owner, b"2")
    assert run_all(worker) == [b"1", b"2"]
    assert [entry.publish_ms for entry, _ in worker.survey()] == [FUTURE * 1000]


def test_a_child_that_is_forked_while_another_thread_takes_a_lock_does_not_keep_it(
    monkeypatch: pytest.MonkeyPatch, store: Path
) -> None:
    """R13, to its end: the parent dies, the child lives on, and the claim is free at once."""
    producer = open_storage(store)
    add(producer, b"x")
    producer.close()
    told, tell = os.pipe()

    def claim_and_die() -> None:
        opened = threading.Event()
        real = os.open

        def slow_open(path: str, *arguments: Any, **options: Any) -> int:
            fd = real(path, *arguments, **options)
            if "-0-" in path:
                opened.set()
                time.sleep(0.05)  # the window that a fork must not fall into
            return fd

        monkeypatch.setattr(os, "open", slow_open)
        storage = open_storage(store)
        with running(lambda: storage.start(claim(storage)[0])) as results:
            assert opened.wait(10)
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
        assert results == [None]
        os.write(tell, b"%d" % child)

    in_child(claim_and_die)
    child = int(os.read(told, 100))
    os.close(told)
    os.close(tell)
    try:
        worker = open_storage(store)
        assert [len(entry.runs) for entry in claim(worker)] == [1]
        worker.close()
    finally:
        os.kill(child, signal.SIGKILL)


def test_four_workers_that_are_never_without_a_claim_do_not_grow_a_segment_without_bound(
    monkeypatch: pytest.MonkeyPatch, opener: Opener, producer: TasksStorage, store: Path
) -> None:
    """R15: there is no moment at which all of them hold nothing, unless they are made to."""
    monkeypatch.setattr(tidy, "COMPACT_BYTES", 100)
    monkeypatch.setattr(tidy, "GROWN_BYTES", 30_000)
    for number in range(40):
        add(producer, b"%d" % number * 40)
    producer.close()
    workers = [opener() for _ in range(4)]
    held: list[list[Entry]] = [[] for _ in workers]
    largest = 0
    for _ in range(400):
        for worker, own in zip(workers, held, strict=True):
            own += claim(worker, max(0, 3 - len(own)))
            if own:
                entry = own.pop(0)
                worker.start(entry)
                worker.reschedule(entry, b"y" * 80, 0.0)
            worker.maintain()
        largest = max(largest, *(path.stat().st_size for path in segments(store)))
    assert largest < 60_000
    for worker, own in zip(workers, held, strict=True):
        for entry in own:
            worker.release(entry, hold=False)
    assert len(workers[0].survey()) == 40


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_a_root_shell_enqueues_for_the_worker_of_another_user(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """R16, to its end: a user of no privileges runs the tasks and keeps both stores."""
    base = tmp_path_factory.mktemp("shared")
    let_others_in(base, 0o555)
    path = base / "store"
    path.mkdir(mode=0o700)
    os.chown(path, 12345, 12345)
    root = DiskBackend(BackendConfig(path=path, fsync_frequency=0.0))
    root.add_task(b"by root", task_id="x")
    bury(root, "y", "by root")

    def work() -> None:
        os.setgroups([])
        os.setresgid(12345, 12345, 12345)
        os.setresuid(12345, 12345, 12345)
        backend = DiskBackend(BackendConfig(path=path))
        [task] = backend.claim_tasks(9)
        assert task.context == b"by root"
        backend.start_task(task)
        backend.complete_task(task)
        bury(backend, "z", "by the user")
        assert backend.remove_dead_tasks(["y"]) == 1
        assert backend.status().problems == []
        backend.close()

    in_child(work, kill=False)
    assert root.pending_tasks() == []
    assert [task["id"] for task in root.list_dead_tasks()] == ["z"]
    root.close()


def test_without_any_inotify_the_directory_is_polled(
    monkeypatch: pytest.MonkeyPatch, opener: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    """R23: the limit of instances, which strikes before any watch is made."""

    def refuse() -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(watch.calls, "init", refuse)
    producer, worker = opener(), opener()
    worker.wait(0)
    ran: list[bytes] = []

    def wait_and_run() -> list[bytes]:
        worker.wait(1.0)
        ran.extend(run_all(worker))
        return ran

    with running(lambda: wait_until(wait_and_run)):
        add(producer, b"1")
    assert ran == [b"1"]
    assert caplog.text.count("cannot be watched") == 1


def test_an_endless_line_in_a_segment_hides_nothing(
    opener: Opener, producer: TasksStorage, store: Path
) -> None:
    """R24, in a store: bounded memory; reported; what stands around it runs; it is kept."""
    add(producer, b"1")
    producer.close()
    path = only_segment(store)
    os.truncate(path, path.stat().st_size + 2**26)
    last = opener()
    last._writer.rotate_bytes = 2**30
    last._writer.reset()
    with path.open("ab") as file:
        file.write(b"\n")
    add(last, b"2")
    last.close()
    assert len(segments(store)) == 1
    tracemalloc.start()
    try:
        worker = opener()
        assert run_all(worker) == [b"1", b"2"]
        [finding] = verify.verify_segments(worker.names)
        assert finding.kind == "damage"
        worker.maintain()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 * CHUNK_BYTES
    assert [kept.suffix for kept in segments(store)] == [".damaged"]
