"""The one segment that this process owns: adoption, appending, rotation, fsync.

Locking inside the process: ``_mutex`` guards the state and is held for a write, never for an
fsync; ``_sync_lock`` is held by the one thread that fsyncs, and is taken before ``_mutex``.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from deferred_django import ids
from deferred_django.backends.disk import files, locks, records
from deferred_django.backends.disk.names import StoreNames
from deferred_django.backends.disk.rescue import Rescue, withdraw
from deferred_django.backends.disk.segment import Segment, UnsyncedAdd

logger = logging.getLogger("deferred_django.disk")

ROTATE_BYTES = 2_000_000
MAX_ROTATE_BYTES = 16_000_000
GROWTH = 1.5
IDLE_SECONDS = 60.0
UNSYNCED_BYTES = 8_000_000
"""So much may wait for the timer's fsync; more is synced at once."""
ADOPT_TRIES = 16
MAKE_TRIES = 100
FAILED_KEPT = 4
TAIL_BYTES = 64 * 1024
_NOT_YET = OSError(errno.EAGAIN, "tasks that run now are not durable yet")
_FINISHED_BYTES = 150
"""About what a worker appends for a task that it has run: a ``run`` and a ``rem``."""


@dataclass(slots=True, eq=False)
class OwnedSegment:
    """A segment whose ownership byte this process has locked."""

    name: str
    path: str
    fd: int
    size: int = 0
    added: int = 0
    added_bytes: int = 0
    durable: int = 0
    """How many of the ``added`` an fsync has covered."""
    unsynced: list[UnsyncedAdd] = field(default_factory=list)
    unsynced_bytes: int = 0
    used_at: float = field(default_factory=time.monotonic)
    error: OSError | None = None
    """Why it is not trusted any more."""

    def reader(self) -> Segment:
        """The tasks in it, read on the descriptor that owns it."""
        return Segment(self.name, self.path, self.fd, writable=True)

    def release(self) -> None:
        """Let others adopt or erase it. Explicit, for a child that shares the descriptor."""
        with contextlib.suppress(OSError):
            locks.release_ownership(self.fd)
        files.close(self.fd)


