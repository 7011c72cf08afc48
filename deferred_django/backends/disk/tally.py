"""How many tasks are due or run, kept up to date by a process that only enqueues.

Its own adds are counted when they are written. What others do is read once a second, on from where
it was read last, by the reader that workers use: a segment that was compacted, removed or cut is
read anew, and what could not be counted on the way (removals, retries, tasks put back, crashes)
comes out right. Why so: ``docs/decisions/006-counting-what-is-pending.md``.
"""

from __future__ import annotations

import heapq
import math
import threading
import time
from collections import deque
from itertools import repeat

from deferred_django.backends.disk import descriptors
from deferred_django.backends.disk.names import StoreNames
from deferred_django.backends.disk.segment import Segment
from deferred_django.backends.disk.segment_set import SegmentSet
from deferred_django.backends.disk.task_table import GONE, TaskTable

READ_BYTES = 1024 * 1024
READ_SECONDS = 0.1
"""So long one call reads a backlog that it has not read yet; the next one goes on."""
IDLE_SECONDS = 60.0
"""Then it is let go of: its descriptors keep the space of files that others erase."""


class TallyTable(TaskTable):
    """A table that knows how many of its tasks are due later."""

    __slots__ = ("_later", "_now_ms", "delayed")

    def __init__(self) -> None:
        super().__init__()
        self._now_ms = int(time.time() * 1000)
        self._later: list[int] = []
        """A heap of those that were not due when they came: when, and in the low bits the row."""
        self.delayed = 0
        """How many are not gone and not due at ``_now_ms``."""

    def add(
        self, key: int, offset: int, length: int, publish_ms: int, kind: int, *, force: bool = False
    ) -> bool:
        """As :meth:`TaskTable.add`."""
        added = super().add(key, offset, length, publish_ms, kind, force=force)
        if added and publish_ms > self._now_ms:
            heapq.heappush(self._later, publish_ms << 32 | len(self) - 1)
            self.delayed += 1
        return added

    def drop(self, row: int) -> None:
        """As :meth:`TaskTable.drop`."""
        super().drop(row)
        if self.publish_ms[row] > self._now_ms:
            self.delayed -= 1

    def due(self, now_ms: int) -> int:
        """How many are due, those that run among them. Time does not go back here."""
        self._now_ms = max(self._now_ms, now_ms)
        later = self._later
        while later and later[0] >> 32 <= self._now_ms:
            row = heapq.heappop(later) & 0xFFFFFFFF
            if not self.flags[row] & GONE:
                self.delayed -= 1
        return self.live - self.delayed


class Tally:
    """The count of one store. Thread-safe, and safe in signal handlers: nobody waits for a lock."""

    def __init__(self, names: StoreNames) -> None:
        self._names = names
        self.reset()
        descriptors.on_fork(self.reset)

    def reset(self) -> None:
        """Forget everything (in a forked child the descriptors are closed already)."""
        self._lock = threading.Lock()
        self._segments: SegmentSet | None = None
        self.is_counting = False
        """Whether somebody asks for the count, so that adds must be told."""
        self._read = 0
        self._read_at = -math.inf
        self._used_at = 0.0
        self._own: deque[None] = deque()
        """An item for each own add since the last reading: appending is atomic, adding is not."""

    def added(self, number: int) -> None:
        """This process has added so many tasks that are due."""
        self._own.extend(repeat(None, number))

    def count(self, max_age: float) -> int:
        """How many tasks are due or run; what others did is at most ``max_age`` seconds old.

        Where more was left to read than can be in a moment, only segments that were read to their
        ends are counted, and the next call goes on. Raises ``OSError`` if the directory cannot be
        read.
        """
        self._used_at = now = time.monotonic()
        if now - self._read_at > max_age and self._lock.acquire(blocking=False):
            try:
                self._refresh(now + READ_SECONDS)
            finally:
                self._lock.release()
        return self._read + len(self._own)

    def _refresh(self, until: float) -> None:
        if self._segments is None:
            self._segments = SegmentSet(self._names, _nothing, _nothing, make_table=TallyTable)
            self.is_counting = True
        # Written before they were counted, so the reading finds those that are counted by now.
        own = len(self._own)
        while not (all_read := self._segments.refresh(budget=READ_BYTES)):
            if time.monotonic() >= until:
                break
        now_ms = int(time.time() * 1000)
        self._read = sum(
            segment.table.due(now_ms)
            for segment in self._segments.segments()
            # In one that was not read to its end the removals of its first tasks may be missing.
            if segment.size_read >= 0 and isinstance(segment.table, TallyTable)
        )
        if all_read:
            for _ in range(own):
                self._own.popleft()
            self._read_at = time.monotonic()

    def tick(self) -> bool:
        """What the timer calls: let go when idle. ``False`` when nothing is left to do."""
        if self._segments is not None and time.monotonic() - self._used_at > IDLE_SECONDS:
            self.close()
        return self._segments is not None

    def close(self) -> None:
        """Let go of the files; the next count reads them anew."""
        with self._lock:
            segments, self._segments = self._segments, None
            self.is_counting = False
            self._read_at = -math.inf
            self._own.clear()
            if segments is not None:
                segments.close()


def _nothing(*arguments: Segment | range) -> None:
    """Nobody else wants to know."""
