"""A scheduler that is killed at any call, or has its power cut: no tick is lost, none comes twice.

Killed: a real process dies by SIGKILL before each call that matters for durability or exclusion,
and so behind the one before. Power cut: every disk that the model of the disk leaves (a sample of
them, where there are too many) is written, and another scheduler goes on with it.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deferred_django import schedule_plan, scheduler
from deferred_django.backends.base import BackendConfig
from deferred_django.backends.disk import files
from deferred_django.backends.disk.backend import DiskBackend
from deferred_django.queue import Queue
from deferred_django.schedule_plan import Due, Plan
from deferred_django.scheduler import Scheduler
from deferred_django.timing import Every
from tests.crash.enumeration import scratch_directory
from tests.crash.model import Image
from tests.crash.scenario import Limits, Scenario, write_image
from tests.crash.stage import PREFIX, STORE, Stage
from tests.disk.support import in_child
from tests.periodic.memory import Clock, entry

START = 1792888200.0
ENTRIES = (entry("hourly", Every(3600.0)), entry("also hourly", Every(3600.0)))
LATER = entry("daily", Every(86400.0))
FIRST = {Due(each, START + 3600, is_resumed=False).task_id for each in ENTRIES}
SECOND = {Due(each, START + 7200, is_resumed=False).task_id for each in ENTRIES}
DURABLE = (
    "open_file",
    "create_file",
    "write",
    "fsync",
    "fsync_directory",
    "rename",
    "unlink",
    "try_flock",
    "unlock_flock",
)
MOST_CALLS = 60
STATES = 24
"""Of one moment of a power cut."""


def backend_at(path: Path) -> DiskBackend:
    return DiskBackend(BackendConfig(path=path, prefix=PREFIX, fsync_frequency=3600.0))


def look(backend: DiskBackend, now: float) -> float:
    return Scheduler(
        Queue(backend), (*ENTRIES, LATER), clock=Clock(now), settings_read_at=0.0
    ).look()


def run_all(backend: DiskBackend) -> list[str]:
    """Run what is pending, by the ids."""
    ran = []
    while claims := backend.claim_tasks(100):
        for claim in claims:
            ran.append(claim.id)
            backend.start_task(claim)
            backend.complete_task(claim)
    return ran


def go_on(path: Path) -> Counter[str]:
    """What others do afterwards: look, run, look at the next tick; all that ran."""
    ran: Counter[str] = Counter()
    for now in (START + 3605, START + 3606, START + 7200):
        backend = backend_at(path)
        try:
            look(backend, now)
            ran.update(run_all(backend))
            assert all(tick.unfinished_at is None for tick in backend.tick_records())
            assert [found for found in backend.verify() if "schedule" in found.file] == []
        finally:
            backend.close()
    return ran


def prepare(path: Path) -> None:
    backend = backend_at(path)
    look(backend, START)
    backend.close()


# -- killed ---------------------------------------------------------------------------------------


class _Death:
    """Kills this process before the call of that number."""

    def __init__(self, at: int) -> None:
        self.calls = 0
        self._at = at
        for name in DURABLE:
            setattr(files, name, self._counted(getattr(files, name)))

    def _counted(self, real: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            if self.calls == self._at:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return call


def die_in_a_look(path: Path, at: int) -> bool:
    """Whether the process died: there were so many calls."""
    reading, writing = os.pipe()

    def act() -> None:
        _Death(at)
        backend = backend_at(path)
        look(backend, START + 3600)
        os.write(writing, b"alive")

    in_child(act)
    os.close(writing)
    survived = os.read(reading, 5) == b"alive"
    os.close(reading)
    return not survived


def test_a_scheduler_killed_at_each_call_loses_and_doubles_no_tick() -> None:
    deaths = 0
    with scratch_directory() as root:
        for at in range(1, MOST_CALLS):
            path = root / str(at)
            prepare(path)
            if not die_in_a_look(path, at):
                break
            deaths += 1
            assert go_on(path) == dict.fromkeys(FIRST | SECOND, 1), f"killed at call {at}"
    assert 15 <= deaths < MOST_CALLS - 1, deaths


# -- the power goes ------------------------------------------------------------------------------


def prepare_stage(stage: Stage) -> None:
    prepare(Path(stage.path))


def look_on_stage(stage: Stage) -> None:
    """The recorder sees what is written; the promises are those of the checks here."""
    backend = backend_at(Path(stage.path))
    stage._storages.append(backend.tasks)
    look(backend, START + 3600)


def disks(limit: int) -> set[Image]:
    """What a power cut at any moment of a look may leave."""
    scenario = Scenario("a tick", prepare_stage, look_on_stage)
    chance = random.Random(1)
    found: set[Image] = set()
    with scratch_directory() as scratch:
        for play, _ in scenario.plays(Limits(seed=1, per_point=limit), scratch):
            for point in play.points:
                found.update(point.image(choice) for choice in point.choices(limit, chance))
    return found


def outcomes(limit: int) -> Counter[str]:
    """How often each went well, or in which way not."""
    seen: Counter[str] = Counter()
    for image in sorted(disks(limit), key=repr):
        with scratch_directory() as root:
            write_image(image, str(root))
            ran = go_on(root / STORE)
            names = ", ".join(sorted(path.rpartition("/")[2][:24] for path, _ in image))
            right = ran == dict.fromkeys(FIRST | SECOND, 1)
            seen["right" if right else f"{dict(ran)}: {names}"] += 1
    return seen


def test_a_power_cut_loses_and_doubles_no_tick() -> None:
    seen = outcomes(STATES)
    assert set(seen) == {"right"}, seen
    assert seen["right"] > 30


@pytest.mark.parametrize("left_out", ["the intention", "the sync", "the search"])
def test_what_each_step_is_for(left_out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, some disk shows a tick that is lost or comes twice."""
    if left_out == "the intention":

        def make_plan(*arguments: Any, **options: Any) -> Plan:
            plan = schedule_plan.make_plan(*arguments, **options)
            for name, record in plan.records.items():
                plan.records[name] = replace(record, unfinished_at=None)
            return plan

        monkeypatch.setattr(scheduler, "make_plan", make_plan)
    elif left_out == "the sync":
        monkeypatch.setattr(DiskBackend, "sync", lambda self: None)
    else:
        monkeypatch.setattr(Scheduler, "_there", lambda self, task_ids: set())
    seen = outcomes(STATES)
    assert set(seen) != {"right"}
