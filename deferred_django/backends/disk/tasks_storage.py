"""The tasks write-ahead log: all segments of a store, behind one lock of this process.

What is written where and why is told in ``docs/storage-format.md`` and
``docs/decisions/001-tasks-write-ahead-log.md``.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Collection, Iterable, Iterator

from deferred_django import ids
from deferred_django.backends.disk import descriptors, files, locks, log_records, tidy
from deferred_django.backends.disk.boot import boot_id
from deferred_django.backends.disk.claims import HELD_RETRY_SECONDS, Claims
from deferred_django.backends.disk.due_index import DueIndex
from deferred_django.backends.disk.log_records import Run
from deferred_django.backends.disk.names import StoreNames
from deferred_django.backends.disk.rescue import Rescue
from deferred_django.backends.disk.segment import Entry, Segment, UnsyncedAdd
from deferred_django.backends.disk.segment_set import SegmentSet
from deferred_django.backends.disk.syncer import Syncer
from deferred_django.backends.disk.watch import POLL_SECONDS, DirectoryWatch
from deferred_django.backends.disk.writer import SegmentWriter

logger = logging.getLogger("deferred_django.disk")

WORKER_SYNC_SECONDS = 0.5
"""The period of the timer where ``fsync_frequency`` is 0: for what workers append."""
FRUITLESS_WAKES = 3
MAX_THROTTLE_SECONDS = 0.02


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
        self._reset()
        descriptors.on_fork(self._after_fork)

    def _reset(self) -> None:
        # Reentrant: a tick that runs inline (no threads) comes from within a call.
        self._mutex = threading.RLock()
        self._index = DueIndex()
        self._segments = SegmentSet(self.names, self._found)
        self._claims = Claims(self._segments, self._index)
        self._watch: DirectoryWatch | None = None
        self._claiming = False
        self._fruitless = 0
        self._woken = False

    def _after_fork(self) -> None:
        self._reset()
        self._writer.reset()
        self._syncer.reset()

    # -- producing -----------------------------------------------------------------------------

    def add(
        self, task_id: str, payload: bytes, *, publish_at: float, queue: str, priority: int
    ) -> None:
        """Append a pending task; durability and errors as :meth:`Backend.add_task` says."""
        log_records.check_fields(task_id, queue, priority)
        nonce = ids.new_nonce()
        record = log_records.add(task_id, nonce, _to_ms(publish_at), priority, queue, payload)
        self._writer.append(task_id, nonce, record)

    # -- reading -------------------------------------------------------------------------------

    def _found(self, entries: list[Entry]) -> None:
        now_ms = _now_ms()
        for entry in entries:
            self._index.push(entry, now_ms)

    def survey(self) -> list[tuple[Entry, bool]]:
        """All pending tasks, each with whether somebody has claimed it."""
        with self._mutex:
            self._segments.refresh()
            return [pair for segment in self._segments.segments() for pair in _survey(segment)]

    def payload(self, entry: Entry) -> bytes | None:
        """The context of a surveyed task; ``None`` if it is gone meanwhile."""
        with self._mutex:
            if entry.gone:
                return None
            try:
                return entry.segment.payload(entry)
            except (OSError, ValueError):
                return None

    def problems(self) -> list[str]:
        """Sentences about files that cannot be read and bytes that no write left."""
        with self._mutex:
            found = [f"{name}: {why}" for name, why in sorted(self._segments.unreadable.items())]
            for segment in self._segments.segments():
                damaged = segment.scanner.damaged + segment.unknown_records
                if damaged:
                    found.append(f"{segment.name}: {damaged} damaged records")
                if not segment.writable:
                    found.append(f"{segment.name}: may not be written by this user")
            found += [f"{name}: a damaged segment that was kept" for name in self.names.asides()]
            return found

    # -- claiming ------------------------------------------------------------------------------

    def claim(
        self,
        limit: int,
        queues: Collection[str] | None,
        exclude: Collection[str],
        task_ids: Collection[str] | None,
    ) -> list[tuple[Entry, bytes]]:
        """Claim due tasks; see :meth:`Backend.claim_tasks`. Each comes with its payload."""
        with self._mutex:
            self._claiming = True
            self._segments.refresh(self._watch)
            now_ms = _now_ms()
            self._index.advance(now_ms, time.monotonic())
            if task_ids is None:
                taken = self._claims.take(limit, queues, exclude)
            else:
                named = [
                    entry
                    for entry in self._named(task_ids)
                    if entry.publish_ms <= now_ms
                    and (queues is None or entry.queue in queues)
                    and entry.queue not in exclude
                ]
                taken = self._claims.take_these(named[:limit])
            if taken:
                self._fruitless = 0
            claimed = [pair for entry in taken for pair in self._with_payload(entry)]
        self._syncer.soon()
        return claimed

    def _named(self, task_ids: Iterable[str]) -> Iterator[Entry]:
        for task_id in task_ids:
            for segment in self._segments.segments():
                if task_id in segment.tasks:
                    yield segment.tasks[task_id]

    def _with_payload(self, entry: Entry) -> Iterator[tuple[Entry, bytes]]:
        try:
            yield entry, entry.segment.payload(entry)
        except ValueError as error:
            logger.error("a task is left alone: %s", error)
            entry.segment.unknown_records += 1
            self._let_go(entry, try_again=False)
        except OSError as error:
            logger.error("a task is tried again later: %s", error)
            self._let_go(entry)

    def _let_go(self, entry: Entry, *, try_again: bool = True) -> None:
        self._claims.let_go(entry)
        if try_again and not entry.gone:
            self._index.hold(entry, time.monotonic() + HELD_RETRY_SECONDS)

    def start(self, entry: Entry) -> None:
        """Write the task's ``run``; without it the task must not be started."""
        run = Run(ids.process_token(), boot_id(), _now_ms())
        self._append(entry, log_records.run(entry.id, entry.nonce, run))
        entry.started = True

    def complete(self, entry: Entry) -> None:
        """Write the task's ``rem`` and let go of it."""
        self._append(entry, log_records.rem(entry.id, entry.nonce))
        self._finish(entry)

    def reschedule(self, entry: Entry, payload: bytes, publish_at: float) -> None:
        """Write the task anew behind its old record, and only then let go of that."""
        nonce = ids.new_nonce()
        record = log_records.add(
            entry.id, nonce, _to_ms(publish_at), entry.priority, entry.queue, payload
        )
        self._append(entry, record, UnsyncedAdd(entry.id, nonce, record))
        self._finish(entry)

    def release(self, entry: Entry, *, hold: bool) -> None:
        """Put the task back; a start of this claim does not count."""
        if entry.started:
            self._append(entry, log_records.end(entry.id, entry.nonce))
            entry.started = False
        if not hold:
            with self._mutex:
                self._let_go(entry)

    def _append(self, entry: Entry, record: bytes, added: UnsyncedAdd | None = None) -> None:
        segment = entry.segment
        files.append_record(segment.fd, record)  # the claim keeps the descriptor open
        with self._mutex:
            if added is not None:
                segment.unsynced_adds.append(added)
            else:
                segment.unsynced.append(record)
        self._syncer.soon()

    def _finish(self, entry: Entry) -> None:
        with self._mutex:
            entry.gone = True
            entry.segment.forget(entry)
            self._claims.let_go(entry)

    def remove(self, task_id: str) -> bool:
        """Drop a pending task, durably; ``False`` if there is none or it is claimed."""
        with self._mutex:
            self._segments.refresh()
            named = list(self._named([task_id]))
            taken = self._claims.take_these(named)
            removed: list[Segment] = []
            try:
                for entry in taken:
                    self._append(entry, log_records.rem(entry.id, entry.nonce))
                    entry.gone = True
                    entry.segment.forget(entry)
                    removed.append(entry.segment)
                for segment in removed:
                    files.fsync(segment.fd)
            finally:
                for entry in taken:
                    self._let_go(entry)
            return bool(removed) and len(taken) == len(named)

    # -- waiting -------------------------------------------------------------------------------

    def wait(self, timeout: float) -> None:
        """Return once there may be something to claim; see :meth:`Backend.wait`."""
        with self._mutex:
            if self._watch is None:
                self._watch = DirectoryWatch(self.names.path)
                if self._woken:  # before there was anything to wake
                    return
            watch = self._watch
            next_in = self._index.seconds_to_next(_now_ms(), time.monotonic())
            # Other workers' appends wake an idle one too. It gets slower the more often in vain.
            vain = self._fruitless - FRUITLESS_WAKES
            self._fruitless += 1
        timeout = min(timeout, POLL_SECONDS if next_in is None else min(next_in, POLL_SECONDS))
        if vain > 0 and timeout > MAX_THROTTLE_SECONDS:
            watch.wait_for_wake(min(0.001 * 2 ** min(vain, 10), MAX_THROTTLE_SECONDS))
        began = time.monotonic()
        watch.wait(timeout)
        if time.monotonic() - began >= min(timeout, MAX_THROTTLE_SECONDS):
            self._fruitless = 0

    def wake(self) -> None:
        """End a wait early. A signal handler may call it: it takes no lock."""
        self._woken = True
        watch = self._watch
        if watch is not None:
            watch.wake()

    # -- durability and order ------------------------------------------------------------------

    def sync(self) -> None:
        """Make durable all that this process appended; ``OSError`` if that is not possible."""
        self._writer.sync()
        error = self._sync_segments()
        if error is not None:
            raise error

    def _tick(self) -> bool:
        more = self._writer.tick()
        error = self._sync_segments()
        with self._mutex:
            return more or error is not None or self._claiming

    def _sync_segments(self) -> OSError | None:
        """Fsync what was appended under claims, and once what a dead owner left unsynced."""
        with self._mutex:
            jobs = []
            for segment in self._segments.all_open():
                dirty = bool(segment.unsynced or segment.unsynced_adds)
                if self._claiming and segment.writable:
                    free = not locks.is_owned(segment.fd)
                    dirty = dirty or (free and not segment.is_synced_free)
                    segment.is_synced_free = free
                if dirty:
                    segment.users += 1
                    jobs.append((segment, segment.unsynced, segment.unsynced_adds))
                    segment.unsynced, segment.unsynced_adds = [], []
        failed = None
        for segment, appended, adds in jobs:
            try:
                files.fsync(segment.fd)
            except OSError as error:
                failed = error
                logger.error("%s: what was appended is not durable: %s", segment.path, error)
                self._repeat(segment, appended, adds)
            finally:
                with self._mutex:
                    segment.users -= 1
        return failed

    def _repeat(self, segment: Segment, appended: list[bytes], adds: list[UnsyncedAdd]) -> None:
        """A failed fsync is a lost write: removals are appended again, tasks move elsewhere."""
        segment.is_synced_free = False
        if not files.is_at_path(segment.fd, segment.path):
            return  # replaced: a compaction made what it copied durable
        try:
            files.append_record(segment.fd, b"".join(appended) or b"\n")
        except OSError as error:
            logger.error("%s: %s", segment.path, error)
        with self._mutex:
            segment.unsynced = appended + segment.unsynced
        if adds:
            own = Segment.open(segment.name, segment.path)
            self._writer.rescue(Rescue(own, adds, close_when_done=True))

    def maintain(self) -> None:
        """Erase drained segments, compact mostly dead ones, remove what killed processes left."""
        with self._mutex:
            self._segments.refresh(self._watch)
            for segment in self._segments.segments():
                try:
                    if tidy.tidy(self.names, segment, self._segments.read_on):
                        self._segments.drop(segment)
                except FileNotFoundError:
                    pass  # somebody else erased it
                except OSError as error:
                    logger.warning("%s could not be tidied: %s", segment.path, error)
            tidy.remove_stale_temps(self.names, self.names.listing())
            self._segments.refresh()

    def close(self) -> None:
        """Make durable what is not, and let go of everything but claims that are still held."""
        self._syncer.stop()
        try:
            if os.path.isdir(self.names.path):
                self._writer.close()
                error = self._sync_segments()
                if error is not None:
                    raise error
        finally:
            with self._mutex:
                self._claiming = False
                self._segments.close()
                if self._watch is not None:
                    self._watch.close()
                    self._watch = None


def _now_ms() -> int:
    return int(time.time() * 1000)


def _to_ms(seconds: float) -> int:
    # Rounded down, so that what is due now is due at once; whole milliseconds survive the float.
    return math.floor(seconds * 1000 + 0.001)


def _survey(segment: Segment) -> Iterator[tuple[Entry, bool]]:
    claimed = locks.has_claims(segment.fd)
    for entry in segment.tasks.values():
        yield (
            entry,
            entry.claimed
            or (claimed and files.lock_is_held(segment.fd, entry.offset, entry.length)),
        )
