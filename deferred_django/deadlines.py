"""The deadlines of a process, all watched by one thread.

Adding and removing one is on the path of every task with a timeout and takes no lock: each is one
operation on a dict. The thread sleeps until the soonest deadline that it has seen, whether or not
that is over by then, so that tasks that end in time cost it a look now and then.
"""

from __future__ import annotations

import abc
import logging
import math
import threading
import time

from deferred_django import forks
from deferred_django.bell import Bell

logger = logging.getLogger("deferred_django")

_LONGEST_WAIT = 3600.0


class Deadline(abc.ABC):
    """A moment at which something is to be done."""

    __slots__ = ("at",)

    at: float
    """When (monotonic)."""

    @abc.abstractmethod
    def passed(self) -> float | None:
        """Called at that moment by the timer's thread; the next moment, or ``None`` for none.

        It must not wait for anything: all other deadlines wait for it.
        """


class DeadlineTimer:
    """Calls deadlines that have passed, on a daemon thread of its own. Thread-safe."""

    def __init__(self) -> None:
        self._watched: dict[Deadline, None] = {}
        self._bell = Bell()
        self._wakes_at = math.inf
        self._rung_for = math.inf
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread if it does not run yet. ``RuntimeError`` if there can be no more."""
        if self._thread is None:
            with self._lock:
                if self._thread is None:
                    thread = threading.Thread(
                        target=self._work, name="deferred-deadlines", daemon=True
                    )
                    thread.start()
                    self._thread = thread

    def add(self, deadline: Deadline) -> None:
        """Watch a deadline."""
        self._watched[deadline] = None
        if deadline.at < self._wakes_at:
            self._rung_for = deadline.at
            self._bell.ring()

    def remove(self, deadline: Deadline) -> None:
        """Watch it no more; a call of it may be under way."""
        self._watched.pop(deadline, None)

    def _work(self) -> None:
        while True:
            # What is added from here on rings, until it is known when the next look is: no
            # deadline is missed, whether it is added before or after the list is read.
            self._wakes_at = math.inf
            soonest = math.inf
            for deadline in list(self._watched):
                if deadline.at <= time.monotonic():
                    self._pass(deadline)
                if deadline in self._watched:
                    soonest = min(soonest, deadline.at)
            # Also for a deadline that is over by now: else each short task would wake this thread.
            if self._rung_for > time.monotonic():
                soonest = min(soonest, self._rung_for)
            self._wakes_at = soonest
            self._bell.wait(min(max(soonest - time.monotonic(), 0.0), _LONGEST_WAIT))

    def _pass(self, deadline: Deadline) -> None:
        try:
            again = deadline.passed()
        except Exception:
            logger.exception("A deadline could not be enforced.")
            again = None
        if again is None:
            self.remove(deadline)
        else:
            deadline.at = again


_process_timer = DeadlineTimer()


def _renew() -> None:
    global _process_timer
    _process_timer = DeadlineTimer()  # the parent's deadlines and its thread are not in the child


forks.after_in_child(_renew)


def process_timer() -> DeadlineTimer:
    """This process's timer; a forked child has its own."""
    return _process_timer
