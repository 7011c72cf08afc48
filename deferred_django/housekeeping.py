"""What a worker process does beside its tasks, on threads of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from deferred_django import connections, event_loop, logs
from deferred_django.queue import Queue
from deferred_django.scheduler import Ticker
from deferred_django.signals import EventSignal, worker_name

PERIOD_SECONDS = 1.0


class Housekeeper:
    """About once a second tells the store that the worker lives, tidies it, and closes idle
    connections; and enqueues the periodic tasks when they are due."""

    def __init__(
        self,
        queue: Queue,
        *,
        is_idle: Callable[[], bool],
        heartbeat: Callable[[], None],
    ) -> None:
        """``is_idle`` says whether the process runs no task; ``heartbeat`` tells the store that
        the worker is at work, if it is."""
        self._backend = queue.backend
        self._ticker = Ticker.of(queue)
        self._is_idle = is_idle
        self._heartbeat = heartbeat
        self._idle_since: float | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._work, name="deferred-house", daemon=True)

    def start(self) -> None:
        """Start the thread, and another where there are periodic tasks."""
        self._thread.start()
        if self._ticker is not None:
            self._ticker.start()

    def stop(self) -> None:
        """End the thread; one that is in the middle of something is left to itself."""
        self._end.set()
        if self._ticker is not None:
            self._ticker.stop()
        if self._thread.is_alive():
            self._thread.join(PERIOD_SECONDS)

    def _work(self) -> None:
        while not self._end.wait(PERIOD_SECONDS):
            for doing, action in (
                ("The worker's sign of life", self._heartbeat),
                ("Tidying the store", self._backend.maintain),
                ("Closing idle database connections", self._close_idle),
            ):
                try:
                    action()
                except Exception as error:  # the worker goes on whatever happens here
                    logs.store_error(doing, error)

    def _close_idle(self) -> None:
        # The pool's threads close their own; this is for the thread behind async tasks.
        if not self._is_idle():
            self._idle_since = None
            return
        now = time.monotonic()
        if self._idle_since is None:
            self._idle_since = now
        elif now - self._idle_since >= connections.IDLE_SECONDS:
            close_for_async()


def close_for_async() -> None:
    """Close the connections of the thread behind async tasks. Only while none of them runs."""
    loop = event_loop.process_loop()
    if loop.started and connections.opened_for_async():
        loop.run(connections.close_for_async)


def tell(sender: type, signal: EventSignal, *, pid: int | None = None, **arguments: Any) -> None:
    """Send a signal about the worker process ``pid`` (this one), in a thread that runs no task."""
    opened = connections.opened_here()
    signal.notify(sender, worker=worker_name(pid), **arguments)
    if not opened:  # nobody else would close what receivers opened here
        connections.close_here()
