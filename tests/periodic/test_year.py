"""A sample of a simulated year; ``make periodic`` has all of it."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest

from deferred_django import timing
from tests.periodic.year import DENSE, RHYTHMS, ZONES, Result, bounds, changes, simulate

DAY = 86400.0


def wrong(results: list[Result]) -> list[Result]:
    return [result for result in results if not result.is_right]


@pytest.mark.parametrize("key", ZONES)
def test_times_of_a_day_come_once_each_through_a_year(key: str) -> None:
    expressions = ("30 2 * * *", "15 2 * * *", "45 1 * * *", "0 0 L * *")
    results = list(simulate(key, expressions, *bounds(key, 2026), periods=()))
    assert wrong(results) == []
    assert [result.ticks for result in results] == [365, 365, 365, 12]


@pytest.mark.parametrize("key", ZONES)
def test_rhythms_keep_their_times_over_each_change_of_the_clocks(key: str) -> None:
    moments = [change.timestamp() for change in changes(ZoneInfo(key), *bounds(key, 2026))]
    assert len(moments) == 2
    for moment in moments:
        start, end = moment - 1.2 * DAY, moment + 1.2 * DAY
        assert wrong(list(simulate(key, (*RHYTHMS, *DENSE), start, end))) == []


def test_what_the_library_leaves_out_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """(Which is why it is not asked for times of a zone, see ``timing``.)"""
    monkeypatch.setattr(timing.Cron, "_next", lambda self, after: self._next_of_a_day(after, after))
    key = "Australia/Lord_Howe"
    moment = changes(ZoneInfo(key), *bounds(key, 2026))[0].timestamp()
    results = list(simulate(key, ("*/5 0 * * *",), moment - DAY, moment + 1.2 * DAY))
    assert any(result.expected for result in results)
    assert wrong(results)
