"""How a worker's fetcher waits: for the store, or for a task to end, and for a stop in any case.

Tasks that end ring at most once for each wait, and not at all while nobody waits: the threads of
short tasks pay for one look at a flag.
"""

from __future__ import annotations

from collections.abc import Callable

from deferred_django.backends.base import Backend
from deferred_django.bell import Bell
from deferred_django.pool import Pool

WAIT_SECONDS = 1.0
"""The longest wait for something to do before looking again."""


class FetcherWaits:
    """The waits of one fetcher. :meth:`wake` and :meth:`task_ended` are for other threads."""

    pool: Pool
    """Set before the first wait: a pool is made with :meth:`task_ended`."""

    def __init__(self, backend: Backend, *, ends_with_last: bool) -> None:
        """``ends_with_last``: the worker may end with its last task, whatever the store has."""
        self._backend = backend
        self._ends_with_last = ends_with_last
        self._bell = Bell()
        self._wants_finish = False
        self._wakes_store = False
        self.stopped = False
        """Nothing but :meth:`for_last_tasks` waits any more."""

    def wake(self) -> None:
        """End the running or the next wait. Safe in threads and signal handlers."""
        self._bell.ring()
        self._backend.wake()

    def task_ended(self) -> None:
        """A task has ended and leaves few waiting."""
        # One signal for each wait: those behind it would only cost time.
        if self._wants_finish:
            self._wants_finish = False
            self._bell.ring()
        elif self._wakes_store:
            self._wakes_store = False
            self._backend.wake()

    def until_unstarted(self, now: float, let_go_after: float) -> float:
        """Seconds until a claim is to be let go that no thread has begun with."""
        oldest = self.pool.oldest()
        if oldest is None:
            return WAIT_SECONDS
        return min(max(oldest + let_go_after - now, 0.001), WAIT_SECONDS)

    def for_finish(self, timeout: float) -> None:
        """Wait until a task has ended that leaves few waiting, a stop, or the time is up."""
        if self.pool.waiting:
            timeout = min(timeout, self.pool.look_again)
        finished = self.pool.finished
        self._wants_finish = True
        # One that ended before the flag was seen rang nothing.
        if not self.stopped and self.pool.finished == finished:
            self._bell.wait(min(timeout, WAIT_SECONDS))
        self._wants_finish = False

    def for_store(self, timeout: float) -> None:
        """Wait until there may be something to claim."""
        busy = self.pool.outstanding
        self._wakes_store = busy > 0 and self._ends_with_last
        if not self.stopped and (not self._wakes_store or self.pool.outstanding == busy):
            self._backend.wait(timeout)
        self._wakes_store = False

    def for_last_tasks(self, timeout: float, some_run: Callable[[], bool]) -> None:
        """While the worker stops: wait until a task ends or somebody wakes."""
        self._wants_finish = True
        if some_run():
            self._bell.wait(min(timeout, WAIT_SECONDS))
