"""The threads of a worker process, and the claims that wait for one of them.

The buffer and the counters have one writer each, so that the hot path of a short task takes no
lock but the hold on its own claim.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable

from deferred_django import connections, current
from deferred_django.backends.base import ClaimedTask, RunningTask
from deferred_django.bell import Bell
from deferred_django.hold import Abandoned, Hold
from deferred_django.limits_board import BoardSlot

logger = logging.getLogger("deferred_django")

SPREAD_SECONDS = 0.002
CROWDED_SECONDS = 0.02
"""Longer: to look is to take the interpreter from a thread that works."""
REMEMBERED_SECONDS = 0.1
"""What was seen of the last tasks says nothing about tasks that come later than this."""
SATURATED = 0.7
"""Of one core: with so much in use, the interpreter is what the threads wait for."""


class _Slot:
    """One thread of the pool."""

    __slots__ = ("bell", "finished", "hold", "thread")

    def __init__(
        self, stopping: threading.Event, on_stuck: Callable[[], object] | None, finished: int = 0
    ) -> None:
        self.bell = Bell()
        self.hold = Hold(stopping)
        self.hold.on_stuck = on_stuck
        self.finished = finished
        self.thread: threading.Thread | None = None


class Pool:
    """Runs claims on a fixed number of daemon threads."""

    def __init__(
        self,
        size: int,
        run: Callable[[ClaimedTask, Hold], object],
        *,
        stopping: threading.Event,
        on_finish: Callable[[], None],
        on_stuck: Callable[[], object] | None = None,
    ) -> None:
        """``run`` works on a claim; ``on_finish`` is called after a claim when few wait, and
        ``on_stuck`` (by a thread that must not wait) when :attr:`stuck` has grown."""
        self.size = size
        self.low_mark = 0
        """``on_finish`` is called when no more than this many claims wait."""
        self._run = run
        self._stopping = stopping
        self._on_finish = on_finish
        self._buffer: deque[tuple[ClaimedTask, float]] = deque()
        self._idle: deque[_Slot] = deque()
        self._on_stuck = on_stuck
        self._slots = [_Slot(stopping, on_stuck) for _ in range(size)]
        self._left_behind: list[threading.Thread] = []
        self._added = 0
        self._taken_back = 0
        self._closed = False
        self.crowded = False
        """The threads at work wait for each other: all but one had better sleep."""
        self._crowded_at = 0.0
        self._looked: tuple[float, float, int] | None = None
        """When :meth:`spread` last looked: the time, the process's CPU time, what had finished."""

    def start(self) -> None:
        """Start the threads."""
        for number, slot in enumerate(self._slots, 1):
            self._start(slot, f"deferred-{number}", None)

    def _start(self, slot: _Slot, name: str, first: Callable[[], object] | None) -> None:
        thread = threading.Thread(target=self._work, args=(slot, first), name=name, daemon=True)
        slot.thread = thread
        thread.start()

    def show_limits(self, slot_of: Callable[[int], BoardSlot | None]) -> None:
        """Have a supervisor see the time limits of what runs; before :meth:`start`."""
        for number, slot in enumerate(self._slots):
            slot.hold.board = slot_of(number)

    # -- for the one thread that feeds the pool --------------------------------------------------

    @property
    def finished(self) -> int:
        """How many claims were worked on to their end."""
        return sum([slot.finished for slot in self._slots])

    @property
    def outstanding(self) -> int:
        """How many claims wait or are worked on. Never too low."""
        return self._added - self._taken_back - self.finished

    @property
    def started(self) -> int:
        """How many claims were given to a thread."""
        return self._added - self._taken_back - len(self._buffer)

    def running(self, seconds: float) -> list[RunningTask]:
        """The tasks that have been running for so long, the longest first."""
        found = [task for slot in self._slots if (task := slot.hold.running_for(seconds))]
        return sorted(found, key=lambda task: task.since)

    def add(self, claims: Iterable[ClaimedTask]) -> None:
        """Have the claims worked on, in this order: by one thread at least, see :meth:`spread`."""
        now = time.monotonic()
        for claim in claims:
            self._added += 1
            self._buffer.append((claim, now))
        if self._buffer and len(self._idle) == self.size:  # else one is at work and looks here
            self._wake_one()

    def spread(self, now: float) -> None:
        """Fit the number of threads at work to what they wait for. Call it every ``look_again``.

        Threads that all want the interpreter only take it from each other: short tasks are done
        in half the time by one thread. Tasks that wait for something leave it free, or do not end
        for a while, and are given to further threads.
        """
        if not self._buffer:
            self._looked = None
            self.crowded = self.crowded and now - self._crowded_at < REMEMBERED_SECONDS
            return
        cpu, finished = time.process_time(), self.finished
        if self._looked is not None:
            looked_at, cpu_before, finished_before = self._looked
            elapsed = now - looked_at
            if elapsed < self.look_again:
                return
            used = (cpu - cpu_before) / elapsed
            self.crowded = finished != finished_before and used >= SATURATED
            if self.crowded:
                self._crowded_at = now
            else:
                self._wake_one()
        self._looked = now, cpu, finished

    @property
    def look_again(self) -> float:
        """Seconds after which :meth:`spread` has something to do while claims wait."""
        return CROWDED_SECONDS if self.crowded else SPREAD_SECONDS

    def _wake_one(self) -> None:
        with contextlib.suppress(IndexError):  # none is idle
            self._idle.pop().bell.ring()

    @property
    def waiting(self) -> int:
        """How many claims no thread has begun with."""
        return len(self._buffer)

    def oldest(self) -> float | None:
        """When (monotonic) the claim was added that has waited longest; ``None`` if none waits."""
        try:
            return self._buffer[0][1]
        except IndexError:
            return None

    def take_back(self, added_before: float = float("inf")) -> list[ClaimedTask]:
        """The claims that no thread has begun with, of those added before that time (monotonic)."""
        claims: list[ClaimedTask] = []
        while True:
            try:
                claim, added = self._buffer.popleft()
            except IndexError:
                return claims
            if added >= added_before:
                self._buffer.appendleft((claim, added))
                return claims
            self._taken_back += 1
            claims.append(claim)

    def close(self) -> list[ClaimedTask]:
        """Begin with nothing more; return the claims that were not begun with."""
        self._closed = True
        return self.take_back()

    @property
    def stuck(self) -> int:
        """How many of the claims that are worked on are stuck tasks'."""
        return sum([slot.hold.is_stuck for slot in self._slots])

    @property
    def left_behind(self) -> int:
        """How many threads still run what was stuck."""
        return sum([thread.is_alive() for thread in self._left_behind])

    def leave_behind(self, work_off: Callable[[Hold, Hold], object]) -> None:
        """Put new threads in the place of those that are stuck. The first thing that each does is
        ``work_off(old hold, new hold)``, in place of the work on the claim."""
        for number, old in enumerate(self._slots):
            if old.thread is None or not old.hold.is_stuck or old.hold.abandon(0.0) is None:
                continue
            slot = _Slot(self._stopping, self._on_stuck, old.finished)
            self._slots[number] = slot
            self._left_behind.append(old.thread)
            self._start(slot, old.thread.name, functools.partial(work_off, old.hold, slot.hold))

    def abandon(self, timeout: float) -> list[Hold]:
        """Take away the claims that are worked on; return the holds of those that can be put back.

        ``timeout``: how long (seconds, in all) to wait for outcomes to be written and for calls on
        claims to return.
        """
        end = time.monotonic() + timeout
        # A task that has ended should not run again for want of a moment.
        while time.monotonic() < end and any(
            slot.hold.settling and slot.hold.claim is not None for slot in self._slots
        ):
            time.sleep(0.005)
        return [
            slot.hold
            for slot in self._slots
            if slot.hold.abandon(end - time.monotonic()) is not None
        ]

    def join(self, timeout: float) -> bool:
        """Let idle threads end; whether all did within ``timeout`` seconds. Needs :meth:`close`."""
        end = time.monotonic() + timeout
        for slot in self._slots:
            slot.bell.ring()
        for slot in self._slots:
            if slot.thread is not None:
                slot.thread.join(max(end - time.monotonic(), 0.0))
        return not any(slot.thread and slot.thread.is_alive() for slot in self._slots)

    # -- the threads -----------------------------------------------------------------------------

    def _work(self, slot: _Slot, first: Callable[[], object] | None) -> None:
        connections.watch_thread()
        current.work_in_this_thread()
        try:
            if first is not None:
                first()
                self._finished(slot)
            while not self._closed and not slot.hold.abandoned:
                if self.crowded and len(self._idle) < self.size - 1:
                    # Should the last two do this at once, spread() wakes one again.
                    self._idle.append(slot)
                    slot.bell.wait()
                    continue
                try:
                    claim, _ = self._buffer.popleft()
                except IndexError:
                    self._wait_for_work(slot)
                else:
                    self._work_on(slot, claim)
        finally:
            connections.unwatch_thread()

    def _work_on(self, slot: _Slot, claim: ClaimedTask) -> None:
        try:
            self._run(claim, slot.hold)
        except Abandoned:
            pass  # it was taken away by a stop; nothing is left to do for it
        except BaseException:  # the thread outlives whatever went wrong around a task
            logger.exception("Working on task %s failed in the worker itself.", claim.id)
        self._finished(slot)

    def _finished(self, slot: _Slot) -> None:
        slot.finished += 1
        if len(self._buffer) <= self.low_mark:
            self._on_finish()

    def _wait_for_work(self, slot: _Slot) -> None:
        self._idle.append(slot)
        if self._buffer or self._closed:
            try:
                self._idle.remove(slot)
            except ValueError:
                slot.bell.wait()  # whoever took the slot out of the idle ones rings
            return
        if connections.opened_here():
            if slot.bell.wait(connections.IDLE_SECONDS):
                return
            connections.close_here()
        slot.bell.wait()
