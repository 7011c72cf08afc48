"""What ends a function that runs for too long: the common part."""

from __future__ import annotations

import abc
import time
from collections.abc import Callable
from types import TracebackType

from deferred_django import deadlines
from deferred_django.deadlines import Deadline
from deferred_django.exceptions import TaskTimeout

GRACE_SECONDS = 5.0
"""How long a function has to end after it was interrupted; then it is stuck."""

SOON_SECONDS = 0.001


class Guard(Deadline):
    """Ends one call of a function in time. Of use once."""

    __slots__ = ("_late_at", "_on_stuck", "_timer", "interrupted", "message", "over")

    def __init__(self, at: float, message: str, on_stuck: Callable[[], object]) -> None:
        """``at``: when to interrupt it (monotonic); ``message``: what the exception says."""
        self.at = at
        self.message = message
        self._on_stuck = on_stuck
        self.interrupted = False
        self.over = False
        """The function has ended."""
        self._late_at: float | None = None
        self._timer = deadlines.process_timer()

    def passed(self) -> float | None:
        """Interrupt the function, and after that call it stuck."""
        if self.over:
            return None
        if self.interrupted:
            self._on_stuck()
            return None
        now = time.monotonic()
        self.interrupted = self.interrupt()
        if self.interrupted:
            return now + GRACE_SECONDS
        if self._late_at is None:
            self._late_at = now + GRACE_SECONDS
        if now < self._late_at:
            return now + SOON_SECONDS
        self.interrupted = True  # a call that is not to be interrupted does not return
        self._on_stuck()
        return None

    def caused_by(self, error: BaseException) -> TaskTimeout:
        """The failure of a function that has made another exception of it."""
        where = error.__traceback__
        if where is not None:
            where = where.tb_next or where  # it begins with a frame of the guard's
            error = BaseException.with_traceback(error, where)
        timeout = TaskTimeout(self.message).with_traceback(where)
        timeout.__cause__ = error
        return timeout

    @abc.abstractmethod
    def interrupt(self) -> bool:
        """Have the function end, and say so; ``False`` if it has ended, or cannot be now."""

    @abc.abstractmethod
    def where(self) -> TracebackType | None:
        """Where the function is."""
