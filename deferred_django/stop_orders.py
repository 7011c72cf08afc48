"""What ends the work of a supervisor: signals, orders from above, or a change of the code."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from deferred_django.worker_process import STOP, handled_signals

_CODE_CHANGED = b"c"
"""Besides it the numbers of signals are written to the pipe that wakes: bytes up to 64."""
_WAIT_SECONDS = 10.0
_WAIT_SECONDS_WITHOUT_SIGNALS = 0.1


class StopOrders:
    """Counts what tells a process to stop, and wakes it. Use it as a context manager.

    In the main thread SIGTERM, SIGINT and SIGHUP are such orders, unless they come through a
    pipe: a signal to the whole process group reaches both ends of it, and must count once.
    """

    def __init__(self, control: int | None = None, *, to_the_end: bool = False) -> None:
        """``control``: the reading end of that pipe, which is closed at the end. ``to_the_end``:
        see :func:`handled_signals`."""
        self._to_the_end = to_the_end
        self._control = -1 if control is None else control
        self._wake_read = self._wake_write = -1
        self.count = 0
        """0: go on. 1: stop. More: stop now."""
        self.code_changed = False
        """The first order was :meth:`tell_that_code_changed`."""
        self.longest_wait = _WAIT_SECONDS
        """Seconds after which the processes are to be looked at without being woken."""

    @contextlib.contextmanager
    def received(self) -> Iterator[None]:
        """Receive orders."""
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        try:
            with (
                self._woken_by_signals(),
                handled_signals(self._handlers(), to_the_end=self._to_the_end),
            ):
                yield
        finally:
            for fd in (self._wake_read, self._wake_write, self._control):
                if fd != -1:
                    os.close(fd)

    @contextlib.contextmanager
    def _woken_by_signals(self) -> Iterator[None]:
        # Python calls a handler between two of its own instructions. A signal that comes in the
        # last moment before a wait would have to wait for its end: what writes here is not Python.
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)

    def _handlers(self) -> dict[int, Any]:
        if threading.current_thread() is not threading.main_thread():
            self.longest_wait = _WAIT_SECONDS_WITHOUT_SIGNALS
            return {}
        stop = self._on_stop_signal if self._control == -1 else self._on_other_signal
        handlers: dict[int, Any] = {
            signal.SIGTERM: stop,
            signal.SIGINT: stop,
            signal.SIGCHLD: self._on_other_signal,
        }
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
            handlers[signal.SIGHUP] = stop
        return handlers

    def _on_stop_signal(self, signum: int, frame: FrameType | None) -> None:
        self.count += 1

    def _on_other_signal(self, signum: int, frame: FrameType | None) -> None:
        """It wakes."""

    def wait(self, timeout: float) -> None:
        """Wait for a signal, an order or the end of a child, ``timeout`` seconds at most."""
        poller = select.poll()  # unlike select() it takes any descriptor
        poller.register(self._wake_read, select.POLLIN)
        if self._control != -1:
            poller.register(self._control, select.POLLIN)
        ready = {fd for fd, _ in poller.poll(timeout * 1000)}
        if self._control in ready:
            self._obey(os.read(self._control, 64))
        if self._wake_read in ready:
            with contextlib.suppress(BlockingIOError):
                if _CODE_CHANGED in os.read(self._wake_read, 4096) and not self.count:
                    self.count, self.code_changed = 1, True

    def _obey(self, orders: bytes) -> None:
        self.count = max(self.count, 1 if set(orders) == set(STOP) else 2)
        if not orders:  # who passes them on is dead
            os.close(self._control)
            self._control = -1

    # -- in a forked child -----------------------------------------------------------------------

    def leave(self, *, can_tell: bool) -> None:
        """Be a child of the process that receives them; ``can_tell`` keeps what that needs."""
        if threading.current_thread() is threading.main_thread():
            signal.set_wakeup_fd(-1)
        os.close(self._wake_read)
        if self._control != -1:
            os.close(self._control)
        if not can_tell:
            wake, self._wake_write = self._wake_write, -1  # soon another file's number
            os.close(wake)

    def tell_that_code_changed(self) -> None:
        """Have the process above stop all of its children, this one too."""
        with contextlib.suppress(OSError):  # full: it wakes all the same
            os.write(self._wake_write, _CODE_CHANGED)
