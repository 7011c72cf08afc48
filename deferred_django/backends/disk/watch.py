"""Waiting for a change of the store's directory: inotify on Linux, polling elsewhere.

The watch is a hint for promptness, never the truth: the storage lists and stats the directory
every second besides, so a lost event, an overflow or a watch that could not be had costs at most
that second.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import select
import struct
import sys
import time
from typing import Any

from deferred_django.backends.disk import descriptors, files

logger = logging.getLogger("deferred_django.disk")

POLL_SECONDS = 1.0
RETRY_SECONDS = 30.0
"""How long polling goes on before inotify is tried again, after a limit was met."""
PORTABLE_POLL_SECONDS = 0.05

_MODIFY, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF, _UNMOUNT, _OVERFLOW, _IGNORED = 0x400, 0x800, 0x2000, 0x4000, 0x8000
_ONLYDIR = 0x01000000
_CHANGES = _MODIFY | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF
_GONE = _DELETE_SELF | _MOVE_SELF | _UNMOUNT | _IGNORED
_HEADER = struct.Struct("iIII")
_EVENT_BYTES = 64 * 1024


class InotifyCalls:
    """The two system calls, replaceable in tests; ``OSError`` where there is no inotify."""

    def __init__(self) -> None:
        self._libc: Any = None

    def _library(self) -> Any:
        if self._libc is None:
            if not sys.platform.startswith("linux"):
                raise OSError(errno.ENOSYS, "inotify is Linux's")
            self._libc = ctypes.CDLL(None, use_errno=True)
        return self._libc

    def init(self) -> int:
        """``inotify_init1``; the descriptor does not block and is closed on exec."""
        return self._checked(self._library().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), None)

    def add_watch(self, fd: int, path: str) -> int:
        """``inotify_add_watch`` on a directory."""
        mask = _CHANGES | _ONLYDIR
        return self._checked(self._library().inotify_add_watch(fd, os.fsencode(path), mask), path)

    def _checked(self, answer: int, path: str | None) -> int:
        if answer < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
        return answer


calls = InotifyCalls()


class DirectoryWatch:
    """What changed in one directory, and a way to be woken. For one waiting thread."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._inotify: int | None = None
        self._identity = (0, 0)
        self._look_again_at = 0.0
        self._is_new = False
        self._warned = False
        self._try_again_at = 0.0
        # Only a descriptor can end a poll() from a signal handler.
        try:
            self._wake_read, self._wake_write = os.pipe()
        except OSError as error:
            error.filename = path
            raise
        for fd in (self._wake_read, self._wake_write):
            os.set_blocking(fd, False)
            descriptors.register(fd, "the wake-up pipe")

    def wake(self) -> None:
        """End a wait, the running or the next one."""
        # Full: a wake-up is waiting already. Closed, perhaps in this moment: nobody waits.
        with contextlib.suppress(OSError):
            os.write(self._wake_write, b"!")

    def wait(self, timeout: float) -> None:
        """Return when the directory changes, on :meth:`wake`, or after ``timeout`` seconds.

        The call that begins to watch returns at once: the caller must list the directory then.
        """
        self._watch()
        if self._is_new:
            return
        poller = select.poll()
        poller.register(self._wake_read, select.POLLIN)
        if self._inotify is not None:
            poller.register(self._inotify, select.POLLIN)
        else:
            timeout = min(timeout, PORTABLE_POLL_SECONDS)
        events = poller.poll(max(0.0, timeout) * 1000)
        if any(fd == self._wake_read for fd, _ in events):
            with contextlib.suppress(BlockingIOError):
                while os.read(self._wake_read, 4096):
                    pass

    def wait_for_wake(self, timeout: float) -> None:
        """Sleep, unless :meth:`wake` is called; changes of the directory are kept for later."""
        poller = select.poll()  # unlike select() it takes any descriptor
        poller.register(self._wake_read, select.POLLIN)
        poller.poll(timeout * 1000)

    def changed(self) -> set[str] | None:
        """The names that changed since the last call; ``None`` if not known: look at all."""
        fd = self._inotify
        if fd is None:
            return None
        if self._is_new:  # what happened before the watch was there is in no event
            self._is_new = False
            return None
        names: set[str] = set()
        complete = True
        while True:
            try:
                data = os.read(fd, _EVENT_BYTES)
            except BlockingIOError:
                return names if complete else None
            position = 0
            while position < len(data):
                _, mask, _, length = _HEADER.unpack_from(data, position)
                position += _HEADER.size
                name = data[position : position + length].rstrip(b"\0")
                position += length
                if mask & _GONE:
                    self._unwatch()
                    return None
                if mask & _OVERFLOW:
                    complete = False
                names.add(os.fsdecode(name))

    def _watch(self) -> None:
        """Watch the directory if it is not; the caller lists it afterwards, not before."""
        now = time.monotonic()
        if self._inotify is not None and now >= self._look_again_at:
            # A link that leads elsewhere now, or a parent that was moved, is told by no event.
            self._look_again_at = now + POLL_SECONDS
            if _identity_of(self._path) != self._identity:
                self._unwatch()
        if self._inotify is not None or time.monotonic() < self._try_again_at:
            return
        fd = None
        try:
            fd = descriptors.register(calls.init(), "inotify")
            self._identity = _identity_of(self._path)
            calls.add_watch(fd, self._path)
        except OSError as error:
            if fd is not None:
                files.close(fd)
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                self._try_again_at = time.monotonic() + POLL_SECONDS / 2
                return
            self._try_again_at = time.monotonic() + RETRY_SECONDS
            if not self._warned:
                self._warned = True
                logger.warning("%s is polled, it cannot be watched: %s", self._path, error)
            return
        except BaseException:
            if fd is not None:
                files.close(fd)
            raise
        self._inotify = fd
        self._is_new = True

    def _unwatch(self) -> None:
        if self._inotify is not None:
            fd, self._inotify = self._inotify, None
            files.close(fd)

    def close(self) -> None:
        """Close the descriptors."""
        self._unwatch()
        ends = self._wake_read, self._wake_write
        self._wake_read = self._wake_write = -1  # first: the numbers are soon other files'
        for fd in ends:
            files.close(fd)


def _identity_of(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)
    except OSError:
        return 0, 0
    return status.st_dev, status.st_ino
