"""Whether and when a failed attempt is tried again; what a task is told about it."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from deferred_django.current import CurrentTask, current_task, running
from deferred_django.retry import (
    DEFAULT,
    MAX_DELAY,
    RetryDecision,
    RetryPolicy,
    UnknownOutcomeError,
    default_wait,
)

ERROR = ValueError("failed")


@pytest.mark.parametrize("attempt", [1, 2, 3, 10, 20])
def test_the_usual_wait(attempt: int) -> None:
    waits = {default_wait(attempt) for _ in range(400)}
    steps = {attempt**4 + 10 + step * attempt for step in range(16)}
    assert waits <= steps
    assert min(waits) < max(waits)


def test_twenty_retries_are_twenty_one_attempts() -> None:
    policy = RetryPolicy()
    assert policy.decide(ERROR, 20) is not None
    assert policy.decide(ERROR, 21) is None
    assert RetryPolicy(0).decide(ERROR, 1) is None


def test_the_function_is_asked_by_position_and_not_after_the_last_attempt() -> None:
    asked: list[Any] = []

    def interval(error: BaseException, attempt: int, /) -> float:
        asked.append((error, attempt))
        return 7

    policy = RetryPolicy(2, interval)
    assert [policy.decide(ERROR, attempt) for attempt in (1, 2, 3)] == [7.0, 7.0, None]
    assert asked == [(ERROR, 1), (ERROR, 2)]


@pytest.mark.parametrize(
    ("answer", "wait"),
    [(0, 0.0), (2.5, 2.5), (MAX_DELAY, MAX_DELAY), (None, None), (False, None)],
)
def test_answers(answer: Any, wait: float | None, caplog: pytest.LogCaptureFixture) -> None:
    assert RetryPolicy(5, lambda error, attempt: answer).decide(ERROR, 1) == wait
    assert not caplog.records


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


BAD_ANSWERS = [
    True,
    -1,
    float("nan"),
    float("inf"),
    10**5000,
    MAX_DELAY * 2,
    "5",
    1j,
    Unprintable(),
    object,
]


@pytest.mark.parametrize("answer", BAD_ANSWERS, ids=lambda answer: type(answer).__name__)
def test_any_other_answer_is_logged_and_the_usual_wait_taken(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    wait = RetryPolicy(5, lambda error, attempt: answer).decide(ERROR, 1)
    assert wait is not None
    assert 11 <= wait <= 26
    [record] = caplog.records
    assert (record.name, record.levelno) == ("deferred_django", logging.ERROR)
    assert "the usual wait is taken" in record.getMessage()


def test_default_is_the_usual_wait_and_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    wait = RetryPolicy(5, lambda error, attempt: DEFAULT).decide(ERROR, 2)
    assert wait is not None
    assert 26 <= wait <= 56
    assert not caplog.records


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no str")


@pytest.mark.parametrize(
    "error", [ValueError("x"), UnprintableError(), SystemExit(3), KeyboardInterrupt()], ids=repr
)
def test_an_error_in_it_is_logged_and_the_usual_wait_taken(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """C33."""

    def interval(exception: BaseException, attempt: int) -> float:
        raise error

    assert RetryPolicy(5, interval).decide(ERROR, 1) is not None
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_a_coroutine_answer_is_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    async def later() -> float:
        return 1

    interval: Any = lambda error, attempt: later()  # noqa: E731
    assert RetryPolicy(5, interval).decide(ERROR, 1) is not None
    assert "a coroutine" in caplog.text


async def asynchronous(error: BaseException, attempt: int) -> float:
    return 1


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max_retries": -1}, ValueError),
        ({"max_retries": True}, TypeError),
        ({"max_retries": 1.0}, TypeError),
        ({"max_retries": None}, TypeError),
        ({"retry_interval": 5}, TypeError),
        ({"retry_interval": asynchronous}, TypeError),
    ],
)
def test_wrong_policies(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match="max_retries|retry_interval"):
        RetryPolicy(**options)


# -- current_task ----------------------------------------------------------------------------


def current(attempt: int, policy: RetryPolicy) -> CurrentTask:
    return CurrentTask("1-2-a-3", "shop.tasks.send", attempt, RetryDecision(policy, attempt))


def test_there_is_none_outside_a_task() -> None:
    with pytest.raises(RuntimeError, match="outside a task"):
        current_task()
    with running(current(1, RetryPolicy())):
        pass
    with pytest.raises(RuntimeError):
        current_task()


def test_what_a_task_is_told() -> None:
    with running(current(1, RetryPolicy(1))):
        first = current_task()
        assert (first.id, first.name) == ("1-2-a-3", "shop.tasks.send")
        assert (first.attempt, first.retries, first.is_retry) == (1, 0, False)
        assert first.will_retry
    with running(current(2, RetryPolicy(1))) as last:
        assert current_task() is last
        assert (last.attempt, last.retries, last.is_retry) == (2, 1, True)
        assert not last.will_retry
        assert last.will_retry_in is None


def test_what_it_says_is_what_happens() -> None:
    for _ in range(20):
        task = current(1, RetryPolicy(retry_interval=lambda error, attempt: random.random()))
        said = task.will_retry_in
        assert task.will_retry_in == said
        assert task.decision.wait(ERROR) == said


def test_the_exception_at_hand_is_what_the_function_sees() -> None:
    seen: list[BaseException] = []

    def interval(error: BaseException, attempt: int) -> float | None:
        seen.append(error)
        return 5 if isinstance(error, KeyError) else None

    task = current(1, RetryPolicy(retry_interval=interval))
    try:
        raise KeyError("x")
    except KeyError:
        said = task.will_retry_in
    assert said == task.decision.wait(KeyError("x")) == 5
    unknown = current(1, RetryPolicy(retry_interval=interval))
    assert not unknown.will_retry
    assert unknown.decision.wait(KeyError("x")) is None
    assert [type(error) for error in seen] == [KeyError, UnknownOutcomeError]


def test_threads_of_one_attempt_are_told_the_same() -> None:
    calls: list[int] = []

    def interval(error: BaseException, attempt: int) -> float:
        calls.append(attempt)
        time.sleep(0.02)
        return random.random()

    decision = RetryDecision(RetryPolicy(retry_interval=interval), 1)
    answers: list[float | None] = []
    ask: Callable[[], None] = lambda: answers.append(decision.wait())  # noqa: E731
    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 8
    assert len(set(answers)) == 1
    assert calls == [1]
