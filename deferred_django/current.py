"""The task that runs here and now, for code inside it."""

from __future__ import annotations

import functools
import sys
import threading
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from deferred_django.decoding import decode
from deferred_django.retry import RetryDecision


class UserContext:
    """What travels with a task besides its arguments: decoded once, and only if it is asked for."""

    def __init__(self, encoded: dict[str, Any]) -> None:
        self._encoded = encoded

    @functools.cached_property
    def decoded(self) -> dict[str, Any]:
        """The values by their names."""
        return {name: decode(value) for name, value in self._encoded.items()}


@dataclass(frozen=True, slots=True, eq=False)
class CurrentTask:
    """One attempt of a task.

    ``will_retry`` and ``will_retry_in`` say what happens if this attempt fails. They are worked
    out when first asked for (or when the attempt fails) and then hold. A ``retry_interval`` sees
    the exception that is being handled at that moment; asked for outside an ``except`` block, it
    sees an ``UnknownOutcomeError`` exception in its place.
    """

    id: str
    name: str
    """The task's dotted name."""
    attempt: int
    """The number of this attempt, from 1."""
    decision: RetryDecision = field(repr=False)
    """The worker asks it with the exception once the attempt has failed."""
    queue: str = "default"
    """The queue that it was enqueued in."""
    carried: UserContext | None = field(default=None, repr=False)
    """What :attr:`user_context` is made of; ``None`` if nothing travels along."""

    @property
    def user_context(self) -> dict[str, Any]:
        """What enqueue middleware sent along, besides the arguments. Not to be changed.

        It is decoded at the first use, which raises what reading arguments can raise.
        """
        return {} if self.carried is None else self.carried.decoded

    @property
    def retries(self) -> int:
        """How many attempts came before this one."""
        return self.attempt - 1

    @property
    def is_retry(self) -> bool:
        """Whether an attempt came before this one."""
        return self.attempt > 1

    @property
    def will_retry(self) -> bool:
        """Whether there will be another attempt if this one fails."""
        return self.will_retry_in is not None

    @property
    def will_retry_in(self) -> float | None:
        """Seconds from this attempt's failure to the next; ``None`` if there will be none."""
        return self.decision.wait(sys.exception())


_current: ContextVar[CurrentTask] = ContextVar("deferred_django_current_task")


def current_task() -> CurrentTask:
    """The task that this code runs in. Raises ``RuntimeError`` outside one."""
    try:
        return _current.get()
    except LookupError:
        raise RuntimeError("current_task() was called outside a task") from None


def is_inside_task() -> bool:
    """Whether this code runs in a task."""
    return _current.get(None) is not None


class _Thread(threading.local):
    works = False


_thread = _Thread()


def work_in_this_thread() -> None:
    """The calling thread is a worker's: what it does beside its tasks is work too."""
    _thread.works = True


def is_work() -> bool:
    """Whether this code runs in a task, or in a thread of a worker: a receiver of its signals."""
    return _thread.works or is_inside_task()


class running:  # noqa: N801 - used as contextlib's own context managers are
    """Make a task the current one of this thread's (or coroutine's) context inside the block."""

    __slots__ = ("_current", "_token")

    def __init__(self, current: CurrentTask) -> None:
        self._current = current

    def __enter__(self) -> CurrentTask:
        self._token = _current.set(self._current)
        return self._current

    def __exit__(self, *error: object) -> None:
        _current.reset(self._token)
