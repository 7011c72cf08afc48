"""How long a task's function may run, and what is done when it runs longer.

A plain function gets ``TaskTimeout`` raised in its thread, a coroutine is cancelled. One that has
not ended :data:`GRACE_SECONDS` later is *stuck*: whoever set the limit is told so.

Nothing of this reaches any code but the function's own, though an exception from another thread is
raised at some later moment, between any two bytecodes. The thread and the timer agree first who of
them comes first: that one operation on a dict settles whether there will be an exception, and it is
at most one. Only if the timer was first, the thread waits until the exception is on its way and
takes it back; should it be raised just then, it is in :meth:`_ThreadGuard.run`, which drops it.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, ClassVar

from deferred_django import deadlines, stacks, thread_exceptions
from deferred_django.deadlines import Deadline
from deferred_django.exceptions import TaskTimeout

GRACE_SECONDS = 5.0
"""How long a function has to end after it was interrupted."""

_RETURNED, _INTERRUPTED = "returned", "interrupted"


class TimeLimit:
    """The limit of one attempt. It counts from the first call of the function."""

    __slots__ = ("_at", "_guard", "_on_stuck", "seconds", "stuck")

    def __init__(self, seconds: float, on_stuck: Callable[[], object] | None = None) -> None:
        """``on_stuck`` is called by the timer's thread, which must not wait, if the function does
        not end though it was interrupted. ``RuntimeError`` if there can be no further thread."""
        self.seconds = seconds
        self.stuck = False
        """It did not end in the time that it had after the limit."""
        self._on_stuck = on_stuck
        self._at: float | None = None
        self._guard: _Guard | None = None
        deadlines.process_timer().start()

    @property
    def passed(self) -> bool:
        """Whether the function still runs, though it was interrupted."""
        guard = self._guard
        return guard is not None and guard.interrupted and not guard.over

    def call(
        self, func: Callable[..., object], args: Any, kwargs: Any
    ) -> tuple[object, BaseException | None]:
        """Call the function in this thread; return its result and what it raised."""
        guard = _ThreadGuard(self, self._begin())
        self._guard = guard
        return guard.run(func, args, kwargs)

    async def wait_for(
        self, func: Callable[..., Awaitable[object]], args: Any, kwargs: Any
    ) -> None:
        """Await what the function returns; raise what it raised."""
        guard = _CoroutineGuard(self, self._begin())
        self._guard = guard
        await guard.run(func, args, kwargs)

    def elapsed(self) -> float:
        """Seconds since the first call of the function; 0 before it."""
        return 0.0 if self._at is None else time.monotonic() - self._at + self.seconds

    def error(self) -> TaskTimeout:
        """The failure of a function that still runs, with the place where it is as traceback."""
        error = TaskTimeout(self.message)
        if self.stuck:
            error.add_note(f"It had not ended {GRACE_SECONDS:g} s after it was told to.")
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
        return self._at

    def _is_stuck(self) -> None:
        self.stuck = True
        if self._on_stuck is not None:
            self._on_stuck()


class _Guard(Deadline):
    """Ends one call of a function in time."""

    __slots__ = ("_timer", "interrupted", "limit", "over")

    def __init__(self, limit: TimeLimit, at: float) -> None:
        self.limit = limit
        self.at = at
        self.interrupted = False
        self.over = False
        """The function has ended."""
        self._timer = deadlines.process_timer()

    def passed(self) -> float | None:
        """Interrupt the function, and after that call it stuck."""
        if self.over:
            return None
        if self.interrupted:
            self.limit._is_stuck()
            return None
        self.interrupt()
        return time.monotonic() + GRACE_SECONDS

    def _caused_by(self, error: BaseException) -> TaskTimeout:
        """The failure of a function that has made another exception of it."""
        where = error.__traceback__
        if where is not None:
            where = where.tb_next or where  # it begins with a frame of this module
            error = BaseException.with_traceback(error, where)
        timeout = TaskTimeout(self.limit.message).with_traceback(where)
        timeout.__cause__ = error
        return timeout

    @abc.abstractmethod
    def interrupt(self) -> None:
        """Have the function end, unless it has."""

    @abc.abstractmethod
    def where(self) -> TracebackType | None:
        """Where the function is."""


class _Raised(TaskTimeout):
    """What is raised in a thread. Each guard has a subclass, to know its own again."""

    guard: ClassVar[_ThreadGuard]

    def __init__(self) -> None:
        super().__init__(self.guard.limit.message)
        self.guard.raised = self


class _ThreadGuard(_Guard):
    """For a function that runs in a thread."""

    __slots__ = ("_first", "_sent", "_thread_id", "kind", "raised")

    def __init__(self, limit: TimeLimit, at: float) -> None:
        super().__init__(limit, at)
        self.kind: type[_Raised] | None = None
        self.raised: _Raised | None = None
        """What was raised in the thread. Of what C code swallows, Python 3.11 makes none."""
        self._thread_id = threading.get_ident()
        self._first: dict[None, str] = {}
        self._sent = False

    def interrupt(self) -> None:
        """Have ``TaskTimeout`` raised, unless the function has ended."""
        namespace = {"guard": self, "__module__": TaskTimeout.__module__}
        self.kind = type(TaskTimeout.__name__, (_Raised,), namespace)
        if self._first.setdefault(None, _INTERRUPTED) is _INTERRUPTED:
            self.interrupted = True
            thread_exceptions.raise_in(self._thread_id, self.kind)
            self._sent = True

    def run(
        self, func: Callable[..., object], args: Any, kwargs: Any
    ) -> tuple[object, BaseException | None]:
        """Call the function; return its result and what it raised."""
        result: object = None
        error: BaseException | None = None
        inside: _Raised | None = None
        called = False
        try:
            try:
                self._timer.add(self)
                called = True
                result = func(*args, **kwargs)
            except BaseException as raised:
                error = raised
            inside = self.raised
            self._leave()
        except BaseException as raised:
            # Between two of the lines above: too late. Anything else (Ctrl-C) is not the
            # function's either, but is somebody's.
            late = self._is_own(raised)
            try:
                self._leave()
            except _Raised:
                self._leave()
            if not late:
                raise
        if inside is None:
            return result, error
        if error is not inside:  # caught by the function, which may have raised another
            return None, self._caused_by(error) if error is not None else _made_plain(inside)
        where = inside.__traceback__
        if called and where is not None and where.tb_next is None:
            return result, None  # after the function's last line and before the next of this one
        return None, _made_plain(inside)

    def _leave(self) -> None:
        """When this returns nothing of this guard is raised any more. Can be called again."""
        if self._first.setdefault(None, _RETURNED) is _INTERRUPTED:
            # In a child that was forked in between there is nobody who sends it.
            while not self._sent and self._timer is deadlines.process_timer():
                time.sleep(0.0001)
            thread_exceptions.withdraw(self._thread_id)
        self.over = True
        self._timer.remove(self)

    def _is_own(self, error: BaseException) -> bool:
        return self.kind is not None and isinstance(error, self.kind)

    def where(self) -> TracebackType | None:
        """Where the thread is."""
        return stacks.of_thread(self._thread_id, _ThreadGuard.run.__code__)


def _made_plain(raised: _Raised) -> TaskTimeout:
    plain: Any = raised
    plain.__class__ = TaskTimeout  # from here on the same as any other
    timeout: TaskTimeout = plain
    return timeout


class _CoroutineGuard(_Guard):
    """For a coroutine. All but :meth:`interrupt` and :meth:`where` is its loop's thread's."""

    __slots__ = ("_awaitable", "_cancelled", "_loop", "_task", "_thread_id", "_was_at")

    def __init__(self, limit: TimeLimit, at: float) -> None:
        super().__init__(limit, at)
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._task: asyncio.Task[Any] = task
        self._thread_id = threading.get_ident()
        self._awaitable: object = None
        self._cancelled = False
        self._was_at: TracebackType | None = None

    def interrupt(self) -> None:
        """Have the coroutine cancelled, unless it has ended."""
        self.interrupted = True
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._cancel)

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
            return TaskTimeout(self.limit.message).with_traceback(self._was_at)
        if isinstance(error, asyncio.CancelledError):
            return TaskTimeout(self.limit.message).with_traceback(error.__traceback__)
        return self._caused_by(error)

    def where(self) -> TracebackType | None:
        """Where the coroutine waits, or what the loop's thread does if that runs it."""
        if asyncio.current_task(self._loop) is self._task:
            return stacks.of_thread(self._thread_id, _CoroutineGuard.run.__code__)
        return stacks.of_awaitable(self._awaitable)
