"""One schedule, from its store to its books."""

from __future__ import annotations

import gc
import os
import random
import shutil
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tests.schedules import child, stores
from tests.schedules.child import Channel
from tests.schedules.controller import Crew, Run, ViolationError, running
from tests.schedules.inspection import Inspection
from tests.schedules.operations import OPERATIONS
from tests.schedules.schedule import Schedule

THOROUGH_EACH = 8
"""What many schedules leave is the same, byte for byte."""


@dataclass
class Outcome:
    """What came of a schedule."""

    schedule: Schedule
    done: list[int] = field(default_factory=list)
    """How many calls each step of the script really was."""
    calls: list[int] = field(default_factory=list)
    """How many calls each process made."""
    states: list[str] = field(default_factory=list)
    """Those of the processes when the script was done."""
    passed: list[list[list[tuple[str, str]]]] = field(default_factory=list)
    """What each process did with each of its calls, if the run was traced."""
    violation: str | None = None
    trace: list[str] = field(default_factory=list)


def work(channel: Channel, job: Any) -> None:
    """What a process does with a job."""
    OPERATIONS[job["operation"]].start(channel, job["directory"], job["name"])


class Laboratory:
    """Runs schedules, one after the other, in a directory of its own."""

    def __init__(self, defect: Callable[[], None] | None = None) -> None:
        """``defect`` spoils the package, in the processes that are scheduled."""
        fast = "/dev/shm"
        self._scratch = tempfile.mkdtemp(
            "", "schedules-", fast if os.access(fast, os.W_OK) else None
        )
        child.without_clock()
        self._stores = stores.make_all()
        gc.freeze()  # what the processes share is not looked at by any of them
        self._crew = Crew(work, defect)
        self._number = 0

    def close(self) -> None:
        """End the processes and remove the files."""
        self._crew.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def run(self, schedule: Schedule, *, traced: bool = False) -> Outcome:
        """Run one and check its books; ``traced`` notes each call."""

        def follow(run: Run, outcome: Outcome) -> None:
            outcome.done = run.follow()

        return self._run(schedule, traced, follow)

    def wander(self, schedule: Schedule, dice: random.Random, kill_chance: float) -> Outcome:
        """Run one whose script is made up on the way."""

        def wander(run: Run, outcome: Outcome) -> None:
            script = run.wander(dice, kill_chance)
            outcome.schedule = replace(schedule, script=script)

        return self._run(schedule, False, wander)

    def _run(
        self, schedule: Schedule, traced: bool, steer: Callable[[Run, Outcome], None]
    ) -> Outcome:
        self._number += 1
        directory = os.path.join(self._scratch, str(self._number))
        store = self._stores[schedule.store]
        store.lay_out(directory)
        outcome = Outcome(schedule)
        try:
            with running(Run(schedule, self._crew, directory, traced)) as run:
                outcome.trace = run.trace
                run.begin()
                steer(run, outcome)
                outcome.states = run.states
                outcome.calls = [peer.calls for peer in run.peers]
                outcome.passed = [peer.passed for peer in run.peers]
                thorough = self._number % THOROUGH_EACH == 0
                Inspection(run, store, directory, thorough=thorough).inspect()
        except ViolationError as violation:
            outcome.violation = str(violation)
        except Exception:  # of the package, when the end was looked at
            outcome.violation = traceback.format_exc()
        shutil.rmtree(directory, ignore_errors=True)
        return outcome
