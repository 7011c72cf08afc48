"""The dead-tasks file itself: its names, when they are durable, its lines, and appending.

``{prefix}dead_tasks-0`` holds one line for each record, ``{crc32}:dead_task:{id}:{record}``, each
ended by a newline. Only the holder of the store's lock writes. No descriptor outlives an operation,
since a removal puts another file at the path.

The size of the lock file counts the replacements. It is a number that costs no block of the disk,
that every process sees at once, and that survives the death of the process that changed it:
odd while the file's name, or a newline put behind its last record, may not be durable yet, even
otherwise, and never the same again once records that a reader may have seen are gone or have moved.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator, Sequence

from deferred_django import ids
from deferred_django.backends.base import MAX_RECORD_BYTES
from deferred_django.backends.disk import dead_tasks_tail, files, records

KIND = b"dead_task"
VERSION = "0"
# The store encodes a context of up to 64 MiB as JSON text, where one byte takes up to six.
# The scanner takes no longer line (MAX_LONG_LINE_BYTES).
MAX_DEAD_RECORD_BYTES = 7 * MAX_RECORD_BYTES
beginning_match = re.compile(b"%b:(%b):" % (KIND, ids.ID_PATTERN.pattern.encode())).match
"""Matches the body of a line, or its beginning, if it is a dead task's; group 1 is the id."""
MARK_BYTES = 64
_TRIES_TO_OPEN = 100
READ = os.O_RDONLY
CHANGE = os.O_RDWR | os.O_APPEND


def encode(task_id: str, record: bytes) -> bytes:
    """The line of a record, with its newline; ``ValueError`` for what cannot be stored."""
    if not ids.ID_PATTERN.fullmatch(task_id):
        raise ValueError(f"{task_id!r} cannot be stored as a task id")
    if b"\n" in record:
        raise ValueError("a dead task's record must not hold a newline")
    body = beginning(task_id.encode()) + record
    return records.encode(body, MAX_DEAD_RECORD_BYTES) + b"\n"


def beginning(task_id: bytes) -> bytes:
    """What a record of that id begins with, behind its checksum."""
    return b"%b:%b:" % (KIND, task_id)


def id_of(body: bytes) -> bytes | None:
    """The id in the body of a line, or in its beginning; ``None`` if it is no dead task's."""
    match = beginning_match(body)
    return None if match is None else match[1]


Identity = tuple[int, int, int]
"""A generation of the file, its device and its inode."""


class DisturbedError(OSError):
    """Another program removed, replaced or cut the file, or removed its lock file, in use."""


