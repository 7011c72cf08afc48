"""The keys of the setting that are lists of dotted paths."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from deferred_django import conf, registry
from tests.testapp import middleware

HERE = "tests.testapp.middleware."


def problem(key: str, value: Any) -> conf.Problem:
    """The one thing that is wrong with the key's value."""
    with override_settings(DEFERRED={"BACKEND": None, key: value}):
        with pytest.raises(ImproperlyConfigured):
            registry.get_features()
        (found,) = conf.problems()
        assert [check.id for check in run_checks()] == [f"deferred_django.{found.code}"]
        return found


def test_what_is_right() -> None:
    setting = {
        "BACKEND": None,
        "ENQUEUE_MIDDLEWARE": (HERE + "first", HERE + "instance"),
        "PERFORM_MIDDLEWARE": [HERE + "outer", HERE + "Swallowing"],
        "LOG_CONTEXT_VARS": [HERE + "tenant"],
    }
    with override_settings(DEFERRED=setting):
        features = registry.get_features()
    assert features.enqueue_middleware == (
        (HERE + "first", middleware.first),
        (HERE + "instance", middleware.instance),
    )
    assert [made for _, made in features.perform_middleware] == [
        middleware.outer,
        middleware.Swallowing,
    ]
    assert features.log_context_vars == ((HERE + "tenant", middleware.tenant),)


def test_nothing_by_default() -> None:
    with override_settings(DEFERRED={"BACKEND": None}):
        features = registry.get_features()
    assert features.enqueue_middleware == features.perform_middleware == ()
    assert features.log_context_vars == ()


CODES = {"ENQUEUE_MIDDLEWARE": "E010", "PERFORM_MIDDLEWARE": "E011", "LOG_CONTEXT_VARS": "E013"}


@pytest.mark.parametrize("key", CODES)
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, " is None; it must be a list of dotted paths."),
        ([7], "[0] is 7; it must be a dotted path, a str."),
        (["no_dot"], "[0] is 'no_dot', which could not be imported (ImportError: "),
        (["no_such_package.x"], "could not be imported (ModuleNotFoundError: No module named"),
        ([HERE + "no_such"], 'does not define a "no_such" attribute'),
        ([HERE + "not_callable"], f"[0] is '{HERE}not_callable', which is 7 of type int; it must"),
    ],
)
def test_what_is_wrong_with_each(key: str, value: Any, message: str) -> None:
    found = problem(key, value)
    assert found.code == CODES[key]
    assert found.message.startswith(f'DEFERRED["{key}"]')
    assert message in found.message


def test_a_single_path() -> None:
    found = problem("ENQUEUE_MIDDLEWARE", HERE + "first")
    assert found.hint == f"Did you mean ['{HERE}first']?"


@pytest.mark.parametrize(
    ("key", "name", "message"),
    [
        ("ENQUEUE_MIDDLEWARE", "Instance", "the class Instance; it must be a function"),
        ("ENQUEUE_MIDDLEWARE", "asynchronous", "asynchronous; middleware is synchronous"),
        ("PERFORM_MIDDLEWARE", "asynchronous", "asynchronous; middleware is synchronous"),
        ("PERFORM_MIDDLEWARE", "async_manager", "asynchronous; middleware is synchronous"),
        ("PERFORM_MIDDLEWARE", "a_generator", "a generator function"),
        ("LOG_CONTEXT_VARS", "first", "of type function; it must be a contextvars.ContextVar"),
    ],
)
def test_what_cannot_be_meant(key: str, name: str, message: str) -> None:
    assert f"which is {message}" in problem(key, [HERE + name]).message.replace(
        f"{middleware.first!r} ", ""
    )


def test_all_that_is_wrong_is_said_at_once() -> None:
    setting = {"BACKEND": None, "ENQUEUE_MIDDLEWARE": [1, HERE + "first", "x.y"]}
    with override_settings(DEFERRED=setting):
        assert [found.code for found in conf.problems()] == ["E010", "E010"]
