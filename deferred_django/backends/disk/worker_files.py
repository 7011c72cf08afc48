"""Which worker processes are alive: a file each, locked while its worker lives."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Sequence

from deferred_django import ids
from deferred_django.backends.base import RunningTask, WorkerInfo
from deferred_django.backends.disk import descriptors, files, locks, records
from deferred_django.backends.disk.names import StoreNames

EMPTY_SECONDS = 60.0
STALE_SECONDS = 10.0
"""How often a worker looks for files that dead ones left: many workers have many files."""
TOUCH_SECONDS = 5.0
"""How often a sign of life is left that says nothing new: an idle worker costs next to nothing."""
MAX_RUNNING = 100
MAX_NAME = 200
"""Of a longer name its end is told."""
_MAX_BYTES = 64 * 1024
_RUNNING = b"running:"
_LOOKS = 3
"""A line that is being written is read again so often."""
_MAX_SECONDS = 1e15


class WorkerFiles:
    """This process's entry and a view of all. The lock is the truth, the content a description.

    The first line says what does not change. Behind it is, once there was something to say, a
    record of what runs, written over and over at the same place: its checksum tells a reader that
    it did not read while it was written. The time of modification is the last sign of life.
    """

    def __init__(self, names: StoreNames, file_permissions: int) -> None:
        self._names = names
        self._permissions = file_permissions
        self._own: tuple[int, str] | None = None
        self._content: dict[str, object] | None = None
        """What is written into the file of a process that is to be listed."""
        self.reset()
        descriptors.on_fork(self.reset)

    def reset(self) -> None:
        """In a forked child: the entry is the parent's."""
        self._own = self._content = None
        self._first_line = b""
        self._told: list[RunningTask] = []
        self._stale_at = 0.0
        self._touch_at = 0.0
        # A descriptor that is closed while another thread writes may be another file's by then.
        self._mutex = threading.RLock()

    def start(self, *, threads: int, queues: Sequence[str] | None) -> None:
        """List this process as a worker until :meth:`stop` or its death.

        After an ``OSError`` :meth:`stay_listed` tries it again.
        """
        if self._own is not None:
            return
        self._content = {
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "started_at": round(time.time(), 3),
            "threads": threads,
            "queues": None if queues is None else list(queues),
        }
        files.make_directory(self._names.path, self._permissions)
        self._write()

    def _write(self) -> None:
        path = self._names.at(self._names.worker(ids.process_token()))
        fd = files.create_file(path, os.O_RDWR, self._permissions)
        self._own = (fd, path)
        try:
            locks.try_whole(fd)
            self._first_line, self._told = json.dumps(self._content).encode("ascii") + b"\n", []
            files.append_record(fd, self._first_line)
        except BaseException:
            self._let_go()
            raise

    def heartbeat(self, running: Sequence[RunningTask]) -> None:
        """A sign of life, with what runs for long; only what has changed is written."""
        with self._mutex:
            if self._own is None:
                return
            fd = self._own[0]
            now = time.monotonic()
            if now >= self._touch_at:
                files.touch(fd)
                self._touch_at = now + TOUCH_SECONDS
            running = list(running[:MAX_RUNNING])
            if running != self._told:
                record = _record(running)
                if files.write_at(fd, record, len(self._first_line)) == len(record):
                    self._told = running  # else it is tried again, where a disk is full

    def stay_listed(self) -> None:
        """Write the file if it is missing or was cut; without a directory, wait."""
        with self._mutex:
            self._stay_listed()

    def _stay_listed(self) -> None:
        own = self._own
        if self._content is None:
            return
        if own is not None and files.is_at_path(*own):
            line = self._first_line
            if files.read_at(own[0], len(line), 0) == line:
                return
        if not files.is_directory(self._names.path):
            return
        if own is None:
            self._write()
            return
        with contextlib.suppress(FileNotFoundError):  # from a backup: nobody holds it
            files.unlink(own[1])
        try:
            self._write()
        except BaseException:
            self._own = own
            raise
        files.close(own[0])

    def stop(self) -> None:
        """Take this process off the list."""
        with self._mutex:
            self._content = None
            self._let_go()

    def _let_go(self) -> None:
        if self._own is None:
            return
        fd, path = self._own
        self._own = None
        try:
            with contextlib.suppress(OSError):  # a file that nobody locks is removed by others
                files.unlink(path)
        finally:
            locks.close_whole(fd)

    def alive(self) -> tuple[list[WorkerInfo], list[str]]:
        """The workers that live now, the longest-lived first, and what cannot be read of them.

        Creates and removes nothing.
        """
        found, problems = [], []
        for name in self._names.workers():
            try:
                fd = files.open_file(self._names.at(name), os.O_RDONLY)
                try:
                    if locks.is_whole_free(fd):
                        continue
                    found.append(_info(self._names.token_of(name), fd))
                finally:
                    files.close(fd)
            except FileNotFoundError:
                continue  # it has just ended
            except OSError as error:
                problems.append(f"{name}: a worker's file that cannot be read: {error}")
            except (ValueError, TypeError, KeyError, RecursionError):
                continue  # of a worker that is just beginning, or no worker's
        return sorted(found, key=lambda worker: (worker.started_at, worker.token)), problems

    def remove_stale(self) -> None:
        """Remove the files that dead workers left, if that was not done a moment ago."""
        now = time.monotonic()
        if now < self._stale_at:
            return
        all_seen = True
        for name in self._names.workers():
            path = self._names.at(name)
            if self._own is not None and path == self._own[1]:
                continue
            try:
                fd = files.open_file(path, os.O_RDWR)
                try:
                    # A new empty file may be a worker's that has not locked it yet.
                    status = files.status(fd)
                    new = not status.st_size and time.time() - status.st_mtime < EMPTY_SECONDS
                    if not new and locks.try_whole(fd) and files.is_at_path(fd, path):
                        files.unlink(path)
                finally:
                    locks.close_whole(fd)
            except OSError:
                all_seen = False
        if all_seen:
            self._stale_at = now + STALE_SECONDS


