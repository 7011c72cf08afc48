"""``TaskTimeout`` for a plain function: raised in its thread, and in no code but the function's.

An exception from another thread is raised at some later moment, between any two bytecodes. So the
thread and the timer agree first who of them comes first: one operation on a dict settles whether
there will be an exception, and it is at most one. Only if the timer was first, the thread waits
until the exception is on its way and was taken back: by the timer, as a rule, while the thread
waits, so that none is raised. Should it be raised just before, it is so in :meth:`ThreadGuard.run`,
which drops it.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, ClassVar

from deferred_django import deadlines, logging_locks, shield, stacks, thread_exceptions
from deferred_django.exceptions import TaskTimeout
from deferred_django.guard import Guard

_RETURNED, _INTERRUPTED, _HELD_BACK, _RAISED = "returned", "interrupted", "held back", "raised"
_PATIENCE = 0.05
"""Seconds between looks whether the process has become a forked child."""


class _Raised(TaskTimeout):
    """What is raised in a thread. Each guard has a subclass, to know its own again."""

    guard: ClassVar[ThreadGuard]

    def __init__(self) -> None:
        super().__init__(self.guard.message)
        self.guard.raised = self


class ThreadGuard(Guard):
    """For a function that runs in a thread."""

    __slots__ = (
        "_armed",
        "_awaited",
        "_first",
        "_leaving",
        "_sending",
        "_sent",
        "_thread_id",
        "kind",
        "raised",
    )

    def __init__(self, at: float, message: str, on_stuck: Callable[[], object]) -> None:
        super().__init__(at, message, on_stuck)
        self.kind: type[_Raised] | None = None
        self.raised: _Raised | None = None
        """What was raised in the thread. Of what C code swallows, Python 3.11 makes none."""
        self._thread_id = threading.get_ident()
        self._armed = False
        self._awaited = False
        """It was to be interrupted while that was held back."""
        self._first: dict[None, str] = {}
        self._sent = False
        self._sending: threading.Lock | None = None
        """Taken by the timer until it has sent the exception, and taken it back if need be."""
        self._leaving = False

    def interrupt(self) -> bool:
        """Have ``TaskTimeout`` raised, unless the function has ended or not begun."""
        if not self._armed:
            return False
        if self.kind is None:
            namespace = {"guard": self, "__module__": TaskTimeout.__module__}
            self.kind = type(TaskTimeout.__name__, (_Raised,), namespace)
        self._sending = sending = threading.Lock()
        with sending:
            first = self._first.setdefault(None, _INTERRUPTED)
            if first is _INTERRUPTED:
                thread_exceptions.raise_in(self._thread_id, self.kind)
                self._sent = True
                if self._leaving:
                    thread_exceptions.withdraw(self._thread_id)
                return True
        if first is _HELD_BACK:
            self._awaited = True
        return first is _RAISED

    def run(
        self, func: Callable[..., object], args: Any, kwargs: Any
    ) -> tuple[object, BaseException | None]:
        """Call the function; return its result and what it raised."""
        result: object = None
        error: BaseException | None = None
        inside: _Raised | None = None
        # From the arming to the function's own frame nothing is allocated: what is could have the
        # garbage collector run a finalizer, and the exception raised in there.
        call = functools.partial(func, *args, **kwargs)
        try:
            try:
                shield.enter_on_record(self._thread_id, self)
                self._timer.add(self)
                self._armed = True
                result = call()
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
            return None, self.caused_by(error) if error is not None else _made_plain(inside)
        where = inside.__traceback__
        if where is not None and where.tb_next is None:
            return result, None  # after the function's last line and before the next of this one
        return None, _made_plain(inside)

    def _leave(self) -> None:
        """When this returns nothing of this guard is raised any more. Can be called again."""
        if self._first.setdefault(None, _RETURNED) is _INTERRUPTED:
            # Before the wait: nothing is raised within one, and what could be raised after it the
            # timer has taken back by then. Else it might meet a callback of the garbage collector.
            self._leaving = True
            sending = self._sending
            assert sending is not None
            # In a child that was forked in between there is nobody who sends it.
            while not sending.acquire(timeout=_PATIENCE):
                if self._timer is not deadlines.process_timer():
                    break
            else:
                sending.release()  # for a second call
            thread_exceptions.withdraw(self._thread_id)
            logging_locks.free_own()
        self.over = True
        shield.strike_off(self._thread_id)
        self._timer.remove(self)

    def hold_back(self) -> bool:
        """See :class:`~deferred_django.shield.Interrupting`."""
        if self._first.get(None) is _HELD_BACK:
            return False
        if self._first.setdefault(None, _HELD_BACK) is _HELD_BACK:
            return True
        # Sent, and raised already or in the next steps: those of this loop, if not before.
        while not self._sent and self._timer is deadlines.process_timer():
            time.sleep(0.0001)
        time.sleep(0)
        return False

    def go_on(self) -> None:
        """See :class:`~deferred_django.shield.Interrupting`."""
        if self._awaited and self.kind is not None:
            self._first[None] = _RAISED
            self._sent = True
            raise self.kind
        del self._first[None]

    def _is_own(self, error: BaseException) -> bool:
        return self.kind is not None and isinstance(error, self.kind)

    def where(self) -> TracebackType | None:
        """Where the thread is."""
        return stacks.of_thread(self._thread_id, ThreadGuard.run.__code__)


def _made_plain(raised: _Raised) -> TaskTimeout:
    plain: Any = raised
    plain.__class__ = TaskTimeout  # from here on the same as any other
    timeout: TaskTimeout = plain
    return timeout
