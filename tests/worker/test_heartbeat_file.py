"""``--heartbeat-file``: fresh while every process goes round, stale or gone when one does not."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from deferred_django import heartbeat_file
from deferred_django.heartbeat_file import HeartbeatFile
from tests.harness import Project, children_of, kill_quietly
from tests.support import wait_until
from tests.worker.conftest import MakeProject, Store

TASKS = """
    @deferred
    def slow(name):
        note("begun", name)
        wait_for_file(name)

    @deferred
    def wedge():
        from deferred_django.worker import Worker
        note("wedged")
        Worker._step = lambda self: wait_for_file("unwedge")
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "heartbeat"


@pytest.fixture
def heartbeat(path: Path, monkeypatch: pytest.MonkeyPatch) -> HeartbeatFile:
    monkeypatch.setattr(heartbeat_file, "PERIOD_SECONDS", 0.0)
    monkeypatch.setattr(heartbeat_file, "FIRST_PERIOD_SECONDS", 0.0)
    return HeartbeatFile(str(path), 2)


def age(path: Path) -> float:
    return time.time() - path.stat().st_mtime


def test_on_a_full_disk_it_is_kept_fresh(
    heartbeat: HeartbeatFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says nothing then, and its time says all."""

    def write(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", write)
    now = time.monotonic()
    for number in (0, 1):
        heartbeat.beater(number)(now)
    heartbeat.update([0, 1])
    os.utime(path, (0, 0))
    heartbeat.update([0, 1])
    assert path.stat().st_size == 0
    assert age(path) < 5


def test_it_is_as_old_as_the_process_that_is_silent_longest(
    heartbeat: HeartbeatFile, path: Path
) -> None:
    first, second = heartbeat.beater(0), heartbeat.beater(1)
    now = time.monotonic()
    first(now)
    heartbeat.update([0, 1])
    assert not path.exists(), "the second has not begun"
    second(now - 50)
    heartbeat.update([0, 1])
    assert age(path) == pytest.approx(50, abs=5)
    assert path.read_text() == f"{os.getpid()}\n"
    heartbeat.update([0])
    assert age(path) == pytest.approx(0, abs=5)
    heartbeat.update([1])
    assert age(path) == pytest.approx(50, abs=5)
    heartbeat.update([])
    assert age(path) == pytest.approx(50, abs=5), "nobody is at work"
    path.unlink()
    second(now)
    heartbeat.update([0, 1])
    assert age(path) == pytest.approx(0, abs=5), "it was removed and is there again"


def test_a_child_is_heard(heartbeat: HeartbeatFile, path: Path) -> None:
    heartbeat.beater(0)(time.monotonic())
    if (pid := os.fork()) == 0:
        heartbeat.beater(1)(time.monotonic())
        os._exit(0)
    os.waitpid(pid, 0)
    heartbeat.update([0, 1])
    assert path.exists()


def test_it_is_written_now_and_then(path: Path) -> None:
    heartbeat = HeartbeatFile(str(path))
    heartbeat.update([0])
    assert 0 < heartbeat.seconds_to_next() <= heartbeat_file.FIRST_PERIOD_SECONDS
    heartbeat.beater(0)(time.monotonic())

    def written() -> bool:
        heartbeat.update([0])
        return path.exists()

    wait_until(written)
    assert 1 < heartbeat.seconds_to_next() <= heartbeat_file.PERIOD_SECONDS
    path.unlink()
    heartbeat.update([0])
    assert not path.exists()


def test_a_file_that_cannot_be_written_ends_nothing(
    heartbeat: HeartbeatFile, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path.mkdir()
    for process in (0, 1):
        heartbeat.beater(process)(time.monotonic())
    heartbeat.update([0, 1])
    assert str(path) in caplog.text
    path.rmdir()
    heartbeat.update([0, 1])
    assert path.is_file()


def test_what_an_earlier_worker_left_is_taken_away(heartbeat: HeartbeatFile, path: Path) -> None:
    path.write_text("1\n")
    heartbeat.begin()
    assert not path.exists()
    heartbeat.begin()
    assert list(path.parent.iterdir()) == []


def test_what_cannot_be_removed_looks_old(
    heartbeat: HeartbeatFile, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> None:
        raise OSError(16, "Device or resource busy")

    path.write_text("1\n")
    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refuse)
        heartbeat.begin()
    assert age(path) > 1_000_000_000


@pytest.mark.parametrize("kind", ["no directory", "a directory", "a pipe", "a file in between"])
def test_a_place_that_is_none_is_refused(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "missing" / "file" if kind == "no directory" else tmp_path / "place"
    if kind == "a directory":
        place.mkdir()
    elif kind == "a pipe":
        os.mkfifo(place)
    elif kind == "a file in between":
        place.touch()
        place /= "file"
    with (
        override_settings(DEFERRED={"PATH": tmp_path / "storage"}),
        pytest.raises(CommandError, match=f"--heartbeat-file {place} cannot be written: "),
    ):
        call_command("deferred_worker", drain=True, heartbeat_file=str(place))


def test_under_call_command_a_thread_writes_it(
    path: Path, deferred_store: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []
    update = HeartbeatFile.update
    monkeypatch.setattr(heartbeat_file, "FIRST_PERIOD_SECONDS", 0.01)

    def updated(self: HeartbeatFile, processes: object) -> None:
        update(self, [0])
        if path.exists():
            seen.append(True)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(HeartbeatFile, "update", updated)
    call_command("deferred_worker", heartbeat_file=str(path))
    assert seen
    assert not path.exists()


# -- real processes ------------------------------------------------------------------------------


@pytest.fixture
def project(make_project: MakeProject) -> Project:
    # What is not at its default here would only make the test wait.
    settings = "from deferred_django import heartbeat_file\nheartbeat_file.PERIOD_SECONDS = 0.1\n"
    return make_project(tasks=TASKS, settings=settings)


def started(project: Project, *options: str) -> tuple[subprocess.Popen[str], Path]:
    worker = project.worker("--heartbeat-file", "beat", *options)
    path = project.path / "beat"
    wait_until(path.exists, timeout=20)
    return worker, path


def goes_on(path: Path) -> bool:
    """Whether it gets fresher, within a bounded time."""
    before = path.stat().st_mtime_ns
    wait_until(lambda: path.stat().st_mtime_ns > before, timeout=10)
    return True


def assert_goes_stale(path: Path) -> None:
    """Written again and again or not, it says a time that does not move."""
    wait_until(lambda: age(path) > 2.5, timeout=10)


def check(project: Project, max_age: str) -> subprocess.CompletedProcess[str]:
    options = ("--heartbeat-file", "beat", "--max-heartbeat-age", max_age)
    return project.manage("deferred_status", "--check", *options)


def test_a_worker_keeps_it_fresh_and_takes_it_away(project: Project) -> None:
    """Also while all its threads are at work."""
    store = Store(project)
    worker, path = started(project, "--processes", "2", "--threads", "1")
    for name in ("a", "b"):
        store.enqueue("slow", name)
    wait_until(lambda: len(project.notes()) == 2)
    assert goes_on(path)
    assert check(project, "30").returncode == 0
    worker.terminate()
    wait_until(lambda: "stopping" in project.log())
    assert goes_on(path), "it waits for its tasks"
    for name in ("a", "b"):
        project.touch(name)
    assert worker.wait(20) == 0
    assert not path.exists()
    done = check(project, "30")
    assert done.returncode == 1
    assert done.stderr.startswith("Unhealthy: there is no heartbeat file")
    store.backend.close()


@pytest.mark.parametrize("how", ["a process is stopped", "a fetcher is stuck"])
def test_it_goes_stale(project: Project, how: str) -> None:
    worker, path = started(project, "--processes", "2", "--threads", "1")
    stopped = []
    if how == "a fetcher is stuck":
        store = Store(project)
        store.enqueue("wedge")
        store.backend.close()
    else:
        stopped = [children_of(worker.pid)[1]]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    assert_goes_stale(path)
    done = check(project, "1")
    assert done.returncode == 1
    assert "old, older than 1 s" in done.stderr
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)
    project.touch("unwedge")
    if stopped:
        wait_until(lambda: age(path) < 1.5)


def test_a_process_that_dies_at_once_again_and_again(project: Project) -> None:
    worker, path = started(project)

    def kill() -> bool:
        for pid in children_of(worker.pid):
            kill_quietly(pid)
        return age(path) > 2.5

    wait_until(kill, timeout=30)
    assert worker.poll() is None
