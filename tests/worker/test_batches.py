"""What a worker claims in advance, on the real store."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from deferred_django.backends.base import BackendConfig
from deferred_django.backends.disk import DiskBackend
from deferred_django.queue import Queue
from tests.support import wait_until
from tests.worker import tasks
from tests.worker.fakes import Running, add


def test_an_idle_worker_runs_what_a_slow_task_holds_up_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R14, with claims that are locks on a disk: 49 run elsewhere at once, each of them once."""
    first, second = (DiskBackend(BackendConfig(path=tmp_path / "store")) for _ in range(2))
    # The file that lists a worker bears its process's name, and this process is two workers.
    monkeypatch.setattr(second, "worker_started", lambda **_: None)
    add(first, tasks.wait_for, "slow")
    for number in range(49):
        add(first, tasks.note, number)
    slow = Running(Queue(first), threads=1)
    # As after a burst of short tasks: all are claimed in advance.
    slow.worker._prefetch._not_before = time.monotonic() + 60  # however slow the machine is
    slow.worker._prefetch.number, slow.worker._pool.low_mark = 50, 25
    with slow:
        wait_until(lambda: ("begun", "slow") in tasks.ran)
        began = time.monotonic()
        with Running(Queue(second)):
            wait_until(lambda: len(tasks.ran) == 50)
            assert time.monotonic() - began < 2
            tasks.gate("slow").set()
    assert len(tasks.ran) == len(set(tasks.ran)) == 51
    assert second.pending_tasks() == []
    first.close()
    second.close()
