"""The process that is scheduled: it goes on for as many calls of ``files`` as it is told to.

Messages are JSON arrays, one in each packet. To the controller, when it waits with the number of
calls that it has made:

==========  ====================================================================================
``ready``   the operation is prepared; it waits
``call``    it is about to make this call on this file; it waits
``wait``    the lock of this file is another's; it waits
``passed``  it makes this call on this file (if traces are wanted); it goes on
``looked``  the same, of a look at which it does not stop
``forked``  it made this process, which reports through the spare channel
``event``   something that the books need; it goes on
``done``    the operation is over; it waits, alive and holding what it holds
``failed``  an exception that nobody expected; it waits
``idle``    it holds nothing any more, and waits for the next job
==========  ====================================================================================

From the controller: a job, ``go`` with a number of calls, ``end``, or ``die``, which is a SIGKILL
for less than the price of a new process: no call of ``files`` has an effect any more.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import socket
import traceback
from collections.abc import Callable
from typing import Any

from deferred_django.backends.disk import descriptors, files
from deferred_django.backends.disk.names import StoreNames
from deferred_django.backends.disk.syncer import Syncer

CHECKPOINTS = tuple(name for name in files.CALLS if name != "close")
"""Where a process stops. A close frees nothing that was not unlocked before it."""
FINE_CHECKPOINTS = ("listdir", "stat", "fstat")
"""Looks at the directory that ``files`` does not make: the random walks stop at them too."""


LOCK_SECONDS = 60.0
"""Longer than any schedule: none of them is about what was not had in time."""


class Ended(BaseException):
    """The schedule is over: the process is to forget what it was at."""


class Channel:
    """The process's side of its connection to the controller."""

    def __init__(self, connection: socket.socket, spare: socket.socket | None) -> None:
        self._connection = connection
        self._spare = spare
        self.stepping = False
        self.fine = False
        self.traced = False
        self.dead = False
        self._credit = 0
        self._calls = 0
        self._place = 0
        self._segments = 0
        self._faults: list[tuple[str, str, int]] = []
        self._children: list[int] = []

    def tell(self, *message: Any) -> None:
        """Report, and go on."""
        if self.dead:
            return
        self._connection.send(json.dumps(message).encode())

    def wait(self, kind: str, *message: Any) -> None:
        """Report, and go on when told to."""
        self.tell(kind, self._calls, *message)
        order = self.receive()
        if order[0] != "go":
            self.dead = order[0] == "die"
            raise Ended
        self._credit = order[1]

    def receive(self) -> Any:
        """What the controller says; the process ends with it."""
        data = self._connection.recv(1 << 20)
        if not data:
            os._exit(0)
        return json.loads(data)

    def fail_next(self, call: str, path_part: str, number: int) -> None:
        """Let the next such call on a file whose name has that part fail with this ``errno``."""
        self._faults.append((call, path_part, number))

    def begin(self, place: int, *, fine: bool, traced: bool) -> None:
        """A new job: stop at the directory's looks too, tell of each call."""
        self._place, self.fine, self.traced = place, fine, traced
        self.dead = False
        self._segments = 0
        self._credit = self._calls = 0
        self._faults.clear()

    def checkpoint(self, call: str, path: str) -> None:
        """Stop before a call; raise what was to be injected into it."""
        if self.dead:
            raise Ended
        if not self._credit:
            self.wait("call", call, os.path.basename(path))
        if self.traced:
            self.tell("passed", call, os.path.basename(path))
        self._credit -= 1
        self._calls += 1
        for fault in self._faults:
            if fault[0] == call and fault[1] in path:
                self._faults.remove(fault)
                raise OSError(fault[2], os.strerror(fault[2]), path)

    def fork(self, work: Callable[[], None]) -> int:
        """Fork; the new process does ``work``, stopping as this one does, and ends."""
        self.checkpoint("fork", "")
        pid = os.fork()
        if pid == 0:
            assert self._spare is not None
            self._connection.close()
            self._connection, self._spare = self._spare, None
            self._calls = 0
            self._place += 10
            self.perform(work)
            os._exit(0)
        self._children.append(pid)
        self.tell("forked", pid)
        return pid

    def new_segment(self, prefix: str) -> str:
        """A segment's name: the order of names is that of the processes in every repetition."""
        self._segments += 1
        return f"{prefix}0-20260101-{300 + 200 * self._place}-{self._segments:08d}"

    def reap(self) -> None:
        """Take note of the ends of the processes that were forked."""
        while self._children:
            os.waitpid(self._children.pop(), 0)

    def perform(self, work: Callable[[], None]) -> None:
        """Do it and report how it ended."""
        try:
            self.wait("ready")
            self.stepping = True
            try:
                work()
            finally:
                self.stepping = self.dead
            self.wait("done")
        except Ended:
            pass
        except BaseException:
            if not self.dead:
                with contextlib.suppress(Ended):
                    self.wait("failed", traceback.format_exc())


