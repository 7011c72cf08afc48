"""Tasks under which a worker process died: they run alone, so that neighbours are not blamed.

Of the tasks that ran in a process when it died, one may have killed it; nobody knows which. Each
of these suspects starts only where nothing else runs, and nothing else starts until it ends. The
next death then has one possible cause.
"""

from __future__ import annotations

from deferred_django.backends.base import ClaimedTask
from deferred_django.pool import Pool
from deferred_django.queue import MAX_CRASHES, Queue
from deferred_django.queue_choice import ALL_QUEUES, QueueChoice

HELD_SECONDS = 0.2
"""How long a suspect is held in the hope that what runs ends; then others may have it."""
QUIET_SECONDS = 60.0
"""How long nothing new is started to make room for a suspect."""
PROBE_SECONDS = 1.0
"""How often it is asked meanwhile whether the suspect still waits."""
NORMAL_SECONDS = 60.0
"""How long work goes on as usual before room is made again."""


def is_suspect(claim: ClaimedTask) -> bool:
    """Whether the task may kill its worker. After the last crash it is not run at all."""
    return 0 < claim.crashes < MAX_CRASHES


class Quarantine:
    """Decides, for the one thread that feeds a pool, when suspects run."""

    def __init__(self, queue: Queue, pool: Pool, choice: QueueChoice = ALL_QUEUES) -> None:
        self._queue = queue
        self._pool = pool
        self._choice = choice
        self.refused = 0
        """How many suspects the last :meth:`sort` could not take."""
        self._alone = False
        self._known: set[str] = set()
        self._held: list[ClaimedTask] = []
        self._held_until = 0.0
        self._quiet_until: float | None = None
        self._probe_at = 0.0
        self._not_before = 0.0

    def sort(self, claims: list[ClaimedTask], now: float) -> list[ClaimedTask]:
        """Take the suspects out of new claims; return what may be started now."""
        self.refused = 0
        suspects = [claim for claim in claims if is_suspect(claim)]
        if not suspects:
            return claims
        others = [claim for claim in claims if not is_suspect(claim)]
        if self._pool.outstanding == 0:
            self._release(others)
            self._release(suspects[1:])
            self._run_alone(suspects[0])
            return []
        if now < self._not_before:
            self.refused = len(suspects)
            self._release(suspects)
            return others
        self._release(others)
        self._release(self._pool.take_back())
        self._known = {claim.id for claim in suspects}
        self._held = suspects
        self._held_until = now + HELD_SECONDS
        self._quiet_until = now + QUIET_SECONDS
        return []

    def step(self, now: float) -> float | None:
        """Go on with what was begun. ``None``: work as usual. Else claim nothing, and call again
        when a task has ended or after that many seconds."""
        busy = self._pool.outstanding > 0
        if self._alone:
            if busy:
                return QUIET_SECONDS
            self._alone = False
        if self._quiet_until is None:
            return None
        if not busy:
            self._quiet_until = None
            claim = self._next_suspect()
            if claim is None:  # another process has taken it
                return None
            self._run_alone(claim)
            return QUIET_SECONDS
        if now >= self._quiet_until:
            self.release_held()
            self._quiet_until = None
            self._not_before = now + NORMAL_SECONDS
            return None
        if self._held:
            if now < self._held_until:
                return self._held_until - now
            self.release_held()
            self._probe_at = now + PROBE_SECONDS
        elif now >= self._probe_at:
            self._probe_at = now + PROBE_SECONDS
            still_there = self._queue.claim(1, self._choice, ids=self._known)
            self._release(still_there)
            if not still_there:
                self._quiet_until = None
                return None
        return min(self._probe_at, self._quiet_until) - now

    def release_held(self) -> None:
        """Let others have the suspects that are held for a moment."""
        self._release(self._held)
        self._held = []

    def _next_suspect(self) -> ClaimedTask | None:
        if self._held:
            claim, self._held = self._held[0], self._held[1:]
            self.release_held()
            return claim
        claims = self._queue.claim(1, self._choice, ids=self._known)
        return claims[0] if claims else None

    def _run_alone(self, claim: ClaimedTask) -> None:
        self._alone = True
        self._pool.add([claim])

    def _release(self, claims: list[ClaimedTask]) -> None:
        for claim in claims:
            self._queue.release(claim)
