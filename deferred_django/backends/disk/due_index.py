"""Which pending tasks of all segments are to be tried next. In memory, for one process.

A row of a segment's table is in at most one useful place; one that is stale (gone, claimed, tried
already) is dropped when it comes to the top.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from deferred_django.backends.disk.row_heap import Block, RowHeap
from deferred_django.backends.disk.segment import Segment


class Wanted(NamedTuple):
    """The queues of a claim: see :meth:`Backend.claim_tasks`."""

    queues: Collection[str] | None
    exclude: Collection[str]
    prefer: Sequence[str]

    def includes(self, queue: str) -> bool:
        """Whether tasks of the queue may be claimed."""
        return (self.queues is None or queue in self.queues) and queue not in self.exclude

    def rank(self, queue: str) -> int:
        """The queue's place among those that are preferred; behind them, all come together."""
        return self.prefer.index(queue) if queue in self.prefer else len(self.prefer)


class DueIndex:
    """Due tasks by queue, delayed ones by time, and those that somebody else holds."""

    def __init__(self) -> None:
        self._due: dict[str, RowHeap] = {}
        self._delayed = RowHeap(by_priority=False)
        self._held: list[tuple[float, int, Segment, int, Block | None]] = []
        self._numbers = itertools.count()

    def clear(self) -> None:
        """Forget everything."""
        self._due.clear()
        self._delayed = RowHeap(by_priority=False)
        self._held.clear()

    def forget(self, segment: Segment) -> None:
        """The segment is not read any more."""
        self._delayed.forget(segment)
        for heap in self._due.values():
            heap.forget(segment)
        self._held = [item for item in self._held if item[2] is not segment]
        heapq.heapify(self._held)

    def push(self, segment: Segment, row: int, now_ms: int) -> None:
        """Take in a task that may be claimed once it is due."""
        table = segment.table
        if table.flags[row]:
            return
        if table.publish_ms[row] > now_ms:
            self._delayed.push(segment, row)
        else:
            self._heap(table.queue_of(row)).push(segment, row)

    def push_rows(self, segment: Segment, rows: Iterable[int], now_ms: int) -> None:
        """Take in many tasks of a segment."""
        table = segment.table
        flags = table.flags
        rows = [row for row in rows if not flags[row]]
        if len(rows) == 1:
            self.push(segment, rows[0], now_ms)
            return
        due_at = table.publish_ms.__getitem__
        rows.sort(key=due_at)
        due = bisect_right(rows, now_ms, key=due_at)
        if due < len(rows):
            self._delayed.push_rows(segment, rows[due:])
            del rows[due:]
        by_queue: dict[str, list[int]] = {}
        if len(table.kinds) == 1:
            by_queue[table.kinds[0][1]] = rows
        else:
            for row in rows:
                by_queue.setdefault(table.queue_of(row), []).append(row)
        for queue, its_rows in by_queue.items():
            if its_rows:
                self._heap(queue).push_rows(segment, its_rows)

    def _heap(self, queue: str) -> RowHeap:
        heap = self._due.get(queue)
        if heap is None:
            heap = self._due[queue] = RowHeap(by_priority=True)
        return heap

    def hold(self, segment: Segment, row: int, until: float, block: Block | None = None) -> None:
        """Leave a task, and all the tasks of its block, alone until ``until`` (monotonic)."""
        heapq.heappush(self._held, (until, next(self._numbers), segment, row, block))

    def advance(self, now_ms: int, monotonic: float) -> None:
        """Make available what has fallen due, or has been left alone for long enough."""
        for segment, rows in self._delayed.take_due(now_ms):
            self.push_rows(segment, rows, now_ms)
        held = self._held
        while held and held[0][0] <= monotonic:
            _, _, segment, row, block = heapq.heappop(held)
            if block is None:
                self.push(segment, row, now_ms)
            else:
                table = segment.table
                self._heap(table.queue_of(row)).push_block(segment, block, row)

    def pop(
        self,
        wanted: Wanted,
        usable: Callable[[Segment], bool],
        retry_at: float,
    ) -> tuple[Segment, int] | None:
        """The task to try next: of the queue preferred most, the highest priority, the soonest due.

        Tasks of a segment that is not ``usable`` are left alone until ``retry_at``.
        """
        best, best_heap, best_rank = None, None, 0
        drained = []
        for name, heap in self._due.items():
            top = heap.top()
            if top is None:
                drained.append(name)
            elif wanted.includes(name):
                while top is not None and not usable(top.segment):
                    item = heap.take_item()
                    self.hold(item.segment, item.row, retry_at, item.block)
                    top = heap.top()
                if top is None:
                    continue
                rank = wanted.rank(name)
                if best is None or rank < best_rank or (rank == best_rank and top < best):
                    best, best_heap, best_rank = top, heap, rank
        for name in drained:
            del self._due[name]
        if best_heap is None or (taken := best_heap.take()) is None:
            return None
        return taken.segment, taken.row

    def seconds_to_next(self, now_ms: int, monotonic: float) -> float | None:
        """How long until :meth:`advance` has something to do; ``None`` if nothing waits."""
        waits = []
        first = self._delayed.top()
        if first is not None:
            waits.append((first.publish_ms - now_ms) / 1000)
        if self._held:
            waits.append(self._held[0][0] - monotonic)
        return max(0.0, min(waits)) if waits else None
