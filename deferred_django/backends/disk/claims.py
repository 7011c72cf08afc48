"""Claims: the exclusive, crash-safe holds of this process on pending tasks.

A claim is a lock on the bytes of the task's ``add``, freed by the kernel when the process dies.
Taking one: lock, look whether the descriptor's file is still the one at its path, read on to the
end, and look whether the record is still its task's newest. Only then is it held.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial

from deferred_django.backends.disk import files, tidy
from deferred_django.backends.disk.due_index import DueIndex, Wanted
from deferred_django.backends.disk.scanner import Damage
from deferred_django.backends.disk.segment import Entry, Segment
from deferred_django.backends.disk.segment_set import SegmentSet

logger = logging.getLogger("deferred_django.disk")

HELD_RETRY_SECONDS = 0.25
"""How soon a record that somebody else holds is tried again."""
MAX_BLOCK_BYTES = 256 * 1024


class Claims:
    """Takes and frees claims. Not thread-safe: the tasks storage calls it under its mutex."""

    def __init__(self, segments: SegmentSet, index: DueIndex) -> None:
        self._segments = segments
        self._index = index
        self._finished: deque[tuple[Entry, bool]] = deque()
        self._taken: list[Entry] = []
        self._tried: tuple[int, int, int] | None = None
        """What the claim that is under way has taken so far; what it tries to lock just now."""
        self._stuck: list[Entry] = []
        """Not claimed, but still locked: the unlock failed."""

    @contextlib.contextmanager
    def taking(self) -> Iterator[None]:
        """Around a claim: if it is interrupted, all that it has taken so far is let go."""
        try:
            yield
        except OSError:
            raise  # what has led to it was let go already
        except BaseException:  # a signal handler's: nobody would ever start these tasks
            for entry in self._taken:
                if entry.claimed:
                    self.leave_alone(entry)
            if self._tried is not None:
                with contextlib.suppress(OSError):
                    files.unlock(*self._tried)
            raise
        finally:
            self._taken.clear()
            self._tried = None

    def take(self, limit: int, wanted: Wanted) -> list[Entry]:
        """Claim due tasks in the order of the index."""
        taken: list[Entry] = []
        usable: dict[Segment, bool] = {}

        def is_usable(segment: Segment) -> bool:
            if segment not in usable:
                usable[segment] = segment.writable and not tidy.is_overgrown(segment)
            return usable[segment]

        while len(taken) < limit:
            retry_at = time.monotonic() + HELD_RETRY_SECONDS
            pop = partial(self._index.pop, wanted, is_usable, retry_at)
            try:
                locked = self._lock(iter(pop, None), limit - len(taken))
            except OSError as error:
                if not taken:
                    raise
                logger.error("no more tasks can be claimed now: %s", error)
                break  # what was claimed before is somebody's to run
            if not locked:
                break
            taken += self._confirm(locked)
        if len(usable) > 1:  # they were locked in order, and looked at by segment
            taken.sort(key=partial(_urgency, wanted))
        return taken

    def find(self, task_ids: Iterable[str]) -> Iterator[tuple[Segment, int]]:
        """The pending tasks of these ids, as far as they were read."""
        for task_id in task_ids:
            for segment in self._segments.segments():
                row = segment.find(task_id)
                if row is not None:
                    yield segment, row

    def take_named(
        self,
        task_ids: Iterable[str],
        limit: int,
        wanted: Wanted,
        now_ms: int,
    ) -> list[Entry]:
        """Claim those of these tasks that are due and that nobody holds."""
        named = []
        for segment, row in self.find(task_ids):
            table = segment.table
            if wanted.includes(table.queue_of(row)) and table.publish_ms[row] <= now_ms:
                named.append((segment, row))
        return self.take_these(named[:limit])

    def take_these(self, rows: list[tuple[Segment, int]], *, strict: bool = False) -> list[Entry]:
        """Claim those of the given tasks that nobody holds.

        With ``strict``, raise ``OSError`` if nothing can be known about one of them.
        """
        return self._confirm(self._lock(iter(rows), len(rows)), strict=strict)

    def _lock(
        self, candidates: Iterator[tuple[Segment, int]], limit: int
    ) -> dict[Segment, list[Entry]]:
        locked: dict[Segment, list[Entry]] = {}
        retry_at = time.monotonic() + HELD_RETRY_SECONDS
        count = 0
        try:
            for segment, row in candidates:
                table = segment.table
                if table.flags[row]:
                    continue
                free = False
                self._tried = segment.fd, table.offsets[row], table.lengths[row]
                try:
                    if segment.writable:
                        free = files.try_lock(*self._tried)
                finally:
                    if not free:
                        self._index.hold(segment, row, retry_at)
                if not free:
                    continue
                segment.users += 1
                entry = segment.take(row)
                self._taken.append(entry)
                self._tried = None
                locked.setdefault(segment, []).append(entry)
                if (count := count + 1) == limit:
                    break
        except OSError:
            for entry in itertools.chain(*locked.values()):
                self.leave_alone(entry)
            raise
        return locked

    def _confirm(self, locked: dict[Segment, list[Entry]], *, strict: bool = False) -> list[Entry]:
        confirmed: list[Entry] = []
        failed: OSError | None = None
        for segment, entries in locked.items():
            try:
                if files.is_at_path(segment.fd, segment.path):
                    self._segments.read_on(segment)
                else:
                    self._segments.drop(segment)
            except OSError as error:
                # Nothing is known about these: they are tried again, the rest is unharmed.
                failed = error
                for entry in entries:
                    self.leave_alone(entry)
                continue
            for entry in entries:
                if entry.gone:
                    self.let_go(entry)
                else:
                    confirmed.append(entry)
        if strict and failed is not None:
            for entry in confirmed:
                self.leave_alone(entry)
            raise failed
        return confirmed

    def with_payloads(
        self, taken: list[Entry], *, strict: bool = False
    ) -> list[tuple[Entry, bytes]]:
        """Claimed tasks with their contexts; one whose record cannot be read is let go.

        With ``strict``, raise ``OSError`` if one cannot be read now.
        """
        pairs = []
        failed: OSError | None = None
        by_segment: dict[Segment, list[Entry]] = {}
        for entry in taken:
            by_segment.setdefault(entry.segment, []).append(entry)
        blocks = {segment: _read_around(segment, own) for segment, own in by_segment.items()}
        for entry in taken:
            block, start = blocks[entry.segment]
            at = entry.offset - start
            try:
                payload = self._named(entry, block[at : at + entry.length])
            except ValueError as error:
                logger.error("a task is left alone: %s", error)
                damage = Damage(entry.offset, entry.length, "a context that cannot be read")
                entry.segment.scanner.note_damage(damage)
                self.let_go(entry)
            except OSError as error:
                failed = error
                logger.error("a task is tried again later: %s", error)
                self.leave_alone(entry)
            else:
                pairs.append((entry, payload))
        if strict and failed is not None:
            for entry, _ in pairs:
                self.leave_alone(entry)
            raise failed
        return pairs

    @staticmethod
    def _named(entry: Entry, line: bytes) -> bytes:
        if line:
            with contextlib.suppress(ValueError):  # it is read by itself before that is believed
                return entry.name(line)
        return entry.name(entry.segment.line(entry))

    def finish(self, entry: Entry) -> None:
        """Free the claim of a task whose ``rem`` or next ``add`` is written.

        The one method that needs no mutex, so that tasks which end do not wait for one that is
        being claimed: what it leaves undone is done by :meth:`settle`.
        """
        entry.gone = True  # before the unlock: nobody here takes it for a task again
        self._finished.append((entry, self._try_to_unlock(entry)))

    def settle(self) -> None:
        """Forget the tasks that were finished, and unlock what could not be unlocked before."""
        finished = self._finished
        while finished:
            entry, unlocked = finished.popleft()
            if not unlocked:
                self._unlock(entry)
            entry.segment.forget(entry)
            entry.segment.users -= 1
        stuck, self._stuck = self._stuck, []
        for entry in stuck:
            entry.segment.users -= 1
            if entry.row not in entry.segment.claimed:  # by this process, once more
                self._unlock(entry)

    def put_back(self, entry: Entry, now_ms: int) -> None:
        """Free the claim of a task that may be claimed again at once, by this process too."""
        self.let_go(entry)
        if not entry.gone:
            self._index.push(entry.segment, entry.row, now_ms)

    def leave_alone(self, entry: Entry) -> None:
        """Free a claim; its task, if it is still there, is tried again in a moment."""
        self.let_go(entry)
        if not entry.gone:
            retry_at = time.monotonic() + HELD_RETRY_SECONDS
            self._index.hold(entry.segment, entry.row, retry_at)

    def let_go(self, entry: Entry) -> None:
        """Free a claim. What is to be known of the task was written before."""
        counted = entry.claimed
        entry.segment.let_go(entry)
        try:
            self._unlock(entry)
        finally:
            entry.segment.users -= counted  # once, though an interrupted call be repeated

    def _unlock(self, entry: Entry) -> None:
        if not self._try_to_unlock(entry):
            entry.segment.users += 1  # the descriptor must be there for the next try
            self._stuck.append(entry)

    @staticmethod
    def _try_to_unlock(entry: Entry) -> bool:
        try:
            files.unlock(entry.segment.fd, entry.offset, entry.length)
        except OSError as error:  # an unlock of a valid descriptor does not fail, as a rule
            logger.error("task %s stays claimed for a moment: %s", entry.id, error)
            return False
        return True


def _urgency(wanted: Wanted, entry: Entry) -> tuple[int, int, int]:
    return wanted.rank(entry.queue), -entry.priority, entry.publish_ms


def _read_around(segment: Segment, entries: list[Entry]) -> tuple[bytes, int]:
    """The bytes that all the entries are in and where they begin; none if they are many."""
    start = min(entry.offset for entry in entries)
    length = max(entry.offset + entry.length for entry in entries) - start
    if len(entries) == 1 or length > MAX_BLOCK_BYTES:
        return b"", start
    try:
        return files.read_at(segment.fd, length, start), start
    except OSError:
        return b"", start  # each is tried by itself
