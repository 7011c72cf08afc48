"""The timer that fsyncs what was appended, and lets go of what is idle."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger("deferred_django.disk")

MAX_PAUSE = 30.0


class Syncer:
    """Calls ``tick`` every ``period`` seconds from a thread that exists while there is work.

    ``tick`` returns whether it wants to be called again. The thread is a daemon: at a normal end
    of the process the backend is closed, which syncs. Where no thread can be started (an embedded
    interpreter without threads, the end of the interpreter), :meth:`soon` calls ``tick`` itself.
    """

    def __init__(self, period: float, tick: Callable[[], bool]) -> None:
        self._period = period
        self._tick = tick
        self.reset()

    def reset(self) -> None:
        """Forget the thread (in a forked child it does not exist)."""
        self._lock = threading.RLock()  # a signal handler may enqueue in the middle of soon()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._wanted = False
        self._warned = False

    def soon(self) -> None:
        """Have ``tick`` called within the period."""
        if self._wanted:  # read without the lock: the thread clears it under the lock before a tick
            return
        with self._lock:
            self._wanted = True
            if self._thread is not None:
                return
            self._stopped = threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(self._stopped,), name="deferred-sync", daemon=True
            )
            try:
                self._thread.start()
                return
            except RuntimeError as error:
                self._thread = None
                self._wanted = False
                if not self._warned:
                    self._warned = True
                    logger.warning("no sync thread could be started, syncing inline: %s", error)
        try:
            self._tick()
        except Exception:  # what the caller has written is written
            logger.exception("syncing failed, it is tried again with the next write")

    def _run(self, stopped: threading.Event) -> None:
        pause = self._period
        last = time.monotonic()
        while not stopped.wait(max(0.0, last + pause - time.monotonic())):
            last = time.monotonic()
            with self._lock:
                self._wanted = False
            try:
                more = self._tick()
                pause = self._period
            except Exception:  # the timer outlives every failure of the disk
                logger.exception("the sync timer failed, it goes on")
                more = True
                pause = min(pause * 2 + 0.01, MAX_PAUSE)
            with self._lock:
                if not more and not self._wanted:
                    self._thread = None
                    return

    def stop(self) -> None:
        """End the thread and wait for a tick that is under way."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._wanted = False
            self._stopped.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=5.0)
