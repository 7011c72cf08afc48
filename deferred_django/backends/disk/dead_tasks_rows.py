"""Where many lines are, and of which ids: 20 bytes of memory for each.

A row is a line: its offset and its length, in the order of the file. Ids are not kept, a hash of 32
bits is: sorted numbers of hash and row, in buckets, so that one more costs a small move and many
more cost one sort. Equal hashes are candidates only: whoever looks an id up reads it in the file.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

ROW_BITS = 32
ROW_MASK = (1 << ROW_BITS) - 1
_HASH_MASK = (1 << 32) - 1
_BUCKETS = 64
_GONE = ROW_MASK

Span = tuple[int, int]
"""The offset and the length of a line, without its newline."""


def hash_of(task_id: bytes) -> int:
    """The number that stands for an id. Python's hash: nobody can make ids that collide."""
    return hash(task_id) & _HASH_MASK


class Rows:
    """The lines of one file. After :meth:`adder` come any number of adds and then :meth:`settle`,
    and only then the rest."""

    def __init__(self) -> None:
        self.offsets = array("Q")
        self.lengths = array("I")
        self._buckets = [array("Q") for _ in range(_BUCKETS)]
        self._settled = [0] * _BUCKETS
        self._superseded: set[int] = set()

    def __len__(self) -> int:
        """How many ids there are."""
        return len(self.offsets) - len(self._superseded)

    def span(self, row: int) -> Span:
        """Where a row's line is."""
        return self.offsets[row], self.lengths[row]

    # -- adding --------------------------------------------------------------------------------

    def adder(self) -> Callable[[int, int, bytes], None]:
        """What adds a line (offset, length, id) behind the others."""
        add_offset, add_length = self.offsets.append, self.lengths.append
        adders = [bucket.append for bucket in self._buckets]
        row = len(self.offsets)

        def add(offset: int, length: int, task_id: bytes) -> None:
            nonlocal row
            add_offset(offset)
            add_length(length)
            number = hash(task_id) & _HASH_MASK
            adders[number % _BUCKETS](number << ROW_BITS | row)
            row += 1

        return add

    def settle(self, id_at: Callable[[int], bytes | None]) -> None:
        """Put the new rows among the others; ``id_at`` reads the id of a row.

        Of the rows of one id the last counts.
        """
        for number, bucket in enumerate(self._buckets):
            new = len(bucket) - self._settled[number]
            if new == 0:
                continue
            if new * 16 < len(bucket):
                keys = bucket[-new:]
                del bucket[-new:]
                for key in keys:
                    insort(bucket, key)
                doubtful = {key >> ROW_BITS for key in keys}
            else:
                self._buckets[number] = array("Q", sorted(bucket))
                hashes = [key >> ROW_BITS for key in self._buckets[number]]
                doubtful = {one for one, next_one in pairwise(hashes) if one == next_one}
            self._settled[number] = len(bucket)
            for hashed in doubtful:
                self._supersede(self.candidates(hashed), id_at)

    def _supersede(self, rows: Sequence[int], id_at: Callable[[int], bytes | None]) -> None:
        if len(rows) < 2:
            return
        newest: dict[bytes, int] = {}
        for row in rows:
            if row not in self._superseded and (task_id := id_at(row)) is not None:
                if task_id in newest:
                    self._superseded.add(newest[task_id])
                newest[task_id] = row

    # -- looking up ----------------------------------------------------------------------------

    def candidates(self, hashed: int) -> list[int]:
        """The rows that may be of an id with this hash, in the order of the file."""
        bucket = self._buckets[hashed % _BUCKETS]
        first = bisect_left(bucket, hashed << ROW_BITS)
        last = first
        while last < len(bucket) and bucket[last] >> ROW_BITS == hashed:
            last += 1
        return [key & ROW_MASK for key in bucket[first:last]]

    def newest_first(self, skip: int = 0) -> Iterable[Span]:
        """The newest line of each id but ``skip``, from the end. A copy: it does not change."""
        if self._superseded:
            kept = array("I", self._pick(skip))
            offsets = array("Q", (self.offsets[row] for row in kept))
            lengths = array("I", (self.lengths[row] for row in kept))
        else:
            last = max(0, len(self.offsets) - skip)
            offsets, lengths = self.offsets[:last], self.lengths[:last]
            offsets.reverse()
            lengths.reverse()
        return zip(offsets, lengths, strict=True)

    def _pick(self, skip: int) -> Iterator[int]:
        for row in range(len(self.offsets) - 1, -1, -1):
            if row in self._superseded:
                continue
            if skip:
                skip -= 1
            else:
                yield row

    # -- taking out ----------------------------------------------------------------------------

    def take_out(self, starts: Sequence[int], ends: Sequence[int]) -> bool:
        """Follow a copy of the file without these bytes, each of them a row's line, in order.

        ``False`` if a row is not where it was thought: then nothing here is of use any more.
        """
        offsets, lengths, moved_to = array("Q"), array("I"), array("I")
        row = taken = 0
        for start, end in zip(starts, ends, strict=True):
            doomed = row
            if row < len(self.offsets) and self.offsets[row] < start:
                doomed = bisect_left(self.offsets, start, row)
            if doomed == len(self.offsets) or self.offsets[doomed] != start:
                return False
            self._move(row, doomed, taken, offsets, lengths, moved_to)
            moved_to.append(_GONE)
            row = doomed + 1
            taken += end - start
        self._move(row, len(self.offsets), taken, offsets, lengths, moved_to)
        self.offsets, self.lengths = offsets, lengths
        for number, bucket in enumerate(self._buckets):
            kept = (
                key & ~ROW_MASK | new
                for key in bucket
                if (new := moved_to[key & ROW_MASK]) != _GONE
            )
            self._buckets[number] = array("Q", kept)
            self._settled[number] = len(self._buckets[number])
        superseded = (moved_to[row] for row in self._superseded)
        self._superseded = {row for row in superseded if row != _GONE}
        return True

    def _move(
        self,
        first: int,
        last: int,
        taken: int,
        offsets: array[int],
        lengths: array[int],
        moved_to: array[int],
    ) -> None:
        if first < last:
            moved_to.extend(range(len(offsets), len(offsets) + last - first))
            offsets.extend(offset - taken for offset in self.offsets[first:last])
            lengths.extend(self.lengths[first:last])
