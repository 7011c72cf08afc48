"""Looking at the tasks of a segment without claiming any."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from deferred_django.backends.base import QueueStatus
from deferred_django.backends.disk import files, locks
from deferred_django.backends.disk.segment import Entry, Segment

logger = logging.getLogger("deferred_django.disk")

MAX_BLOCK_BYTES = 256 * 1024


@dataclass(slots=True)
class QueueCounts:
    """How many tasks of one queue are in which state."""

    due: int = 0
    delayed: int = 0
    running: int = 0
    oldest_ms: int | None = None
    """When the first of the due ones was due."""


@dataclass(slots=True)
class Counts:
    """How many tasks are in which state, by queue."""

    queues: dict[str, QueueCounts] = field(default_factory=dict)

    @property
    def due(self) -> int:
        """Of all queues: due and not claimed."""
        return sum(queue.due for queue in self.queues.values())

    @property
    def delayed(self) -> int:
        """Of all queues."""
        return sum(queue.delayed for queue in self.queues.values())

    @property
    def running(self) -> int:
        """Of all queues."""
        return sum(queue.running for queue in self.queues.values())

    @property
    def oldest_ms(self) -> int | None:
        """When the first of the due ones was due."""
        found = [queue.oldest_ms for queue in self.queues.values() if queue.oldest_ms is not None]
        return min(found, default=None)

    @property
    def oldest_age(self) -> float | None:
        """Seconds since then."""
        return _age(self.oldest_ms)

    def by_queue(self) -> dict[str, QueueStatus]:
        """The same for each queue that has any."""
        return {
            name: QueueStatus(
                pending=queue.due,
                delayed=queue.delayed,
                running=queue.running,
                oldest_age=_age(queue.oldest_ms),
            )
            for name, queue in sorted(self.queues.items())
            if queue != QueueCounts()
        }


def _age(moment_ms: int | None) -> float | None:
    return None if moment_ms is None else round(time.time() - moment_ms / 1000, 3)


def lines(segment: Segment, rows: Iterable[int]) -> Iterator[tuple[int, bytes]]:
    """The rows with their records, which are read together where they are close together.

    Where the file does not give it whole, a record is shorter; nothing else is checked.
    """
    offsets, lengths = segment.table.offsets, segment.table.lengths
    near: list[int] = []
    for row in itertools.chain(rows, (-1,)):
        if near and (row < 0 or offsets[row] + lengths[row] - offsets[near[0]] > MAX_BLOCK_BYTES):
            start = offsets[near[0]]
            size = offsets[near[-1]] + lengths[near[-1]] - start
            try:
                block = files.read_at(segment.fd, size, start)
            except OSError as error:
                logger.error("%s cannot be read: %s", segment.path, error)
                block = b""
            for each in near:
                at = offsets[each] - start
                yield each, block[at : at + lengths[each]]
            near = []
        near.append(row)


def entries(segment: Segment) -> Iterator[tuple[Entry, bool, bytes]]:
    """The pending tasks, each with whether anybody, this process too, claims it, and its context.

    One whose record cannot be read is left out, and logged.
    """
    held = _held_elsewhere(segment)
    for row, line in lines(segment, _pending(segment)):
        entry = segment.claimed.get(row) or Entry(segment, row)
        try:
            payload = entry.name(line or segment.line(entry))
        except (OSError, ValueError) as error:
            logger.error("a task cannot be read: %s", error)
        else:
            yield entry, entry.claimed or row in held, payload


def count(segment: Segment, now_ms: float, into: Counts) -> None:
    """Add the segment's tasks to the counts; reads nothing."""
    table, claimed = segment.table, segment.claimed
    publish_ms, kinds_of = table.publish_ms, table.kinds_of
    held = _held_elsewhere(segment)
    kinds = [into.queues.setdefault(queue, QueueCounts()) for _, queue in table.kinds]
    for row in _pending(segment):
        at, counts = publish_ms[row], kinds[kinds_of[row]]
        if row in claimed or row in held:
            counts.running += 1
        elif at > now_ms:
            counts.delayed += 1
        else:
            counts.due += 1
            if counts.oldest_ms is None or at < counts.oldest_ms:
                counts.oldest_ms = at


def _pending(segment: Segment) -> list[int]:
    rows = segment.table.live_rows()
    finished = {row for row, entry in segment.claimed.items() if entry.gone}
    # Finished by another thread in this moment: this one has not taken note of it yet.
    return [row for row in rows if row not in finished] if finished else rows


def _held_elsewhere(segment: Segment) -> set[int]:
    """The rows of tasks that others claim: few, so that they are looked for by halves."""
    held: set[int] = set()
    if not locks.has_claims(segment.fd):
        return held
    rows = segment.table.live_rows()
    offsets, lengths = segment.table.offsets, segment.table.lengths
    parts = [(0, len(rows))] if rows else []
    while parts:
        first, end = parts.pop()
        start, last = offsets[rows[first]], rows[end - 1]
        if files.lock_is_held(segment.fd, start, offsets[last] + lengths[last] - start):
            if end - first == 1:
                held.add(last)
            else:
                middle = (first + end) // 2
                parts += [(first, middle), (middle, end)]
    return held


def problems(segment: Segment) -> list[str]:
    """Sentences about bytes that no write left, and a file that may not be written."""
    found = []
    if segment.scanner.damaged:
        first = segment.scanner.damage[0].offset
        found.append(
            f"{segment.path}: damaged records are skipped: {segment.scanner.damaged:,}, "
            f"the first at byte {first:,}"
        )
    if not segment.writable:
        found.append(f"{segment.path}: may not be written by this user")
    return found
