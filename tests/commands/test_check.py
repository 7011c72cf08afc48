"""``deferred_status --check``: exit codes and reasons, and what it costs."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from deferred_django.backends.base import BackendConfig, Limits, Status
from deferred_django.backends.disk import DiskBackend, dead_tasks_reader, descriptors
from deferred_django.backends.disk.segment import Segment
from deferred_django.console.health import Unhealthy
from tests.commands.conftest import CommandLine
from tests.commands.fakes import FakeBackend
from tests.disk.dlq import reads_of

BUSY = Status(pending=12, delayed=3, running=2, dead=5, oldest_age=200.5, problems=["a kept file"])


@pytest.mark.parametrize(
    ("options", "reasons"),
    [
        ([], []),
        (["--max-pending", "12", "--max-age", "200.5", "--max-dead", "5"], []),
        (["--max-pending", "11"], ["more than 11 tasks are pending"]),
        (["--max-age", "200"], ["the oldest pending task has been due for 3 min, longer than 200"]),
        (["--max-dead", "0"], ["there are more than 0 dead tasks"]),
        (
            ["--max-dead", "4", "--max-age", "0", "--max-pending", "0"],
            ["more than 0 tasks", "the oldest pending task", "there are more than 4 dead tasks"],
        ),
        (["--heartbeat-file", "/nowhere/beat"], ["there is no heartbeat file /nowhere/beat"]),
        (
            ["--heartbeat-file", "/nowhere/beat", "--max-dead", "4"],
            ["there is no heartbeat file", "there are more than 4 dead tasks"],
        ),
        (["--heartbeat-file", "x\x1b"], ["there is no heartbeat file"]),
    ],
)
def test_a_line_for_each_reason(
    backend: FakeBackend, command_line: CommandLine, options: list[str], reasons: list[str]
) -> None:
    backend.now = BUSY
    done = command_line("deferred_status", "--check", *options)
    lines = done.err.splitlines()
    assert done.code == (1 if reasons else 0)
    assert done.out == ("" if reasons else "Healthy\n")
    assert len(lines) == len(reasons)
    for line, reason in zip(lines, reasons, strict=True):
        assert line.startswith(f"Unhealthy: {reason}")
        assert "\x1b" not in line


@pytest.mark.parametrize(
    "options",
    [
        ["--check", "--max-pending", "-1"],
        ["--check", "--max-pending", "1.5"],
        ["--check", "--max-age", "soon"],
        ["--check", "--max-age", "nan"],
        ["--check", "--max-heartbeat-age", "5"],
        ["--check", "--format", "json"],
        ["--check", "now"],
        ["--max-dead", "5"],
        ["--heartbeat-file", "x"],
    ],
)
def test_wrong_usage(backend: FakeBackend, command_line: CommandLine, options: list[str]) -> None:
    assert command_line("deferred_status", *options).code == 2


def test_the_age_of_a_heartbeat(
    backend: FakeBackend, command_line: CommandLine, tmp_path: Path
) -> None:
    path = tmp_path / "beat"
    path.touch()
    check = ("deferred_status", "--check", "--heartbeat-file", str(path))
    os.utime(path, (time.time() - 50, time.time() - 50))
    assert command_line(*check).code == 0
    assert command_line(*check, "--max-heartbeat-age", "90").code == 0
    done = command_line(*check, "--max-heartbeat-age", "30")
    assert (done.code, "older than 30 s" in done.err) == (1, True)
    os.utime(path, (time.time() - 70, time.time() - 70))
    assert command_line(*check).code == 1


def test_a_worker_is_not_blamed_for_the_store(
    backend: FakeBackend,
    command_line: CommandLine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Restarting it would mend nothing."""

    def fail(limits: Limits) -> Status:
        raise PermissionError(13, "Permission denied", "/store")

    monkeypatch.setattr(backend, "bounded_status", fail)
    beat = tmp_path / "beat"
    beat.touch()
    assert command_line("deferred_status", "--check", "--heartbeat-file", str(beat)).code == 0
    done = command_line("deferred_status", "--check")
    assert (done.code, "/store" in done.err) == (1, True)


