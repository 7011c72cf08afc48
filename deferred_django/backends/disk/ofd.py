"""What platforms differ in: open-file-description locks, the full fsync, leases.

Linux has its constants in :mod:`fcntl`. macOS has the same calls under the numbers of xnu's
``fcntl.h``, which are written down here and have not been run there.
"""

from __future__ import annotations

import os
import signal
import struct
import sys
from typing import Final

try:
    import fcntl
except ImportError:  # pragma: no cover - not POSIX: the check says so, nothing else gets here
    fcntl = None  # type: ignore[assignment]

if sys.platform == "darwin":  # pragma: no cover - not run there
    SETLK, GETLK = 90, 92
    _LAYOUT = struct.Struct("qqihh")  # l_start, l_len, l_pid, l_type, l_whence
    _KIND = 3

    def pack(kind: int, start: int, length: int) -> bytes:
        """The ``struct flock`` of a byte range."""
        return _LAYOUT.pack(start, length, 0, kind, os.SEEK_SET)

else:
    SETLK = getattr(fcntl, "F_OFD_SETLK", -1)
    GETLK = getattr(fcntl, "F_OFD_GETLK", -1)
    _LAYOUT = struct.Struct("hhqqi4x")  # l_type, l_whence, l_start, l_len, l_pid (must be 0)
    _KIND = 0

    def pack(kind: int, start: int, length: int) -> bytes:
        """The ``struct flock`` of a byte range."""
        return _LAYOUT.pack(kind, os.SEEK_SET, start, length, 0)


_FULL_FSYNC: Final[int | None] = getattr(fcntl, "F_FULLFSYNC", None)


def kind_of(answer: bytes) -> int:
    """``F_UNLCK`` in the answer to ``GETLK`` if nobody holds the range."""
    return int(_LAYOUT.unpack(answer)[_KIND])


def full_fsync(fd: int) -> bool:
    """Have the drive write its cache too, where ``fsync`` alone does not (macOS)."""
    if _FULL_FSYNC is None:
        return False
    try:  # pragma: no cover - not run there
        fcntl.fcntl(fd, _FULL_FSYNC)
    except OSError:  # not every file system has it
        return False
    return True


def locks_are_supported() -> bool:
    """Whether this platform has open-file-description locks."""
    return os.name == "posix" and SETLK > 0


def is_open_elsewhere(fd: int) -> bool:
    """Whether the file may be open by another description; Linux can say no for certain."""
    if not hasattr(fcntl, "F_SETLEASE"):  # pragma: no cover - not run there
        return True
    try:
        # A lease for writing is had only by who has the file to itself. If somebody opens the
        # file in the moment that it is held, the kernel tells this process, by a signal that
        # does nothing: SIGIO would end it.
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except OSError:  # somebody has it, or this file system or user may not know
        return True
    return False
