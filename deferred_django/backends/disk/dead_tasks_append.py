"""Threads that add dead tasks at the same time share one lock and one fsync."""

from __future__ import annotations

import errno
import threading
import time
from collections import deque

from deferred_django.backends.disk.dead_tasks_file import DeadTasksFile, DisturbedError
from deferred_django.backends.disk.dead_tasks_lock import FileLock
from deferred_django.exceptions import DeadTasksLockTimeout

_TRIES = 5
"""Times that lines are appended, if an operator's hands are at the files each time."""


class _Waiting:
    """One line that a thread waits for."""

    __slots__ = ("done", "error", "line", "taken")

    def __init__(self, line: bytes) -> None:
        self.line = line
        self.taken = False
        self.done = False
        self.error: OSError | None = None


class Appender:
    """Appends lines to the file. The thread that waits longest writes for all that wait."""

    def __init__(self, file: DeadTasksFile, lock: FileLock) -> None:
        self._file = file
        self._lock = lock
        self.forget()

    def forget(self) -> None:
        """Make new locks, for a forked child."""
        self._changed = threading.Condition()
        self._queue: deque[_Waiting] = deque()
        self._writing = False

    def add(self, line: bytes) -> None:
        """Append the line; durable on return.

        Raises ``DeadTasksLockTimeout``, with nothing changed, or the ``OSError`` of its writing.
        """
        deadline = time.monotonic() + self._lock.timeout
        own = _Waiting(line)
        changed = self._changed
        with changed:
            self._queue.append(own)
            try:
                self._wait(own, deadline)
            except BaseException:
                if not own.taken:
                    self._queue.remove(own)
                    changed.notify_all()
                raise
            if not own.done:
                self._writing = True
        if not own.done:
            self._lead(own, deadline)
        if own.error is not None:
            raise own.error

    def _wait(self, own: _Waiting, deadline: float) -> None:
        """Wait until the line is written, or is first in the queue with nobody writing."""
        while not own.done and (own.taken or self._writing or self._queue[0] is not own):
            # A line that is being written cannot be called back: its outcome must be known.
            left = None if own.taken else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise DeadTasksLockTimeout(
                    errno.ETIMEDOUT,
                    f"other threads' adds took longer than {self._lock.timeout:g} s",
                    self._file.lock_path,
                )
            self._changed.wait(left)

    def _take(self, batch: list[_Waiting]) -> None:
        with self._changed:
            batch.extend(self._queue)
            self._queue.clear()
            for waiting in batch:
                waiting.taken = True

    def _lead(self, own: _Waiting, deadline: float) -> None:
        batch: list[_Waiting] = []
        changed = self._changed
        try:
            for attempt in range(_TRIES):
                with self._lock.hold(max(0.0, deadline - time.monotonic())) as lock_fd:
                    if not batch:
                        self._take(batch)
                    try:
                        outcome = self._file.append([waiting.line for waiting in batch], lock_fd)
                        break
                    except DisturbedError:
                        # Should they be there all the same: the newest record of an id counts.
                        if attempt == _TRIES - 1:
                            raise
            for waiting, error in zip(batch, outcome, strict=True):
                waiting.error = error
                waiting.done = True
        except OSError as error:
            for waiting in batch:
                waiting.error = _copy(error)
            if not batch:
                raise
        finally:
            with changed:
                self._writing = False
                if not own.taken:
                    self._queue.remove(own)
                for waiting in batch:
                    if not waiting.done and waiting.error is None:
                        waiting.error = OSError(
                            errno.EINTR, "the thread that wrote was interrupted", self._file.path
                        )
                    waiting.done = True
                changed.notify_all()


def _copy(error: OSError) -> OSError:
    # Each thread raises an object of its own: raising adds to its traceback.
    return type(error)(error.errno, error.strerror, error.filename)