class _LogHandler(logging.Handler):
    """What the package complains about is an event: it swallows some errors and logs them."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(logging.WARNING)
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        """Tell it."""
        self._channel.tell("event", "log", record.getMessage())


def install(channel: Channel) -> None:
    """Let this process stop at each checkpoint. No timer: a sync is an operation like any other."""
    without_clock()
    StoreNames.new_segment = lambda self: channel.new_segment(self.prefix)  # type: ignore[method-assign]
    for name in CHECKPOINTS:
        setattr(files, name, _stopping(channel, name, getattr(files, name)))
    setattr(files, "wait_flock", _waiting(channel, files.try_flock))  # noqa: B010 - for mypy
    for name in FINE_CHECKPOINTS:
        setattr(os, name, _stopping_finely(channel, name, getattr(os, name)))
    logger = logging.getLogger("deferred_django")
    logger.handlers[:] = [_LogHandler(channel)]
    logger.propagate = False


def without_clock() -> None:
    """No process syncs by a timer: no such schedule can be repeated."""
    Syncer.soon = lambda self: None  # type: ignore[method-assign]


def _path(argument: Any) -> str:
    return descriptors.paths.get(argument, "?") if isinstance(argument, int) else str(argument)


def _stopping(channel: Channel, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        if channel.stepping:
            channel.checkpoint(name, _path(arguments[0]))
        return real(*arguments, **options)

    return call


def _stopping_finely(channel: Channel, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        if channel.stepping and (channel.fine or channel.traced) and arguments:
            path = _path(arguments[0])
            if path.startswith("/") and not path.startswith("/proc"):
                if channel.fine:
                    channel.checkpoint(name, path)
                else:
                    channel.tell("looked", name, os.path.basename(path))
        return real(*arguments, **options)

    return call


def _waiting(channel: Channel, try_flock: Callable[[int], bool]) -> Callable[[int], None]:
    """Waiting through the controller, which knows then that it has to let another go on."""

    def wait_flock(fd: int) -> None:
        stepping, channel.stepping = channel.stepping, False
        try:
            while not try_flock(fd):
                if not stepping:
                    raise OSError(errno.EDEADLK, "waits while it is prepared", _path(fd))
                channel.wait("wait", os.path.basename(_path(fd)))
        finally:
            channel.stepping = stepping

    return wait_flock


def serve(
    connection: socket.socket, spare: socket.socket, work: Callable[[Channel, Any], None]
) -> None:
    """Do one job after the other; never returns."""
    channel = Channel(connection, spare)
    install(channel)
    while True:
        job = channel.receive()
        channel.begin(job["place"], fine=job["fine"], traced=job["traced"])
        try:
            work(channel, job)
        except Ended:
            pass
        except BaseException:
            with contextlib.suppress(Ended):
                channel.wait("failed", traceback.format_exc())
        channel.dead = channel.stepping = False
        channel.reap()
        _drop_everything()
        channel.tell("idle")


def _drop_everything() -> None:
    """What the end of a process does: the kernel closes its files, and unlocks nothing before."""
    for fd in list(descriptors.paths):
        with contextlib.suppress(OSError):
            os.close(fd)
    descriptors.paths.clear()