def test_under_call_command(backend: FakeBackend) -> None:
    backend.now = BUSY
    call_command("deferred_status", check=True, max_pending=12)
    with pytest.raises(Unhealthy) as raised:
        call_command("deferred_status", check=True, max_pending=0, max_dead=0)
    assert raised.value.returncode == 1
    assert len(raised.value.reasons) == 2


# -- on disk -------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> DiskBackend:
    return DiskBackend(BackendConfig(path=tmp_path / "store"))


def fill(store: DiskBackend, segments: int, tasks: int, **options: Any) -> None:
    """Segments with as many tasks each, as many processes leave them."""
    producers = [DiskBackend(store.config) for _ in range(segments)]
    for producer in producers:
        for _ in range(tasks):
            producer.add_task(b"x" * 100, **options)
    for producer in producers:
        producer.close()


def test_an_empty_store_is_healthy_and_stays_empty(store: DiskBackend) -> None:
    limits = Limits(pending=0, age=0, dead=0)
    assert replace(store.bounded_status(limits), workers=[]) == store.status()
    assert not store.config.path.exists()


def test_what_is_below_the_limits_is_exact(store: DiskBackend) -> None:
    fill(store, 3, 4, publish_at=time.time() - 100)
    fill(store, 1, 2, publish_at=time.time() + 100)
    [claim, done] = store.claim_tasks(2)
    store.start_task(claim)
    store.start_task(done)
    store.complete_task(done)
    status = store.bounded_status(Limits(pending=50, age=500, dead=3))
    assert (status.pending, status.delayed, status.running) == (10, 2, 1)
    assert status.oldest_age == pytest.approx(100, abs=30)
    store.close()


def test_no_more_segments_are_read_than_it_takes(
    store: DiskBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, 6, 5, publish_at=time.time() - 100)
    opened: list[str] = []
    read_on = Segment.read_on

    def recorded(self: Segment, budget: int | None = None) -> bool:
        opened.append(self.name)
        return read_on(self, budget)

    monkeypatch.setattr(Segment, "read_on", recorded)
    for limits, segments in (
        (Limits(pending=3), 1),
        (Limits(pending=12), 3),
        (Limits(age=10), 1),
        (Limits(age=10, pending=7), 2),
        (Limits(age=1000, pending=7), 6),
        (Limits(pending=30), 6),
        (Limits(dead=1), 0),
    ):
        opened.clear()
        store.bounded_status(limits)
        assert len(opened) == segments, limits
    assert not [path for path in descriptors.paths.values() if str(store.config.path) in path]


def test_a_probe_does_not_read_all_dead_tasks(
    store: DiskBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_tasks_reader, "SOON_BYTES", 0)  # a file of some kilobytes is large
    for number in range(300):
        error = ValueError("x" * 1000)
        store.add_dead_task(str(number % 290), b"", error, task_class="a.b", attempts=1)
    [size] = [each.stat().st_size for each in store.config.path.glob("*dead_tasks-0")]

    def dead(most: int) -> int:
        return DiskBackend(store.config).bounded_status(Limits(dead=most)).dead

    assert [dead(most) for most in (0, 9, 288, 289, 290, 10_000)] == [1, 10, 289, 290, 290, 290]
    assert reads_of(lambda: dead(9)) < 200_000 < size
    store.close()


def test_a_segment_that_cannot_be_read_is_a_reason(
    store: DiskBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, 2, 1)

    def fail(self: Segment, budget: int | None = None) -> bool:
        raise OSError(5, "Input/output error", self.path)

    monkeypatch.setattr(Segment, "read_on", fail)
    problems = store.bounded_status(Limits(pending=100)).problems
    assert len(problems) == 2
    assert "Input/output error" in problems[0]
