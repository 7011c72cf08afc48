"""Scenarios of the log alone."""

from __future__ import annotations

from tests.crash.enumeration import Scenario
from tests.crash.stage import Stage


def nothing(stage: Stage) -> None:
    """Nothing is there, not even the directory."""


def two_tasks(stage: Stage) -> None:
    """Two tasks wait in a segment that nobody owns."""
    log = stage.log()
    stage.enqueue(log, "a")
    stage.enqueue(log, "b", b"two\nlines")
    stage.let_go(log)


def enqueue_durably(stage: Stage) -> None:
    """Two adds, each durable when it returns."""
    log = stage.log(fsync_frequency=0)
    stage.enqueue(log, "new")
    stage.enqueue(log, "newer")


def enqueue(stage: Stage) -> None:
    """Adds, and the timer."""
    log = stage.log()
    stage.enqueue(log, "new")
    stage.sync(log)
    stage.enqueue(log, "newer")
    stage.enqueue(log, "newest")
    stage.sync(log)


def work(stage: Stage) -> None:
    """A worker runs both tasks."""
    stage_worker = stage.log()
    stage.run_all(stage_worker)
    stage.sync(stage_worker)


SCENARIOS = (
    Scenario("log: first use, durable at once", nothing, enqueue_durably),
    Scenario("log: first use, timer", nothing, enqueue),
    Scenario("log: adopt, durable at once", two_tasks, enqueue_durably),
    Scenario("log: run and complete", two_tasks, work),
)
