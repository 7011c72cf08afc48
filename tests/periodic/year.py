"""A year of several workers' schedulers by a simulated clock, against other answers.

The other answers are the cron library's own, from one run through the year; and where that leaves
times out (rhythms in a zone that changes its clocks by half an hour), those of every minute of the
year that the wall clock shows as the expression says.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from zoneinfo import ZoneInfo

from cronsim import CronSim

from deferred_django.schedule_plan import Due
from deferred_django.timing import Cron, Every
from tests.periodic.memory import Clock, ScheduleMemory, entry, scheduler

OF_A_DAY = (
    "0 3 * * *",
    "30 2 * * *",  # does not exist when clocks are set forward in Paris and New York
    "15 2 * * *",  # nor in Lord_Howe
    "30 1 * * *",  # is there twice when they are set back in New York
    "45 1 * * *",  # and in Lord_Howe
    "0,30 2 * * *",
    "10,40 1-4 * * *",
    "59 23 31 12 *",
    "0 0 1 * *",
    "0 12 29 2 *",
    "0 9 * * MON-FRI",
    "0 0 L * *",
)
RHYTHMS = (
    "15 */2 * * *",
    "*/20 1-3 * * *",
    "0 * * * *",
    "30 * * * *",
    "*/5 0 * * *",
    "*/15 2 * * SUN",
)
DENSE = ("*/15 * * * *", "*/5 * * * *")
ZONES = ("Europe/Paris", "America/New_York", "Australia/Lord_Howe")
HALF_AN_HOUR = "Australia/Lord_Howe"
PERIODS = (3600.0, 86400.0, 10_000 / 3)
LATEST = 0.9
"""Seconds by which a worker may be late."""


@dataclass
class Result:
    """What the year brought for one periodic task."""

    zone: str
    name: str
    source: str
    """Whose answer it is compared with."""
    expected: int
    ticks: int
    missed: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        return not (self.missed or self.twice or self.unexpected) and self.ticks == self.expected


def by_library(expression: str, zone: ZoneInfo, start: float, end: float) -> list[float]:
    """Its own iteration over aware times, from one end to the other."""
    found: list[float] = []
    for moment in CronSim(expression, datetime.fromtimestamp(start, zone)):
        if moment.timestamp() > end:
            return found
        found.append(moment.timestamp())
    return found


@cache
def _minutes(key: str, start: float, end: float) -> list[tuple[float, datetime]]:
    first = int(start) // 60 * 60 + 60
    zone = ZoneInfo(key)
    return [(float(at), datetime.fromtimestamp(at, zone)) for at in range(first, int(end) + 1, 60)]


def by_minutes(expression: str, zone: ZoneInfo, start: float, end: float) -> list[float]:
    """Every minute at which the clocks show what the expression says."""
    fields = CronSim(expression, datetime(2000, 1, 1))
    return [
        at
        for at, shown in _minutes(zone.key, start, end)
        if shown.minute in fields.minutes
        and shown.hour in fields.hours
        and shown.month in fields.months
        and fields.match_day(shown.date())
    ]


def bounds(key: str, year: int) -> tuple[float, float]:
    """When a year of the zone begins and ends, and half a second before that."""
    zone = ZoneInfo(key)
    first, last = (datetime(year + n, 1, 1, tzinfo=zone).timestamp() - 0.5 for n in (0, 1))
    return first, last


def changes(zone: ZoneInfo, start: float, end: float) -> list[datetime]:
    """When the clocks have been changed, by full hours, in UTC."""
    hours = range(math.ceil(start), int(end), 3600)
    moments = [datetime.fromtimestamp(at, UTC) for at in hours]
    offsets = [moment.astimezone(zone).utcoffset() for moment in moments]
    return [
        moment
        for moment, before, after in zip(moments[1:], offsets, offsets[1:], strict=False)
        if before != after
    ]


def simulate(
    key: str,
    expressions: Sequence[str],
    start: float,
    end: float,
    *,
    periods: Sequence[float] = PERIODS,
    seed: int = 1,
    workers: int = 3,
) -> Iterator[Result]:
    """All that falls due: whoever of the workers looks first is left to chance, and how late."""
    chance = random.Random(seed)
    zone = ZoneInfo(key)
    entries = [
        *(entry(expression, Cron.parse(expression, zone)) for expression in expressions),
        *(entry(f"every {period:g} s", Every(period)) for period in periods),
    ]
    backend, clock = ScheduleMemory(), Clock(start)
    schedulers = [scheduler(backend, clock, *entries) for _ in range(workers)]
    while clock.now <= end:
        first = chance.randrange(workers)
        for number in range(workers if chance.random() < 0.1 else 1):
            schedulers[(first + number) % workers].look()
        if chance.random() < 0.01:  # a process is replaced
            schedulers[first] = scheduler(backend, clock, *entries)
        clock.now = min(tick.next_at for tick in backend.ticks) + chance.random() * LATEST
    there = Counter(task_id for task_id, *_ in backend.added)
    for each in entries:
        if isinstance(each.timing, Cron):
            of_a_day = each.timing.is_of_a_day
            library = of_a_day or key != HALF_AN_HOUR
            answer = by_library if library else by_minutes
            expected = answer(each.timing.expression, zone, start, end)
            source = "library" if library else "minutes"
        else:
            assert isinstance(each.timing, Every)
            period = each.timing.seconds
            expected = [start + n * period for n in range(1, math.ceil((end - start) / period))]
            source = "multiples"
        ids = {Due(each, at, is_resumed=False).task_id: at for at in expected}
        ending = next(iter(ids)).partition("-")[2].rpartition("-")[0] if ids else "nothing"
        own = {i: n for i, n in there.items() if i.partition("-")[2].rpartition("-")[0] == ending}
        yield Result(
            zone=key,
            name=each.name,
            source=source,
            expected=len(expected),
            ticks=sum(own.values()),
            missed=[_shown(at, zone) for i, at in ids.items() if i not in own],
            twice=[i for i, number in own.items() if number > 1],
            unexpected=[i for i in own if i not in ids],
        )


def _shown(at: float, zone: ZoneInfo) -> str:
    return datetime.fromtimestamp(at, zone).isoformat()