class DeadTasksFile:
    """The file of one store. The methods that take ``lock_fd`` are for the holder of the lock."""

    def __init__(self, directory: str, prefix: str, permissions: int) -> None:
        self.directory = directory
        self.path = os.path.join(directory, f"{prefix}dead_tasks-{VERSION}")
        self.lock_path = os.path.join(directory, f"{prefix}dead_tasks.lock")
        self.removal_lock_path = os.path.join(directory, f"{prefix}dead_tasks-removal.lock")
        self._permissions = permissions
        self.forget()

    def forget(self) -> None:
        """Be as a new process is: its first add makes the names durable, whoever made the file."""
        self._names_durable = False
        # After a failed write or fsync nobody knows what is on the disk in front of the next one.
        self._newline_first = False

    @property
    def target(self) -> str:
        """The path of the file itself, where ``path`` is a symbolic link."""
        return files.resolved(self.path)

    @property
    def temp_path(self) -> str:
        """Where a removal writes what stays."""
        return self.target + ".tmp"

    def open(self, flags: int) -> int:
        """Open the file that the path names now; ``FileNotFoundError`` if there is none yet."""
        for _ in range(_TRIES_TO_OPEN):
            try:
                fd = files.open_file(self.path, flags)
            except BlockingIOError:  # of a file that was replaced, see dead_tasks_freeing
                continue
            except FileNotFoundError:
                files.refuse_link_to_nowhere(os.path.dirname(self.path))
                raise
            try:
                has_name = files.status(fd).st_nlink > 0
            except BaseException:
                files.close(fd)
                raise
            if has_name:
                return fd
            files.close(fd)
        return files.open_file(self.path, flags)

    @contextlib.contextmanager
    def opened(self, flags: int) -> Iterator[int]:
        """The file, open; ``FileNotFoundError`` if there is none yet."""
        fd = self.open(flags)
        try:
            yield fd
        finally:
            files.close(fd)

    # -- names ---------------------------------------------------------------------------------

    def generation(self) -> int:
        """A number that another file at the path, or records that went, leave changed.

        Whoever removes the lock file, or puts back an older one, begins the count of its size anew:
        the inode and the time of its last change tell these apart.
        """
        try:
            status = os.stat(self.lock_path)
        except OSError:
            return 0
        return _generation(status)

    def identity(self, fd: int, lock_fd: int) -> Identity:
        """What tells this file from all others; the holder of the lock knows it for certain."""
        info = files.status(fd)
        return _generation(files.status(lock_fd)), info.st_dev, info.st_ino

    def begin_renaming(self, lock_fd: int) -> None:
        """Say, to whoever comes after our death, that what follows is not durable yet."""
        size = files.status(lock_fd).st_size
        files.truncate(lock_fd, size + (1 if size % 2 == 0 else 2))

    def make_names_durable(self, lock_fd: int) -> None:
        """Fsync the directory, after :meth:`begin_renaming` and a change of names."""
        files.fsync_directory(os.path.dirname(self.target))
        size = files.status(lock_fd).st_size
        if size % 2:
            with contextlib.suppress(OSError):  # costs the next add an fsync, no more
                files.truncate(lock_fd, size + 1)

    def _open_to_append(self, lock_fd: int) -> int:
        try:
            fd = files.open_file(self.path, CHANGE)
        except FileNotFoundError:
            self.begin_renaming(lock_fd)
            fd = files.create_file(self.target, CHANGE, self._permissions)
        try:
            if not self._names_durable:
                files.fsync_parent(self.directory)
            in_doubt = files.status(lock_fd).st_size % 2 == 1
            if in_doubt and files.status(fd).st_size:
                files.fsync(fd)
            if in_doubt or not self._names_durable:
                self.make_names_durable(lock_fd)
                self._names_durable = True
        except BaseException:
            files.close(fd)
            raise
        return fd

    # -- appending -----------------------------------------------------------------------------

    def append(self, lines: Sequence[bytes], lock_fd: int) -> list[OSError | None]:
        """Append lines with one fsync; for each ``None`` if it is durable now, or its error.

        Raises ``OSError`` if none was written, :class:`DisturbedError` if the file or the lock
        file is another now, so that the lines may be gone: take the lock and append them again.
        """
        fd = self._open_to_append(lock_fd)
        try:
            start = self._repair(fd, lock_fd)
            newline_first = self._newline_first
            outcome: list[OSError | None] = []
            mark: tuple[int, bytes] | None = None
            for line in lines:
                at = files.status(fd).st_size
                data = b"\n" + line if newline_first else line
                try:
                    newline_first = self._write(fd, data, at, lock_fd)
                    outcome.append(None)
                    mark = mark or (at, data[: min(MARK_BYTES, len(data) - 1)])
                except OSError as error:
                    newline_first = True
                    outcome.append(error)
            if mark is not None:
                self._sync(fd, start, lock_fd)
                if not self._is_undisturbed(fd, mark, lock_fd):
                    raise DisturbedError(errno.ESTALE, "was removed or cut in use", self.path)
            return outcome
        finally:
            files.close(fd)

    def _is_undisturbed(self, fd: int, mark: tuple[int, bytes], lock_fd: int) -> bool:
        at, beginning = mark
        return (
            files.is_at_path(fd, self.path)
            and files.is_at_path(lock_fd, self.lock_path)
            and files.read_at(fd, len(beginning), at) == beginning
        )

    def _repair(self, fd: int, lock_fd: int) -> int:
        """Let the file end with a whole line; returns its size."""
        tail = dead_tasks_tail.find_tail(fd)
        if tail.size > tail.end:
            files.truncate(fd, tail.end)
        if not tail.newline_missing:
            return tail.end
        # Durable before anything follows, whoever writes that: the record may have been
        # acknowledged, and must not share a line with bytes that do not arrive.
        self.begin_renaming(lock_fd)
        try:
            if files.write(fd, b"\n") != 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
            files.fsync(fd)
        except OSError:
            self._newline_first = True
            self._undo(fd, tail.end, lock_fd)
            raise
        self.make_names_durable(lock_fd)
        return tail.end + 1

    def _write(self, fd: int, data: bytes, end: int, lock_fd: int) -> bool:
        """Append one line at ``end``; returns whether the next must begin with a newline."""
        try:
            files.append_record(fd, data)
        except OSError:
            self._newline_first = True
            self._undo(fd, end, lock_fd)
            raise
        return files.status(fd).st_size < end + len(data)

    def _sync(self, fd: int, end: int, lock_fd: int) -> None:
        try:
            files.fsync(fd)
        except OSError:
            # The kernel takes these pages for clean now, and another process would append behind
            # bytes that never reach the disk. They go, so that theirs begin where the disk's end.
            self._newline_first = True
            self._undo(fd, end, lock_fd)
            with contextlib.suppress(OSError):
                files.truncate(lock_fd, files.status(lock_fd).st_size + 2)
            raise
        self._newline_first = False

    def _undo(self, fd: int, end: int, lock_fd: int) -> None:
        # If this fails too, the next add repairs the tail, and begins with a newline here. If the
        # lock file was removed, others may have appended behind it already.
        with contextlib.suppress(OSError):
            if files.status(fd).st_size > end and files.is_at_path(lock_fd, self.lock_path):
                files.truncate(fd, end)


def _generation(lock: os.stat_result) -> int:
    return hash((lock.st_size, lock.st_ino, lock.st_ctime_ns)) if lock.st_size else 0
