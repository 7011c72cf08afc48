"""Taking records out of the dead-tasks file: a copy without them is put in its place.

Nothing is rewritten in place, so that a removal is all or nothing and a reader's snapshot stays
whole. Everything but the removed records is copied as it is, damaged bytes included: what cannot be
read today is not a removal's to destroy.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from array import array
from collections.abc import Callable, Iterator

from deferred_django.backends.disk import dead_tasks_freeing, dead_tasks_tail, files
from deferred_django.backends.disk.dead_tasks_file import READ, DeadTasksFile
from deferred_django.backends.disk.dead_tasks_index import Replacement
from deferred_django.backends.disk.dead_tasks_located import Located
from deferred_django.backends.disk.dead_tasks_lock import FileLock

BLOCK_BYTES = 1024 * 1024
SYNC_BYTES = 8 * 1024 * 1024
"""Copied between two fsyncs, so that no add's fsync has to wait for the whole copy."""
CATCH_UPS = 10
"""Times that what was appended meanwhile is copied without the lock, before it is with it."""


class Removal:
    """One removal, for the holder of the removal lock: copy, then replace, always close.

    ``source`` is the file, open; ``snapshot`` is where its last whole record ended when it was
    looked at under the lock. ``doomed`` are the records to remove: whole lines before ``snapshot``.
    """

    def __init__(
        self,
        file: DeadTasksFile,
        lock: FileLock,
        source: int,
        snapshot: int,
        doomed: Located,
    ) -> None:
        self._file = file
        self._lock = lock
        self._source = source
        self._snapshot = snapshot
        self._starts = doomed.offsets
        # A line's newline goes with it; one that came after the snapshot stays, as a blank line.
        self._ends = array(
            "Q",
            (
                min(offset + length + 1, snapshot)
                for offset, length in zip(doomed.offsets, doomed.lengths, strict=True)
            ),
        )
        self._copied = 0
        self._unsynced = 0
        self._temp_path = file.temp_path
        self._temp: int | None = None
        self._replaced = False

    def copy(self, progress: Callable[[int, int], None] | None = None) -> None:
        """Write what stays of the snapshot to the temp file, durably. Takes no lock.

        ``progress`` is told how many of the records to remove were passed.
        """
        self._create()
        assert self._temp is not None
        total = len(self._starts)
        for block, passed in self._kept_blocks():
            self._write(block)
            if progress is not None:
                progress(passed, total)
        files.fsync(self._temp)

    def replace(self) -> Replacement:
        """Copy what was appended meanwhile and put the copy in the file's place, durably."""
        assert self._temp is not None
        for _ in range(CATCH_UPS):
            with self._lock.hold():
                self._check()
                end = dead_tasks_tail.find_tail(self._source).end
            if end - self._copied <= BLOCK_BYTES:
                break
            self._copy_to(end)
            files.fsync(self._temp)
        with self._lock.hold() as lock_fd:
            self._check()
            self._copy_to(files.status(self._source).st_size)
            files.fsync(self._temp)
            before = self._file.identity(self._source, lock_fd)
            self._file.begin_renaming(lock_fd)
            # Where an operator removed it, another removal may have put its unfinished one there.
            if not files.is_at_path(self._temp, self._temp_path):
                raise OSError(
                    errno.ESTALE, "the copy was removed by another program", self._temp_path
                )
            files.rename(self._temp_path, self._file.target)
            self._replaced = True
            if files.status(self._source).st_size > self._copied:
                # Somebody holds the lock too, since its file was removed, and began to append
                # before the rename. Whoever ends after it finds another file at the path.
                self._copy_to(files.status(self._source).st_size)
                files.fsync(self._temp)
            self._file.make_names_durable(lock_fd)
            after = self._file.identity(self._temp, lock_fd)
        return Replacement(before, after, self._starts, self._ends)

    def close(self) -> None:
        """Remove the temp file, unless it was put in place."""
        if self._temp is None:
            return
        temp, self._temp = self._temp, None
        try:
            if not self._replaced:
                with contextlib.suppress(OSError):  # the next removal tries again
                    if files.is_at_path(temp, self._temp_path):
                        files.unlink(self._temp_path)
                dead_tasks_freeing.free(temp)
        finally:
            files.close(temp)

    def _remove_temp(self) -> None:
        """Remove what a removal that was killed has left."""
        try:
            stale = files.open_file(self._temp_path, READ)
        except FileNotFoundError:
            return
        try:
            self._own(stale)
            files.unlink(self._temp_path)
        finally:
            files.close(stale)

    def _own(self, temp: int) -> None:
        """Lock the temp: should the removal lock's file be removed, it keeps removals apart."""
        if not files.try_flock(temp) or not files.is_at_path(temp, self._temp_path):
            raise self._busy()

    def _busy(self) -> OSError:
        return OSError(errno.EBUSY, "another removal is at work on it", self._temp_path)

    def _create(self) -> None:
        self._remove_temp()  # of a removal that was killed
        like = files.status(self._source)
        mode = like.st_mode
        flags, permissions = os.O_WRONLY | os.O_APPEND, stat.S_IMODE(mode)
        try:
            temp = files.create_file(self._temp_path, flags, permissions, like)
        except FileExistsError as error:  # since the removal lock's file was removed
            raise self._busy() from error
        try:
            self._own(temp)
        except BaseException:
            try:
                with contextlib.suppress(OSError):
                    if files.is_at_path(temp, self._temp_path):
                        files.unlink(self._temp_path)
            finally:
                files.close(temp)
            raise
        self._temp = temp  # from here on close() removes it
        group_counts = (mode >> 3) & 0o7 != mode & 0o7
        if files.status(temp).st_gid != like.st_gid and group_counts:
            raise PermissionError(
                errno.EPERM,
                "the file cannot be replaced, since its group could not be kept",
                self._file.path,
            )

    def _check(self) -> None:
        """Refuse to go on if others than this package replaced or cut the file meanwhile."""
        same = files.is_at_path(self._source, self._file.target)
        if not same or files.status(self._source).st_size < max(self._snapshot, self._copied):
            raise OSError(
                errno.ESTALE, "the file was replaced or cut by another program", self._file.path
            )

    def _kept_blocks(self) -> Iterator[tuple[bytes, int]]:
        """The snapshot without the doomed records, and how many of these were passed so far."""
        nothing = (self._snapshot, self._snapshot)
        doomed = zip(self._starts, self._ends, strict=True)
        passed = 0
        start, end = next(doomed, nothing)
        position = kept_from = 0
        while position < self._snapshot:
            data = self._read(position, min(BLOCK_BYTES, self._snapshot - position))
            block, block_end = memoryview(data), position + len(data)
            pieces = []
            while start < block_end:
                if start > kept_from:
                    pieces.append(block[kept_from - position : start - position])
                kept_from = end
                if end > block_end:
                    break
                passed += 1
                start, end = next(doomed, nothing)
            if kept_from < block_end:
                pieces.append(block[kept_from - position :])
                kept_from = block_end
            position = block_end
            self._copied = position
            yield b"".join(pieces), passed

    def _read(self, position: int, size: int) -> bytes:
        data = files.read_at(self._source, size, position)
        if not data:
            raise OSError(errno.ESTALE, "the file was cut by another program", self._file.path)
        return data

    def _copy_to(self, end: int) -> None:
        while self._copied < end:
            data = self._read(self._copied, min(BLOCK_BYTES, end - self._copied))
            self._copied += len(data)
            self._write(data)

    def _write(self, data: bytes) -> None:
        assert self._temp is not None
        self._unsynced += len(data)
        while data:
            # Nobody else has this file, so a short write can go on: the next one says why.
            written = files.write(self._temp, data)
            if written == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._temp_path)
            data = data[written:]
        if self._unsynced >= SYNC_BYTES:
            files.fsync(self._temp)
            self._unsynced = 0
