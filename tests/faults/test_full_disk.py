"""A disk that is really full, and processes that really work on it."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from deferred_django import ids
from deferred_django.backends.base import BackendConfig
from deferred_django.backends.disk import tidy
from deferred_django.backends.disk.backend import DiskBackend
from deferred_django.context import TaskContext
from tests.faults.small_disk import SmallDisk, room_in_last_page, small_disk
from tests.harness import Project, children_of, is_alive
from tests.support import wait_until

SECONDS = float(os.environ.get("FULL_DISK_SECONDS", "2"))
"""How long the disk stays full."""
FUTURE = 4_000_000_000.0
PREFIX = "deferred-"
TASKS = """
@deferred(max_retries=0)
def work(name):
    note(name)

@deferred(max_retries=0)
def slow(name):
    note(name)
    wait_for_file("go")

@deferred(max_retries=0)
def fails(name):
    note(name)
    wait_for_file("go")
    raise ValueError("x" * 5000)
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    with Project(tmp_path, tasks=TASKS) as project:
        yield project


@pytest.fixture
def disk(project: Project) -> Iterator[SmallDisk]:
    """The project's store on 64 KiB."""
    with small_disk(project.storage) as disk:
        yield disk
        project.close()


def open_store(project: Project) -> DiskBackend:
    return DiskBackend(BackendConfig(path=project.storage))


def enqueue(store: DiskBackend, task: str, name: str, publish_at: float | None = None) -> str:
    data = TaskContext.build(f"app.tasks.{task}", (name,), {}).to_bytes()
    return store.add_task(data, task_id=ids.new_id(), publish_at=publish_at)


def pad(store: DiskBackend, leave: int = 10) -> None:
    """Let the segment's last page have next to no room, by a task that is not due."""
    [name] = store.tasks.names.segments()
    path = Path(store.tasks.names.at(name))
    before = path.stat().st_size
    store.add_task(b"", publish_at=FUTURE)
    overhead = path.stat().st_size - before
    size = (room_in_last_page(path) - leave - overhead) % 4096
    store.add_task(b"x" * size, publish_at=FUTURE)
    store.sync()
    assert room_in_last_page(path) == leave


def workers_lines(project: Project) -> list[str]:
    return [line for line in project.log().splitlines() if re.match("(WARNING|ERROR)", line)]


def test_full_at_run_at_rem_and_at_the_dead_task(project: Project, disk: SmallDisk) -> None:
    """C05 (a), (b), (c): one worker, three tasks to start, one that ends, one that dies."""
    store = open_store(project)
    worker = project.worker("--threads", "4")
    enqueue(store, "slow", "b")
    died = enqueue(store, "fails", "c")
    wait_until(lambda: sorted(project.notes()) == ["b", "c"], 30)
    processes = children_of(worker.pid)
    soon = time.time() + 0.7
    for name in ("a1", "a2", "a3"):
        enqueue(store, "work", name, soon)
    pad(store)
    disk.fill()
    project.touch("go")
    wait_until(lambda: "outcome" in project.log() and "start of a task" in project.log(), 30)
    before = len(workers_lines(project))
    end = time.monotonic() + SECONDS
    wait_until(lambda: time.monotonic() > end, SECONDS + 5)
    # (a) is not started, (b) and (c) are not run again.
    assert sorted(project.notes()) == ["b", "c"]
    # (c) is still in the log, and no dead task.
    assert died in {task.id for task in store.pending_tasks()}
    assert store.list_dead_tasks() == []
    assert len(workers_lines(project)) - before <= 2 + 3 * SECONDS, project.log()
    assert worker.poll() is None
    assert children_of(worker.pid) == processes
    disk.free()
    wait_until(lambda: len(store.pending_tasks()) == 2, 30, "only the padding is left")
    assert sorted(project.notes()) == ["a1", "a2", "a3", "b", "c"]
    assert [task["id"] for task in store.list_dead_tasks()] == [died]
    assert children_of(worker.pid) == processes
    assert all(map(is_alive, processes))
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(30) == 0
    store.close()


