"""Letting producers wait while the workers have more to do than the setting wants.

Who waits is the caller of ``enqueue``, before anything is written or held for a commit; never the
hook after a commit, never what workers add themselves, and never a task or a receiver of a worker's
signals: those who work the queue off would wait for each other.
"""

from __future__ import annotations

import asyncio
import time

from asgiref.sync import sync_to_async

from deferred_django.backends.base import Backend
from deferred_django.backpressure_setting import Backpressure
from deferred_django.current import is_work
from deferred_django.exceptions import PushTimeout

POLL_SECONDS = 0.05
"""How often those who wait look at the count."""
MAX_AGE = 1.0
"""How old what others did may be for those who do not wait."""


class Gate:
    """Closes when there are as many tasks as the high-water mark, opens at the low one.

    Each process has its own and finds out for itself. Thread-safe.
    """

    def __init__(self, backend: Backend, setting: Backpressure) -> None:
        self._backend = backend
        self._setting = setting
        self._is_closed = False

    def wait(self) -> None:
        """Return when there is room. :class:`PushTimeout` if there is none in time.

        Raises ``OSError`` if the tasks cannot be counted.
        """
        if is_work():
            return
        count, until = self._count(), time.monotonic() + self._setting.timeout
        while count is not None:
            time.sleep(self._pause(count, until))
            count = self._count()

    async def await_room(self) -> None:
        """:meth:`wait` on an event loop, which goes on meanwhile.

        It counts in a thread that nobody else waits for.
        """
        if is_work():
            return
        counted = sync_to_async(self._count, thread_sensitive=False)
        count, until = await counted(), time.monotonic() + self._setting.timeout
        while count is not None:
            await asyncio.sleep(self._pause(count, until))
            count = await counted()

    def _count(self) -> int | None:
        """How many tasks there are, if they are too many."""
        setting, pending_count = self._setting, self._backend.pending_count
        count = pending_count(max_age=POLL_SECONDS / 2 if self._is_closed else MAX_AGE)
        if count >= setting.high_water_mark and not self._is_closed:
            # Most may be done since: nobody is to wait for what was so a second ago.
            count = pending_count(max_age=0)
            self._is_closed = count >= setting.high_water_mark
        if count <= setting.low_water_mark:
            self._is_closed = False
        return count if self._is_closed else None

    def _pause(self, count: int, until: float) -> float:
        left = until - time.monotonic()
        if left > 0:
            return min(POLL_SECONDS, left)
        setting = self._setting
        raise PushTimeout(
            f"{count:,} tasks are due or run, and nothing was enqueued: from "
            f"{setting.high_water_mark:,} on an enqueue waits until there are "
            f"{setting.low_water_mark:,}, for {setting.timeout:g} s at most"
        )


def gate_of(backend: Backend, setting: Backpressure | None) -> Gate | None:
    """What producers have to pass, if anything."""
    return None if setting is None else Gate(backend, setting)
