"""Plays a scenario, builds every disk that a power cut may leave of it, has each checked."""

from __future__ import annotations

import logging
import os
import random
import shutil
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.crash.books import Books
from tests.crash.checker import Checker, Found
from tests.crash.events import Event, Mark
from tests.crash.model import Choice, CrashPoint, Image
from tests.crash.scenario import Limits, Play
from tests.crash.stage import one_thread

VIOLATIONS_KEPT = 5
EVENTS_SHOWN = 24


class Playable(Protocol):
    """A scenario of any kind."""

    @property
    def name(self) -> str:
        """What it is called."""

    def plays(self, limits: Limits, scratch: Path) -> Iterator[tuple[Play, Limits]]:
        """Play it, with the limits for the states of each play."""


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
        shown = [event for event in self.last_events if not isinstance(event, Mark)]
        events = "\n".join(f"    {event}" for event in shown)
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
    finished: bool = False
    """Whether there was time for all of it."""
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


def enumerate_states(scenario: Playable, limits: Limits) -> Report:
    """Check the disks that a power cut may leave of the scenario."""
    report = Report(scenario.name)
    began = time.monotonic()
    with scratch_directory() as scratch, _quietly():
        _Enumeration(scenario, limits, scratch, report).run()
    report.seconds = time.monotonic() - began
    return report


class _Enumeration:
    def __init__(self, scenario: Playable, limits: Limits, scratch: Path, report: Report) -> None:
        self._scenario = scenario
        self._limits = limits
        self._scratch = scratch
        self._report = report
        self._checker = Checker(str(scratch))
        self._chance = random.Random(zlib.crc32(scenario.name.encode()) ^ limits.seed)
        self._disks: dict[Image, Found] = {}
        self._pages: list[Books] = []
        self._seen: set[tuple[Image, int]] = set()

    def run(self) -> None:
        """Fill in the report."""
        report = self._report
        for play, limits in self._scenario.plays(self._limits, self._scratch):
            report.events += len(play.events)
            report.points += len(play.points)
            with one_thread():
                if not all(self._goes_on(play, point, limits) for point in play.points):
                    break
        else:
            report.finished = True
        report.disks, report.states = len(self._disks), len(self._seen)

    def _goes_on(self, play: Play, point: CrashPoint, limits: Limits) -> bool:
        """Check the states of one moment; whether there is to be another."""
        if point.books not in self._pages:
            self._pages.append(point.books)
        page = self._pages.index(point.books)
        for choice in point.choices(limits.per_point, self._chance):
            image = point.image(choice)
            if (image, page) in self._seen:
                continue
            self._seen.add((image, page))
            if image not in self._disks:
                thoroughly = self._chance.random() < limits.thorough
                self._disks[image] = self._checker.examine(image, thoroughly=thoroughly)
            complaint = self._disks[image].breaks(point.books)
            if complaint is not None:
                self._note(play, point, choice, image, complaint)
                if limits.first_only:
                    return False
            if time.monotonic() > limits.until:
                return False
        return True

    def _note(
        self, play: Play, point: CrashPoint, choice: Choice, image: Image, complaint: str
    ) -> None:
        self._report.violated += 1
        if len(self._report.violations) < VIOLATIONS_KEPT:
            self._report.violations.append(
                Violation(
                    scenario=f"{self._scenario.name} {play.note}".strip(),
                    seed=self._limits.seed,
                    event=point.index,
                    choice=choice,
                    complaint=complaint,
                    image=image,
                    last_events=tuple(play.events[: point.index][-EVENTS_SHOWN:]),
                )
            )
