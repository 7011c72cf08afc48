"""Plays a scenario, builds every disk that a power cut may leave of it, has each checked."""

from __future__ import annotations

import logging
import math
import os
import random
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.books import Books
from tests.crash.checker import Checker, Found
from tests.crash.events import Event
from tests.crash.model import Choice, CrashPoint, Image, crash_points
from tests.crash.stage import Stage, one_thread, repeatable_names

VIOLATIONS_KEPT = 5
EVENTS_SHOWN = 12

Act = Callable[[Stage], None]


@dataclass(frozen=True)
class Scenario:
    """One operation, on a store that was prepared for it."""

    name: str
    prepare: Act
    act: Act
    """What is recorded."""


@dataclass(frozen=True)
class Violation:
    """A disk on which a promise is broken."""

    scenario: str
    seed: int
    event: int
    """After how many events the power went."""
    choice: Choice
    complaint: str
    image: Image
    last_events: tuple[Event, ...]

    def __str__(self) -> str:
        events = "\n".join(f"    {event}" for event in self.last_events)
        files = "\n".join(f"    {path}: {data!r:.400}" for path, data in self.image)
        return (
            f"{self.scenario}: {self.complaint}\n  seed {self.seed}, after event {self.event},"
            f" choice {self.choice}\n  the last events:\n{events}\n"
            f"  the disk:\n{files}"
        )


@dataclass
class Report:
    """What the enumeration of one scenario found."""

    scenario: str
    events: int = 0
    points: int = 0
    """Moments at which the power went."""
    disks: int = 0
    """Different disks. Each was opened, read, worked on, emptied."""
    states: int = 0
    """Different pairs of a disk and what is promised: more than ``disks``."""
    violations: list[Violation] = field(default_factory=list)
    """The first few."""
    violated: int = 0
    seconds: float = 0.0


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """A directory of one's own, in memory where the system has such a place."""
    memory = "/dev/shm"
    usable = os.path.isdir(memory) and os.access(memory, os.W_OK | os.X_OK)
    path = Path(tempfile.mkdtemp(prefix="crash-states-", dir=memory if usable else None))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _quietly() -> Iterator[None]:
    # The store logs each torn line that it meets, and here it meets little else.
    logger = logging.getLogger("deferred_django.disk")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before


def play(scenario: Scenario, seed: int, scratch: Path) -> tuple[list[Event], list[CrashPoint]]:
    """Play the scenario once: what happened, and the moments at which the power may go."""
    root = scratch / "root"
    root.mkdir()
    stage = Stage(root)
    recorder = stage.recorder
    try:
        with repeatable_names(seed), one_thread(), recorder.installed():
            try:
                scenario.prepare(stage)
                stage.begin()
                scenario.act(stage)
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
    return events, points


def read_image(root: Path) -> Image:
    """What is there."""
    found = [
        (str(path.relative_to(root)), None if path.is_dir() else path.read_bytes())
        for path in root.rglob("*")
    ]
    return tuple(sorted(found, key=lambda each: each[0]))


@dataclass(frozen=True)
class Limits:
    """How much of a scenario's states is looked at."""

    seed: int
    per_point: int
    """States of one moment: where there are more, some are chosen by the seed."""
    until: float = math.inf
    """The monotonic time at which to stop."""
    first_only: bool = False
    """Stop at the first violation."""


def enumerate_states(scenario: Scenario, limits: Limits) -> Report:
    """Check the disks that a power cut may leave of the scenario."""
    began = time.monotonic()
    report = Report(scenario.name)
    with scratch_directory() as scratch, _quietly():
        events, points = play(scenario, limits.seed, scratch)
        report.events, report.points = len(events), len(points)
        checker = Checker(str(scratch))
        disks: dict[Image, Found] = {}
        seen: set[tuple[Image, int]] = set()
        with one_thread():
            for point, choice, image, page in _states(scenario, points, limits):
                if (image, page) in seen:
                    continue
                seen.add((image, page))
                found = disks.get(image)
                if found is None:
                    found = disks[image] = checker.examine(image)
                complaint = found.breaks(point.books)
                if complaint is not None:
                    report.violated += 1
                    if len(report.violations) < VIOLATIONS_KEPT:
                        index = point.index
                        last = tuple(events[max(0, index - EVENTS_SHOWN) : index])
                        report.violations.append(
                            Violation(
                                scenario.name, limits.seed, index, choice, complaint, image, last
                            )
                        )
                    if limits.first_only:
                        break
                if time.monotonic() > limits.until:
                    break
        report.disks, report.states = len(disks), len(seen)
    report.seconds = time.monotonic() - began
    return report


def _states(
    scenario: Scenario, points: list[CrashPoint], limits: Limits
) -> Iterator[tuple[CrashPoint, Choice, Image, int]]:
    """Each moment, with each choice of what is there; the last is a number for its books."""
    chance = random.Random(zlib.crc32(scenario.name.encode()) ^ limits.seed)
    pages: list[Books] = []
    for point in points:
        if point.books not in pages:
            pages.append(point.books)
        page = pages.index(point.books)
        for choice in point.choices(limits.per_point, chance):
            yield point, choice, point.image(choice), page
