"""How an idle worker waits: prompt for what concerns it, cheap when others are busy."""

from __future__ import annotations

import threading
import time

from deferred_django.backends.disk.watch import POLL_SECONDS, DirectoryWatch

FREE_WAKES = 3
"""So many wake-ups in a row that led to nothing cost no pause."""
MAX_PAUSE = 0.02


class Waiter:
    """Waits for a change of the directory. One thread waits at a time; any may wake it."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._in_vain = 0
        self.woken = False
        """:meth:`wake` was called, and no wait has ended by it yet."""
        self.watch: DirectoryWatch | None = None
        """Made at the first wait; until then every refresh lists the directory."""

    def wait(self, timeout: float) -> None:
        """Return on a change, on :meth:`wake`, or after ``timeout`` seconds (a second at most)."""
        with self._lock:
            if self.watch is None:
                self.watch = DirectoryWatch(self._path)
            watch = self.watch
        if self.woken:  # perhaps before there was a watch to wake
            self.woken = False
            timeout = 0.0
        timeout = min(timeout, POLL_SECONDS)
        # What other workers append wakes an idle one too: the more often in vain, the slower.
        excess = self._in_vain - FREE_WAKES
        if excess > 0 and timeout > MAX_PAUSE:
            watch.wait_for_wake(min(0.001 * 2 ** min(excess, 10), MAX_PAUSE))
        began = time.monotonic()
        watch.wait(timeout)
        idle = time.monotonic() - began >= min(timeout, MAX_PAUSE)
        self._in_vain = 0 if idle else self._in_vain + 1

    def wake(self) -> None:
        """End the running or the next wait. A signal handler may call it: it takes no lock."""
        self.woken = True
        watch = self.watch
        if watch is not None:
            watch.wake()

    def not_in_vain(self) -> None:
        """The last wait led to something."""
        self._in_vain = 0

    def close(self) -> None:
        """Close the descriptors; a later wait opens them anew."""
        with self._lock:
            if self.watch is not None:
                self.watch.close()
                self.watch = None
