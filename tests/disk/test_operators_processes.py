"""Operators' hands at a store that real processes are at work on."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path

import pytest

from deferred_django.backends.base import BackendConfig
from deferred_django.backends.disk import files, log_records
from deferred_django.backends.disk.backend import DiskBackend
from deferred_django.backends.disk.scanner import Scanner
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


def produce(store: Path, ledger: int) -> None:
    storage = open_storage(store, fsync_frequency=0.05)
    while not (store.parent / "stop").exists():
        task_id = add(storage)
        os.write(ledger, f"ack {task_id} {time.monotonic():.6f}\n".encode())
        time.sleep(0.0005)
    storage.close()


def work(store: Path, ledger: int) -> None:
    storage = open_storage(store)
    idle = 0
    while not (store.parent / "stop").exists() or idle < 20:
        claimed = storage.claim(20, None, (), None)
        for number, (entry, payload) in enumerate(claimed):
            storage.start(entry)
            os.write(ledger, f"run {entry.id} 0\n".encode())
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
    ledger = os.open(tmp_path / "ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    children = []
    for function in (*[produce] * PRODUCERS, work, work):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                function(store, ledger)
                code = 0
            except BaseException:
                traceback.print_exc()
                sys.stderr.flush()
            finally:
                os._exit(code)
        children.append(pid)
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
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
        os.close(ledger)
    assert codes == [0] * len(children)
    acked: dict[str, float] = {}
    ran = set()
    for line in (tmp_path / "ledger").read_text().splitlines():
        what, task_id, at = line.split()
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
