"""Lets one call of the disk store fail, or all of its kind from there on.

There are two levels. *files* are the functions of :mod:`deferred_django.backends.disk.files`, whose
errors name the file by contract. *os* are the calls of the system below them, as the store's
modules see them (``os``, ``os.path``, ``fcntl``, inotify): errors pass through the store's own
handling, and those of calls on a descriptor name no file, as the system's own do.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import fcntl
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from deferred_django.backends.disk import claims, files, watch

Call = Callable[..., Any]
ERRORS = (
    errno.ENOSPC,
    errno.EIO,
    errno.EMFILE,
    errno.EINTR,
    errno.EDQUOT,
    errno.ESTALE,
)
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""A write takes a part of its bytes before it fails so."""

PACKAGE = "deferred_django.backends.disk"
ON_PATHS = ("open", "stat", "unlink", "mkdir", "chmod", "chown", "rename", "listdir")
ON_DESCRIPTORS = ("fstat", "close", "fchmod", "fchown", "pread", "write", "fsync", "ftruncate")
OF_OS = (*ON_PATHS, *ON_DESCRIPTORS, "pipe", "read")
OF_PATH = ("isdir", "lexists", "realpath")
OF_FCNTL = ("fcntl", "flock")
OF_INOTIFY = ("init", "add_watch")
DONE_THEN_FAIL = ("close",)
"""The descriptor is gone whatever the call says."""


class Level(enum.Enum):
    """Which calls fail."""

    FILES = "files"
    OS = "os"


class Mode(enum.Enum):
    """For how long."""

    ONCE = "once"
    LASTING = "lasting"
    """All later calls of that name too, until the fault is lifted."""
    INTERRUPT = "before"
    """``KeyboardInterrupt`` instead of the call."""
    INTERRUPT_AFTER = "after"
    """``KeyboardInterrupt`` when the call is done."""


@dataclass(frozen=True)
class Fault:
    """What happens at the call of that number (from 0) of an operation."""

    at: int
    mode: Mode
    code: int = 0

    @property
    def kind(self) -> str:
        """The name of the error."""
        return errno.errorcode.get(self.code, "interrupt")

    def __str__(self) -> str:
        return f"call {self.at}, {self.kind} {self.mode.value}"


class Injector:
    """Counts the calls while it is armed, and does what its fault says."""

    def __init__(self, level: Level, fault: Fault | None = None) -> None:
        self.level = level
        self.fault = fault
        self.calls: list[str] = []
        """The names of all calls since it was armed."""
        self.injected = 0
        self._lasting: str | None = None
        self._no_room = False
        self._bystanders: set[int] = set()

    @contextlib.contextmanager
    def armed(self) -> Iterator[None]:
        """Faults happen in this thread, and in those that are started meanwhile."""
        here = threading.get_ident()
        self._bystanders = {
            thread.ident
            for thread in threading.enumerate()
            if thread.ident is not None and thread.ident != here
        }
        with pytest.MonkeyPatch.context() as patch:
            if self.level is Level.FILES:
                self._replace_files(patch)
            else:
                self._replace_os(patch)
            # A record that could not be had is tried again at once when the fault has ended.
            patch.setattr(claims, "HELD_RETRY_SECONDS", 0.0)
            yield

    def _replace_files(self, patch: pytest.MonkeyPatch) -> None:
        for name in files.CALLS:
            if name != "close":  # it tells of no error, by contract; see the other level
                patch.setattr(files, name, self._counted(name, getattr(files, name)))

    def _replace_os(self, patch: pytest.MonkeyPatch) -> None:
        path = _Proxy(os.path, {f: self._counted(f, getattr(os.path, f)) for f in OF_PATH})
        replaced: dict[str, Any] = {f: self._counted(f, getattr(os, f)) for f in OF_OS}
        proxy = _Proxy(os, {**replaced, "path": path})
        for name, module in list(sys.modules.items()):
            if name.startswith(f"{PACKAGE}.") and getattr(module, "os", None) is os:
                patch.setattr(module, "os", proxy)
        counted = {f: self._counted(f, getattr(fcntl, f)) for f in OF_FCNTL}
        patch.setattr(files, "fcntl", _Proxy(fcntl, counted))
        for name in OF_INOTIFY:
            patch.setattr(watch.calls, name, self._counted(name, getattr(watch.calls, name)))

    def _counted(self, name: str, real: Call) -> Call:
        def call(*arguments: Any, **options: Any) -> Any:
            if threading.get_ident() in self._bystanders:
                return real(*arguments, **options)
            number = len(self.calls)
            self.calls.append(name)
            fault = self.fault
            if fault is None or not (number == fault.at or name == self._lasting):
                if self._no_room and name == "write":
                    self._no_room = False
                    raise self._error(name, arguments)
                return real(*arguments, **options)
            if fault.mode is Mode.LASTING:
                first, self._lasting = self._lasting is None, name
            else:
                first = True
            self.injected += 1
            return self._fail(name, real, arguments, options, first=first)

        return call

    def _fail(
        self,
        name: str,
        real: Call,
        arguments: tuple[Any, ...],
        options: dict[str, Any],
        *,
        first: bool,
    ) -> Any:
        fault = self.fault
        assert fault is not None
        if fault.mode is Mode.INTERRUPT:
            raise KeyboardInterrupt
        if fault.mode is Mode.INTERRUPT_AFTER:
            real(*arguments, **options)
            raise KeyboardInterrupt
        if name in DONE_THEN_FAIL:
            real(*arguments, **options)
        if name == "write" and fault.code in NO_ROOM and first and self.level is Level.OS:
            fd, data = arguments
            part = len(data) // 2
            if part:
                self._no_room = fault.mode is Mode.ONCE
                return real(fd, data[:part])
        if name in ("isdir", "lexists"):
            return False  # as the real ones do
        if name == "realpath" and not options.get("strict"):
            return os.path.abspath(arguments[0])
        raise self._error(name, arguments)

    def _error(self, name: str, arguments: tuple[Any, ...]) -> OSError:
        assert self.fault is not None
        code = self.fault.code
        text = os.strerror(code)
        if self.level is Level.FILES:
            return OSError(code, text, "/injected/at/" + name)
        if name in ON_PATHS or name == "realpath":
            return OSError(code, text, arguments[0])
        if name == "add_watch":
            return OSError(code, text, arguments[1])
        return OSError(code, text)


class _Proxy(types.SimpleNamespace):
    """A module with some of its functions replaced."""

    def __init__(self, module: types.ModuleType, replaced: dict[str, Any]) -> None:
        super().__init__(**replaced)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)
