"""A way to wake one thread."""

from __future__ import annotations

import threading


class Bell:
    """Wakes one waiting thread. Ringing is safe in signal handlers and is never lost."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> None:
        """End the running or the next :meth:`wait`."""
        try:  # noqa: SIM105 - on the path of every short task
            self._lock.release()
        except RuntimeError:
            pass  # it rang already

    def wait(self, timeout: float = -1) -> bool:
        """Wait for a ring; ``False`` if there was none within ``timeout`` seconds."""
        return self._lock.acquire(timeout=timeout)
