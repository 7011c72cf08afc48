"""How long a task's function may run, and what is done when it runs longer.

A plain function gets ``TaskTimeout`` raised in its thread, a coroutine is cancelled. One that has
not ended :data:`~deferred_django.guard.GRACE_SECONDS` later is *stuck*: whoever set the limit is
told so.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Awaitable, Callable
from typing import Any

from deferred_django import deadlines, guard
from deferred_django.coroutine_guard import CoroutineGuard
from deferred_django.exceptions import TaskTimeout
from deferred_django.guard import Guard
from deferred_django.limits_board import BoardSlot
from deferred_django.thread_guard import ThreadGuard


class TimeLimit:
    """The limit of one attempt. It counts from the first call of the function."""

    __slots__ = ("_at", "_board", "_guard", "_on_stuck", "_pid", "_task_id", "seconds", "stuck")

    def __init__(
        self,
        seconds: float,
        on_stuck: Callable[[], object] | None = None,
        board: BoardSlot | None = None,
        task_id: str = "",
    ) -> None:
        """``on_stuck`` is called by the timer's thread, which must not wait, if the function does
        not end though it was interrupted. The ``board`` shows the limit of that task to the
        supervisor. ``RuntimeError`` if there can be no further thread."""
        self.seconds = seconds
        self.stuck = False
        """It did not end in the time that it had after the limit."""
        self._on_stuck = on_stuck
        self._board = board
        self._task_id = task_id
        self._at: float | None = None
        self._guard: Guard | None = None
        self._pid = os.getpid()
        deadlines.process_timer().start()

    @property
    def passed(self) -> bool:
        """Whether the function still runs, though it was interrupted."""
        guarded = self._guard
        return guarded is not None and guarded.interrupted and not guarded.over

    def call(
        self, func: Callable[..., object], args: Any, kwargs: Any
    ) -> tuple[object, BaseException | None]:
        """Call the function in this thread; return its result and what it raised."""
        guarded = ThreadGuard(self._begin(), self.message, self._is_stuck)
        self._guard = guarded
        try:
            return guarded.run(func, args, kwargs)
        finally:
            self._end()

    async def wait_for(
        self, func: Callable[..., Awaitable[object]], args: Any, kwargs: Any
    ) -> None:
        """Await what the function returns; raise what it raised."""
        guarded = CoroutineGuard(self._begin(), self.message, self._is_stuck)
        self._guard = guarded
        try:
            await guarded.run(func, args, kwargs)
        finally:
            self._end()

    def elapsed(self) -> float:
        """Seconds since the first call of the function; 0 before it."""
        return 0.0 if self._at is None else time.monotonic() - self._at + self.seconds

    def error(self) -> TaskTimeout:
        """The failure of a function that still runs, with the place where it is as traceback."""
        error = TaskTimeout(self.message)
        if self.stuck:
            error.add_note(f"It had not ended {guard.GRACE_SECONDS:g} s after it was told to.")
        where = None
        if self._guard is not None:
            with contextlib.suppress(Exception):  # it goes on meanwhile
                where = self._guard.where()
        return error.with_traceback(where)

    @property
    def message(self) -> str:
        """What the exception says."""
        return f"the task ran longer than its timeout of {self.seconds:g} s"

    def _begin(self) -> float:
        if self._at is None:
            self._at = time.monotonic() + self.seconds
        if self._board is not None:
            self._board.begin(self._at, self._task_id)
        return self._at

    def _end(self) -> None:
        # If stuck, the place may be another's by now. In a child that the task has forked it is the
        # parent's, which still runs it.
        if self._board is not None and not self.stuck and self._pid == os.getpid():
            self._board.end()

    def _is_stuck(self) -> None:
        self.stuck = True
        if self._board is not None:
            self._board.end()
        if self._on_stuck is not None:
            self._on_stuck()
