"""What a worker tells of itself while it works: that it goes on, and what it runs for long."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from deferred_django.backends.base import BackendConfig, RunningTask, WorkerInfo
from deferred_django.backends.disk import DiskBackend, files
from deferred_django.pool import Pool
from deferred_django.pulse import Pulse
from deferred_django.queue import Queue
from tests.harness import children_of
from tests.support import wait_until
from tests.worker import tasks
from tests.worker.conftest import MakeProject, Store
from tests.worker.fakes import MemoryBackend, Running, add

LONG = RunningTask("1-2-abc-3", "app.tasks.long", 1_000_000_000.5)
SHORT = RunningTask("1-2-a-3", "a.b", 1.0)


@pytest.fixture
def store(tmp_path: Path) -> DiskBackend:
    return DiskBackend(BackendConfig(path=tmp_path))


def listed(store: DiskBackend) -> WorkerInfo:
    """The one worker, as another process sees it."""
    status = DiskBackend(store.config).status()
    assert not status.problems
    [worker] = status.workers
    return worker


def file_of(store: DiskBackend) -> Path:
    [path] = store.config.path.glob("*worker-0-*")
    return path


# -- the worker's file ---------------------------------------------------------------------------


def test_what_runs_is_written_over_and_over(store: DiskBackend) -> None:
    store.worker_started(threads=2)
    assert list(listed(store).running) == []
    for running in ([LONG], [LONG, SHORT], [SHORT], [], [LONG] * 3):
        store.worker_heartbeat(running)
        assert list(listed(store).running) == running
    assert file_of(store).stat().st_size < 500
    assert json.loads(file_of(store).read_bytes().splitlines()[0])["threads"] == 2
    store.close()


def test_the_last_sign_of_life_is_the_time_of_the_file(store: DiskBackend) -> None:
    store.worker_started()
    os.utime(file_of(store), (5, 5))
    assert listed(store).heartbeat_at == 5
    store.worker_heartbeat([])
    assert listed(store).heartbeat_at == pytest.approx(time.time(), abs=30)
    os.utime(file_of(store), (5, 5))
    store.worker_heartbeat([])
    assert listed(store).heartbeat_at == 5, "soon again, with nothing new"
    store.worker_heartbeat([LONG])
    assert listed(store).heartbeat_at == pytest.approx(time.time(), abs=30)
    store.close()


def test_an_idle_worker_leaves_a_sign_now_and_then(
    store: DiskBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    touched: list[int] = []
    monkeypatch.setattr(files, "touch", touched.append)
    monkeypatch.setattr("deferred_django.backends.disk.worker_files.TOUCH_SECONDS", 0.05)
    store.worker_started()
    store.worker_heartbeat()
    store.worker_heartbeat()
    assert len(touched) == 1

    def again() -> bool:
        store.worker_heartbeat()
        return len(touched) == 3

    wait_until(again)
    store.close()


def test_only_what_has_changed_is_written(
    store: DiskBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bytes] = []
    write_at = files.write_at

    def record(fd: int, data: bytes, offset: int) -> int:
        written.append(data)
        return write_at(fd, data, offset)

    monkeypatch.setattr(files, "write_at", record)
    store.worker_started()
    for running in ([], [], [LONG], [LONG], [LONG], [], []):
        store.worker_heartbeat(running)
    assert len(written) == 2
    store.close()


def test_many_and_long_names_stay_bounded(store: DiskBackend) -> None:
    store.worker_started()
    many = [RunningTask(f"{n}-" + "i" * 150, "m" * 5000 + f".task_{n}", 1.0) for n in range(1000)]
    store.worker_heartbeat(many)
    running = listed(store).running
    assert [task.id for task in running] == [task.id for task in many[:100]]
    assert all(task.name.endswith(f"m.task_{task.id.split('-')[0]}") for task in running)
    assert file_of(store).stat().st_size < 64 * 1024
    store.close()


@pytest.mark.parametrize("size", [1, 12, 40])
def test_a_record_that_is_being_written_hides_no_worker(store: DiskBackend, size: int) -> None:
    store.worker_started()
    store.worker_heartbeat([LONG])
    first, record, _ = file_of(store).read_bytes().split(b"\n")
    with file_of(store).open("r+b") as file:
        file.seek(len(first) + 1)
        file.write(b"0" * size)
    assert list(listed(store).running) == []
    assert len(record) > 40
    store.worker_heartbeat([LONG, SHORT])
    assert list(listed(store).running) == [LONG, SHORT]
    store.close()


def test_a_record_read_while_it_is_written_is_read_again(
    store: DiskBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.worker_started()
    store.worker_heartbeat([LONG])
    read_at, calls = files.read_at, 0

    def torn_first(fd: int, size: int, offset: int) -> bytes:
        nonlocal calls
        calls += 1
        data = read_at(fd, size, offset)
        return data[:-9] + b"torn" + data[-5:] if calls == 1 else data

    monkeypatch.setattr(files, "read_at", torn_first)
    [worker] = store.status().workers
    assert list(worker.running) == [LONG]
    store.close()


@pytest.mark.parametrize("left", [0, 10])
def test_a_file_that_was_cut_is_written_anew(store: DiskBackend, left: int) -> None:
    """Though the next sign of life comes before anybody looks."""
    store.worker_started(threads=7)
    store.worker_heartbeat([LONG])
    os.truncate(file_of(store), left)
    store.worker_heartbeat([SHORT])
    store.maintain()
    assert listed(store).threads == 7
    store.worker_heartbeat([LONG])
    assert list(listed(store).running) == [LONG]
    store.close()


def test_a_full_disk_keeps_the_sign_of_life(
    store: DiskBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.worker_started()
    os.utime(file_of(store), (5, 5))

    def full(fd: int, data: bytes, offset: int) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(files, "write_at", full)
        with pytest.raises(OSError, match="No space"):
            store.worker_heartbeat([LONG])
    assert listed(store).heartbeat_at != 5
    store.worker_heartbeat([LONG])
    assert list(listed(store).running) == [LONG]
    store.close()


# -- the worker ----------------------------------------------------------------------------------


def test_a_fetcher_that_does_not_go_round_tells_nothing(backend: MemoryBackend) -> None:
    pool = Pool(1, lambda claim, hold: None, stopping=threading.Event(), on_finish=lambda: None)
    pulse = Pulse(backend, pool)
    beats: list[float] = []
    pulse.on_beat = beats.append
    pulse.tell()
    pulse.beat(3.0)
    pulse.tell()
    pulse.tell()
    pulse.beat(4.0)
    pulse.tell()
    assert beats == [3.0, 4.0]
    assert backend.calls.of("worker_heartbeat") == ["", ""]


def test_tasks_that_run_for_long_are_told(
    backend: MemoryBackend, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deferred_django.pulse.LONG_SECONDS", 0.05)
    monkeypatch.setattr("deferred_django.housekeeping.PERIOD_SECONDS", 0.02)
    with Running(queue):
        before = time.time()
        first = add(backend, tasks.wait_for, "gate")
        wait_until(lambda: backend.running)
        add(backend, tasks.note, "short")
        second = add(backend, tasks.wait_for, "gate")
        wait_until(lambda: len(backend.running) == 2)
        assert [task.id for task in backend.running] == [first, second]
        assert backend.running[0].name == "tests.worker.tasks.wait_for"
        told = list(backend.running)
        backend.calls.made.clear()
        wait_until(lambda: len(backend.calls.of("worker_heartbeat")) > 3)
        assert backend.running == told, "else it would be written each second"
        assert before - 0.01 <= backend.running[0].since <= backend.running[1].since <= time.time()
        tasks.gates["gate"].set()
        wait_until(lambda: not backend.running)


# -- real processes ------------------------------------------------------------------------------

SLOW = """
    @deferred
    def slow(name):
        note("begun", name)
        wait_for_file(name)
