"""The supervisor's pauses; what it does with real processes is in ``test_processes``."""

from __future__ import annotations

import os
import time

import pytest

from deferred_django.supervisor import LIVED_SECONDS, LONGEST_PAUSE, Supervisor, _Child
from deferred_django.worker import Worker


def no_worker() -> Worker:
    raise AssertionError("nothing is started here")


def pause_after_death(supervisor: Supervisor, child: _Child, lived: float) -> float:
    now = time.monotonic()
    child.started_at = now - lived
    supervisor._pause(child)
    return child.start_at - now


def test_the_pause_grows_while_a_process_dies_at_once() -> None:
    supervisor = Supervisor(no_worker, processes=1)
    child = _Child()
    pauses = [pause_after_death(supervisor, child, 0.1) for _ in range(12)]
    assert pauses[:5] == pytest.approx([0, 0.1, 0.2, 0.4, 0.8], abs=0.05)
    assert pauses[-1] == pytest.approx(LONGEST_PAUSE, abs=0.05)
    assert pause_after_death(supervisor, child, LIVED_SECONDS + 1) == pytest.approx(0, abs=0.05)
    assert pause_after_death(supervisor, child, 0.1) == pytest.approx(0.1, abs=0.05)


@pytest.mark.parametrize("call", ["os.fork", "os.pipe"])
def test_a_process_that_cannot_be_started_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    def refuse() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(call, refuse)
    supervisor = Supervisor(no_worker, processes=1)
    (child,) = supervisor._children
    for _ in range(3):
        supervisor._start(child)
    assert (child.pid, child.control) == (None, -1)
    assert child.start_at > time.monotonic()
    assert "could not be started" in caplog.text


def test_a_child_that_somebody_else_has_waited_for_harms_nobody() -> None:
    """Its end is noticed, and killing it when it does not stop is no error."""
    supervisor = Supervisor(no_worker, processes=1)
    (child,) = supervisor._children
    child.pid = os.fork()
    if child.pid == 0:
        os._exit(0)
    os.waitpid(child.pid, 0)
    supervisor._told, supervisor._kill_at = 2, 0.0
    supervisor._pass_on_signals()
    supervisor._reap()
    assert child.done


def test_a_signal_ends_the_starting_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor = Supervisor(no_worker, processes=3)
    started: list[_Child] = []

    def start(child: _Child) -> None:
        started.append(child)
        supervisor._orders.count = 1

    monkeypatch.setattr(supervisor, "_start", start)
    supervisor._start_due()
    assert len(started) == 1
