"""Deliberate defects of the package: each is found by a fault, or the faults prove nothing."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from typing import Any

import pytest

from deferred_django.backends.disk import claims, dead_tasks_lock, files, ownership
from tests.faults.checks import Checker
from tests.faults.injector import Fault, Level, Mode
from tests.faults.neighbour import Neighbour
from tests.faults.operations import OPERATIONS

Patch = Callable[[pytest.MonkeyPatch], None]


def keep_descriptors(patch: pytest.MonkeyPatch) -> None:
    """What cannot be opened to the end is not closed."""
    patch.setattr(ownership.OwnedSegment, "release", lambda self: None)


def keep_claims(patch: pytest.MonkeyPatch) -> None:
    """What was claimed before an error stays locked."""
    patch.setattr(claims.Claims, "_try_to_unlock", staticmethod(lambda entry: True))


def keep_the_dead_tasks_lock(patch: pytest.MonkeyPatch) -> None:
    """An error leaves the lock between the threads held."""
    real = dead_tasks_lock.FairLock.release
    calls: list[int] = []

    def release(self: Any) -> None:
        calls.append(1)
        if len(calls) > 1:
            real(self)

    patch.setattr(dead_tasks_lock.FairLock, "release", release)


def swallow_errors_of_writes(patch: pytest.MonkeyPatch) -> None:
    """A write that fails is taken for one that did not."""
    real = files.append_record

    def append(fd: int, record: bytes) -> None:
        with contextlib.suppress(OSError):
            real(fd, record)

    patch.setattr(files, "append_record", append)


def take_failed_fsyncs_for_success(patch: pytest.MonkeyPatch) -> None:
    """The file is believed to be durable whatever fsync says."""
    real = files.fsync

    def fsync(fd: int) -> None:
        with contextlib.suppress(OSError):
            real(fd)

    patch.setattr(files, "fsync", fsync)


def name_no_file(patch: pytest.MonkeyPatch) -> None:
    """Errors of calls on descriptors are raised as the system gives them."""
    patch.setattr(files, "_path_of", lambda fd: None)


@pytest.mark.parametrize(
    ("defect", "name", "call", "mode", "says"),
    [
        (keep_descriptors, "first use, fsync each", "fsync", Mode.ONCE, "left"),
        (keep_claims, "release", "fcntl", Mode.ONCE, "may claim"),
        (keep_the_dead_tasks_lock, "dead task", "write", Mode.ONCE, "Timeout"),
        (swallow_errors_of_writes, "enqueue, fsync later", "write", Mode.ONCE, "success"),
        (take_failed_fsyncs_for_success, "enqueue, fsync each", "fsync", Mode.LASTING, "durable"),
        (take_failed_fsyncs_for_success, "dead task", "fsync", Mode.LASTING, "durable"),
        (take_failed_fsyncs_for_success, "sync", "fsync", Mode.LASTING, "durable"),
        (name_no_file, "enqueue, fsync later", "write", Mode.ONCE, "names no file"),
    ],
)
def test_a_defect_is_found(
    monkeypatch: pytest.MonkeyPatch, defect: Patch, name: str, call: str, mode: Mode, says: str
) -> None:
    operation = OPERATIONS[name]
    with Neighbour() as neighbour:
        checker = Checker(neighbour)
        calls = checker.expect(operation, Level.OS).calls
        fault = Fault(max(n for n, each in enumerate(calls) if each == call), mode, errno.EIO)
        assert checker.run(operation, Level.OS, fault).violations == []
        with monkeypatch.context() as patch:
            defect(patch)
            violations = checker.run(operation, Level.OS, fault).violations
        assert says in " ".join(violations)