def test_full_at_a_purge(project: Project, disk: SmallDisk) -> None:
    """C05 (d)."""
    store = open_store(project)
    for number in range(8):
        store.add_dead_task(
            f"t-{number}", b"x" * 3000, ValueError("x"), task_class="app.tasks.work", attempts=1
        )
    path = project.storage / f"{PREFIX}dead_tasks-0"
    before = path.read_bytes()
    disk.fill()
    purge = ("deadtasks", "purge", "t-3", "--noinput")
    done = project.manage(*purge)
    assert done.returncode not in (0, 2), done.stdout
    assert "No space left" in done.stderr
    assert path.read_bytes() == before
    assert not path.with_suffix(".tmp").exists()
    for lock in project.storage.glob("*.lock"):
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    disk.free()
    done = project.manage(*purge)
    assert done.returncode == 0, done.stderr
    assert store.count_dead_tasks() == 7


def test_full_at_rotation(project: Project, disk: SmallDisk) -> None:
    """C05 (e): the full segment is closed, the next cannot be written: that enqueue fails."""
    code = f"""
    import sys
    from deferred_django import get_backend
    writer = get_backend().tasks._writer
    writer.rotate_bytes = 8000
    writer.reset()
    number = 0
    names = get_backend().tasks.names
    while len(names.segments()) < 2:
        work.enqueue(f"n{{number:03}}" + "x" * 1000)
        number += 1
    while writer._current is not None:
        work.enqueue(f"n{{number:03}}" + "x" * 1000)
        number += 1
    filler = open(r"{project.storage}/filler", "ab", buffering=0)
    try:
        while True:
            filler.write(b"x" * 1024)
    except OSError:
        pass
    for _ in range(3):
        try:
            work.enqueue("refused" + "x" * 1000)
        except OSError as error:
            assert error.filename and error.filename.startswith(r"{project.storage}"), error
        else:
            raise AssertionError("it fitted")
    import os
    filler.close()
    os.unlink(r"{project.storage}/filler")
    work.enqueue("after")
    print(number)
    """
    number = int(project.run(code).stdout)
    assert number > 12
    project.drain()
    expected = [*(f"n{each:03}" for each in range(number)), "after"]
    assert sorted(note.rstrip("x") for note in project.notes()) == sorted(expected)


def test_full_at_a_compaction(project: Project) -> None:
    """The copy finds no room: it goes, the segment stays, and is compacted when there is some."""
    with small_disk(project.storage, kib=256) as disk:
        store = open_store(project)
        store.tasks._writer.rotate_bytes = 1_000_000
        store.tasks._writer.reset()
        for number in range(20):
            padding = "x" * (tidy.COMPACT_BYTES // 10)
            data = TaskContext.build("app.tasks.work", (f"{number}",), {"padding": padding})
            store.add_task(data.to_bytes(), publish_at=FUTURE if number < 5 else None)
        store.close()
        claims = store.claim_tasks(15)
        for claim in claims:
            store.start_task(claim)
            store.complete_task(claim)
        store.close()
        [segment] = project.storage.glob(f"{PREFIX}0-*")
        size = segment.stat().st_size
        disk.fill()
        done = project.manage("deferred_worker", "--drain")
        assert segment.exists()
        assert segment.stat().st_size >= size
        assert not list(project.storage.glob("*.tmp"))
        assert "could not be tidied" in done.stderr + done.stdout
        disk.free()
        project.drain()
        [segment] = project.storage.glob(f"{PREFIX}0-*")
        assert segment.stat().st_size < size / 2
        assert len(store.pending_tasks()) == 5
        store.close()


def test_full_while_enqueuing(project: Project, disk: SmallDisk) -> None:
    """C04, on a disk: what was acknowledged runs, what failed never does, the next can write."""
    code = """
    import sys
    acked = 0
    while True:
        try:
            work.enqueue(f"n{acked:03}" + "x" * 1024)
        except OSError as error:
            assert error.filename, error
            break
        acked += 1
    print(acked, flush=True)
    wait_for_file("grown")
    work.enqueue("after")
    print("after", flush=True)
    wait_for_file("never", 60)
    """
    producer = project.start(code)
    log = project.path / "process-0.log"
    wait_until(lambda: log.read_text().strip(), 30)
    acked = int(log.read_text())
    assert 30 < acked < 64
    disk.grow(128)
    project.touch("grown")
    wait_until(lambda: "after" in log.read_text(), 30)
    os.kill(producer.pid, signal.SIGKILL)
    producer.wait()
    project.run("work.enqueue('another')")
    project.drain()
    expected = [*(f"n{number:03}" for number in range(acked)), "after", "another"]
    assert sorted(note.rstrip("x") for note in project.notes()) == sorted(expected)
