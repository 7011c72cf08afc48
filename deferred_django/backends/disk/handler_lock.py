"""A lock between threads that the signal handlers of its holder do not wait for."""

from __future__ import annotations

import errno
import threading
from types import TracebackType


class HandlerLock:
    """Like :class:`threading.Lock`; where the thread itself holds it, taking it is an ``OSError``.

    A signal handler runs in the middle of the main thread. If that holds the lock the handler would
    wait for ever; and what the lock guards is in the middle of a change.
    """

    __slots__ = ("_held", "_lock", "_path")

    def __init__(self, path: str) -> None:
        """``path`` is the file or directory that the error names."""
        self._lock = threading.RLock()
        self._held = False
        self._path = path

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._held:
            self._lock.release()
            raise self._error()
        self._held = True

    def __exit__(
        self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None
    ) -> None:
        self._held = False
        self._lock.release()

    def check(self) -> None:
        """Raise what taking it would raise in this thread; waits for nobody."""
        if self._lock.acquire(blocking=False):
            held = self._held
            self._lock.release()
            if held:
                raise self._error()

    def _error(self) -> OSError:
        return OSError(
            errno.EDEADLK,
            "a signal handler that interrupted a call on the store cannot make another",
            self._path,
        )
