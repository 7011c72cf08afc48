"""The key ``BACKPRESSURE`` of the ``DEFERRED`` setting."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from deferred_django.conf_wording import (
    Reject,
    did_you_mean,
    is_int,
    is_number,
    listed,
    named,
    shown,
)

KEY: Final = "BACKPRESSURE"
OPTIONS: Final = ("HIGH_WATER_MARK", "LOW_WATER_MARK", "TIMEOUT")


@dataclass(frozen=True, slots=True)
class Backpressure:
    """When an enqueue waits, and for how long."""

    high_water_mark: int = 1000
    """An enqueue that finds so many tasks waits."""
    low_water_mark: int = 800
    """Those that wait go on when there are no more than so many."""
    timeout: float = 2.0
    """Seconds after which one that still waits gives up."""


DEFAULTS: Final = Backpressure()
LOW_SHARE: Final = 0.8
"""Of the high-water mark: the low one, where only the high one is set."""


def read_backpressure(value: object, reject: Reject) -> Backpressure | None:
    """``True`` for the defaults, a dict for others, ``False`` for none."""
    if isinstance(value, bool):
        return DEFAULTS if value else None
    if not isinstance(value, Mapping):
        reject(
            f"{named(KEY)} is {shown(value)}; it must be True, False or a dict with any of "
            f"{listed(OPTIONS)}.",
            None,
        )
        return None
    for key in value:
        if key not in OPTIONS:
            reject(
                f"{named(KEY)} has the unknown key {shown(key)}; it may have {listed(OPTIONS)}.",
                did_you_mean(str(key).upper(), OPTIONS),
            )
    high = value.get("HIGH_WATER_MARK", DEFAULTS.high_water_mark)
    high_is_right = _is_count("HIGH_WATER_MARK", high, 1, reject)
    low = value.get("LOW_WATER_MARK", int(high * LOW_SHARE) if high_is_right else 0)
    if _is_count("LOW_WATER_MARK", low, 0, reject) and high_is_right and low > high:
        reject(
            f"{named(KEY, 'LOW_WATER_MARK')} is {low}; it must not be above HIGH_WATER_MARK, "
            f"which is {high}.",
            None,
        )
    timeout = value.get("TIMEOUT", DEFAULTS.timeout)
    if not is_number(timeout) or not 0 <= timeout <= threading.TIMEOUT_MAX:  # NaN neither
        reject(
            f"{named(KEY, 'TIMEOUT')} is {shown(timeout)}; it must be a finite number of seconds, "
            "0 or more.",
            None,
        )
        return None
    return Backpressure(high, low, float(timeout))


def _is_count(option: str, value: object, least: int, reject: Reject) -> bool:
    if is_int(value) and value >= least:
        return True
    reject(
        f"{named(KEY, option)} is {shown(value)}; it must be a number of tasks, an int of "
        f"{least} or more.",
        None,
    )
    return False
