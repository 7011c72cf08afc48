"""Appending new tasks to the one segment that this process owns: rotation, fsync.

Locking inside the process: ``_mutex`` guards the state and is held for a write, never for an
fsync; ``_sync_lock`` is held by the one thread that fsyncs, and is taken before ``_mutex``.
It is longer than 300 lines because all of it shares that state.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import time
from collections.abc import Callable, Iterator

from deferred_django.backends.disk import files, locks, ownership
from deferred_django.backends.disk.handler_lock import HandlerLock
from deferred_django.backends.disk.names import StoreNames
from deferred_django.backends.disk.ownership import OwnedSegment
from deferred_django.backends.disk.rescue import Rescue, withdraw
from deferred_django.backends.disk.rescues import Rescues

logger = logging.getLogger("deferred_django.disk")

ROTATE_BYTES = 2_000_000
MAX_ROTATE_BYTES = 16_000_000
GROWTH = 1.5
ADOPT_BELOW = 0.75
"""A free segment that is fuller than this part of the limit is left alone."""
IDLE_SECONDS = 60.0
UNSYNCED_BYTES = 8_000_000
"""So much may wait for the timer's fsync; more is synced at once."""
FAILED_KEPT = 4
TAIL_TRIES = 100
_FINISHED_BYTES = 150
"""About what a worker appends for a task that it has run: a ``run`` and a ``rem``."""


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
        self._mutex = HandlerLock(self._names.path)
        self._sync_lock = HandlerLock(self._names.path)
        self._distrusted: set[str] = set()
        """Names of segments whose fsync failed in this process: never adopted."""
        self._limit = float(self.rotate_bytes)
        self._forget()

    def _forget(self) -> None:
        self._current: OwnedSegment | None = None
        self._retired: list[OwnedSegment] = []
        self._failed: list[OwnedSegment] = []
        self._retired_bytes = 0
        self._rescues = Rescues()
        self._copies: set[bytes] = set()
        """Adds that are being written anew: if that fails they stay where they were."""

    # -- appending -----------------------------------------------------------------------------

    def append(self, record: bytes) -> None:
        """Append an ``add``. On return it survives this process; the disk has it after a sync.

        With ``sync_each`` the disk has it on return. After an ``OSError`` the task is not in the
        store.
        """
        self._prepare()
        with self._mutex:
            segment = self._opened()
            self._append(segment, record)
            number = segment.added
        self._sync_soon()
        if self._sync_each:
            self._sync_through(segment, number)

    def append_together(self, records: list[bytes]) -> None:
        """Append several adds by one write; as :meth:`append`, all of them or none.

        Nobody can claim one before all are there. Those that a write left which was cut short are
        removed; until that could be written this process keeps them claimed.
        """
        self._prepare()
        data = b"".join(records)
        try:
            with self._sync_lock, self._mutex, self._tail() as segment:
                try:
                    files.append_record(segment.fd, data)
                except OSError:
                    self._call_back(segment, records)
                    raise
                segment.appended_together(records, len(data))
                number = segment.added
                if segment.size > self._limit:
                    self._rotate(segment)
        finally:
            self._sync_soon()
        if self._sync_each:
            self._sync_through(segment, number)

    @contextlib.contextmanager
    def _tail(self) -> Iterator[OwnedSegment]:
        """The segment that the next adds go to, and what they will be is claimed."""
        for _ in range(TAIL_TRIES):
            segment = self._opened()
            start = files.status(segment.fd).st_size
            try:
                if locks.try_tail(segment.fd, start):
                    yield segment
                    return
            finally:
                self._release_tail(segment, start)
            self._retire(segment)  # somebody claims a retry that he has just written there
        raise OSError(errno.EAGAIN, "every segment was claimed in before it could be used", "")

    def _release_tail(self, segment: OwnedSegment, start: int) -> None:
        if segment.path in self._rescues.paths():
            return  # what was called back stays claimed
        released = False
        try:
            with contextlib.suppress(OSError):  # an unlock of a valid descriptor does not fail
                locks.release_tail(segment.fd, start)
                released = True
        finally:
            if not released and segment is self._current:
                self._retire(segment)  # closed after the next sync, which unlocks everything

    def _call_back(self, segment: OwnedSegment, records: list[bytes]) -> None:
        """Remove what a failed write has left of adds that are claimed still."""
        self._rescues.add(Rescue(segment.reader(), records, owned=True, refused=True))
        try:
            error = self._rescues.withdraw(0)
        finally:
            if segment.path in self._rescues.paths():
                self._retire(segment)
        if error is not None:
            logger.error("%s: tasks that were refused may run: %s", segment.path, error)

    def _prepare(self) -> None:
        """Before an append: what fails after the write would fail a task that runs."""
        if self._sync_each:
            self._sync_lock.check()
            if self._rescues:
                self._withdraw_refused()
        elif self._waiting_bytes() > UNSYNCED_BYTES:
            self._make_room()

    def _opened(self) -> OwnedSegment:
        """The segment that the next add goes to."""
        if self._current is None:
            self._current = ownership.open_segment(
                self._names,
                file_permissions=self._permissions,
                room_below=int(self._limit * ADOPT_BELOW),
                distrusted=self._distrusted,
            )
        return self._current

    def _append(self, segment: OwnedSegment, record: bytes) -> None:
        files.append_record(segment.fd, record)
        segment.appended(record)
        if segment.size > self._limit:
            self._rotate(segment)

    def _rotate(self, segment: OwnedSegment) -> None:
        """Let the next append open another; the sync that follows lets go of this one.

        Where next to nothing of it was finished the backlog grows, and so does the next limit:
        a long queue is a few large files rather than thousands of small ones.
        """
        self._retire(segment)
        if _finished(segment, segment.size) < segment.added / 3:
            self._limit = min(self._limit * GROWTH, MAX_ROTATE_BYTES)
        else:
            self._limit = float(self.rotate_bytes)

    def _retire(self, segment: OwnedSegment) -> None:
        self._retired.append(segment)
        self._retired_bytes += segment.size - segment.synced_size
        self._current = None

    def _waiting_bytes(self) -> int:
        """About how much is in memory until an fsync has covered it."""
        segment = self._current
        own = segment.size - segment.synced_size if segment is not None else 0
        return own + self._retired_bytes + self._rescues.size

    def _make_room(self) -> None:
        with self._sync_lock:
            errors = [*self._sync_all().values(), self._not_yet()]
            error = self._rescues.proceed_if_due(self._write_anew) or errors[0]
        if self._waiting_bytes() > UNSYNCED_BYTES:
            raise OSError(error.errno, f"too much is not durable: {error.strerror}", error.filename)

    def _withdraw_refused(self) -> None:
        with self._sync_lock:
            error = self._rescues.withdraw(FAILED_KEPT)
        if error is not None:
            raise error

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
            error = self._rescues.proceed(self._write_anew)
            if self._rescues:
                raise error or next(iter(errors.values()), None) or self._not_yet()

    def tick(self) -> bool:
        """What the timer calls: sync, let go when idle. ``False`` when nothing is left to do."""
        with self._sync_lock:
            self._sync_all()
            self._rescues.proceed_if_due(self._write_anew)
            self._let_go_of_failed()
            with self._mutex:
                segment = self._current
                if segment is not None:
                    idle = time.monotonic() - segment.used_at > IDLE_SECONDS
                    if idle and not segment.unsynced:
                        self._current = None
                        segment.release()
                return bool(self._current or self._retired or self._rescues)

    def _not_yet(self) -> OSError:
        text = "tasks that run now, or cannot be removed, are not durable yet"
        return OSError(errno.EAGAIN, text, next(iter(self._rescues.paths()), self._names.path))

    def _sync_all(self) -> dict[OwnedSegment, OSError]:
        """Fsync each segment with changes; those that failed are owned until the process ends."""
        with self._mutex:
            segments = [*self._retired]
            if self._current is not None:
                segments.append(self._current)
        errors = {segment: self._sync_one(segment) for segment in segments}
        return {segment: error for segment, error in errors.items() if error is not None}

    def _sync_one(self, segment: OwnedSegment) -> OSError | None:
        with self._mutex:
            batch, added, mark = segment.unsynced, segment.added, segment.mark
            segment.added_bytes += sum(map(len, batch))
            segment.unsynced, segment.synced_size = [], segment.size
        try:
            if batch:
                segment.keep = True  # if the fsync fails
                files.fsync(segment.fd)
                segment.keep = False
                segment.used_at = time.monotonic()
                if not segment.is_whole(mark):
                    raise OSError(errno.ESTALE, "was cut by another program", segment.path)
            if not files.is_at_path(segment.fd, segment.path):
                raise FileNotFoundError(errno.ENOENT, "was removed in use", segment.path)
        except OSError as error:
            self._give_up(segment, batch, error)
            return error
        except BaseException:  # a signal handler's: it is not known how far the fsync came
            with self._mutex:
                segment.unsynced = batch + segment.unsynced
            raise
        segment.durable = added
        with self._mutex:
            if self._current is segment:
                with contextlib.suppress(OSError):  # what is durable is: its size can wait
                    size = files.status(segment.fd).st_size
                    # One that is mostly worked off is let go of sooner: it can be compacted.
                    mostly_dead = _finished(segment, size) > segment.added * 2 / 3
                    if size > (self.rotate_bytes if mostly_dead else self._limit):
                        segment.size = size
                        self._rotate(segment)
            elif not segment.unsynced:
                self._retired.remove(segment)
                if segment.path in self._rescues.paths():
                    self._failed.append(segment)  # the claims on what was called back are on it
                else:
                    segment.release()
            self._retired_bytes = sum(old.size - old.synced_size for old in self._retired)
        return None

    def _give_up(self, segment: OwnedSegment, batch: list[bytes], error: OSError) -> None:
        """A failed fsync is a lost write, whatever a later one says: this file is done with.

        It stays owned (the newest few are), so that nobody appends to it again. One that another
        program removed or cut is as lost, but needs no owner once its tasks are elsewhere.
        """
        segment.error = error
        self._distrusted.add(segment.name)
        with self._mutex:
            if self._current is segment:
                self._current = None
            else:
                self._retired.remove(segment)
            batch = [add for add in batch + segment.unsynced if add not in self._copies]
            segment.unsynced = []
            self._failed.append(segment)
        logger.error("%s: %d tasks are not durable there: %s", segment.path, len(batch), error)
        if batch:
            refused = self._sync_each
            self._rescues.add(Rescue(segment.reader(), batch, owned=True, refused=refused))
            if refused and (failed := self._rescues.withdraw(0)) is not None:
                logger.error("%s: tasks that were refused may run: %s", segment.path, failed)
        self._let_go_of_failed()

    def _let_go_of_failed(self) -> None:
        if self._copies:
            return  # they may have to be withdrawn
        busy = self._rescues.paths()
        idle = [old for old in self._failed if old.path not in busy]
        kept = [old for old in idle if old.keep][-FAILED_KEPT:]
        for old in idle:
            if old not in kept:
                self._failed.remove(old)
                old.release()

    def rescue(self, rescue: Rescue) -> None:
        """Write adds anew that another descriptor's failed fsync may have lost."""
        with self._sync_lock:
            self._distrusted.add(rescue.name)
            with self._mutex:
                # Written anew into the same file, they would be removed there with the old ones.
                if self._current is not None and self._current.name == rescue.name:
                    self._retire(self._current)
            self._rescues.add(rescue)

    def _write_anew(self, batch: list[bytes]) -> tuple[set[bytes], OSError | None]:
        """Append and fsync all of the batch, or take it back, but for what cannot be taken back.

        That is what somebody runs already, or whose ``rem`` cannot be written. It stays in the
        books of its new segment.
        """
        written: dict[OwnedSegment, list[bytes]] = {}
        self._copies = set(batch)
        try:
            with self._mutex:
                for record in batch:
                    segment = self._opened()
                    written.setdefault(segment, []).append(record)
                    self._append(segment, record)
            errors = self._sync_all()
            for segment in written.keys() & errors.keys():
                raise errors[segment]
        except OSError as error:
            return self._take_back(written), error
        except BaseException:
            self._take_back(written)
            raise
        finally:
            self._copies = set()
            self._let_go_of_failed()
        return set(batch), None

    def _take_back(self, written: dict[OwnedSegment, list[bytes]]) -> set[bytes]:
        """Withdraw copies: their adds stay with their first rescue. Returns those that stay here.

        Each task is to be in one place, or it would run twice.
        """
        moved: set[bytes] = set()
        for segment, copies in written.items():
            try:
                withdrawn = withdraw(segment.reader(), copies)
            except OSError as error:
                logger.error("%s: tasks were written twice: %s", segment.path, error)
                withdrawn = set()
            stay = [copy for copy in copies if copy not in withdrawn]
            if stay and segment.error is not None:
                self._rescues.add(Rescue(segment.reader(), stay, owned=True))
            moved.update(stay)
        return moved

    # -- the end -------------------------------------------------------------------------------

    def let_go(self) -> None:
        """Own nothing any more. What is to be durable was synced before."""
        with self._sync_lock, self._mutex:
            held = [*self._retired, *self._failed]
            if self._current is not None:
                held.append(self._current)
            self._rescues.close()
            for segment in held:
                segment.release()
            self._forget()


def _finished(segment: OwnedSegment, size: int) -> float:
    """About how many of the owner's tasks others have finished, by what they have appended."""
    added_bytes = segment.added_bytes + sum(map(len, segment.unsynced))
    return max(0, size - added_bytes) / _FINISHED_BYTES
