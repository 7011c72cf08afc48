"""Any bytes as a task's context, and what fuzzing has found in its decoding."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deferred_django import decoding
from deferred_django.context import TaskContext, displayed
from deferred_django.nesting import MAX_LEVELS, is_too_deep
from tests.fuzz import contexts


@settings(max_examples=150)
@given(st.randoms(use_true_random=False))
def test_any_context(chance: random.Random) -> None:
    contexts.check(contexts.mutated(chance))


@settings(max_examples=100)
@given(st.binary(max_size=60))
def test_bytes_of_no_form_at_all(data: bytes) -> None:
    contexts.check(data)


def context(**values: Any) -> bytes:
    return json.dumps(
        {"v": 1, "task": "a.b", "at": 5.0, "args": [], "kwargs": {}, **values}
    ).encode()


@pytest.mark.parametrize(
    "data",
    [
        context(at=10**400),  # OverflowError
        context().replace(b"5.0", b"1e999"),
        context(args=[1]).replace(b"[1]", b"[1e999]"),  # read as infinite: never to be written
        context(attempts=10**400),
        context(attempts=-1),
        context(put_backs=-1),
        context(priority=10**6),  # no record could have it
        context(unknown_since=10**400),  # the worker calculates with it
        context(user=[]),
    ],
)
def test_what_could_not_be_worked_with_is_no_context(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a task's context"):
        TaskContext.from_bytes(data)
    contexts.check(data)


def nested(levels: int) -> bytes:
    return context().replace(b'"args": []', b'"args": ' + b"[" * levels + b"]" * levels)


def test_what_is_too_deep_to_be_written_again_is_no_context() -> None:
    """It parses, and a retry would fail for ever with the outcome in hand."""
    assert TaskContext.from_bytes(nested(MAX_LEVELS - 1)).to_bytes()
    for levels in (MAX_LEVELS, 900, 100_000):
        with pytest.raises(ValueError, match="too deep"):
            TaskContext.from_bytes(nested(levels))
        assert "unreadable" in displayed(nested(levels))


def test_levels_are_counted_through_lists_and_objects() -> None:
    value: Any = 5
    for number in range(MAX_LEVELS):
        assert not is_too_deep(value, json.dumps(value).encode())
        value = [value, 1] if number % 2 else {"a": value, "b": 1}
    assert not is_too_deep(value, json.dumps(value).encode())
    assert is_too_deep([value], json.dumps([value]).encode())


@pytest.mark.parametrize(
    ("tag", "payload"),
    [
        ("$int", 5),
        ("$int", "0xzz"),
        ("$float", []),
        ("$str", 5),
        ("$str", [1]),
        ("$bytes", 5),
        ("$bytes", "a"),
        ("$tuple", 5),
        ("$set", [[1]]),  # cannot be hashed
        ("$frozenset", {"a": 1}),
        ("$dict", [[1]]),
        ("$dict", [[{"$set": []}, 1]]),
        ("$dict", 5),
        ("$datetime", {}),
        ("$datetime", [1]),
        ("$datetime", {"at": "2026-01-01T00:00:00", "zone": "Europe"}),  # a directory
        ("$datetime", {"at": "2026-01-01T00:00:00", "zone": "No/Where"}),
        ("$datetime", {"at": "2026-01-01T00:00:00", "zone": "../../etc/passwd"}),
        ("$datetime", {"at": "2026-01-01T00:00:00", "zone": "a\0b"}),
        ("$datetime", {"at": "2026-01-01T00:00:00+01:00", "name": 5}),
        ("$datetime", {"at": "2026-01-01T00:00:00", "fold": "x"}),
        ("$time", None),
        ("$date", 5),
        ("$timedelta", ["x"]),
        ("$timedelta", [10**400]),
        ("$timedelta", 5),
        ("$decimal", "x"),
        ("$decimal", [1]),
        ("$uuid", 5),
        ("$enum", 5),
        ("$enum", ["enum"]),
        ("$enum", ["enum", 5, "x"]),
        ("$enum", ["enum", "Enum", []]),
        ("$enum", [5, "Enum", "x"]),
        ("$model", 5),
        ("$model", ["auth"]),
        ("$model", [[], "user", "default", 1]),
        ("$more", 1),
    ],
)
def test_a_form_that_no_value_has_is_a_value_error(tag: str, payload: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        decoding.decode([{tag: payload}])
