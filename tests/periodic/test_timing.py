"""When ticks are due."""

from __future__ import annotations

import sys
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from deferred_django.timing import NEVER_SECONDS, Cron, Every

PARIS, NEW_YORK = ZoneInfo("Europe/Paris"), ZoneInfo("America/New_York")


def following(expression: str, zone: ZoneInfo, after: str, number: int) -> list[str]:
    cron = Cron.parse(expression, zone)
    at = datetime.fromisoformat(after).timestamp()
    found = []
    for _ in range(number):
        at = cron.next_after(at)
        found.append(datetime.fromtimestamp(at, zone).strftime("%m-%d %H:%M:%S %z"))
    return found


@pytest.mark.parametrize(
    ("expression", "zone", "after", "expected"),
    [
        # In the hour that is left out: right after it, once.
        (
            "30 2 * * *",
            PARIS,
            "2026-03-28T12:00Z",
            ["03-29 03:00:00 +0200", "03-30 02:30:00 +0200"],
        ),
        (
            "0,30 2 * * *",
            PARIS,
            "2026-03-28T12:00Z",
            ["03-29 03:00:00 +0200", "03-30 02:00:00 +0200"],
        ),
        # In the hour that is there twice: the first time, also for who asks in the second.
        (
            "30 2 * * *",
            PARIS,
            "2026-10-24T12:00Z",
            ["10-25 02:30:00 +0200", "10-26 02:30:00 +0100"],
        ),
        ("30 2 * * *", PARIS, "2026-10-25T01:10Z", ["10-26 02:30:00 +0100"]),
        (
            "30 1 * * *",
            NEW_YORK,
            "2026-10-31T12:00Z",
            ["11-01 01:30:00 -0400", "11-02 01:30:00 -0500"],
        ),
        # A rhythm goes on through both.
        (
            "*/30 * * * *",
            PARIS,
            "2026-10-25T00:15Z",
            [
                "10-25 02:30:00 +0200",
                "10-25 02:00:00 +0100",
                "10-25 02:30:00 +0100",
                "10-25 03:00:00 +0100",
            ],
        ),
        (
            "*/30 * * * *",
            PARIS,
            "2026-03-29T00:15Z",
            ["03-29 01:30:00 +0100", "03-29 03:00:00 +0200"],
        ),
        ("15 */2 * * *", PARIS, "2026-03-29T00:00Z", ["03-29 04:15:00 +0200"]),
        # Seconds, in front.
        ("*/20 * * * * *", PARIS, "2026-01-01T00:00:10Z", ["01-01 01:00:20 +0100"]),
        (" @Daily ", PARIS, "2026-01-01T00:00Z", ["01-02 00:00:00 +0100"]),
        ("@hourly", PARIS, "2026-01-01T00:00Z", ["01-01 02:00:00 +0100"]),
    ],
)
def test_cron_over_the_changes_of_the_clocks(
    expression: str, zone: ZoneInfo, after: str, expected: list[str]
) -> None:
    assert following(expression, zone, after, len(expected)) == expected


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        ("", "number of fields"),
        ("60 * * * *", "Bad minute"),
        ("* * * *", "number of fields"),
        ("every day", "number of fields"),
        ("0 0 31 2 *", "day-of-month"),
        ("* * */20 * 1L", "no such time within 50 years"),
        ("0 0 * * 8", "day-of-week"),
        ("\0 * * * *", "Bad minute"),
    ],
)
def test_what_is_no_expression(expression: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Cron.parse(expression, PARIS)


def test_what_never_comes_again_is_far_away() -> None:
    cron = Cron("* * */20 * 1L", PARIS)
    assert cron.next_after(1e9) == 1e9 + NEVER_SECONDS


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    with pytest.raises(ImportError):
        Cron.parse("0 3 * * *", PARIS)


def test_a_period_does_not_drift() -> None:
    every, anchor = Every(1 / 3), 1792888200.123
    at = anchor
    for number in range(1, 30_001):
        at = every.next_after(at + 0.1, anchor)
        assert at == anchor + number / 3 or abs(at - anchor - number / 3) < 1e-6
    assert every.next_after(anchor + 1000, anchor) > anchor + 1000


@pytest.mark.parametrize("seconds", [0.1, 1 / 3, 60.0, 86400.0, 3155760000.0])
def test_the_next_of_a_period_is_behind_now(seconds: float) -> None:
    every, anchor = Every(seconds), 1792888200.1
    for number in range(-50, 50):
        now = anchor + number * seconds
        for moment in (now, now + seconds / 7, now - seconds / 7):
            tick = every.next_after(moment, anchor)
            assert moment < tick <= moment + seconds + 1e-6
