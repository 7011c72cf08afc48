"""The dead-tasks store of one directory: ids and bytes in one file that all processes share.

Promised, for a local file system that honours locks, rename and fsync: one writer at a time; the
file's name survives a crash of the host from the first add on; an unfinished last write never harms
the next; a removal is all or nothing. Readers take no lock and hold up nobody.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Generator, Iterable
from contextlib import closing

from deferred_django.backends.base import Finding, Progress
from deferred_django.backends.disk import (
    dead_tasks_file,
    dead_tasks_freeing,
    dead_tasks_tail,
    dead_tasks_verify,
    descriptors,
)
from deferred_django.backends.disk.dead_tasks_append import Appender
from deferred_django.backends.disk.dead_tasks_cold import Matcher, Record, record_at
from deferred_django.backends.disk.dead_tasks_file import CHANGE, DeadTasksFile
from deferred_django.backends.disk.dead_tasks_index import Replacement
from deferred_django.backends.disk.dead_tasks_located import Located
from deferred_django.backends.disk.dead_tasks_lock import FileLock
from deferred_django.backends.disk.dead_tasks_reader import Reader
from deferred_django.backends.disk.dead_tasks_removal import Removal

LOCK_TIMEOUT_SECONDS = 2.0
REMOVAL_PATIENCE = 5
"""A removal holds its lock for long, so another waits this many times longer for it."""

Handover = Callable[[str, bytes], None]


class DeadTasksStorage:
    """The dead tasks of the store ``prefix`` in the directory ``path``. Thread-safe; fork-safe.

    Making one touches no file; the first add makes the files, and the directory. Every method may
    raise ``OSError`` that names the file. The methods that change something raise
    ``DeadTasksLockTimeout`` if the lock is not had within ``lock_timeout`` seconds; nothing was
    changed then.
    """

    def __init__(
        self,
        path: str,
        prefix: str,
        *,
        file_permissions: int = 0o600,
        lock_timeout: float = LOCK_TIMEOUT_SECONDS,
    ) -> None:
        self._file = DeadTasksFile(path, prefix, file_permissions)
        file = self._file
        self._lock = FileLock(file.lock_path, file_permissions, lock_timeout, file.path)
        patience = lock_timeout * REMOVAL_PATIENCE
        self._removal_lock = FileLock(file.removal_lock_path, file_permissions, patience, file.path)
        self._appender = Appender(self._file, self._lock)
        self._reader = Reader(self._file)
        descriptors.on_fork(self._forked)

    def _forked(self) -> None:
        self._file.forget()
        self._appender.forget()
        self._reader.forget()

    def close(self) -> None:
        """Free the index. No descriptor is kept between operations; the storage can be used on."""
        self._reader.clear()

    # -- changing ------------------------------------------------------------------------------

    def add(self, task_id: str, record: bytes) -> None:
        """Append a record; durable when this returns. ``record`` holds no newline.

        On an error the record counts as not added: it may be there all the same after a failed
        fsync, and adding it again is right. Threads that add at the same time share one fsync.
        """
        self._appender.add(dead_tasks_file.encode(task_id, record))

    def remove(self, ids: Iterable[str], *, progress: Progress | None = None) -> int:
        """Remove all records of these ids; return how many distinct ids were there.

        All or nothing, and durable when this returns. Records that are added while it runs stay.
        ``progress`` is called with (records passed, records to remove).
        """
        return len(self._take_out(ids, None, progress))

    def take(
        self,
        ids: Iterable[str],
        handover: Handover,
        make_durable: Callable[[], None],
        *,
        progress: Progress | None = None,
    ) -> list[str]:
        """Give the newest record of each id to ``handover``, ``make_durable()``, then remove them.

        Returns the ids that were there, in the order given. Of two callers one gets a record. If
        ``handover`` or ``make_durable`` raises, nothing is removed. A record of the same id that
        is added while this runs stays. ``progress`` is called with (ids handed over, ids in all).
        A crash or an error between the handing over and the removal leaves the record in both
        places: handed over at least once. That error says so, and is no ``DeadTasksLockTimeout``.
        """

        def hand_over(found: Located, source: int) -> None:
            for done, (task_id, span) in enumerate(found.newest_spans(), start=1):
                record = record_at(source, span)
                if record is None or record[0] != task_id:
                    raise OSError(errno.EIO, f"record of {task_id} is damaged", self._file.path)
                handover(*record)
                if progress is not None:
                    progress(done, len(found.ids))
            make_durable()

        return self._take_out(ids, hand_over, None)

    def _take_out(
        self,
        ids: Iterable[str],
        hand_over: Callable[[Located, int], None] | None,
        progress: Progress | None,
    ) -> list[str]:
        wanted: dict[str, int] = {}
        for task_id in ids:
            wanted.setdefault(task_id, len(wanted))
        if not wanted or not self._reader.may_have(wanted):
            return []
        with self._removal_lock.hold(), self._file.opened(CHANGE) as source:
            with self._lock.hold():
                snapshot = dead_tasks_tail.find_tail(source).end
            found = self._reader.locate(source, wanted, snapshot)
            if not found.ids:
                return []
            with closing(Removal(self._file, self._lock, source, snapshot, found)) as removal:
                # The long copy comes first: if there is no room for it, nothing is handed over.
                removal.copy(progress)
                if hand_over is None:
                    replacement = removal.replace()
                else:
                    hand_over(found, source)
                    replacement = _replace_after_handover(removal)
            self._reader.replaced(replacement)
            dead_tasks_freeing.free(source)
        return found.ids

    # -- reading -------------------------------------------------------------------------------

    def read(
        self, *, limit: int | None = None, offset: int = 0, matches: Matcher | None = None
    ) -> list[Record]:
        """The newest record of each id, newest first; ``matches`` chooses by the id and the bytes.

        Damaged bytes are skipped; :meth:`problems` counts them.
        """
        return list(self._reader.read(limit, offset, matches))

    def iterate(
        self, *, limit: int | None = None, offset: int = 0, matches: Matcher | None = None
    ) -> Generator[Record, None, None]:
        """As :meth:`read`, one by one, of one snapshot: in bounded memory, however many there are.

        The file stays open until the iterator is at its end or closed; that holds up nobody.
        """
        return self._reader.read(limit, offset, matches)

    def count(self, matches: Matcher | None = None) -> int:
        """How many ids there are, or how many have a newest record that ``matches``."""
        return self._reader.count(matches)

    def count_up_to(self, most: int) -> int:
        """How many ids there are; ``most`` if there are as many or more.

        It reads so many of the newest records, however large the file is.
        """
        return self._reader.count_up_to(most)

    def find(self, task_id: str) -> bytes | None:
        """The newest record of the id."""
        return self._reader.find(task_id)

    def problems(self) -> list[str]:
        """Sentences about what could not be read. Reads only what is new since the last look."""
        return self._reader.problems()

    def other_paths(self) -> list[str]:
        """The files that it locks, and the one that a removal writes."""
        paths = [self._file.lock_path, self._file.removal_lock_path]
        with contextlib.suppress(OSError):  # of the file's own name, which verify reports
            paths.append(self._file.temp_path)
        return paths

    def verify(self) -> list[Finding]:
        """Read the whole file through and report what is not as it was written; change nothing."""
        return dead_tasks_verify.verify(self._file)


def _replace_after_handover(removal: Removal) -> Replacement:
    try:
        return removal.replace()
    except OSError as error:
        message = f"the tasks were handed over, but their records stay: {error.strerror}"
        raise OSError(error.errno, message, error.filename) from error
