"""How many tasks a worker claims in advance: what its threads finish in a moment."""

from __future__ import annotations

from deferred_django.pool import Pool

SECONDS = 0.1
"""Claimed in advance is what the threads finish in this time."""
MOST = 50
LET_GO_SECONDS = 0.3
"""How long nothing is claimed in advance after claims were let go: others look every 0.25 s."""


class Prefetch:
    """Follows the rate at which a pool finishes tasks. For the thread that feeds it."""

    def __init__(self, pool: Pool) -> None:
        self.number = 0
        """How many claims may wait for a thread."""
        self._pool = pool
        self._not_before = 0.0
        self._sampled_at = 0.0
        self._sampled = 0

    def stop_for_a_while(self, now: float) -> None:
        """Claims were let go because no thread had begun with them."""
        self.number, self._not_before = 0, now + LET_GO_SECONDS

    def measure(self, now: float) -> None:
        """Look at the rate again if it is time to (``now`` is monotonic)."""
        elapsed = now - self._sampled_at
        if elapsed >= SECONDS:
            finished = self._pool.finished
            rate = (finished - self._sampled) / elapsed
            if now >= self._not_before:
                self.number = min(int(rate * SECONDS), MOST)
            # Where the threads take the interpreter from each other, so would this one.
            self._pool.low_mark = 0 if self._pool.crowded else self.number // 2
            self._sampled, self._sampled_at = finished, now
