"""When a periodic task is due: every so many seconds, or by a cron expression in a time zone.

Cron expressions are parsed and worked out by cronsim (the extra ``cron``), which does as Debian's
cron does. What is left to do here is the time zone of expressions that are due more often than
daily: cronsim is asked for times of a wall clock, which are then found in the zone, since where
clocks change by less than an hour (Australia/Lord_Howe) its own answers leave some out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol
from zoneinfo import ZoneInfo

INSTALL_HINT: Final = 'Install it: pip install cronsim (it is the extra "cron" of deferred-django)'
ALIASES: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
NEVER_SECONDS: Final = 50 * 365 * 86400.0
"""cronsim looks for a time within 50 years."""
_DAY: Final = 86400
_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - of a wall clock


class Timing(Protocol):
    """When ticks are due. Times are unix seconds."""

    @property
    def signature(self) -> str:
        """What it is, in words: another one is another timing."""

    @property
    def words(self) -> str:
        """The same for people, and for programs that show it to people."""

    def next_after(self, now: float, anchor: float) -> float:
        """The first tick after ``now``; ``anchor`` is when the periodic task was first seen."""


@dataclass(frozen=True, slots=True)
class Every:
    """Whole multiples of a period behind the anchor: they never drift."""

    seconds: float

    @property
    def signature(self) -> str:
        """Such as ``every 60.0``."""
        return f"every {self.seconds!r}"

    @property
    def words(self) -> str:
        """Such as ``every 60 s``."""
        whole = int(self.seconds)
        return f"every {whole if whole == self.seconds else self.seconds!r} s"

    def next_after(self, now: float, anchor: float) -> float:
        """See :meth:`Timing.next_after`."""
        number = math.floor((now - anchor) / self.seconds) + 1
        while (tick := anchor + number * self.seconds) <= now:  # by the rounding of floats
            number += 1
        return tick


@dataclass(frozen=True, slots=True)
class Cron:
    """A cron expression, on the wall clocks of a time zone.

    As Debian's cron has it, an expression whose minutes and hours both begin with no ``*`` names
    times of a day: one that a clock change leaves out is due right after the change, one that there
    is twice is due the first time. Any other is due whenever the clocks show such a time: never in
    an hour that is left out, twice in one that is repeated.
    """

    expression: str
    zone: ZoneInfo

    @classmethod
    def parse(cls, text: str, zone: ZoneInfo) -> Cron:
        """Raises ``ValueError`` that says why it is none, ``ImportError`` without the library."""
        words = text.split()
        expression = ALIASES.get(text.strip().lower(), " ".join(words))
        from cronsim import CronSimError

        try:
            next(_simulation(expression, _EPOCH + timedelta(days=20_000)))
        except CronSimError as error:
            raise ValueError(str(error)) from error
        except StopIteration:
            raise ValueError("there is no such time within 50 years") from None
        return cls(expression, zone)

    @property
    def signature(self) -> str:
        """Such as ``cron 0 3 * * * Europe/Paris``."""
        return f"cron {self.expression} {self.zone.key}"

    @property
    def words(self) -> str:
        """The signature, which is in words already."""
        return self.signature

    @property
    def is_of_a_day(self) -> bool:
        """Whether it names times of a day, rather than a rhythm."""
        fields = self.expression.split()
        return len(fields) == 5 and not any(field.startswith("*") for field in fields[:2])

    def next_after(self, now: float, anchor: float = 0.0) -> float:
        """See :meth:`Timing.next_after`; the anchor does not matter."""
        after = math.floor(now)
        try:
            return self._next_of_a_day(after, now) if self.is_of_a_day else self._next(after)
        except StopIteration:
            return now + NEVER_SECONDS

    def _next_of_a_day(self, after: int, now: float) -> float:
        # In an hour that there is twice, a time of its first round may be behind already.
        for found in _simulation(self.expression, datetime.fromtimestamp(after, self.zone)):
            if (tick := found.timestamp()) > now:
                return float(tick)
        raise StopIteration

    def _next(self, after: int) -> float:
        offset = self._offset_at(after)
        while True:
            # As long as the offset stays, the wall clock and the time go on together.
            wall = _EPOCH + timedelta(seconds=after + offset)
            found = next(_simulation(self.expression, wall))
            tick = round((found - _EPOCH).total_seconds()) - offset
            change = self._first_change(after, tick, offset)
            if change is None:
                return float(tick)
            after, offset = change - 1, self._offset_at(change)

    def _first_change(self, after: int, until: int, offset: int) -> int | None:
        """The first second in (after, until] at which the offset is another one."""
        before = after
        while before < until:
            # No zone has changed its clocks twice on a day and back.
            later = min(before + _DAY, until)
            if self._offset_at(later) != offset:
                while later - before > 1:
                    middle = (before + later) // 2
                    if self._offset_at(middle) == offset:
                        before = middle
                    else:
                        later = middle
                return later
            before = later
        return None

    def _offset_at(self, at: int) -> int:
        found = datetime.fromtimestamp(at, UTC).astimezone(self.zone).utcoffset()
        return round((found or timedelta()).total_seconds())


def _simulation(expression: str, start: datetime) -> Any:
    from cronsim import CronSim

    return CronSim(expression, start)
