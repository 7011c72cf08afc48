"""``DEFERRED["SCHEDULE"]``: what it may hold, and what is said of anything else."""

from __future__ import annotations

import re
import sys
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.core import checks
from django.test import override_settings
from django.utils.safestring import mark_safe

from deferred_django import conf, registry
from deferred_django.conf_features import Features
from deferred_django.schedule_checks import check_schedule
from deferred_django.timing import Cron, Every

TASK = "tests.testapp.tasks.record"


def features(schedule: Any, **others: Any) -> Features:
    with override_settings(DEFERRED={"SCHEDULE": schedule, **others}):
        return registry.get_features()


def problems(schedule: Any) -> list[conf.Problem]:
    with override_settings(DEFERRED={"SCHEDULE": schedule}):
        return conf.problems()


def test_without_the_key_there_is_none() -> None:
    assert Features().schedule is None
    assert features({}).schedule == ()


@override_settings(TIME_ZONE="Europe/Paris", USE_TZ=False)
def test_what_it_may_hold() -> None:
    schedule = features(
        {
            "every": {"task": TASK, "every": 30},
            mark_safe("a day"): {
                "task": TASK,
                "every": timedelta(days=1),
                "args": [1],
                "queue": "q",
            },
            "café, nightly": {
                "task": TASK,
                "cron": "0  3 * * *",
                "kwargs": {"x": (1,)},
                "priority": -5,
            },
        }
    ).schedule
    assert schedule is not None
    first, second, third = schedule
    assert (first.name, first.task, first.timing) == ("every", TASK, Every(30.0))
    assert (first.args, first.kwargs, first.queue, first.priority) == ((), {}, None, None)
    assert (second.timing, second.args, second.queue) == (Every(86400.0), (1,), "q")
    assert type(second.name) is str
    assert isinstance(third.timing, Cron)
    assert third.timing.signature == third.timing.words == "cron 0 3 * * * Europe/Paris"
    assert (first.timing.signature, first.timing.words) == ("every 30.0", "every 30 s")
    assert [Every(seconds).words for seconds in (0.5, 3e9)] == ["every 0.5 s", "every 3000000000 s"]
    assert (third.kwargs, third.priority) == ({"x": (1,)}, -5)


def test_the_time_zone_of_the_project_counts_at_once() -> None:
    with override_settings(DEFERRED={"SCHEDULE": {"a": {"task": TASK, "cron": "@daily"}}}):
        for name in ("America/New_York", "Asia/Tokyo"):
            with override_settings(TIME_ZONE=name):
                [entry] = registry.get_features().schedule or ()
                assert entry.timing.signature == f"cron 0 0 * * * {name}"


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        (5, "must be a dict"),
        ([{"task": TASK}], "must be a dict"),
        ({5: {}}, "the name 5"),
        ({"": {}}, "the name ''"),
        ({"x" * 101: {}}, "1 to 100"),
        ({"a\nb": {}}, r"the name 'a\\nb'"),
        ({"\udcff": {}}, "the name"),
        ({"a": 5}, r'\["SCHEDULE"\]\["a"\] is 5'),
        ({"a": {"task": TASK, "every": 5, "Args": []}}, "unknown key 'Args'.*Did you mean"),
        ({"a": {"every": 5}}, r'\["a"\]\["task"\] is missing'),
        ({"a": {"task": "record", "every": 5}}, "dotted name"),
        ({"a": {"task": "a.b c", "every": 5}}, "dotted name"),
        ({"a": {"task": print, "every": 5}}, "dotted name"),
        ({"a": {"task": TASK}}, 'has neither "every" nor "cron"'),
        ({"a": {"task": TASK, "every": 5, "cron": "@daily"}}, "has both"),
        ({"a": {"task": TASK, "every": "5"}}, "must be a number of seconds"),
        ({"a": {"task": TASK, "every": True}}, "must be a number of seconds"),
        ({"a": {"task": TASK, "every": 0}}, "from 0.1 seconds"),
        ({"a": {"task": TASK, "every": -1}}, "from 0.1 seconds"),
        ({"a": {"task": TASK, "every": float("nan")}}, "from 0.1 seconds"),
        ({"a": {"task": TASK, "every": float("inf")}}, "to 100 years"),
        ({"a": {"task": TASK, "every": timedelta(0)}}, "from 0.1 seconds"),
        ({"a": {"task": TASK, "cron": 5}}, "must be a str"),
        (
            {"a": {"task": TASK, "cron": "61 * * * *"}},
            "'61 .* no cron expression .Bad minute.; it must be",
        ),
        ({"a": {"task": TASK, "every": 5, "args": "abc"}}, "list or a tuple"),
        ({"a": {"task": TASK, "every": 5, "kwargs": [1]}}, "dict by names"),
        ({"a": {"task": TASK, "every": 5, "kwargs": {1: 2}}}, "dict by names"),
        ({"a": {"task": TASK, "every": 5, "queue": "two words"}}, "A-Za-z0-9"),
        ({"a": {"task": TASK, "every": 5, "priority": 1.5}}, "an int from -32768 to 32767"),
        ({"a": {"task": TASK, "every": 5, "priority": 40000}}, "an int from -32768 to 32767"),
    ],
)
def test_what_is_wrong_is_named(schedule: Any, says: str) -> None:
    found = problems(schedule)
    assert {problem.code for problem in found} == {"E012"}
    text = "\n".join(map(str, found))
    assert re.search(says, text), text


