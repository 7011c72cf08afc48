"""Rows of many segments in the order in which they are to be tried.

A heap whose items are single rows, or *blocks*: rows of one segment, sorted once, with a cursor.
A block takes four bytes a row and costs the heap one place, so a million tasks are some dozens of
places. Many single rows are made blocks.
"""

from __future__ import annotations

import heapq
import itertools
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from deferred_django.backends.disk.segment import Segment

BLOCK_ROWS = 16
"""Fewer rows are not worth a block."""
PACK_AT = 1024
"""So many single rows in a heap are made blocks."""

_counter = itertools.count()


class Block:
    """Sorted rows of one segment, from ``at`` on."""

    __slots__ = ("at", "rows")

    def __init__(self, rows: array[int]) -> None:
        self.rows = rows
        self.at = 0

    def next_row(self, flags: bytearray) -> int | None:
        """Leave the row at ``at``; the next one that may be tried."""
        rows, at = self.rows, self.at + 1
        while at < len(rows) and flags[rows[at]]:
            at += 1
        self.at = at
        return rows[at] if at < len(rows) else None


class Item(NamedTuple):
    """A place in the heap. No two compare equal up to ``unique``."""

    urgency: int
    publish_ms: int
    serial: int
    row: int
    unique: int
    segment: Segment
    block: Block | None


class RowHeap:
    """Rows by priority, if that is asked for, and then by when they are due.

    A row that cannot be tried any more is dropped when it comes to the top.
    """

    __slots__ = ("_by_priority", "_pack_at", "_singles", "items")

    def __init__(self, *, by_priority: bool) -> None:
        self._by_priority = by_priority
        self.items: list[Item] = []
        self._singles = 0
        self._pack_at = PACK_AT

    def __len__(self) -> int:
        """How many rows there are, with those that are stale."""
        blocks = (item.block for item in self.items if item.block is not None)
        return self._singles + sum(len(block.rows) - block.at for block in blocks)

    def _item(self, segment: Segment, row: int, block: Block | None) -> Item:
        table = segment.table
        urgency = -table.priority_of(row) if self._by_priority else 0
        at = table.publish_ms[row]
        return Item(urgency, at, segment.serial, row, next(_counter), segment, block)

    def push(self, segment: Segment, row: int) -> None:
        """Put in one row."""
        heapq.heappush(self.items, self._item(segment, row, None))
        self._singles += 1
        if self._singles >= self._pack_at:
            self._pack()

    def push_rows(self, segment: Segment, rows: list[int]) -> None:
        """Put in rows of a segment that are sorted by when they are due."""
        if len(rows) < BLOCK_ROWS:
            for row in rows:
                self.push(segment, row)
            return
        if self._by_priority and len(segment.table.kinds) > 1:
            rows = sorted(rows, key=segment.table.priority_of, reverse=True)
        block = Block(array("I", rows))
        heapq.heappush(self.items, self._item(segment, rows[0], block))

    def push_block(self, segment: Segment, block: Block | None, row: int) -> None:
        """Put back what :meth:`take_item` gave."""
        heapq.heappush(self.items, self._item(segment, row, block))
        self._singles += block is None

    def top(self) -> Item | None:
        """The first row that may be tried."""
        items = self.items
        while items:
            item = items[0]
            if not item.segment.table.flags[item.row]:
                return item
            self._leave(item)
        return None

    def take(self) -> Item | None:
        """Take the first row out."""
        item = self.top()
        if item is not None:
            self._leave(item)
        return item

    def take_item(self) -> Item:
        """Take out the first item, its block with it, as :meth:`top` gave it."""
        item = heapq.heappop(self.items)
        self._singles -= item.block is None
        return item

    def take_due(self, now_ms: int) -> Iterator[tuple[Segment, list[int]]]:
        """Take out all that is due, of a heap without priorities; in order in each segment."""
        while (item := self.top()) is not None and item.publish_ms <= now_ms:
            block, segment = item.block, item.segment
            if block is None:
                self._leave(item)
                yield segment, [item.row]
                continue
            due_at = segment.table.publish_ms.__getitem__
            end = bisect_right(block.rows, now_ms, lo=block.at, key=due_at)
            rows = block.rows[block.at : end]
            block.at = end - 1
            self._leave(item)
            yield segment, list(rows)

    def _leave(self, item: Item) -> None:
        """The first item's row is taken or stale: its block goes on with the next one."""
        row = None if item.block is None else item.block.next_row(item.segment.table.flags)
        if row is None:
            heapq.heappop(self.items)
            self._singles -= item.block is None
        else:
            heapq.heapreplace(self.items, self._item(item.segment, row, item.block))

    def _pack(self) -> None:
        """Make blocks of the single rows of each segment, and drop those that are stale."""
        singles: dict[Segment, list[int]] = {}
        items = [item for item in self.items if item.block is not None]
        for item in self.items:
            if item.block is None and not item.segment.table.flags[item.row]:
                singles.setdefault(item.segment, []).append(item.row)
        self.items = items
        self._singles = 0
        self._pack_at = 1 << 62
        for segment, rows in singles.items():
            rows.sort()  # of those that are due together, the first in the file comes first
            self.push_rows(segment, sorted(rows, key=segment.table.publish_ms.__getitem__))
        heapq.heapify(self.items)
        self._pack_at = max(PACK_AT, 2 * self._singles)

    def forget(self, segment: Segment) -> None:
        """Drop the rows of a segment."""
        self.items = [item for item in self.items if item.segment is not segment]
        heapq.heapify(self.items)
        self._singles = sum(item.block is None for item in self.items)
