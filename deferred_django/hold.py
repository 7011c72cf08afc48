"""Who may act on a claim: the thread that works on it, until a stopping worker takes it away."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from deferred_django.backends.base import ClaimedTask, RunningTask
from deferred_django.context import TaskContext
from deferred_django.current import CurrentTask
from deferred_django.limits_board import BoardSlot
from deferred_django.queue import Guard
from deferred_django.task import DeferredTask
from deferred_django.time_limit import TimeLimit

_STOPPING_PAUSE = 0.1


class Abandoned(Exception):  # noqa: N818 - not an error: the claim is another's business now
    """The claim was taken away from the thread that worked on it."""


@dataclass(frozen=True, slots=True)
class LimitedAttempt:
    """An attempt with a time limit: what is needed to end it while its thread still runs."""

    task: DeferredTask[..., object]
    context: TaskContext
    current: CurrentTask
    limit: TimeLimit


class Hold:
    """One thread's right to act on the claim that it works on.

    A worker that stops takes the claim from a thread that it cannot stop. Every call that acts
    on the claim is made inside this hold, so that none follows after :meth:`abandon`.
    """

    __slots__ = (
        "_lock",
        "_stopping",
        "_told",
        "abandoned",
        "begun",
        "board",
        "claim",
        "ending",
        "limited",
        "on_stuck",
        "settling",
        "taken",
    )

    def __init__(self, stopping: threading.Event | None = None) -> None:
        """With ``stopping``, an outcome that cannot be written is tried again and again (a set
        event ends the pause); without, the error is raised."""
        self.claim: ClaimedTask | None = None
        """What the thread works on; ``None`` once its outcome is written."""
        self.begun: tuple[CurrentTask, float] | None = None
        """The last attempt that began, and when (monotonic): of ``claim``, if the ids agree."""
        self.abandoned = False
        self.settling = False
        """The task has ended and its outcome is being written."""
        self.taken: ClaimedTask | None = None
        """The claim that :meth:`abandon` returned."""
        self.ending: Guard = _Ending(self)
        """Entered around the call that lets go of the claim."""
        self.board: BoardSlot | None = None
        """Where a supervisor sees the time limits of what runs."""
        self.limited: LimitedAttempt | None = None
        """What runs, if it has a time limit."""
        self.on_stuck: Callable[[], object] | None = None
        """Called when it does not end at its limit, by a thread that must not wait."""
        self._lock = threading.Lock()
        self._stopping = stopping
        self._told: tuple[object, RunningTask] | None = None

    def __enter__(self) -> None:
        self._lock.acquire()
        if self.abandoned:
            self._lock.release()
            raise Abandoned

    def __exit__(
        self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None
    ) -> None:
        self._lock.release()

    @property
    def is_overdue(self) -> bool:
        """Whether what runs has passed its time limit and has not ended yet."""
        return self.limited is not None and self.limited.limit.passed

    @property
    def is_stuck(self) -> bool:
        """Whether it has not ended for so long that it is not expected to."""
        return self.is_overdue and self.limited is not None and self.limited.limit.stuck

    def running_for(self, seconds: float) -> RunningTask | None:
        """What the thread has been running for so long. To be asked by one other thread."""
        # Read in this order: the claim is set before its attempt begins.
        begun, claim = self.begun, self.claim
        if begun is None or claim is None or begun[0].id != claim.id:
            return None
        current, began = begun
        age = time.monotonic() - began
        if age < seconds:
            return None
        if self._told is None or self._told[0] is not begun:  # once: the two clocks drift
            since = round(time.time() - age, 3)
            self._told = begun, RunningTask(current.id, current.name, since)
        return self._told[1]

    def abandon(self, timeout: float) -> ClaimedTask | None:
        """Take the claim away; return it if there is one that can safely be put back."""
        free = self._lock.acquire(timeout=max(timeout, 0.0))
        self.abandoned = True
        try:
            # A thread that is inside a call on the claim finds out when that returns.
            self.taken = self.claim if free else None
            return self.taken
        finally:
            if free:
                self._lock.release()

    def check(self) -> None:
        """Raise :class:`Abandoned` if the claim was taken away."""
        if self.abandoned:
            raise Abandoned

    def pause(self, seconds: float, error: BaseException) -> None:
        """Wait before the next try to write the outcome, or raise ``error`` if there is none."""
        if self._stopping is None:
            raise error
        if self._stopping.is_set():
            time.sleep(_STOPPING_PAUSE)
        else:
            self._stopping.wait(seconds)
        self.check()


class _Ending:
    """The hold, given up by a call that succeeds."""

    __slots__ = ("_hold",)

    def __init__(self, hold: Hold) -> None:
        self._hold = hold

    def __enter__(self) -> None:
        self._hold.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None
    ) -> None:
        hold = self._hold
        if kind is None:
            hold.claim = None
        hold._lock.release()
