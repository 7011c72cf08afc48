"""The keys of the setting that concern the queue and the worker."""

from __future__ import annotations

import math
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from deferred_django import conf, get_backend, get_queue, registry
from deferred_django.backpressure_setting import Backpressure
from deferred_django.conf_features import FEATURE_KEYS, FeatureKey, Features


def backpressure(value: Any) -> Backpressure | None:
    """What the setting says, by the queue."""
    with override_settings(DEFERRED={"BACKEND": None, "BACKPRESSURE": value}):
        return get_queue().features.backpressure


def problems(value: Any) -> list[conf.Problem]:
    """What is wrong with the key's value."""
    with override_settings(DEFERRED={"BACKPRESSURE": value}):
        with pytest.raises(ImproperlyConfigured):
            registry.get_features()
        return conf.problems()


def test_each_key_has_a_field_and_a_code_of_its_own() -> None:
    fields = [key.field for key in FEATURE_KEYS.values()]
    assert sorted(fields) == sorted(Features.__dataclass_fields__)
    assert len({key.code for key in FEATURE_KEYS.values()}) == len(FEATURE_KEYS)


def test_a_feature_is_of_the_setting_as_it_stands() -> None:
    before = registry.get_features()
    assert before is registry.get_features() is get_queue().features
    with override_settings(DEFERRED={"BACKEND": None, "BACKPRESSURE": True}):
        assert registry.get_features().backpressure == Backpressure()
        assert get_queue().features is registry.get_features()
    assert registry.get_features() == before


def test_every_backend_may_have_the_keys() -> None:
    dotted = "tests.test_conf.OtherBackend"
    with override_settings(DEFERRED={"BACKEND": dotted, "BACKPRESSURE": True, "URL": "x:1"}):
        assert get_backend().config.options == {"URL": "x:1"}
        assert registry.get_features().backpressure == Backpressure()


def test_a_reader_gets_the_value_and_its_problems_get_the_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def read(value: object, reject: Any) -> None:
        reject(f"{value} is wrong.", "Mend it.")

    monkeypatch.setattr(
        "deferred_django.conf_features.FEATURE_KEYS",
        {"BACKPRESSURE": FeatureKey("backpressure", "E999", read)},
    )
    assert problems("this") == [conf.Problem("E999", "this is wrong.", "Mend it.")]


# -- BACKPRESSURE ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (False, None),
        (True, Backpressure(1000, 800, 2.0)),
        ({}, Backpressure(1000, 800, 2.0)),
        ({"HIGH_WATER_MARK": 10}, Backpressure(10, 8, 2.0)),
        ({"HIGH_WATER_MARK": 1}, Backpressure(1, 0, 2.0)),
        ({"LOW_WATER_MARK": 0}, Backpressure(1000, 0, 2.0)),
        ({"LOW_WATER_MARK": 1000}, Backpressure(1000, 1000, 2.0)),
        ({"TIMEOUT": 0}, Backpressure(1000, 800, 0.0)),
        ({"HIGH_WATER_MARK": 5, "LOW_WATER_MARK": 2, "TIMEOUT": 0.5}, Backpressure(5, 2, 0.5)),
    ],
)
def test_backpressure(value: Any, expected: Backpressure | None) -> None:
    assert backpressure(value) == expected


def test_backpressure_is_off_by_default() -> None:
    with override_settings(DEFERRED={"BACKEND": None}):
        assert get_queue().features.backpressure is None


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (None, '["BACKPRESSURE"] is None'),
        (1000, '["BACKPRESSURE"] is 1000'),
        ({"HIGH_WATERMARK": 5}, "'HIGH_WATERMARK'"),
        ({7: 5}, "unknown key 7"),
        ({"HIGH_WATER_MARK": 0}, '["HIGH_WATER_MARK"] is 0'),
        ({"HIGH_WATER_MARK": -5}, '["HIGH_WATER_MARK"] is -5'),
        ({"HIGH_WATER_MARK": True}, '["HIGH_WATER_MARK"] is True'),
        ({"HIGH_WATER_MARK": 10.0}, '["HIGH_WATER_MARK"] is 10.0'),
        ({"LOW_WATER_MARK": -1}, '["LOW_WATER_MARK"] is -1'),
        ({"LOW_WATER_MARK": None}, '["LOW_WATER_MARK"] is None'),
        ({"LOW_WATER_MARK": 1001}, '["LOW_WATER_MARK"] is 1001'),
        ({"HIGH_WATER_MARK": 5, "LOW_WATER_MARK": 6}, "HIGH_WATER_MARK, which is 5"),
        ({"TIMEOUT": -1}, '["TIMEOUT"] is -1'),
        ({"TIMEOUT": math.nan}, '["TIMEOUT"] is nan'),
        ({"TIMEOUT": math.inf}, '["TIMEOUT"] is inf'),
        ({"TIMEOUT": "2"}, "[\"TIMEOUT\"] is '2'"),
        ({"TIMEOUT": True}, '["TIMEOUT"] is True'),
    ],
)
def test_backpressure_that_is_none(value: Any, named: str) -> None:
    (problem,) = problems(value)
    assert problem.code == "E009"
    assert named in problem.message


def test_everything_that_is_wrong_with_backpressure_is_said_at_once() -> None:
    found = problems({"HIGH_WATER_MARK": "x", "LOW_WATER_MARK": -1, "TIMEOUT": None, "HIGH": 1})
    assert [problem.code for problem in found] == ["E009"] * 4