def _info(token: str, fd: int) -> WorkerInfo:
    for _ in range(_LOOKS):
        first, _, rest = files.read_at(fd, _MAX_BYTES, 0).partition(b"\n")
        line = rest.partition(b"\n")[0]
        running = _running(line)
        if running is not None:
            break
    content = json.loads(first)
    pid, queues = int(str(content["pid"])), content.get("queues")
    host = str(content["host"])
    return WorkerInfo(
        token=token,
        pid=pid,
        host=host,
        started_at=_time(content["started_at"]),
        threads=int(str(content.get("threads", 0))),
        queues=tuple(map(str, queues)) if isinstance(queues, list) else None,
        stopped=host == socket.gethostname() and _is_stopped(pid),
        heartbeat_at=round(files.status(fd).st_mtime, 3),
        running=running or (),
    )


def _time(value: object) -> float:
    seconds = float(str(value))
    if not abs(seconds) <= _MAX_SECONDS:  # NaN too: no age could be told of it
        raise ValueError("not a time")
    return seconds


def _record(running: Sequence[RunningTask]) -> bytes:
    tasks = [[task.id, task.name[-MAX_NAME:], task.since] for task in running]
    return records.encode(_RUNNING + json.dumps(tasks).encode("ascii")) + b"\n"


def _running(line: bytes) -> list[RunningTask] | None:
    """What the record says; ``None`` for one that is not whole, or is none."""
    if not line:  # there was nothing to say yet
        return []
    body = line[records.CRC_BYTES :]
    if not records.is_valid(line) or not body.startswith(_RUNNING):
        return None
    try:
        found = json.loads(body[len(_RUNNING) :])
        return [RunningTask(str(id), str(name), _time(since)) for id, name, since in found]
    except (ValueError, TypeError, RecursionError):
        return []


def _is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="latin-1") as stat_file:
            return stat_file.read().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False
