"""Records what the store does to the disk below one directory, and lets a process die on the way.

Every function of :mod:`deferred_django.backends.disk.files` that changes something is wrapped while
a recorder is installed; the real call is made, then noted, under one lock, so that the order noted
is the order in which things happened. What the events add up to is compared with the directory at
the end: a change that went past the wrappers does not go unnoticed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

from deferred_django.backends.disk import descriptors, files
from tests.crash.events import (
    DIRECTORY,
    Event,
    FailedFsync,
    Fsync,
    FsyncDirectory,
    Link,
    Rename,
    Truncate,
    Unlink,
    Write,
)

_WRAPPED = (
    "close",
    "open_file",
    "create_file",
    "write",
    "fsync",
    "fsync_directory",
    "rename",
    "truncate",
    "unlink",
)


class Killed(BaseException):
    """The process is dead: nothing that it still tries happens."""


class Recorder:
    """The events below ``root``, from what was there in the beginning."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.events: list[Event] = []
        self.contents: dict[int, bytes] = {}
        """The files that were there when the recording began. All that was there was durable."""
        self.names: dict[tuple[str, str], int] = {}
        """Directory and name of each of them, and of the directories."""
        self.is_recording = False
        self.calls = 0
        """How many calls changed something, or tried to, since the last kill was planned."""
        self._lock = threading.RLock()
        self._numbers: dict[tuple[int, int], int] = {}
        self._last_number = 0
        self._fsyncs_to_fail = 0
        self._not_told_yet: set[int] = set()
        """Descriptors that were open when an fsync of their file failed: theirs fail too, once."""
        self._directory_fsyncs_to_fail = 0
        self._dies_at: int | None = None
        self._tears = False
        self._is_dead = False
        self._real: dict[str, Callable[..., Any]] = {}
        self._real_mkdir = os.mkdir

    # -- from the outside ----------------------------------------------------------------------

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Wrap the calls."""
        self._real = {name: getattr(files, name) for name in _WRAPPED}
        for name in _WRAPPED:
            setattr(files, name, getattr(self, "_" + name))
        os.mkdir = self._mkdir
        try:
            yield
        finally:
            os.mkdir = self._real_mkdir
            for name, function in self._real.items():
                setattr(files, name, function)

    def begin(self) -> None:
        """Take what is there for durable, and record from here on."""
        for directory, names, file_names in os.walk(self.root):
            where = self._below(directory)
            for name in names:
                self.names[where, name] = DIRECTORY
            for name in file_names:
                path = os.path.join(directory, name)
                number = self._number_of(os.stat(path))
                self.names[where, name] = number
                with open(path, "rb") as file:
                    self.contents[number] = file.read()
        self.is_recording = True

    def note(self, event: Event) -> None:
        """Put an event of the scenario's own among the others."""
        with self._lock:
            if self.is_recording:
                self.events.append(event)

    def fail_next_fsync(self) -> None:
        """The next fsync of a file raises ``EIO``; so does the next by each other descriptor."""
        self._fsyncs_to_fail += 1

    def fail_next_directory_fsync(self) -> None:
        """The next fsync of a directory raises ``EIO``; the one after that covers all."""
        self._directory_fsyncs_to_fail += 1

    @contextlib.contextmanager
    def process_that_dies(self, call: int | None = None, *, tears: bool = False) -> Iterator[None]:
        """Let what runs inside die before its ``call``-th change, or at the end.

        With ``tears`` it dies within that call, if that is a write, and a half of it is written.
        Ends normally if it lives that long: then ``calls`` is less than ``call``.
        """
        before = descriptors.open_descriptors()
        self.calls, self._dies_at, self._tears, self._is_dead = 0, call, tears, False
        try:
            with contextlib.suppress(Killed):
                yield
        finally:
            self._dies_at, self._is_dead = None, False
            self._fsyncs_to_fail = self._directory_fsyncs_to_fail = 0
            for fd in descriptors.open_descriptors().keys() - before.keys():
                files.close(fd)  # the kernel does, and frees the locks

    # -- the calls -----------------------------------------------------------------------------

    def _below(self, path: str) -> str:
        return os.path.relpath(path, self.root).removeprefix(".")

    def _is_below(self, path: str) -> bool:
        return path == self.root or path.startswith(self.root + os.sep)

    def _number_of(self, info: os.stat_result, *, is_new: bool = False) -> int:
        key = (info.st_dev, info.st_ino)
        if is_new or key not in self._numbers:
            self._last_number += 1
            self._numbers[key] = self._last_number
        return self._numbers[key]

    def _file(self, fd: int) -> int | None:
        """The number of a file below the root."""
        path = descriptors.paths.get(fd, "")
        return self._number_of(os.fstat(fd)) if self._is_below(path) else None

    @contextlib.contextmanager
    def _call(self) -> Iterator[bool]:
        """One call that changes something; gives whether the process dies in the midst of it."""
        with self._lock:
            if self._is_dead:
                raise Killed
            self.calls += 1
            dies = self.calls == self._dies_at
            if dies and not self._tears:
                self._is_dead = True
                raise Killed
            yield dies
            if dies:
                self._is_dead = True
                raise Killed

    def _open_file(self, path: str, flags: int) -> int:
        if self._is_dead:
            raise Killed
        fd: int = self._real["open_file"](path, flags)
        return fd

    def _close(self, fd: int) -> None:
        with self._lock:
            self._not_told_yet.discard(fd)
            self._real["close"](fd)

    def _create_file(self, path: str, *arguments: Any, **options: Any) -> int:
        with self._call():
            fd: int = self._real["create_file"](path, *arguments, **options)
            if self._is_below(path):
                number = self._number_of(os.fstat(fd), is_new=True)
                directory, name = os.path.split(path)
                self.note(Link(self._below(directory), name, number))
            return fd

    def _mkdir(self, path: Any, *arguments: Any, **options: Any) -> None:
        if not self._is_below(str(path)):
            self._real_mkdir(path, *arguments, **options)
            return
        with self._call():
            self._real_mkdir(path, *arguments, **options)
            directory, name = os.path.split(str(path))
            self.note(Link(self._below(directory), name, DIRECTORY))

    def _write(self, fd: int, data: bytes) -> int:
        with self._call() as dies:
            number = self._file(fd)
            offset = os.fstat(fd).st_size  # all that the store writes is appended
            if dies:
                data = data[: len(data) // 2]
            written: int = self._real["write"](fd, data)
            if number is not None:
                self.note(Write(number, offset, bytes(data[:written])))
            return written

    def _truncate(self, fd: int, length: int) -> None:
        with self._call():
            number = self._file(fd)
            self._real["truncate"](fd, length)
            if number is not None:
                self.note(Truncate(number, length))

    def _fsync(self, fd: int) -> None:
        with self._call():
            number = self._file(fd)
            if number is None:
                self._real["fsync"](fd)
            elif self.is_recording and (self._fsyncs_to_fail or fd in self._not_told_yet):
                if fd in self._not_told_yet:
                    self._not_told_yet.remove(fd)
                else:
                    self._fsyncs_to_fail -= 1
                    self._not_told_yet |= {
                        other for other in list(descriptors.paths) if self._file(other) == number
                    } - {fd}
                self.note(FailedFsync(number))
                raise OSError(errno.EIO, os.strerror(errno.EIO), descriptors.paths[fd])
            else:
                self.note(Fsync(number))

    def _fsync_directory(self, path: str) -> None:
        with self._call():
            if self._is_below(path):
                if self._directory_fsyncs_to_fail and self.is_recording:
                    self._directory_fsyncs_to_fail -= 1
                    raise OSError(errno.EIO, os.strerror(errno.EIO), path)
                self.note(FsyncDirectory(self._below(path)))

    def _rename(self, source: str, target: str) -> None:
        with self._call():
            number = self._number_of(os.stat(source))
            self._real["rename"](source, target)
            directory, name = os.path.split(source)
            assert os.path.dirname(target) == directory
            where = self._below(directory)
            self.note(Rename(where, name, os.path.basename(target), number))

    def _unlink(self, path: str) -> None:
        with self._call():
            self._real["unlink"](path)
            directory, name = os.path.split(path)
            self.note(Unlink(self._below(directory), name))