class SegmentWriter:
    """Appends this process's new tasks. Thread-safe; touches no file before the first append."""

    def __init__(
        self,
        names: StoreNames,
        *,
        file_permissions: int,
        sync_each: bool,
        sync_soon: Callable[[], None],
    ) -> None:
        self._names = names
        self._permissions = file_permissions
        self._sync_each = sync_each
        self._sync_soon = sync_soon
        self.rotate_bytes = ROTATE_BYTES
        self.reset()

    def reset(self) -> None:
        """Own nothing (also in a forked child, whose descriptors are closed already)."""
        self._mutex = threading.Lock()
        self._sync_lock = threading.Lock()
        self._current: OwnedSegment | None = None
        self._retired: list[OwnedSegment] = []
        self._failed: list[OwnedSegment] = []
        self._distrusted: set[str] = set()
        """Names of segments whose fsync failed in this process: never adopted."""
        self._rescues: list[Rescue] = []
        self._limit = float(self.rotate_bytes)

    # -- appending -----------------------------------------------------------------------------

    def append(self, task_id: str, nonce: str, record: bytes) -> None:
        """Append an ``add``. On return it survives this process; the disk has it after a sync.

        With ``sync_each`` the disk has it on return. After an ``OSError`` the task is not in the
        store.
        """
        with self._mutex:
            segment = self._append(UnsyncedAdd(task_id, nonce, record))
            number = segment.added
        self._sync_soon()
        if self._sync_each:
            self._sync_through(segment, number)
        elif segment.unsynced_bytes > UNSYNCED_BYTES:
            self.sync()

    def _append(self, added: UnsyncedAdd) -> OwnedSegment:
        segment = self._current
        if segment is None:
            segment = self._current = self._open()
        files.append_record(segment.fd, added.record)
        size = len(added.record)
        segment.size += size
        segment.added += 1
        segment.added_bytes += size
        segment.unsynced_bytes += size
        segment.unsynced.append(added)
        if segment.size > self._limit:
            self._rotate(segment)
        return segment

    def _rotate(self, segment: OwnedSegment) -> None:
        """Let the next append open another; the sync that follows lets go of this one.

        Where next to nothing of it was finished the backlog grows, and so does the next limit:
        a long queue is a few large files rather than thousands of small ones.
        """
        self._retired.append(segment)
        self._current = None
        finished = max(0, segment.size - segment.added_bytes) / _FINISHED_BYTES
        if finished < segment.added / 3:
            self._limit = min(self._limit * GROWTH, MAX_ROTATE_BYTES)
        else:
            self._limit = float(self.rotate_bytes)

    # -- opening -------------------------------------------------------------------------------

    def _open(self) -> OwnedSegment:
        if not os.path.isdir(self._names.path):
            files.make_directory(self._names.path, self._permissions)
        segment = self._adopt() or self._make()
        try:
            # Whoever made the file: its name must be durable before the first acknowledgement.
            files.fsync_directory(self._names.path)
        except OSError:
            segment.release()
            raise
        return segment

    def _adopt(self) -> OwnedSegment | None:
        tries = 0
        for name in self._names.segments():
            path = self._names.at(name)
            try:
                size = os.stat(path).st_size
                if size > self._limit * 0.75 or name in self._distrusted:
                    continue
                if (tries := tries + 1) > ADOPT_TRIES:
                    return None
                fd = files.open_file(path, os.O_RDWR | os.O_APPEND)
            except OSError:
                continue  # gone, or not ours to write: the readers report what is unreadable
            segment = self._owned(name, path, fd)
            if segment is None:
                continue
            segment.size = os.fstat(fd).st_size
            if not self._look_at_tail(segment):
                segment.release()
                continue
            return segment
        return None

    def _make(self) -> OwnedSegment:
        for _ in range(MAKE_TRIES):
            name = self._names.new_segment()
            path = self._names.at(name)
            fd = files.create_file(path, os.O_RDWR | os.O_APPEND, self._permissions)
            segment = self._owned(name, path, fd)
            if segment is not None:
                return segment
        raise OSError(errno.EAGAIN, "every new segment was erased before it could be locked", path)

    def _owned(self, name: str, path: str, fd: int) -> OwnedSegment | None:
        """Lock, and only then look whether the file is still the one at its path."""
        try:
            if locks.try_ownership(fd):
                if files.is_at_path(fd, path):
                    return OwnedSegment(name, path, fd)
                locks.release_ownership(fd)
        except OSError:
            files.close(fd)
            raise
        files.close(fd)
        return None

    def _look_at_tail(self, segment: OwnedSegment) -> bool:
        """Let new ids start behind the newest here; ``False`` if foreign bytes are at the end."""
        scanner = records.Scanner(max(0, segment.size - TAIL_BYTES), heads_only=True)
        newest = 0
        for _, _, body in scanner.read(segment.fd):
            if body.startswith(b"add:"):
                seconds = ids.seconds_of(body[4:].partition(b":")[0].decode("ascii", "replace"))
                newest = max(newest, seconds or 0)
        ids.start_from(newest)
        # The first line of the window is cut, as a rule, and says nothing.
        return scanner.damaged - (1 if segment.size > TAIL_BYTES else 0) <= 0

    # -- fsync ---------------------------------------------------------------------------------

    def _sync_through(self, segment: OwnedSegment, number: int) -> None:
        """Return once the ``number``-th add is durable; threads that wait share one fsync."""
        with self._sync_lock:
            if segment.durable < number:
                self._sync_all()
            if segment.durable < number:
                raise segment.error or OSError(errno.EIO, "could not be fsynced", segment.path)

    def sync(self) -> None:
        """Fsync all that was appended. A failure is mended by writing it anew elsewhere.

        Raises ``OSError`` only when what was appended is not durable in any file.
        """
        with self._sync_lock:
            errors = self._sync_all()
            error = self._mend()
            if self._rescues:
                raise error or next(iter(errors.values()), _NOT_YET)

    def tick(self) -> bool:
        """What the timer calls: sync, let go when idle. ``False`` when nothing is left to do."""
        with self._sync_lock:
            self._sync_all()
            self._mend()
            with self._mutex:
                segment = self._current
                if segment is not None:
                    idle = time.monotonic() - segment.used_at > IDLE_SECONDS
                    if idle and not segment.unsynced:
                        self._current = None
                        segment.release()
                return bool(self._current or self._retired or self._rescues)

    def _sync_all(self) -> dict[OwnedSegment, OSError]:
        """Fsync each segment with changes; those that failed are owned until the process ends."""
        with self._mutex:
            jobs = [(segment, True) for segment in self._retired]
            if self._current is not None:
                jobs.append((self._current, False))
            batches = [(segment.unsynced, segment.added) for segment, _ in jobs]
            for segment, _ in jobs:
                segment.unsynced, segment.unsynced_bytes = [], 0
            self._retired = []
        errors: dict[OwnedSegment, OSError] = {}
        for (segment, retired), (batch, added) in zip(jobs, batches, strict=True):
            try:
                if batch:
                    files.fsync(segment.fd)
                    segment.used_at = time.monotonic()
                if not files.is_at_path(segment.fd, segment.path):
                    raise FileNotFoundError(errno.ENOENT, "was removed in use", segment.path)
                segment.durable = added
            except OSError as error:
                errors[segment] = error
                self._give_up(segment, batch, error)
                continue
            if retired:
                segment.release()
            elif os.fstat(segment.fd).st_size > self._limit:
                with self._mutex:
                    if self._current is segment:
                        segment.size = os.fstat(segment.fd).st_size
                        self._rotate(segment)
        return errors

    def _give_up(self, segment: OwnedSegment, batch: list[UnsyncedAdd], error: OSError) -> None:
        """A failed fsync is a lost write, whatever a later one says: this file is done with.

        It stays owned (the newest few are), so that nobody appends to it again.
        """
        segment.error = error
        self._distrusted.add(segment.name)
        with self._mutex:
            if self._current is segment:
                self._current = None
            batch = batch + segment.unsynced
            segment.unsynced = []
            self._failed.append(segment)
        logger.error("%s: %d tasks are not durable there: %s", segment.path, len(batch), error)
        if self._sync_each:
            withdraw(segment.reader(), batch)
        elif batch:
            self._rescues.append(Rescue(segment.reader(), batch))
        busy = {rescue.path for rescue in self._rescues}
        done_with = [old for old in self._failed if old.path not in busy][:-FAILED_KEPT]
        for old in done_with:
            self._failed.remove(old)
            old.release()

    def rescue(self, rescue: Rescue) -> None:
        """Write adds anew that another descriptor's failed fsync may have lost."""
        with self._sync_lock:
            self._distrusted.add(rescue.name)
            self._rescues.append(rescue)

    def _mend(self) -> OSError | None:
        """Write what failed into a new segment; what runs elsewhere now waits for a later call."""
        for rescue in list(self._rescues):
            try:
                done = rescue.proceed(self._write_anew)
            except OSError as error:
                logger.error("%s: tasks still wait to be written anew: %s", rescue.path, error)
                return error
            if done:
                self._rescues.remove(rescue)
        return None

    def _write_anew(self, batch: list[UnsyncedAdd]) -> None:
        """Append and fsync all of the batch; after an ``OSError`` none of it is left anywhere."""
        used: set[OwnedSegment] = set()
        try:
            with self._mutex:
                for added in batch:
                    used.add(self._append(added))
            errors = self._sync_all()
            for segment in used & errors.keys():
                raise errors[segment]
        except OSError:
            # The batch stays with its first rescue, to be tried again: copies must not multiply.
            names = {segment.name for segment in used}
            self._rescues = [rescue for rescue in self._rescues if rescue.name not in names]
            for segment in used:
                withdraw(segment.reader(), batch)
            raise

    # -- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """Fsync and let go of everything. Raises ``OSError`` if something is not durable."""
        try:
            self.sync()
        finally:
            with self._sync_lock, self._mutex:
                held = [*self._retired, *self._failed]
                if self._current is not None:
                    held.append(self._current)
                self._retired, self._failed, self._rescues = [], [], []
                self._current = None
                for segment in held:
                    segment.release()
