"""Scenarios of the dead tasks alone."""

from __future__ import annotations

import os

from deferred_django.backends.disk import dead_tasks_file
from tests.crash.scenario import Act, Scenario
from tests.crash.stage import PREFIX, Stage

RECORDS = {name: b'{"of":"%b"}' % name.encode() for name in ("a", "b", "c", "d")}
TORN = dead_tasks_file.encode("torn", b'{"of":"nobody"}')


def nothing(stage: Stage) -> None:
    """Nothing is there, not even the directory."""


def filled(stage: Stage) -> None:
    """Four dead tasks."""
    dead = stage.dead()
    for name, record in RECORDS.items():
        stage.dead_add(dead, name, record)


def ending_in(tail: bytes, *, cut: int = 0) -> Act:
    """Four dead tasks, then ``cut`` bytes less at the end, and these more."""

    def prepare(stage: Stage) -> None:
        filled(stage)
        path = os.path.join(stage.path, f"{PREFIX}dead_tasks-0")
        os.truncate(path, os.path.getsize(path) - cut)
        with open(path, "ab") as file:
            file.write(tail)

    return prepare


def add(stage: Stage) -> None:
    """One add."""
    stage.dead_add(stage.dead(), "new")


def two_adds(stage: Stage) -> None:
    """Two adds of two processes."""
    stage.dead_add(stage.dead(), "new")
    stage.dead_add(stage.dead(), "newer")


def remove(stage: Stage) -> None:
    """A removal of two that are not neighbours."""
    stage.dead_remove(stage.dead(), "a", "c")


SCENARIOS = (
    Scenario("dead: first use", nothing, add),
    Scenario("dead: first use, two processes", nothing, two_adds),
    Scenario("dead: add", filled, add),
    Scenario("dead: add behind a torn line", ending_in(TORN[:30]), add),
    Scenario("dead: add behind zeros", ending_in(bytes(40)), add),
    Scenario("dead: add behind a line without newline", ending_in(b"", cut=1), add),
    Scenario("dead: remove", filled, remove),
    Scenario("dead: remove before a torn line", ending_in(TORN[:30]), remove),
)
