"""Which pending tasks of all segments are to be tried next. In memory, for one process.

An entry is in at most one useful place; what is stale (gone, claimed, tried already) is dropped
when it comes to the top; what is delayed, and may take weeks to get there, also when half of it may
be stale.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection

from deferred_django.backends.disk.segment import Entry

CLEAN_AT = 1024
"""So many delayed tasks are not worth a search for those that are gone."""


class DueIndex:
    """Due tasks by queue, delayed ones by time, and those that somebody else holds."""

    def __init__(self) -> None:
        self._due: dict[str, list[tuple[int, int, int, Entry]]] = {}
        self._delayed: list[tuple[int, int, Entry]] = []
        self._held: list[tuple[float, int, Entry]] = []
        self._numbers = itertools.count()
        self._clean_at = CLEAN_AT

    def clear(self) -> None:
        """Forget everything."""
        self._due.clear()
        self._delayed.clear()
        self._held.clear()

    def push(self, entry: Entry, now_ms: int) -> None:
        """Take in a task that may be claimed once it is due."""
        number = next(self._numbers)
        if entry.publish_ms > now_ms:
            heapq.heappush(self._delayed, (entry.publish_ms, number, entry))
            if len(self._delayed) >= self._clean_at:
                self._drop_gone()
        else:
            queue = self._due.get(entry.queue)
            if queue is None:
                queue = self._due[entry.queue] = []
            heapq.heappush(queue, (-entry.priority, entry.publish_ms, number, entry))

    def _drop_gone(self) -> None:
        # Each compaction reads the delayed tasks anew: the old entries must not wait till due.
        self._delayed = [item for item in self._delayed if not item[2].gone]
        heapq.heapify(self._delayed)
        self._clean_at = max(CLEAN_AT, 2 * len(self._delayed))

    def hold(self, entry: Entry, until: float) -> None:
        """Leave a task alone until ``until`` (monotonic seconds)."""
        heapq.heappush(self._held, (until, next(self._numbers), entry))

    def advance(self, now_ms: int, monotonic: float) -> None:
        """Make available what has fallen due, or has been left alone for long enough."""
        delayed, held = self._delayed, self._held
        while delayed and delayed[0][0] <= now_ms:
            entry = heapq.heappop(delayed)[2]
            if not entry.gone:
                self.push(entry, now_ms)
        while held and held[0][0] <= monotonic:
            entry = heapq.heappop(held)[2]
            if not entry.gone:
                self.push(entry, now_ms)

    def pop(self, queues: Collection[str] | None, exclude: Collection[str]) -> Entry | None:
        """The task to try next: the highest priority, then the soonest due."""
        best: list[tuple[int, int, int, Entry]] | None = None
        drained = []
        for name, heap in self._due.items():
            while heap and (heap[0][3].gone or heap[0][3].claimed):
                heapq.heappop(heap)
            if not heap:
                drained.append(name)
            elif (
                (queues is None or name in queues)
                and name not in exclude
                and (best is None or heap[0] < best[0])
            ):
                best = heap
        for name in drained:
            del self._due[name]
        return heapq.heappop(best)[3] if best is not None else None

    def seconds_to_next(self, now_ms: int, monotonic: float) -> float | None:
        """How long until :meth:`advance` has something to do; ``None`` if nothing waits."""
        waits = []
        if self._delayed:
            waits.append((self._delayed[0][0] - now_ms) / 1000)
        if self._held:
            waits.append(self._held[0][0] - monotonic)
        return max(0.0, min(waits)) if waits else None
