"""The file of ``--heartbeat-file``: how fresh it is says how a worker is, to whatever watches it.

Its time of modification is when that of the worker processes went round last that has been silent
for the longest. So it goes stale if a process is stuck, stopped or dead, and if the one that writes
the file is: there is nothing to be compared but its age. What a process last said is in memory that
it shares with the supervisor, which costs it no system call.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator

from deferred_django import logs

PERIOD_SECONDS = 5.0
"""How often the file is written."""
FIRST_PERIOD_SECONDS = 0.25
"""How often it is looked whether every process has begun, at the start."""
MAX_AGE_SECONDS = 60.0
"""What is older than this is stale, unless the one who asks says otherwise."""
_BEAT = struct.Struct("d")


class HeartbeatFile:
    """The file, and what each worker process said last. Make it before the processes fork."""

    def __init__(self, path: str, processes: int = 1) -> None:
        """Touch nothing. A relative ``path`` is taken from the directory of this moment."""
        self.path = os.path.abspath(path)
        self._beats = mmap.mmap(-1, _BEAT.size * processes)  # zeros: nobody has begun
        self._written = False
        self._write_at = 0.0

    def beater(self, process: int) -> Callable[[float], None]:
        """What the process of this number calls with the time (monotonic) at each of its rounds."""
        beats, offset, pack_into = self._beats, process * _BEAT.size, _BEAT.pack_into

        def beat(now: float) -> None:
            pack_into(beats, offset, now)

        return beat

    # -- for the one that writes it ------------------------------------------------------------

    def begin(self) -> None:
        """Take away what an earlier worker left; ``OSError`` if the file cannot be written."""
        try:
            os.close(self._open(self.path, 0))
            self.remove()
        except FileNotFoundError:  # not made before all are at work: its being there says so
            trial = f"{self.path}.{os.getpid()}"
            os.close(self._open(trial, os.O_CREAT))
            os.unlink(trial)

    def remove(self) -> None:
        """The worker has ended: let the file be gone, or at least look old."""
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            pass
        except OSError:  # a mount of its own, or a directory that this user cannot write
            with contextlib.suppress(OSError):
                os.utime(self.path, (0, 0))

    def seconds_to_next(self) -> float:
        """In how many seconds :meth:`update` has something to do."""
        return max(self._write_at - time.monotonic(), 0.0)

    def update(self, processes: Iterable[int]) -> None:
        """Write the file if it is time to. ``processes``: those that should be at work.

        An error is logged, at a bounded rate, and it is tried again.
        """
        now = time.monotonic()
        if now < self._write_at:
            return
        beats = [_BEAT.unpack_from(self._beats, each * _BEAT.size)[0] for each in processes]
        begun = bool(beats) and min(beats) > 0
        if begun:
            try:
                self._write(time.time() - (now - min(beats)))
                self._written = True
            except OSError as error:
                logs.store_error(f"Writing the heartbeat file {self.path}", error)
        self._write_at = now + (PERIOD_SECONDS if self._written else FIRST_PERIOD_SECONDS)

    def _write(self, moment: float) -> None:
        fd = self._open(self.path, os.O_CREAT)
        try:
            if not os.fstat(fd).st_size:
                with contextlib.suppress(OSError):  # a full disk: the time is what counts
                    os.write(fd, b"%d\n" % os.getpid())
            os.utime(fd, (moment, moment))
        finally:
            os.close(fd)

    def _open(self, path: str, flags: int) -> int:
        fd = os.open(path, flags | os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "is not a regular file", path)
        return fd

    @contextlib.contextmanager
    def written_by_a_thread(self) -> Iterator[None]:
        """Write it from a thread while the block runs, where there is no supervisor."""
        end = threading.Event()

        def write() -> None:
            while not end.wait(self.seconds_to_next()):
                self.update([0])

        thread = threading.Thread(target=write, name="deferred-heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            end.set()
            thread.join(FIRST_PERIOD_SECONDS)
            self.remove()


def age_of(path: str) -> float:
    """Seconds since the file was written last; ``OSError`` if there is none."""
    return max(time.time() - os.stat(path).st_mtime, 0.0)
