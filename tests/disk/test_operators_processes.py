"""Operators' hands at a store that real processes are at work on."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from deferred_django.backends.base import BackendConfig
from deferred_django.backends.disk import files, log_records
from deferred_django.backends.disk.backend import DiskBackend
from deferred_django.backends.disk.scanner import Scanner
from tests.disk import dlq
from tests.disk.support import add, open_storage, segments
from tests.harness import Project
from tests.support import wait_until

TASKS = """
    @deferred(max_retries=0)
    def work(name):
        note("done", name)

    @deferred(max_retries=3, retry_interval=lambda error, attempt: 0.0)
    def fails_once(name):
        note("attempt", name)
        wait_for_file("go on")
        if current_task().attempt == 1:
            raise ValueError("on purpose")
        note("done", name)

    @deferred(max_retries=0)
    def dies(name):
        note("attempt", name)
        wait_for_file("go on")
        raise ValueError("on purpose")
"""


def done(project: Project) -> list[str]:
    return [line.split()[1] for line in project.notes() if line.startswith("done")]


@pytest.mark.parametrize("how", ["removed", "moved away and back"])
def test_the_whole_directory_under_a_worker_and_a_producer(tmp_path: Path, how: str) -> None:
    """C11: tasks that run end and are tried again, dead ones are kept, new ones are taken."""
    with Project(tmp_path, tasks=TASKS) as project:
        worker = project.worker("--threads", "3")
        producer = project.start(
            """
            work.enqueue("before")
            fails_once.enqueue("retried")
            dies.enqueue("dies")
            wait_for_file("directory is gone", 60)
            for number in range(5):
                work.enqueue(number)
                time.sleep(0.2)
            note("enqueued")
            wait_for_file("the end", 60)
            """
        )
        wait_until(lambda: len(project.notes()) == 3, timeout=30)
        if how == "moved away and back":
            project.storage.rename(tmp_path / "moved")
            project.touch("go on")
            wait_until(lambda: "retried" in done(project), timeout=20)
            shutil.copytree(tmp_path / "moved", project.storage, dirs_exist_ok=True)
        else:
            shutil.rmtree(project.storage)
            project.touch("go on")
        project.touch("directory is gone")
        wait_until(lambda: "enqueued" in project.notes(), timeout=30)
        expected = sorted(["before", "retried", *"01234"])
        wait_until(lambda: sorted(done(project)) == expected, timeout=30)
        store = DiskBackend(BackendConfig(path=project.storage))
        wait_until(lambda: len(store.list_dead_tasks()) == 1, timeout=30)
        wait_until(lambda: len(store.status().workers) == 1, timeout=30)
        wait_until(lambda: store.pending_tasks() == [], timeout=30)
        store.close()
        assert worker.poll() is None
        project.touch("the end")
        assert producer.wait(30) == 0
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0
        assert sorted(done(project)) == expected


# -- copytruncate under load ---------------------------------------------------------------------


CUTS = 25
PRODUCERS = 2


class Ledger:
    """Lines of many processes, each by one write."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, *words: str) -> None:
        os.write(self._fd, " ".join(words).encode() + b"\n")

    def read(self) -> list[list[str]]:
        os.close(self._fd)
        return [line.split() for line in self._path.read_text().splitlines()]


def start(*functions: Callable[[], None]) -> list[int]:
    """Each in a process of its own."""
    children = []
    for function in functions:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                random.seed()
                function()
                code = 0
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(code)
        children.append(pid)
    return children


def assert_ended_well(children: list[int]) -> None:
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
    assert codes == [0] * len(children)


def produce(store: Path, ledger: Ledger) -> None:
    storage = open_storage(store, fsync_frequency=0.05)
    while not (store.parent / "stop").exists():
        task_id = add(storage)
        ledger.write("ack", task_id, f"{time.monotonic():.6f}")
        time.sleep(0.0005)
    storage.close()


def work(store: Path, ledger: Ledger) -> None:
    storage = open_storage(store)
    idle = 0
    while not (store.parent / "stop").exists() or idle < 20:
        claimed = storage.claim(20, None, (), None)
        for number, (entry, payload) in enumerate(claimed):
            storage.start(entry)
            ledger.write("run", entry.id, "0")
            if number % 7 == 0 and payload == b"x":
                storage.reschedule(entry, b"again", 0.0)
            else:
                storage.complete(entry)
        idle = 0 if claimed else idle + 1
        if not claimed:
            storage.wait(0.02)
            storage.maintain()
    storage.close()