"""


def test_the_status_says_what_runs_and_who_is_stopped(make_project: MakeProject) -> None:
    project = make_project(tasks=SLOW)
    store = Store(project)
    task_id = store.enqueue("slow", "go")
    worker = project.worker("--threads", "2")

    def running() -> list[dict[str, Any]]:
        return [
            {"id": task.id, "task": task.name}
            for worker in store.backend.status().workers
            for task in worker.running
        ]

    wait_until(running, timeout=20)
    [pid] = children_of(worker.pid)
    os.kill(pid, signal.SIGSTOP)
    try:
        wait_until(lambda: store.backend.status().workers[0].stopped)
        shown = project.status()["workers"][0]
        assert (shown["pid"], shown["stopped"]) == (pid, True)
        [task] = shown["running"]
        assert (task["id"], task["task"]) == (task_id, "app.tasks.slow")
        assert task["since"] == pytest.approx(time.time(), abs=60)
        assert shown["heartbeat"] == pytest.approx(time.time(), abs=60)
        table = project.manage("deferred_status").stdout
        assert "stopped" in table
        assert task_id in table
    finally:
        os.kill(pid, signal.SIGCONT)
    project.touch("go")
    wait_until(lambda: store.pending() == 0)
    wait_until(lambda: not running())
    worker.terminate()
    assert worker.wait(20) == 0
    assert list(store.backend.status().workers) == []
    store.backend.close()
