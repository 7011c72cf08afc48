"""What a supervisor sees of the time limits in its processes, and what it makes of that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from deferred_django import frozen, guard
from deferred_django.frozen import FrozenProcesses
from deferred_django.limits_board import MAX_SLOTS, LimitsBoard
from deferred_django.time_limit import TimeLimit
from tests.support import wait_until


def test_what_is_overdue() -> None:
    board = LimitsBoard(2)
    assert not board.in_use(1)
    slots = [board.slot(1, number) for number in (0, 3)]
    for number, slot in enumerate(slots):
        assert slot is not None
        slot.begin(10.0 + number, f"1-2-a-{number}")
    assert board.in_use(1)
    assert not board.in_use(0)
    assert board.overdue(1, 10.5) == {"1-2-a-0": 10.0}
    assert board.overdue(1, 20.0) == {"1-2-a-0": 10.0, "1-2-a-1": 11.0}
    assert board.overdue(0, 20.0) == {}
    assert slots[0] is not None
    slots[0].end()
    assert board.overdue(1, 20.0) == {"1-2-a-1": 11.0}
    board.clear(1)
    assert board.overdue(1, 20.0) == {}
    assert board.slot(1, MAX_SLOTS) is None


def test_an_attempt_is_shown_while_it_runs() -> None:
    board = LimitsBoard(1)
    slot = board.slot(0, 0)
    seen = []
    limit = TimeLimit(60.0, None, slot, "1-2-a-3")
    limit.call(lambda: seen.append(board.overdue(0, time.monotonic() + 61)), (), {})
    assert [list(found) for found in seen] == [["1-2-a-3"]]
    assert board.overdue(0, float("inf")) == {}


@dataclass
class Process:
    number: int
    pid: int | None


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        yield process
        process.kill()


def test_a_process_is_believed_to_be_frozen_after_a_while(
    sleeper: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not if it is stopped, nor just after that, and not for what is over by then."""
    settled: list[dict[str, float]] = []
    processes = FrozenProcesses(1)
    moment = time.monotonic()
    monkeypatch.setattr(frozen, "time", SimpleNamespace(monotonic=lambda: moment))
    monkeypatch.setattr(
        processes, "_settle", lambda pid, overdue, now: settled.append(overdue), raising=True
    )
    places = [Process(0, sleeper.pid)]
    slot = processes.board.slot(0, 0)
    assert slot is not None
    long_ago = moment - 100

    def look_after(seconds: float) -> None:
        nonlocal moment
        moment += seconds
        processes.look(places)

    slot.begin(long_ago, "1-2-a-3")
    look_after(2.0)
    look_after(4.0)
    slot.begin(long_ago, "1-2-a-4")
    look_after(4.0)
    slot.end()
    look_after(4.0)
    slot.begin(long_ago, "1-2-a-5")
    look_after(2.0)
    os.kill(sleeper.pid, signal.SIGSTOP)
    wait_until(lambda: frozen._is_stopped(sleeper.pid))
    look_after(60.0)
    os.kill(sleeper.pid, signal.SIGCONT)
    wait_until(lambda: not frozen._is_stopped(sleeper.pid))
    look_after(2.0)
    look_after(guard.GRACE_SECONDS)
    assert settled == []
    look_after(1.0)
    assert settled == [{"1-2-a-5": long_ago}]


def test_it_is_looked_seldom_where_no_task_has_a_limit() -> None:
    processes = FrozenProcesses(1)
    place = Process(0, os.getpid())
    processes.look([place])
    assert processes.seconds_to_next([place]) > frozen.LOOK_SECONDS
    slot = processes.board.slot(0, 0)
    assert slot is not None
    slot.begin(time.monotonic() + 60, "1-2-a-3")
    assert processes.seconds_to_next([place]) <= frozen.LOOK_SECONDS


def test_a_forked_child_leaves_its_parents_place(monkeypatch: pytest.MonkeyPatch) -> None:
    board = LimitsBoard(1)
    limit = TimeLimit(60, None, board.slot(0, 0), "1-2-a-0")

    def fork() -> None:
        monkeypatch.setattr(os, "getpid", lambda: -1)

    limit.call(fork, (), {})
    assert board.overdue(0, float("inf")).keys() == {"1-2-a-0"}
