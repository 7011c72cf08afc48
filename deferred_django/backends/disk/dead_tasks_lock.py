"""A fair lock with a bounded wait: ``flock`` between processes, a queue between threads.

Waiting for a ``flock`` by trying again and again starves under load, and waiting in the kernel
cannot be bounded. So a thread of its own waits in the kernel's queue while the caller waits for
that thread. A caller whose time is up goes; the thread stays in the queue, keeps the process's
place for the next caller, and lets go at once of a lock that nobody wants any more.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections import deque
from collections.abc import Iterator

from deferred_django.backends.disk import descriptors, files
from deferred_django.exceptions import DeadTasksLockTimeout

_POLL_SECONDS = 0.01
"""Between two tries where no thread can be started."""
_TRIES_TO_OPEN = 10
"""A file that is neither there nor can be made is a link to nowhere, or a directory in turmoil."""


class FairLock:
    """A lock between threads that serves them in the order in which they came."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._held = False
        self._queue: deque[threading.Lock] = deque()

    def acquire(self, timeout: float) -> bool:
        """Take the lock; ``False`` if that needs more than ``timeout`` seconds."""
        with self._mutex:
            if not self._held:
                self._held = True
                return True
            turn = threading.Lock()
            turn.acquire()
            self._queue.append(turn)
        try:
            served = turn.acquire(timeout=max(0.0, timeout))
        except BaseException:  # KeyboardInterrupt: the turn must not be lost with this thread
            if not self._withdraw(turn):
                self.release()
            raise
        return served or not self._withdraw(turn)

    def _withdraw(self, turn: threading.Lock) -> bool:
        with self._mutex:
            if turn in self._queue:
                self._queue.remove(turn)
                return True
            return False  # the lock was handed over meanwhile

    def release(self) -> None:
        """Hand the lock to the thread that waits longest."""
        with self._mutex:
            if self._queue:
                self._queue.popleft().release()
            else:
                self._held = False


class _Waiter:
    """A thread that waits in the kernel's queue for the ``flock`` of ``fd``, which it owns."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._mutex = threading.Lock()
        self._finished = threading.Event()
        self._done = False
        self._wanted = True
        self._error: BaseException | None = None
        threading.Thread(target=self._run, name="deferred-dead-tasks-lock", daemon=True).start()

    def _run(self) -> None:
        try:
            files.wait_flock(self.fd)
        except BaseException as error:  # handed to the caller, whatever it is
            self._error = error
        with self._mutex:
            self._done = True
            if not self._wanted:
                release(self.fd)
        self._finished.set()

    def adopt(self, path: str) -> bool:
        """Want the lock again, if it is still waited for and still that of the file at ``path``."""
        with self._mutex:
            if self._done or not files.is_at_path(self.fd, path):
                return False
            self._wanted = True
            return True

    def wait(self, timeout: float) -> bool:
        """Whether the lock was had within ``timeout`` seconds; if not, it is not wanted now."""
        try:
            self._finished.wait(max(0.0, timeout))
        except BaseException:  # KeyboardInterrupt: nobody would release the lock
            if self._abandon():
                release(self.fd)
            raise
        if not self._abandon():
            return False
        if self._error is not None:
            release(self.fd)
            raise self._error
        return True

    def _abandon(self) -> bool:
        """Whether it was too late to abandon the lock."""
        with self._mutex:
            self._wanted = self._done
            return self._done


def release(fd: int) -> None:
    """Unlock and close. Closing alone frees the lock too, so no error matters to the caller."""
    try:
        with contextlib.suppress(OSError):
            files.unlock_flock(fd)
    finally:
        with contextlib.suppress(OSError):
            files.close(fd)


class FileLock:
    """Excludes the threads of all processes that lock the file at ``path``.

    The file is made when first locked, and its directory with it: with the mode and the owner of
    the file ``guarded``, if that is there, so that whoever may write the one may lock the other;
    else with ``permissions``. It is never renamed or removed here; if somebody removes it, whoever
    locks next notices and makes the new one the lock. ``timeout`` is in seconds and covers both
    queues.
    """

    def __init__(
        self, path: str, permissions: int, timeout: float, guarded: str | None = None
    ) -> None:
        self.path = path
        self._guarded = guarded
        self.timeout = timeout
        self._permissions = permissions
        self._generation = 0
        self._reset()
        descriptors.on_fork(self._forked)

    def _reset(self) -> None:
        self._threads = FairLock()
        self._waiter: _Waiter | None = None

    def _forked(self) -> None:
        self._generation += 1
        self._reset()

    @contextlib.contextmanager
    def hold(self, timeout: float | None = None) -> Iterator[int]:
        """Hold the lock; gives the lock file's descriptor, open for reading and writing.

        Raises :class:`DeadTasksLockTimeout` if it is not had in time, ``OSError`` if the file
        cannot be made or opened.
        """
        if timeout is None:
            timeout = self.timeout
        deadline = time.monotonic() + timeout
        generation = self._generation
        if not self._threads.acquire(timeout):
            raise self._timeout_error(timeout)
        try:
            fd = self._acquire(deadline, timeout)
            try:
                yield fd
            finally:
                # A child that was forked meanwhile has the descriptor no more, and new locks.
                if generation == self._generation:
                    release(fd)
        finally:
            if generation == self._generation:
                self._threads.release()

    def _acquire(self, deadline: float, timeout: float) -> int:
        while True:
            fd = self._lock_a_file(deadline)
            if fd is None:
                raise self._timeout_error(timeout)
            try:
                if files.is_at_path(fd, self.path):
                    return fd
            except BaseException:
                release(fd)
                raise
            release(fd)

    def _lock_a_file(self, deadline: float) -> int | None:
        waiter, self._waiter = self._waiter, None
        if waiter is None or not waiter.adopt(self.path):
            fd = self._open()
            try:
                if files.try_flock(fd):
                    return fd
                waiter = _Waiter(fd)
            except RuntimeError:  # no thread can be started (limits, or the interpreter ends)
                return self._poll(fd, deadline)
            except BaseException:
                release(fd)
                raise
        if waiter.wait(deadline - time.monotonic()):
            return waiter.fd
        self._waiter = waiter
        return None

    def _poll(self, fd: int, deadline: float) -> int | None:
        try:
            while not files.try_flock(fd):
                if time.monotonic() >= deadline:
                    release(fd)
                    return None
                time.sleep(_POLL_SECONDS)
        except BaseException:
            release(fd)
            raise
        return fd

    def _open(self) -> int:
        for _ in range(_TRIES_TO_OPEN):
            try:
                return files.open_file(self.path, os.O_RDWR)
            except FileNotFoundError:
                directory = os.path.dirname(self.path)
                if not files.is_directory(directory):
                    files.make_directory(directory, self._permissions)
            like = None
            with contextlib.suppress(OSError):
                like = None if self._guarded is None else os.stat(self._guarded)
            with contextlib.suppress(FileExistsError):  # another process was faster
                return files.create_file(self.path, os.O_RDWR, self._permissions, like)
        return files.open_file(self.path, os.O_RDWR)

    def _timeout_error(self, timeout: float) -> DeadTasksLockTimeout:
        return DeadTasksLockTimeout(
            errno.ETIMEDOUT,
            f"the lock was not free within {timeout:.3g} s: a process that holds it is slow or "
            "stopped (fuser -v names it)",
            self.path,
        )
