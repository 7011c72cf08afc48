"""Scenarios, and playing them: what happened, and the moments at which the power may go."""

from __future__ import annotations

import math
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.crash.events import Event
from tests.crash.model import CrashPoint, Image, crash_points
from tests.crash.stage import Stage, one_thread, repeatable_names

Act = Callable[[Stage], None]

MOST_CALLS = 100
"""No operation of a scenario makes so many calls that change something."""
KILLED_SHARE, AGAIN_SHARE = 20, 10
"""Where one scenario is many plays, each gets this part of the states."""


@dataclass(frozen=True)
class Limits:
    """How much of a scenario's states is looked at."""

    seed: int
    per_point: int
    """States of one moment: where there are more, some are chosen by the seed."""
    plays: int = 1000
    """Where a scenario is many plays: how many of them, chosen by the seed."""
    thorough: float = 1.0
    """The part of the disks that is worked on; the others are only read."""
    until: float = math.inf
    """The monotonic time at which to stop."""
    first_only: bool = False
    """Stop at the first violation."""


@dataclass(frozen=True)
class Play:
    """One play of a scenario."""

    events: Sequence[Event]
    points: Sequence[CrashPoint]
    note: str
    """Which of the plays of its scenario it was."""


@dataclass(frozen=True)
class Scenario:
    """One operation, on a store that was prepared for it."""

    name: str
    prepare: Act
    act: Act
    """What is recorded."""

    def plays(self, limits: Limits, scratch: Path) -> Iterator[tuple[Play, Limits]]:
        """Play it, once; with the limits for its states."""
        yield _play(self.prepare, self.act, limits.seed, scratch, ""), limits


@dataclass(frozen=True)
class Killed(Scenario):
    """The process that acts is killed at each of its calls in turn, before the call and within it.

    Only then comes the power cut, while others go on.
    """

    then: Act
    """What another process does."""

    def plays(self, limits: Limits, scratch: Path) -> Iterator[tuple[Play, Limits]]:
        """Play it once for each call at which the process can be killed."""
        few = replace(limits, per_point=max(2, limits.per_point // KILLED_SHARE))
        undisturbed = _Dying(self.act, self.then, MOST_CALLS, tears=False)
        yield _play(self.prepare, undisturbed, limits.seed, scratch, "not killed"), few
        deaths = [(call, tears) for call in range(1, undisturbed.calls + 1) for tears in (0, 1)]
        chance = random.Random(limits.seed)
        for call, tears in sorted(chance.sample(deaths, min(limits.plays - 1, len(deaths)))):
            dying = _Dying(self.act, self.then, call, tears=bool(tears))
            note = f"killed {'in' if tears else 'before'} call {call}"
            yield _play(self.prepare, dying, limits.seed, scratch, note), few


@dataclass(frozen=True)
class Again:
    """The power is cut again, while somebody works with what the first time has left."""

    name: str
    first: Scenario
    act: Act

    def plays(self, limits: Limits, scratch: Path) -> Iterator[tuple[Play, Limits]]:
        """Play it on some of the disks that the first power cut may leave."""
        chance = random.Random(limits.seed)
        few = replace(limits, per_point=max(4, limits.per_point // AGAIN_SHARE))
        left: set[Image] = set()
        for first, _ in self.first.plays(limits, scratch):
            for point in first.points:
                left.update(point.image(choice) for choice in point.choices(200, chance))
        several = min(few.per_point, limits.plays, len(left))
        for image in chance.sample(sorted(left, key=repr), several):
            yield _play(_as_left(image), self.act, limits.seed + 1, scratch, "a second time"), few


def _as_left(image: Image) -> Act:
    def prepare(stage: Stage) -> None:
        write_image(image, stage.recorder.root)
        stage.promise_what_is_there()

    return prepare


class _Dying:
    """The act of a process that is killed, and what another one does then."""

    def __init__(self, act: Act, then: Act, call: int, *, tears: bool) -> None:
        self._act, self._then = act, then
        self._call, self._tears = call, tears
        self.calls = 0
        """How many calls that change something were begun."""

    def __call__(self, stage: Stage) -> None:
        with stage.process_that_dies(self._call, tears=self._tears):
            self._act(stage)
        self.calls = stage.recorder.calls
        self._then(stage)


def _play(prepare: Act, act: Act, seed: int, scratch: Path, note: str) -> Play:
    root = scratch / "root"
    root.mkdir()
    stage = Stage(root)
    recorder = stage.recorder
    try:
        with repeatable_names(seed), one_thread(), recorder.installed():
            try:
                prepare(stage)
                stage.begin()
                act(stage)
            finally:
                recorder.is_recording = False
                there = read_image(root)
                stage.close()
    finally:
        shutil.rmtree(root)
    events, names, contents = recorder.events, recorder.names, recorder.contents
    points = list(crash_points(events, names, contents, stage.first_page))
    everything = points[-1].image((1,) * len(points[-1].counts))
    assert everything == there, "something was changed that was not recorded"
    return Play(events, points, note)


def read_image(root: Path) -> Image:
    """What is there."""
    found = [
        (str(path.relative_to(root)), None if path.is_dir() else path.read_bytes())
        for path in root.rglob("*")
    ]
    return tuple(sorted(found, key=lambda each: each[0]))


def write_image(image: Image, root: str) -> None:
    """Put it there, where nothing is."""
    for name, data in image:
        path = os.path.join(root, name)
        if data is None:
            os.mkdir(path)
        else:
            with open(path, "wb") as file:
                file.write(data)