def test_every_entry_is_looked_at() -> None:
    found = problems({"a": {"task": TASK}, "b": {"task": TASK, "every": 0}, "c": 5})
    assert len(found) == 3


def test_the_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cronsim", None)
    assert problems({"a": {"task": TASK, "every": 5}}) == []
    [problem] = problems({"a": {"task": TASK, "cron": "@daily"}})
    assert "cronsim" in problem.message
    assert (
        problem.hint
        == 'Install it: pip install cronsim (it is the extra "cron" of deferred-django)'
    )


@pytest.mark.parametrize("name", [None, "Mars/Olympus", 5, "../etc/passwd"])
def test_a_cron_expression_needs_a_time_zone(name: Any) -> None:
    with override_settings(DEFERRED={"SCHEDULE": {"a": {"task": TASK, "cron": "@daily"}}}):
        settings.TIME_ZONE = name  # override_settings would have Django look it up too
        try:
            [problem] = conf.problems()
        finally:
            del settings.TIME_ZONE
    assert "TIME_ZONE" in problem.message


# -- checks of what is not in the setting ---------------------------------------------------------


def warnings(schedule: Any, **others: Any) -> list[tuple[str | None, str]]:
    with override_settings(DEFERRED={"SCHEDULE": schedule, **others}):
        found = check_schedule()
    assert all(isinstance(message, checks.Warning) for message in found)
    return [(message.id, message.msg) for message in found]


def test_a_schedule_that_can_run_gets_no_warning() -> None:
    assert warnings({"a": {"task": TASK, "every": 5, "args": [1], "kwargs": {"x": 2}}}) == []
    assert warnings({}, BACKEND=None) == []
    assert warnings(5) == []  # an error says so


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"task": "nowhere.tasks.x"}, "no module 'nowhere'"),
        ({"task": "tests.testapp.tasks.nothing"}, "has no 'nothing'"),
        ({"task": "tests.testapp.tasks.calls"}, "not decorated with @deferred"),
        ({"task": "tests.testapp.tasks.record_async"}, "value"),
    ],
)
def test_what_cannot_run_here_gets_a_warning(entry: dict[str, Any], says: str) -> None:
    [(code, message)] = warnings({"nightly": {"every": 60, **entry}})
    assert code == "deferred_django.W004"
    assert 'DEFERRED["SCHEDULE"]["nightly"] cannot be run here: ' in message
    assert says in message


def test_arguments_that_cannot_be_carried_get_a_warning_of_what_follows() -> None:
    schedule = {"nightly": {"task": TASK, "every": 60, "args": [object()]}}
    with override_settings(DEFERRED={"SCHEDULE": schedule}):
        [message] = check_schedule()
    assert message.id == "deferred_django.W004"
    assert re.search("cannot be enqueued: .* a value of type object", message.msg)
    assert message.hint == "Ticks with such arguments are dropped, which is logged."


@pytest.mark.parametrize("backend", [None, "tests.commands.fakes.FakeBackend"])
def test_a_backend_that_keeps_no_schedule_gets_a_warning(backend: Any) -> None:
    [(code, message)] = warnings({"a": {"task": TASK, "every": 5}}, BACKEND=backend)
    assert code == "deferred_django.W003"
    assert str(backend) in message
