"""A worker's signs of life: that its fetcher goes round, and what runs for long meanwhile.

Nothing here is said by a thread that would go on saying it if the fetcher were stuck.
"""

from __future__ import annotations

from collections.abc import Callable

from deferred_django.backends.base import Backend
from deferred_django.pool import Pool

LONG_SECONDS = 1.0
"""The store is told of tasks that have been running for longer: short ones cost it nothing."""


class Pulse:
    """The fetcher beats at each of its rounds, the housekeeper tells the store."""

    def __init__(self, backend: Backend, pool: Pool) -> None:
        self._backend = backend
        self._pool = pool
        self._last = self._told = 0.0
        self.on_beat: Callable[[float], None] | None = None
        """Called with each beat: cheap, and once a second at least."""

    def beat(self, now: float) -> None:
        """The fetcher goes round (``now`` is monotonic)."""
        self._last = now
        if self.on_beat is not None:
            self.on_beat(now)

    def tell(self) -> None:
        """Tell the store that the worker is at work, if the fetcher has gone round since."""
        if self._last != self._told:
            self._told = self._last
            self._backend.worker_heartbeat(self._pool.running(LONG_SECONDS))
