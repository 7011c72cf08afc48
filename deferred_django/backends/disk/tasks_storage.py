"""The tasks write-ahead log: all segments of a store, behind one lock of this process.

What is written where and why: ``docs/storage-format.md`` and ``docs/decisions/``. It is longer than
300 lines because all of it shares that lock.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

from deferred_django import ids
from deferred_django.backends.base import MAX_RECORD_BYTES, NewTask
from deferred_django.backends.disk import descriptors, files, log_records, survey, tidy
from deferred_django.backends.disk.boot import boot_id
from deferred_django.backends.disk.claims import Claims
from deferred_django.backends.disk.due_index import DueIndex, Wanted
from deferred_django.backends.disk.log_records import Run
from deferred_django.backends.disk.names import StoreNames
from deferred_django.backends.disk.segment import Entry, Segment
from deferred_django.backends.disk.segment_set import SegmentSet
from deferred_django.backends.disk.survey import Counts
from deferred_django.backends.disk.syncer import Syncer
from deferred_django.backends.disk.tally import Tally
from deferred_django.backends.disk.waiter import Waiter
from deferred_django.backends.disk.worker_appends import WorkerAppends
from deferred_django.backends.disk.writer import SegmentWriter

logger = logging.getLogger("deferred_django.disk")

WORKER_SYNC_SECONDS = 0.5
"""The period of the timer where ``fsync_frequency`` is 0: for what workers append."""
SLICE_BYTES = 16 * 1024
"""So much of a backlog is read before each claim: a small part of what its tasks cost."""
HURRY_BYTES = 256 * SLICE_BYTES
"""The same while there is nothing to claim."""
MAINTAIN_SLICES = 256
"""As many are read by claims, or by housekeeping, from one of its rounds to the next."""


class TasksStorage:
    """Pending tasks on disk. Thread-safe; touches no file before it has something to do."""

    def __init__(
        self,
        path: str,
        prefix: str,
        *,
        fsync_frequency: float = 0.5,
        file_permissions: int = 0o600,
    ) -> None:
        self.names = StoreNames(path, prefix)
        self._syncer = Syncer(fsync_frequency or WORKER_SYNC_SECONDS, self._tick)
        self._writer = SegmentWriter(
            self.names,
            file_permissions=file_permissions,
            sync_each=fsync_frequency == 0,
            sync_soon=self._syncer.soon,
        )
        self.tally = Tally(self.names)
        self._reset()
        descriptors.on_fork(self._after_fork)

    def _reset(self) -> None:
        # Reentrant: a tick that runs inline (no threads) comes from within a call.
        self._mutex = threading.RLock()
        self._index = DueIndex()
        self._segments = SegmentSet(self.names, self._found, self._index.forget)
        self._claims = Claims(self._segments, self._index)
        self._appends = WorkerAppends(self._segments, self._mutex, self._writer)
        self._waiter = Waiter(self.names.path)
        self._claiming, self._slices, self.cut_short = False, 0, False

    def _after_fork(self) -> None:
        for segment in self._segments.all_open():
            segment.fd = -1  # a claim of the parent's must not lead to whatever has the number now
        self._reset()
        self._writer.reset()
        self._syncer.reset()

    # -- producing -----------------------------------------------------------------------------

    def add(
        self, task_id: str, payload: bytes, *, publish_at: float, queue: str, priority: int
    ) -> None:
        """Append a pending task; durability and errors as :meth:`Backend.add_task` says."""
        log_records.check_fields(task_id, queue, priority)
        at, nonce = log_records.milliseconds(publish_at), ids.new_nonce()
        self._writer.append(log_records.add(task_id, nonce, at, priority, queue, payload))
        if self.tally.is_counting and publish_at <= time.time():
            self.tally.added(1)

    def add_together(self, tasks: Sequence[NewTask]) -> list[str]:
        """Append several by one write; see :meth:`Backend.add_tasks`."""
        now, names, added = time.time(), [], []
        for task in tasks:
            name = ids.new_id() if task.task_id is None else task.task_id
            log_records.check_fields(name, task.queue, task.priority)
            at = log_records.milliseconds(now if task.publish_at is None else task.publish_at)
            fields = name, ids.new_nonce(), at, task.priority, task.queue, task.context
            added.append(log_records.add(*fields))
            names.append(name)
        if sum(map(len, added)) > MAX_RECORD_BYTES:
            raise ValueError(
                f"{len(added):,} tasks of {sum(map(len, added)):,} bytes are more than one write "
                f"takes, which is {MAX_RECORD_BYTES:,} bytes: enqueue them in several parts"
            )
        if added:
            self._writer.append_together(added)
        if self.tally.is_counting:
            now = time.time()
            self.tally.added(sum(t.publish_at is None or t.publish_at <= now for t in tasks))
        return names

    # -- reading -------------------------------------------------------------------------------

    def _found(self, segment: Segment, rows: range) -> None:
        if self._claiming:
            self._index.push_rows(segment, rows, _now_ms())

    def survey(self) -> list[tuple[Entry, bool]]:
        """All pending tasks, each with whether somebody has claimed it."""
        return [(entry, claimed) for entry, claimed, _ in self.survey_with_payloads()]

    def survey_with_payloads(self) -> list[tuple[Entry, bool, bytes]]:
        """The same with their contexts."""
        with self._reading():
            return [found for each in self._looked_at() for found in survey.entries(each)]

    def overview(self) -> tuple[Counts, list[str]]:
        """How many pending tasks there are, and sentences about what is wrong."""
        counts, now_ms = Counts(), time.time() * 1000
        found: list[str] = []
        with self._reading():
            for segment in self._looked_at():
                survey.count(segment, now_ms, counts)
                found += survey.problems(segment)
            if self._claiming:
                found += self._segments.crowd()
            found += [f"{name}: a damaged segment was kept" for name in self.names.asides()]
            return counts, self._segments.problems() + found

    def _looked_at(self) -> Iterator[Segment]:
        return self._segments.each(all_of_them=not self._claiming)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Segments are read for a look; only a process that claims keeps them open and known.

        A web process that showed a status page once would else pin the space of erased files.
        """
        with self._mutex:
            self._claims.settle()
            self._segments.refresh()
            try:
                yield
            finally:
                if not self._claiming:
                    self._segments.close()
                    self._index.clear()

    def pending_count(self, max_age: float) -> int:
        """How many tasks are due or run; see :meth:`Backend.pending_count`."""
        self._syncer.soon()  # whose ticks let go of what was opened for it
        return self.tally.count(max_age)

    def problems(self) -> list[str]:
        """Sentences about files that cannot be read and bytes that no write left."""
        return self.overview()[1]

    # -- claiming ------------------------------------------------------------------------------

    def claim(
        self,
        limit: int,
        queues: Collection[str] | None,
        exclude: Collection[str],
        task_ids: Collection[str] | None,
        prefer: Sequence[str] = (),
    ) -> list[tuple[Entry, bytes]]:
        """Claim due tasks; see :meth:`Backend.claim_tasks`. Each comes with its payload.

        While a backlog is read in slices it is the best of what was read. Only when all was, and
        there is none, are none returned; or if it is woken, which ``cut_short`` tells then.
        """
        budget, wanted = SLICE_BYTES, Wanted(queues, exclude, prefer)
        self._slices += 1
        while True:
            with self._mutex, self._claims.taking():
                self._claims.settle()
                if not self._claiming:
                    self._claiming = True
                    self._segments.close()  # what was read for a look is not in the index
                all_read = self._segments.refresh(self._waiter.watch, budget)
                self._index.advance(_now_ms(), time.monotonic())
                if task_ids is None:
                    taken = self._claims.take(limit, wanted)
                else:  # one of them may be in what was not read
                    named = task_ids if all_read else ()
                    taken = self._claims.take_named(named, limit, wanted, _now_ms())
                if taken:
                    self._waiter.not_in_vain()
                claimed = self._claims.with_payloads(taken)
                wants_turns = all_read and self._segments.wants_turns()
            more = not claimed and (self._take_turns() if wants_turns else not all_read)
            self.cut_short = more and self._waiter.woken
            if not more or self.cut_short:
                if self._segments.any_open:  # an idle worker on an empty store has nothing to sync
                    self._syncer.soon()
                return claimed
            budget = HURRY_BYTES

    def _take_turns(self) -> bool:
        """Close idle segments for others, once what was appended to them is durable."""
        self._appends.sync(free_ones=True, patient=True)
        with self._mutex:
            # Else they would have their turns for ever, with nothing in them.
            drained = [each for each in self._segments.segments() if not each.table.live]
            erased = self._tidy(drained)
            return self._segments.take_turns() or erased

    def _tidy(self, segments: list[Segment]) -> bool:
        tidied = [
            each for each in segments if tidy.tidied(self.names, each, self._segments.read_on)
        ]
        for segment in tidied:
            self._segments.drop(segment)
        return bool(tidied)

    def start(self, entry: Entry) -> None:
        """Write the task's ``run``; without it the task must not be started."""
        run = Run(ids.process_token(), boot_id(), _now_ms())
        self._append(entry, log_records.run(entry.id, entry.nonce, run))
        entry.runs += (run,)
        entry.started = True

    def complete(self, entry: Entry) -> None:
        """Write the task's ``rem`` and let go of it."""
        self._append(entry, log_records.rem(entry.id, entry.nonce))
        self._claims.finish(entry)

    def reschedule(self, entry: Entry, payload: bytes, publish_at: float) -> None:
        """Write the task anew behind its old record, and only then let go of that."""
        self._appends.append_retry(entry, payload, log_records.milliseconds(publish_at))
        self._syncer.soon()
        self._claims.finish(entry)

    def release(self, entry: Entry, *, hold: bool) -> None:
        """Put the task back; a start of this claim does not count."""
        if entry.started:
            self._appends.append_end(entry)
            self._syncer.soon()
            entry.runs = entry.runs[:-1]
            entry.started = False
        if not hold:
            with self._mutex:
                self._claims.put_back(entry, _now_ms())

    def forgive(self, entry: Entry) -> None:
        """Put the task back; the last run, if a worker died under it, does not count."""
        entry.started = bool(entry.runs)
        self.release(entry, hold=False)

    def _append(self, entry: Entry, record: bytes) -> None:
        self._appends.append(entry.segment, record)  # the claim keeps the descriptor open
        self._syncer.soon()

    def remove(self, task_id: str) -> bool:
        """Drop a pending task, durably; ``False`` if there is none or it is claimed."""
        with self._reading(), self._claims.taking():
            began = time.monotonic()
            while not (named := list(self._claims.find([task_id]))):
                if not self._segments.take_turns(began, durable=self._claiming):
                    break
                self._segments.refresh()
            if not named:
                self._segments.check_readable(began)
            found = self._claims.take_these(named, strict=True)
            taken = [entry for entry, _ in self._claims.with_payloads(found, strict=True)]
            removed: list[Segment] = []
            try:
                for entry in taken:
                    self._append(entry, log_records.rem(entry.id, entry.nonce))
                    entry.gone = True
                    entry.segment.forget(entry)
                    removed.append(entry.segment)
                for segment in removed:
                    segment.fsync()
            finally:
                for entry in taken:
                    self._claims.leave_alone(entry)
            return bool(removed) and len(taken) == len(named)

    # -- waiting -------------------------------------------------------------------------------

    def wait(self, timeout: float) -> None:
        """Return once there may be something to claim; see :meth:`Backend.wait`."""
        with self._mutex:
            if self._claiming and not self._segments.all_read:
                self._waiter.woken = False
                return
            next_in = self._index.seconds_to_next(_now_ms(), time.monotonic())
        self._waiter.wait(timeout if next_in is None else min(timeout, next_in))

    def wake(self) -> None:
        """End a wait, or a claim in vain, early. A signal handler may call it: it takes no lock."""
        self._waiter.wake()

    # -- durability and order ------------------------------------------------------------------

    def sync(self) -> None:
        """Make durable all that this process appended; ``OSError`` if that is not possible."""
        self._writer.sync()
        if self._appends.sync(free_ones=self._claiming) is None:
            return
        # What that may have lost is set aside to be written anew: do it, and look again.
        self._writer.sync()
        error = self._appends.sync(free_ones=self._claiming)
        if error is not None:
            raise error

    def _tick(self) -> bool:
        counting = self.tally.tick()
        more = self._writer.tick() or counting
        error = self._appends.sync(free_ones=self._claiming, patient=True)
        with self._mutex:
            self._claims.settle()
            return more or error is not None or (self._claiming and self._segments.any_open)

    def maintain(self) -> None:
        """Erase drained segments, compact mostly dead ones, remove what killed processes left."""
        slices, self._slices = MAINTAIN_SLICES - self._slices, 0
        for _ in range(max(1, slices)):
            if self._read_a_slice():
                break
            time.sleep(0.002)  # let those have the mutex that claim
        with self._mutex:
            self._claims.settle()
            self._tidy(self._segments.segments())
            tidy.remove_stale_temps(self.names, self.names.listing())
            self._segments.refresh(self._waiter.watch, SLICE_BYTES)

    def _read_a_slice(self) -> bool:
        with self._mutex:
            self._claims.settle()
            return self._segments.refresh(self._waiter.watch, SLICE_BYTES)

    def close(self) -> None:
        """Make durable what is not, and let go of everything but claims that are still held."""
        self._syncer.stop()
        try:
            # Where the parent is gone too, that was on purpose: nothing is made again.
            if files.is_directory(os.path.dirname(os.path.abspath(self.names.path))):
                self.sync()
        finally:
            self.tally.close()
            self._writer.let_go()
            with self._mutex:
                self._claims.settle()
                self._claiming = False
                self._segments.close()
                self._index.clear()
                self._waiter.close()


def _now_ms() -> int:
    return int(time.time() * 1000)
