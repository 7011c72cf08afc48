"""A tick's task begins when its tick is noted down."""

from __future__ import annotations

import time

import pytest

from deferred_django import ticks
from deferred_django.backends.base import ClaimedTask
from deferred_django.backends.schedule import TickRecord
from deferred_django.context import TaskContext
from deferred_django.execution import Outcome, execute
from deferred_django.queue import Queue
from tests.periodic.memory import ScheduleMemory

AT = 1792888200.25
ID = ticks.task_id("nightly", AT)
UNFINISHED = TickRecord(name="nightly", next_at=AT + 60, unfinished_at=AT)


def start(backend: ScheduleMemory, task_id: str) -> float:
    """How long its start takes."""
    began = time.monotonic()
    data = TaskContext.build("tests.testapp.tasks.record", (), {}).to_bytes()
    claim = ClaimedTask(task_id, data, 0.0, "default", 0)
    assert execute(Queue(backend), claim) is Outcome.SUCCEEDED
    return time.monotonic() - began


def test_a_start_waits_for_the_note(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = ScheduleMemory()
    looks: list[list[TickRecord]] = []

    def tick_records() -> list[TickRecord]:
        looks.append([])
        return [UNFINISHED] if len(looks) < 4 else []

    monkeypatch.setattr(backend, "tick_records", tick_records)
    start(backend, ID)
    assert len(looks) == 4


def test_a_start_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ticks, "PATIENCE_SECONDS", 0.05)
    backend = ScheduleMemory()
    backend.ticks = [UNFINISHED]
    assert 0.05 <= start(backend, ID) < 5


@pytest.mark.parametrize("task_id", ["1792888200-7-abc-1", ticks.task_id("other", AT)])
def test_others_do_not_wait(monkeypatch: pytest.MonkeyPatch, task_id: str) -> None:
    monkeypatch.setattr(ticks, "PATIENCE_SECONDS", 60.0)
    backend = ScheduleMemory()
    backend.ticks = [UNFINISHED]
    assert start(backend, task_id) < 10


def test_a_schedule_that_cannot_be_read_holds_up_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = ScheduleMemory()

    def fail() -> list[TickRecord]:
        raise OSError("no")

    monkeypatch.setattr(backend, "tick_records", fail)
    assert start(backend, ID) < 10
