"""The pending tasks of one segment in columns: some fifty bytes each, whatever their payload.

A backlog may be a million tasks. As objects, with their ids as strings, they would take ten times
the memory, and the garbage collector would go through them again and again. A row holds what says
when a task is to be tried and where its record is; the id and the nonce stay in the file and are
read when they are needed. A row is found again by a hash of the id, which proves nothing: whoever
looks for a task compares the record's beginning in the file.

Rows are in the order of the file and are never moved: those of tasks that are gone stay until the
segment is erased or compacted, so the columns are bounded by what is in the file.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from deferred_django.backends.disk import log_records

GONE = 1
"""Removed, replaced by a later ``add``, or its file is no longer the one at the path."""
CLAIMED = 2
"""Claimed by this process: locks on one descriptor do not keep threads apart, this does."""
HASH_MASK = 0xFFFFFFFF
FIRST_SLOTS = 64


class TaskTable:
    """Columns of equal length, and a hash table of row numbers with linear probing."""

    __slots__ = (
        "_mask",
        "_numbers",
        "_slots",
        "_used",
        "flags",
        "hashes",
        "kinds",
        "kinds_of",
        "lengths",
        "live",
        "live_bytes",
        "offsets",
        "publish_ms",
    )

    def __init__(self) -> None:
        self.offsets = array("q")
        self.lengths = array("I")
        self.publish_ms = array("q")
        self.kinds_of = array("I")
        """Places in ``kinds``."""
        self.hashes = array("I")
        self.flags = bytearray()
        """``GONE`` and ``CLAIMED``; 0 for a task that may be tried."""
        self.live = 0
        """How many tasks are not gone."""
        self.live_bytes = 0
        self.kinds: list[tuple[int, str]] = []
        """Priority and queue: few are different."""
        self._numbers: dict[bytes, int] = {}
        self._slots = array("I", bytes(4 * FIRST_SLOTS))
        """Row numbers plus one, at their hashes; 0 where there is none."""
        self._mask = FIRST_SLOTS - 1
        self._used = 0

    def __len__(self) -> int:
        return len(self.flags)

    def number_of(self, kind: bytes) -> int:
        """The place in ``kinds``; ``ValueError`` for one that no record has."""
        number = self._numbers.get(kind)
        if number is None:
            self.kinds.append(log_records.kind_of(kind))
            number = self._numbers[kind] = len(self.kinds) - 1
        return number

    def priority_of(self, row: int) -> int:
        """The row's priority."""
        return self.kinds[self.kinds_of[row]][0]

    def queue_of(self, row: int) -> str:
        """The name of the row's queue."""
        return self.kinds[self.kinds_of[row]][1]

    def rows_like(self, key: int) -> Iterator[int]:
        """The rows of this hash that are not gone."""
        slots, mask = self._slots, self._mask
        slot = key & mask
        while row := slots[slot]:
            if self.hashes[row - 1] == key and not self.flags[row - 1] & GONE:
                yield row - 1
            slot = (slot + 1) & mask

    def add(
        self, key: int, offset: int, length: int, publish_ms: int, kind: int, *, force: bool = False
    ) -> bool:
        """Add a row; ``False``, and nothing is done, if there is one of this hash already.

        With ``force`` there may be: it is another task's.
        """
        slots, hashes, mask = self._slots, self.hashes, self._mask
        slot = key & mask
        free = -1
        while row := slots[slot]:
            if hashes[row - 1] == key:
                if self.flags[row - 1] & GONE:
                    free = slot if free < 0 else free
                elif not force:
                    return False
            slot = (slot + 1) & mask
        self.publish_ms.append(publish_ms)
        self.offsets.append(offset)
        self.lengths.append(length)
        self.kinds_of.append(kind)
        hashes.append(key)
        self.flags.append(0)
        self.live += 1
        self.live_bytes += length
        if free >= 0:
            slots[free] = len(hashes)
            return True
        slots[slot] = len(hashes)
        self._used += 1
        if self._used * 3 > mask * 2:
            self._spread()
        return True

    def _spread(self) -> None:
        """Make a table of slots with room, of the rows that are not gone."""
        size = FIRST_SLOTS
        while size < self.live * 3:
            size *= 2
        slots = self._slots = array("I", bytes(4 * size))
        mask = self._mask = size - 1
        flags, hashes = self.flags, self.hashes
        for row in range(len(flags)):
            if not flags[row] & GONE:
                slot = hashes[row] & mask
                while slots[slot]:
                    slot = (slot + 1) & mask
                slots[slot] = row + 1
        self._used = self.live

    def live_rows(self) -> list[int]:
        """The rows of tasks that are not gone, in the order of the file."""
        return [row for row, flags in enumerate(self.flags) if not flags & GONE]

    def drop(self, row: int) -> None:
        """The row's task is gone."""
        self.flags[row] |= GONE
        self.live -= 1
        self.live_bytes -= self.lengths[row]

    @classmethod
    def all_gone(cls, rows: int) -> TaskTable:
        """One whose tasks are gone. Only the flags are there: others may still ask for them."""
        table = cls()
        table.flags = bytearray([GONE]) * rows
        return table