def test_copy_and_truncate_under_load(tmp_path: Path) -> None:
    """What is lost was durable and is in a copy, or came between a copy and its cut."""
    store = tmp_path / "store"
    store.mkdir()
    ledger = Ledger(tmp_path / "ledger")
    children = start(
        *[lambda: produce(store, ledger)] * PRODUCERS, *[lambda: work(store, ledger)] * 2
    )
    between: list[tuple[float, float]] = []
    try:
        wait_until(lambda: len(segments(store)) == PRODUCERS, timeout=30)
        while len(between) < CUTS:
            for path in segments(store):
                began = time.monotonic()
                try:
                    shutil.copyfile(path, tmp_path / f"copy-{len(between)}")
                    os.truncate(path, 0)
                except FileNotFoundError:
                    continue
                between.append((began, time.monotonic()))
                time.sleep(0.02)
    finally:
        (tmp_path / "stop").touch()
        assert_ended_well(children)
    acked: dict[str, float] = {}
    ran = set()
    for what, task_id, at in ledger.read():
        if what == "ack":
            acked[task_id] = float(at)
        else:
            ran.add(task_id)
    lost = acked.keys() - ran - ids_in(tmp_path)
    # An acknowledgement is written down a moment after it was given.
    unexplained = [
        task_id
        for task_id in lost
        if not any(began <= acked[task_id] <= ended + 0.05 for began, ended in between)
    ]
    assert unexplained == []
    assert len(acked) > 100
    left = open_storage(store)
    assert left.survey() == []
    left.close()


def ids_in(directory: Path) -> set[str]:
    """The tasks whose adds are in the copies."""
    found = set()
    for path in directory.glob("copy-*"):
        fd = files.open_file(str(path), os.O_RDONLY)
        try:
            for _, _, body in Scanner().read(fd):
                if body.startswith(b"add:"):
                    found.add(log_records.names_in(body)[0])
        finally:
            files.close(fd)
    return found


# -- the dead tasks' lock files ------------------------------------------------------------------


SECONDS = 1.5


def test_lock_files_removed_again_and_again_under_load(tmp_path: Path) -> None:
    """Two or three then believe that they have the lock; nothing that was promised is lost."""
    store = tmp_path / "store"
    store.mkdir()
    ledger = Ledger(tmp_path / "ledger")
    end = time.monotonic() + SECONDS

    def adding(name: str) -> None:
        dead = dlq.open_store(store)
        number = 0
        while time.monotonic() < end:
            number += 1
            task_id = f"{name}-{number}"
            try:
                dead.add(task_id, dlq.record(task_id, random.choice([0, 50, 5000, 100_000])))
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise
            else:
                ledger.write("ack", task_id)

    def removing() -> None:
        dead = dlq.open_store(store)
        while time.monotonic() < end:
            ids = [task_id for task_id, _ in dead.read(limit=20)]
            some = random.sample(ids, min(len(ids), 3))
            ledger.write("remove", *some)
            try:
                if random.random() < 0.5:
                    dead.remove(some)
                else:
                    dead.take(some, lambda task_id, data: None, lambda: None)
            except OSError as error:
                if error.errno not in (errno.EBUSY, errno.ESTALE):
                    raise

    children = start(*[partial(adding, name) for name in "abc"], removing, removing)
    removed = 0
    while time.monotonic() < end:
        for lock in (dlq.lock_file(store), dlq.removal_lock_file(store)):
            with contextlib.suppress(FileNotFoundError):
                lock.unlink()
                removed += 1
        time.sleep(random.uniform(0.0, 0.01))
    assert_ended_well(children)
    promised: set[str] = set()
    doomed: set[str] = set()
    for what, *ids in ledger.read():
        (promised if what == "ack" else doomed).update(ids)
    assert removed > 20
    assert len(promised) > 20
    last = dlq.open_store(store)
    assert promised - doomed <= set(dlq.names(last))
    assert last.verify() == []
