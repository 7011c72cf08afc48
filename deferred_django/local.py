"""Runs tasks in the process that enqueues them, for ``DEFERRED = {"BACKEND": None}``.

Delays and retries are honoured in memory, and everything that has not run is dropped when the
process ends. Arguments go through the same bytes as with every other backend.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import logging
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from deferred_django import connections, event_loop, forks, overdue
from deferred_django.backends.base import BackendConfig, ClaimedTask
from deferred_django.backends.none import NoneBackend
from deferred_django.conf_features import Features
from deferred_django.execution import execute
from deferred_django.hold import Abandoned, Hold
from deferred_django.queue import NO_FEATURES, Queue

logger = logging.getLogger("deferred_django")

MAX_THREADS = 4
_LONGEST_WAIT = 60.0
# What one thread runs next: due (unix seconds), lower first among the due, order of arrival.
_Entry = tuple[float, int, int, ClaimedTask]


class LocalRunner:
    """Up to :data:`MAX_THREADS` daemon threads, started as they are needed. Thread-safe."""

    def __init__(self, features: Features = NO_FEATURES) -> None:
        self._queue = Queue(_Memory(self), features=features)
        self._reset()
        _runners.add(self)

    def _reset(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._entries: list[_Entry] = []
        self._order = itertools.count()
        self._threads = 0
        self._idle = 0
        self._closed = False

    def enqueue(
        self, context: bytes, *, task_id: str, publish_at: float | None, queue: str, priority: int
    ) -> None:
        """Run the task on a thread of this process once it is due."""
        due = time.time() if publish_at is None else publish_at
        self.add(ClaimedTask(task_id, context, due, queue, priority))

    def add(self, claim: ClaimedTask) -> None:
        """Run the claim once it is due."""
        with self._changed:
            if self._closed:
                return
            if self._idle <= len(self._entries) and self._threads < MAX_THREADS:
                name = f"deferred-local-{self._threads + 1}"
                try:
                    threading.Thread(target=self._work, name=name, daemon=True).start()
                    self._threads += 1
                except RuntimeError:  # the process may have no more threads
                    if self._threads == 0:
                        raise
            entry = (claim.publish_at, -claim.priority, next(self._order), claim)
            heapq.heappush(self._entries, entry)
            self._changed.notify()

    def cancel(self, task_id: str) -> bool:
        """Drop a task that has not begun; ``False`` if there is none of this id."""
        with self._changed:
            kept = [entry for entry in self._entries if entry[3].id != task_id]
            found = len(kept) < len(self._entries)
            if found:
                heapq.heapify(kept)
                self._entries = kept
            return found

    def close(self) -> None:
        """Drop what has not begun; the threads end with what they run."""
        with self._changed:
            self._closed = True
            self._entries.clear()
            self._changed.notify_all()

    def _work(self, first: Callable[[], object] | None = None) -> None:
        connections.watch_thread()
        hold = Hold()
        hold.on_stuck = functools.partial(self._leave_behind, hold)
        if first is not None:
            first()
        while not hold.abandoned and (claim := self._next()) is not None:
            try:
                loop = event_loop.process_loop()
                execute(self._queue, claim, hold=hold, loop=loop, check_connections=True)
            except Abandoned:
                pass  # another thread has taken this one's place
            except BaseException:  # the thread outlives whatever went wrong around a task
                logger.exception("Working on task %s failed.", claim.id)
        connections.unwatch_thread()

    def _leave_behind(self, hold: Hold) -> None:
        # No process can be replaced here. Its thread ends with the task, should that ever end.
        if hold.abandon(0.0) is None:
            return
        first = functools.partial(overdue.work_off, self._queue, hold)
        threading.Thread(
            target=self._work, args=(first,), name="deferred-local", daemon=True
        ).start()

    def _next(self) -> ClaimedTask | None:
        with self._changed:
            while not self._closed:
                now = time.time()
                if self._entries and self._entries[0][0] <= now:
                    return heapq.heappop(self._entries)[3]
                wait = _LONGEST_WAIT
                if self._entries:
                    wait = min(self._entries[0][0] - now, wait)
                has_connections = connections.opened_here()
                if has_connections:
                    wait = min(wait, connections.IDLE_SECONDS)
                self._idle += 1
                woken = self._changed.wait(wait)
                self._idle -= 1
                if has_connections and not woken:
                    connections.close_here()
        return None


class _Memory(NoneBackend):
    """The store under the runner's queue: it keeps only what is to run later."""

    def __init__(self, runner: LocalRunner) -> None:
        super().__init__(BackendConfig(path=Path()))
        self._runner = weakref.proxy(runner)

    def reschedule_task(self, claim: ClaimedTask, context: bytes, *, publish_at: float) -> None:
        """Have it run again."""
        self._runner.add(ClaimedTask(claim.id, context, publish_at, claim.queue, claim.priority))


_runners: weakref.WeakSet[LocalRunner] = weakref.WeakSet()


def _forget_in_child() -> None:
    # What the parent has enqueued is the parent's to run, and its threads are not in the child.
    for runner in list(_runners):
        runner._reset()


forks.after_in_child(_forget_in_child)
