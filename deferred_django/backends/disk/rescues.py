"""All that waits to be written anew, or to be removed, in this process, and when it is tried."""

from __future__ import annotations

import errno
import logging
import time

from deferred_django.backends.disk.rescue import Rescue, WriteAnew

logger = logging.getLogger("deferred_django.disk")

FIRST_PAUSE, MAX_PAUSE = 0.5, 30.0
"""Seconds between the timer's tries, doubling."""


class Rescues:
    """All that wait. Not thread-safe: the writer calls it under its sync lock."""

    def __init__(self) -> None:
        self._waiting: list[Rescue] = []
        self._error: OSError | None = None
        self._again_at, self._pause = 0.0, FIRST_PAUSE
        self.size = 0
        """How many bytes of tasks wait."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def paths(self) -> set[str]:
        """The files that they read."""
        return {rescue.path for rescue in self._waiting}

    def add(self, rescue: Rescue) -> None:
        """Take in another one."""
        self._waiting.append(rescue)
        self.size += rescue.size

    def proceed(self, write_anew: WriteAnew) -> OSError | None:
        """Move what can be moved; what runs elsewhere now waits for a later call."""
        try:
            for rescue in list(self._waiting):
                try:
                    done = rescue.proceed(write_anew)
                except OSError as error:
                    logger.error("%s: tasks still wait to be written anew: %s", rescue.path, error)
                    return error
                if done:
                    self._waiting.remove(rescue)
            return None
        finally:
            self.size = sum(rescue.size for rescue in self._waiting)

    def withdraw(self, allowed: int) -> OSError | None:
        """Remove what was refused; the error if more than ``allowed`` of them are left then."""
        refused = [rescue for rescue in self._waiting if rescue.is_refused]
        if len(refused) <= allowed:
            return None
        failed: OSError | None = None
        for rescue in refused:
            try:
                if rescue.proceed(_nowhere):
                    self._waiting.remove(rescue)
                    continue
            except OSError as error:
                failed = error
            failed = failed or OSError(errno.EIO, "refused tasks cannot be removed", rescue.path)
        return failed

    def proceed_if_due(self, write_anew: WriteAnew) -> OSError | None:
        """The same, more and more seldom: each try on a disk that fails leaves a file there."""
        if self._waiting and time.monotonic() >= self._again_at:
            self._error = self.proceed(write_anew)
            self._pause = min(self._pause * 2, MAX_PAUSE)
            self._again_at = time.monotonic() + self._pause
        if not self._waiting:
            self._error, self._again_at, self._pause = None, 0.0, FIRST_PAUSE
        return self._error

    def close(self) -> None:
        """Let go of the descriptors."""
        for rescue in self._waiting:
            rescue.close()


def _nowhere(batch: list[bytes]) -> tuple[set[bytes], OSError | None]:
    return set(), None
