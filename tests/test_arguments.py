"""Arguments from the caller to the running task, through a real store."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deferred_django.backends.base import Backend
from deferred_django.retry import DEFAULT
from deferred_django.task import deferred
from deferred_django.testing import Outcome, own_store, run_enqueued
from tests.support import wait_until
from tests.test_codec import NOT_CARRIED
from tests.testapp.models import Note
from tests.values import carried, exact

received: list[Any] = []
arrived = threading.Event()


@deferred
def take(*args: Any, **kwargs: Any) -> None:
    received.append((args, kwargs))
    arrived.set()


@deferred
async def take_async(*args: Any, **kwargs: Any) -> None:
    received.append((args, kwargs))


def plain_decorator(func: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(func)
    def wrapper(*args: Any) -> Any:
        return func(*args)

    return wrapper


@deferred
@plain_decorator
async def decorated(error: str | None) -> None:
    received.append(error)
    if error:
        raise SystemExit(error)


@deferred(max_retries=1, retry_interval=lambda error, attempt: DEFAULT)
def read(note: Note) -> None:
    received.append(note.text)


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    received.clear()
    arrived.clear()
    yield
    received.clear()


@pytest.mark.django_db(transaction=True)
def test_every_listed_value_reaches_the_task_with_value_and_type(tmp_path: Path) -> None:
    notes = [Note.objects.create(text="a"), Note.objects.create(text="b")]

    @given(st.lists(carried(*notes), max_size=6), st.dictionaries(st.text(), carried(), max_size=2))
    @settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    def check(args: list[Any], kwargs: dict[str, Any]) -> None:
        received.clear()
        task = take if len(args) % 3 else take_async
        task.enqueue(*args, **kwargs)
        assert [run.outcome for run in run_enqueued()] == [Outcome.SUCCEEDED]
        assert exact(received) == exact([(tuple(args), kwargs)])

    with own_store(tmp_path):
        check()


def test_every_other_value_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    """C30."""
    store = tmp_path / "storage"
    with own_store(store):
        for value in NOT_CARRIED:
            with pytest.raises(
                TypeError, match=r"argument 'args\[1\]' of tests\.test_arguments\.take"
            ):
                take.enqueue(0, [value])
            with pytest.raises(TypeError, match=r"argument 'x' of tests\.test_arguments\.take"):
                take.enqueue(x={1: value})
        with pytest.raises(ValueError, match="not saved"):
            read.enqueue(Note(text="a"))
        with pytest.raises(TypeError, match="do not fit"):
            read.enqueue()  # type: ignore[call-arg]
    assert not store.exists()


def test_the_same_without_a_store() -> None:
    """C30: a task that runs in the process of its caller gets its arguments as one in a worker."""
    value = {1: ({"a"}, b"x"), "1": float("-inf")}
    with override_settings(DEFERRED={"BACKEND": None}):
        with pytest.raises(TypeError, match="args"):
            take.enqueue(object())
        take.enqueue(value)
        wait_until(arrived.is_set)
    [((again,), _)] = received
    assert again is not value
    assert exact(again) == exact(value)


def test_odd_text_reaches_the_task(deferred_store: Backend) -> None:
    """C26, C28."""
    text = "a\u2028b\x85c\x0bd\x1ce\rf\ng:h,i\t%s"
    name = os.fsdecode(b"\xff.txt")
    take.enqueue(text, name, key=text + name)
    run_enqueued(raise_exceptions=True)
    assert received == [((text, name), {"key": text + name})]


@pytest.mark.django_db(transaction=True)
def test_a_row_that_is_gone_is_a_failed_attempt(deferred_store: Backend) -> None:
    note = Note.objects.create(text="before")
    read.enqueue(note)
    Note.objects.update(text="after")
    read.enqueue(note)
    run_enqueued(raise_exceptions=True)
    assert received == ["after", "after"]
    read.enqueue(note)
    note.delete()
    [run] = run_enqueued()
    assert run.outcome is Outcome.RETRIED
    assert type(run.exception) is Note.DoesNotExist


def test_an_async_function_under_a_plain_decorator_runs(deferred_store: Backend) -> None:
    """C50: what the decorator returns is a coroutine, which must not be taken for a result."""
    decorated.enqueue(None)
    decorated.enqueue("failed")
    outcomes = [run.outcome for run in run_enqueued()]
    assert outcomes == [Outcome.SUCCEEDED, Outcome.RETRIED]
    assert received == [None, "failed"]
