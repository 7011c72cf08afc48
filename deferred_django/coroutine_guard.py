"""A timeout for a coroutine: it is cancelled where it waits, and nothing around it is.

As with :func:`asyncio.timeout`, but that the attempt has failed whatever the coroutine makes of
the cancellation.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

from deferred_django import stacks
from deferred_django.exceptions import TaskTimeout
from deferred_django.guard import Guard


class CoroutineGuard(Guard):
    """For a coroutine. All but :meth:`interrupt` and :meth:`where` is its loop's thread's."""

    __slots__ = ("_awaitable", "_cancelled", "_loop", "_task", "_thread_id", "_was_at")

    def __init__(self, at: float, message: str, on_stuck: Callable[[], object]) -> None:
        super().__init__(at, message, on_stuck)
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._task: asyncio.Task[Any] = task
        self._thread_id = threading.get_ident()
        self._awaitable: object = None
        self._cancelled = False
        self._was_at: TracebackType | None = None

    def interrupt(self) -> bool:
        """Have the coroutine cancelled, unless it has ended."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._cancel)
        return True

    def _cancel(self) -> None:
        # The task is suspended, and as the coroutine has not ended it is so inside of it: there,
        # and nowhere else, CancelledError is raised when it goes on.
        if not self.over:
            self._cancelled = True
            self._was_at = stacks.of_awaitable(self._awaitable)
            self._task.cancel()

    async def run(self, func: Callable[..., Awaitable[object]], args: Any, kwargs: Any) -> None:
        """Await what the function returns; raise what it raised."""
        error: BaseException | None = None
        self._timer.add(self)
        try:
            self._awaitable = awaitable = func(*args, **kwargs)
            await awaitable
        except BaseException as raised:
            error = raised
        self.over = True
        self._timer.remove(self)
        self._awaitable = None
        if self._cancelled:
            self._task.uncancel()
            error = self._timeout_from(error)
        try:
            if error is not None:
                raise error
        finally:
            del error  # it leads here by its traceback

    def _timeout_from(self, error: BaseException | None) -> TaskTimeout:
        if error is None:
            return TaskTimeout(self.message).with_traceback(self._was_at)
        if isinstance(error, asyncio.CancelledError):
            return TaskTimeout(self.message).with_traceback(error.__traceback__)
        return self.caused_by(error)

    def where(self) -> TracebackType | None:
        """Where the coroutine waits, or what the loop's thread does if that runs it."""
        if asyncio.current_task(self._loop) is self._task:
            return stacks.of_thread(self._thread_id, CoroutineGuard.run.__code__)
        return stacks.of_awaitable(self._awaitable)
