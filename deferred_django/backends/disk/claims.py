"""Claims: the exclusive, crash-safe holds of this process on pending tasks.

A claim is a lock on the bytes of the task's ``add``, freed by the kernel when the process dies.
Taking one: lock, look whether the descriptor's file is still the one at its path, read on to the
end, and look whether the record is still its task's newest. Only then is it held.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Collection, Iterator
from functools import partial

from deferred_django.backends.disk import files, locks, tidy
from deferred_django.backends.disk.due_index import DueIndex
from deferred_django.backends.disk.scanner import Damage
from deferred_django.backends.disk.segment import Entry, Segment
from deferred_django.backends.disk.segment_set import SegmentSet

logger = logging.getLogger("deferred_django.disk")

HELD_RETRY_SECONDS = 0.25
"""How soon a record that somebody else holds is tried again."""


class Claims:
    """Takes and frees claims. Not thread-safe: the tasks storage calls it under its mutex."""

    def __init__(self, segments: SegmentSet, index: DueIndex) -> None:
        self._segments = segments
        self._index = index
        self._finished: deque[Entry] = deque()

    def take(
        self, limit: int, queues: Collection[str] | None, exclude: Collection[str]
    ) -> list[Entry]:
        """Claim due tasks in the order of the index."""
        taken: list[Entry] = []
        overgrown: dict[Segment, bool] = {}
        while len(taken) < limit:
            candidates = iter(partial(self._index.pop, queues, exclude), None)
            try:
                locked = self._lock(candidates, limit - len(taken), overgrown)
            except OSError as error:
                if not taken:
                    raise
                logger.error("no more tasks can be claimed now: %s", error)
                break  # what was claimed before is somebody's to run
            if not locked:
                break
            taken += self._confirm(locked)
        return taken

    def take_these(self, entries: list[Entry]) -> list[Entry]:
        """Claim those of the given tasks that nobody holds."""
        return self._confirm(self._lock(iter(entries), len(entries), None))

    def _lock(
        self, candidates: Iterator[Entry], limit: int, overgrown: dict[Segment, bool] | None
    ) -> dict[Segment, list[Entry]]:
        locked: dict[Segment, list[Entry]] = {}
        retry_at = time.monotonic() + HELD_RETRY_SECONDS
        count = 0
        try:
            for entry in candidates:
                if entry.gone or entry.claimed:
                    continue
                segment = entry.segment
                free = False
                try:
                    if segment.writable and not (
                        overgrown is not None and self._is_overgrown(segment, overgrown)
                    ):
                        free = files.try_lock(segment.fd, entry.offset, entry.length)
                finally:
                    if not free:
                        self._index.hold(entry, retry_at)
                if not free:
                    continue
                entry.claimed = True
                segment.users += 1
                locked.setdefault(segment, []).append(entry)
                if (count := count + 1) == limit:
                    break
        except OSError:
            for entry in itertools.chain(*locked.values()):
                self.let_go(entry)
                self._index.hold(entry, retry_at)
            raise
        return locked

    def _is_overgrown(self, segment: Segment, known: dict[Segment, bool]) -> bool:
        if segment not in known:
            known[segment] = tidy.is_overgrown(segment)
        return known[segment]

    def _confirm(self, locked: dict[Segment, list[Entry]]) -> list[Entry]:
        confirmed: list[Entry] = []
        for segment, entries in locked.items():
            try:
                if files.is_at_path(segment.fd, segment.path):
                    self._segments.read_on(segment)
                else:
                    self._segments.drop(segment)
            except OSError:
                # Nothing is known about these: they are tried again, the rest is unharmed.
                for entry in entries:
                    self.let_go(entry)
                    self._index.hold(entry, time.monotonic() + HELD_RETRY_SECONDS)
                continue
            for entry in entries:
                if entry.gone:
                    self.let_go(entry)
                else:
                    confirmed.append(entry)
        return confirmed

    def with_payloads(self, taken: list[Entry]) -> list[tuple[Entry, bytes]]:
        """Claimed tasks with their contexts; one whose context cannot be read is let go."""
        pairs = []
        by_segment: dict[Segment, list[Entry]] = {}
        for entry in taken:
            by_segment.setdefault(entry.segment, []).append(entry)
        blocks = {segment: segment.read_around(own) for segment, own in by_segment.items()}
        for entry in taken:
            try:
                pairs.append((entry, entry.segment.payload(entry, *blocks[entry.segment])))
            except ValueError as error:
                logger.error("a task is left alone: %s", error)
                damage = Damage(entry.offset, entry.length, "a context that cannot be read")
                entry.segment.scanner.note_damage(damage)
                self.let_go(entry)
            except OSError as error:
                logger.error("a task is tried again later: %s", error)
                self.leave_alone(entry)
        return pairs

    def finish(self, entry: Entry) -> None:
        """Free the claim of a task whose ``rem`` or next ``add`` is written.

        The one method that needs no mutex, so that tasks which end do not wait for one that is
        being claimed: what it leaves undone is done by :meth:`settle`.
        """
        entry.gone = True  # before the unlock: nobody here takes it for a task again
        self._unlock(entry)
        self._finished.append(entry)

    def settle(self) -> None:
        """Forget the tasks that were finished."""
        finished = self._finished
        while finished:
            entry = finished.popleft()
            entry.segment.forget(entry)
            entry.segment.users -= 1

    def put_back(self, entry: Entry, now_ms: int) -> None:
        """Free the claim of a task that may be claimed again at once, by this process too."""
        self.let_go(entry)
        self._index.push(entry, now_ms)

    def leave_alone(self, entry: Entry) -> None:
        """Free a claim; its task, if it is still there, is tried again in a moment."""
        self.let_go(entry)
        if not entry.gone:
            self._index.hold(entry, time.monotonic() + HELD_RETRY_SECONDS)

    def let_go(self, entry: Entry) -> None:
        """Free a claim. What is to be known of the task was written before."""
        entry.claimed = False
        entry.started = False
        entry.segment.users -= 1
        self._unlock(entry)

    def _unlock(self, entry: Entry) -> None:
        try:
            files.unlock(entry.segment.fd, entry.offset, entry.length)
        except OSError as error:  # an unlock of a valid descriptor does not fail
            logger.error("task %s stays claimed: %s", entry.id, error)


def survey(segment: Segment) -> Iterator[tuple[Entry, bool]]:
    """The pending tasks of a segment, each with whether anybody, this process too, claims it."""
    elsewhere = locks.has_claims(segment.fd)
    for entry in segment.tasks.values():
        if not entry.gone:  # finished by another thread in this moment
            held = elsewhere and files.lock_is_held(segment.fd, entry.offset, entry.length)
            yield entry, entry.claimed or held


def payload_of(entry: Entry) -> Iterator[bytes]:
    """The context of a task that is only looked at; nothing if it cannot be read."""
    try:
        yield entry.segment.payload(entry)
    except (OSError, ValueError) as error:
        logger.error("task %s cannot be read: %s", entry.id, error)
