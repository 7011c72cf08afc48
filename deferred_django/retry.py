"""Whether a failed attempt is tried again, and after how long: pure arithmetic.

Attempts are numbered from 1. With ``max_retries=20`` a task is attempted up to 21 times.
"""

from __future__ import annotations

import enum
import inspect
import logging
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

logger = logging.getLogger("deferred_django")

MAX_DELAY: Final = 100 * 365.25 * 86400.0
"""Seconds. A longer wait is taken for a mistake."""


class Default(enum.Enum):
    """The type of :data:`DEFAULT`."""

    DEFAULT = "default"


DEFAULT: Final = Default.DEFAULT
"""What a ``retry_interval`` returns for the usual wait."""

# Any, so that a function whose parameter is annotated with Exception fits too.
RetryInterval = Callable[[Any, int], float | Default | None]
"""``retry_interval(exception, attempt)``, called with two positional arguments: the seconds to
wait after the failed ``attempt``, :data:`DEFAULT` for the usual wait, or ``None`` or ``False`` to
give up now."""


def default_wait(attempt: int) -> float:
    """Seconds from the failed ``attempt`` to the next: 10 to 26 at first, two days at the 20th."""
    return float(attempt**4 + 10 + random.randint(0, 15) * attempt)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how soon a task is tried again."""

    max_retries: int = 20
    retry_interval: RetryInterval | None = None

    def __post_init__(self) -> None:
        if type(self.max_retries) is not int:
            raise TypeError(f"max_retries must be an int, not {self.max_retries!r}")
        if self.max_retries < 0:
            raise ValueError(f"max_retries must not be negative, and is {self.max_retries}")
        if self.retry_interval is not None:
            if not callable(self.retry_interval):
                raise TypeError("retry_interval must be a function of (exception, attempt)")
            if inspect.iscoroutinefunction(self.retry_interval):
                raise TypeError("retry_interval must be a plain function, not async")

    def decide(self, exception: BaseException, attempt: int) -> float | None:
        """Seconds to wait after ``attempt`` failed with ``exception``; ``None`` to give up.

        An error in ``retry_interval``, or an answer that is none, is logged, and the usual wait
        is taken instead: a mistake in it must not lose a task.
        """
        if attempt > self.max_retries:
            return None
        if self.retry_interval is None:
            return default_wait(attempt)
        try:
            answer: Any = self.retry_interval(exception, attempt)
        except BaseException:  # SystemExit too: nothing that a task brings along stops a worker
            logger.error(
                "retry_interval failed after attempt %d; the usual wait is taken",
                attempt,
                exc_info=True,
            )
            return default_wait(attempt)
        if answer is None or answer is False:
            return None
        if answer is DEFAULT:
            return default_wait(attempt)
        seconds = _seconds(answer)
        if seconds is None:
            logger.error(
                "retry_interval answered %s after attempt %d, which is neither seconds (up to 100 "
                "years), None, False nor DEFAULT; the usual wait is taken",
                _described(answer),
                attempt,
            )
            return default_wait(attempt)
        return seconds


def _seconds(answer: Any) -> float | None:
    if isinstance(answer, bool) or not isinstance(answer, int | float):
        return None
    return float(answer) if 0 <= answer <= MAX_DELAY else None  # NaN is in no range


def _described(answer: object) -> str:
    if inspect.iscoroutine(answer):
        answer.close()
    kind = type(answer)
    if isinstance(answer, int) and not -MAX_DELAY <= answer <= MAX_DELAY:
        return "a huge number"  # perhaps too huge to be printed
    return repr(answer)[:100] if kind in (bool, int, float, str) else f"a {kind.__qualname__}"


class UnknownOutcomeError(Exception):
    """Given to a ``retry_interval`` that is asked before the attempt has failed."""


class RetryDecision:
    """What will come after one attempt, worked out at most once. Thread-safe.

    The first question fixes the answer, the random part included, so that what a task was told
    about its retry is what happens.
    """

    def __init__(self, policy: RetryPolicy, attempt: int) -> None:
        self._policy = policy
        self._attempt = attempt
        self._lock = threading.RLock()
        self._deciding = False
        self._answer: tuple[float | None] | None = None

    def wait(self, exception: BaseException | None = None) -> float | None:
        """Seconds to wait if this attempt fails, ``None`` if that is the end of the task.

        ``exception`` is what it failed with, as far as that is known; without one, a
        ``retry_interval`` is asked about an :class:`UnknownOutcomeError`.
        """
        with self._lock:
            if self._answer is None:
                if self._deciding:  # a retry_interval that asks what it is to decide
                    return default_wait(self._attempt)
                if exception is None:
                    exception = UnknownOutcomeError("the attempt has not failed yet")
                self._deciding = True
                self._answer = (self._policy.decide(exception, self._attempt),)
            return self._answer[0]

    def usual(self) -> float | None:
        """What it would be without a ``retry_interval``. Waits for nothing."""
        return RetryPolicy(self._policy.max_retries).decide(UnknownOutcomeError(), self._attempt)
