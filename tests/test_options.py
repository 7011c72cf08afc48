"""When, where and how: the options of ``using``."""

from __future__ import annotations

import time
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.test import override_settings
from django.utils import timezone as django_timezone

from deferred_django.options import EnqueueOptions

PARIS = ZoneInfo("Europe/Paris")


def using(**options: Any) -> EnqueueOptions:
    return EnqueueOptions().using(**options)


def due(moment: Any) -> float | None:
    return using(delay_until=moment).due_at()


@pytest.mark.parametrize("delay", [0, 10, 2.5, timedelta(minutes=1), timedelta(0)])
def test_delays_count_from_the_enqueue(delay: Any) -> None:
    options = using(delay=delay)
    seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
    before = time.time()
    at = options.due_at()
    assert at is not None
    assert before <= at - seconds <= time.time() + 0.001


@pytest.mark.parametrize(
    ("options", "error", "name"),
    [
        ({"delay": -1}, ValueError, "delay"),
        ({"delay": timedelta(seconds=-1)}, ValueError, "delay"),
        ({"delay": float("nan")}, ValueError, "delay"),
        ({"delay": float("inf")}, ValueError, "delay"),
        ({"delay": 10**5000}, ValueError, "delay"),
        ({"delay": timedelta.max}, ValueError, "delay"),
        ({"delay": True}, TypeError, "delay"),
        ({"delay": "10"}, TypeError, "delay"),
        ({"delay": Decimal(10)}, TypeError, "delay"),
        ({"delay": datetime(2030, 1, 1, tzinfo=UTC)}, TypeError, "delay"),
        ({"delay_until": date(2026, 10, 25)}, TypeError, "delay_until"),
        ({"delay_until": timedelta(1)}, TypeError, "delay_until"),
        ({"delay_until": 1792888200}, TypeError, "delay_until"),
        ({"delay_until": "2026-10-25"}, TypeError, "delay_until"),
        ({"delay_until": datetime(2026, 10, 25)}, ValueError, "USE_TZ"),
        ({"delay": 1, "delay_until": datetime(2026, 1, 1, tzinfo=UTC)}, ValueError, "not both"),
        ({"queue": ""}, ValueError, "queue"),
        ({"queue": "a b"}, ValueError, "queue"),
        ({"queue": "a\n"}, ValueError, "queue"),
        ({"queue": "ä"}, ValueError, "queue"),
        ({"queue": "a" * 101}, ValueError, "queue"),
        ({"queue": b"a"}, TypeError, "queue"),
        ({"priority": 32768}, ValueError, "priority"),
        ({"priority": -32769}, ValueError, "priority"),
        ({"priority": 10**5000}, ValueError, "priority"),
        ({"priority": 1.0}, TypeError, "priority"),
        ({"priority": True}, TypeError, "priority"),
        ({"on_commit": 1}, TypeError, "on_commit"),
        ({"on_commit": ""}, TypeError, "on_commit"),
        ({"on_commit": []}, TypeError, "on_commit"),
    ],
)
def test_wrong_options_are_named(
    options: dict[str, Any], error: type[Exception], name: str
) -> None:
    with pytest.raises(error, match=name):
        using(**options)


def test_right_options() -> None:
    options = using(queue="A-z_0.9", priority=-32768, on_commit="other")
    assert (options.queue, options.priority, options.on_commit) == ("A-z_0.9", -32768, "other")
    assert options.using() == options
    assert using(queue="a" * 100, priority=32767, on_commit=False).on_commit is False


def test_the_last_word_on_the_time_counts() -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    options = using(delay=5).using(delay_until=moment)
    assert (options.delay, options.due_at()) == (None, moment.timestamp())
    options = options.using(queue="mail").using(delay=0)
    assert (options.delay, options.publish_at) == (0.0, None)


@pytest.mark.parametrize("use_tz", [True, False])
def test_an_aware_time_is_that_instant(use_tz: bool) -> None:
    """C45."""
    first = datetime(2026, 10, 25, 2, 30, tzinfo=PARIS)
    with override_settings(USE_TZ=use_tz, TIME_ZONE="Europe/Paris"):
        assert due(first) == 1792888200
        assert due(first.replace(fold=1)) == 1792891800
        assert due(datetime(2026, 10, 25, 0, 30, tzinfo=UTC)) == 1792888200
        assert due(datetime(2026, 10, 25, 3, 30, tzinfo=timezone(timedelta(hours=3)))) == 1792888200
        assert due(datetime(1, 1, 1, tzinfo=UTC)) == 0
        assert due(datetime.max.replace(tzinfo=timezone(-timedelta(hours=12)))) is not None


def test_a_naive_time_is_refused_with_use_tz() -> None:
    """C45."""
    with (
        override_settings(USE_TZ=True, TIME_ZONE="Europe/Paris"),
        pytest.raises(ValueError, match="USE_TZ"),
    ):
        due(datetime(2026, 10, 25, 2, 30))


def test_a_naive_time_is_read_in_djangos_zone_without_use_tz(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C45: the same whatever TZ the process has and whatever zone a request activated."""
    with override_settings(USE_TZ=False, TIME_ZONE="Europe/Paris"):
        for zone in ("America/New_York", "Europe/Paris", "Asia/Tokyo"):
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            with django_timezone.override(zone):
                assert due(datetime(2026, 10, 25, 2, 30)) == 1792888200
                assert due(datetime(2026, 10, 25, 2, 30, fold=1)) == 1792891800
                # Skipped by the change at 01:00 UTC: half an hour after it.
                assert due(datetime(2026, 3, 29, 2, 30)) == 1774747800
        monkeypatch.undo()
        time.tzset()
