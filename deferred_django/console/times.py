"""Times as people write and read them: ``30d`` and ISO dates in, local times with an age out."""

from __future__ import annotations

import datetime
import re
import time

from django.utils import timezone

_AGE = re.compile(r"([0-9]{1,9})\s*([smhdw])")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
FORMS = "an age such as 90m, 12h, 30d or 2w, or an ISO date or time such as 2026-11-29T08:00"


def parse_moment(text: str, *, now: float | None = None) -> float:
    """The unix seconds that ``text`` means: an age before ``now``, or an ISO date or datetime.

    What names no zone is read in Django's current time zone, and a date is its midnight there.
    Raises ``ValueError`` saying what is allowed.
    """
    age = _AGE.fullmatch(text.strip())
    if age:
        return (time.time() if now is None else now) - int(age[1]) * _UNIT_SECONDS[age[2]]
    try:
        moment = datetime.datetime.fromisoformat(text.strip())
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=timezone.get_current_timezone())
        return moment.timestamp()
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a time: give {FORMS}") from None


def ago(moment: float, *, now: float | None = None) -> str:
    """How long ago, in one unit: ``3 min ago``; ``in 3 min`` for a time to come."""
    seconds = (time.time() if now is None else now) - moment
    duration = format_duration(abs(seconds))
    if abs(seconds) < 1:
        return "just now"
    return f"{duration} ago" if seconds > 0 else f"in {duration}"


def format_duration(seconds: float) -> str:
    """A duration in one unit, rounded down: ``42 s``, ``3 min``, ``5 h``, ``12 d``."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds)} s"


def local(moment: float, *, seconds: bool = False) -> str:
    """The time in Django's current zone, with the zone's name: ``2026-11-29 15:42 CET``.

    A number that is no time on a calendar is shown as it is.
    """
    try:
        there = datetime.datetime.fromtimestamp(moment, timezone.get_current_timezone())
    except (ValueError, OverflowError, OSError):
        return str(moment)
    return there.strftime("%Y-%m-%d %H:%M:%S %Z" if seconds else "%Y-%m-%d %H:%M %Z")


def local_with_age(moment: float, *, seconds: bool = False, now: float | None = None) -> str:
    """:func:`local` and :func:`ago` together: ``2026-11-29 15:42 CET, 3 min ago``."""
    shown = local(moment, seconds=seconds)
    return f"{shown}, {ago(moment, now=now)}" if shown != str(moment) else shown
