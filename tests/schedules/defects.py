"""Deliberate defects of the package, each of which the search must find."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from deferred_django.backends.disk import (
    claims,
    dead_tasks_removal,
    descriptors,
    files,
    locks,
    ownership,
    rescue,
    tidy,
)
from deferred_django.backends.disk.dead_tasks_append import Appender
from deferred_django.backends.disk.dead_tasks_lock import FileLock
from deferred_django.backends.disk.segment import Entry, Segment
from deferred_django.backends.disk.tasks_storage import TasksStorage


def claim_without_reading_on() -> None:
    """A claim is believed as soon as its lock is had: the task may be done by then."""

    def confirm(
        self: claims.Claims, locked: dict[Segment, list[Entry]], *, strict: bool = False
    ) -> list[Entry]:
        return [entry for entries in locked.values() for entry in entries]

    claims.Claims._confirm = confirm  # type: ignore[method-assign]


def claim_in_a_replaced_file() -> None:
    """A claim does not look whether its file is still the one at the path."""

    def confirm(
        self: claims.Claims, locked: dict[Segment, list[Entry]], *, strict: bool = False
    ) -> list[Entry]:
        for segment in locked:
            self._segments.read_on(segment)
        return [entry for entries in locked.values() for entry in entries if not entry.gone]

    claims.Claims._confirm = confirm  # type: ignore[method-assign]


def erase_without_reading_on() -> None:
    """A drained segment is erased although something was appended before it was locked."""
    real = tidy.tidy
    tidy.tidy = lambda names, segment, read_on: real(names, segment, lambda segment: None)


def compact_without_the_whole_lock() -> None:
    """Claims and owners do not keep a compaction away."""
    locks.try_whole = lambda fd: True
    locks.is_whole_free = lambda fd: True


def adopt_without_a_look_at_the_path() -> None:
    """The segment may have been erased before it was locked."""

    def own(name: str, path: str, fd: int) -> ownership.OwnedSegment | None:
        if locks.try_ownership(fd):
            return ownership.OwnedSegment(name, path, fd)
        files.close(fd)
        return None

    ownership._own = own


def let_go_before_the_record() -> None:
    """A finished task's claim is freed before its ``rem`` is written."""
    real = TasksStorage.complete

    def complete(self: TasksStorage, entry: Entry) -> None:
        files.unlock(entry.segment.fd, entry.offset, entry.length)
        real(self, entry)

    TasksStorage.complete = complete  # type: ignore[method-assign]


def remove_what_came_behind_the_snapshot() -> None:
    """A removal forgets what was appended while it copied."""
    real = dead_tasks_removal.Removal._copy_to
    dead_tasks_removal.Removal._copy_to = lambda self, end: real(self, self._snapshot)  # type: ignore[method-assign]


def retry_without_the_removal_lock() -> None:
    """Two retries of dead tasks look at the same time."""
    real = FileLock.hold

    @contextlib.contextmanager
    def hold(self: FileLock, timeout: float | None = None) -> Iterator[int]:
        if "removal" in self.path:
            yield -1
        else:
            with real(self, timeout) as fd:
                yield fd

    FileLock.hold = hold  # type: ignore[method-assign]


def add_dead_tasks_without_the_lock() -> None:
    """A removal replaces the file under an add."""

    def add(self: Appender, line: bytes) -> None:
        fd = files.open_file(self._lock.path, os.O_RDWR)
        try:
            self._file.append([line], fd)
        finally:
            files.close(fd)

    Appender.add = add  # type: ignore[method-assign]


def keep_inherited_descriptors() -> None:
    """A forked child keeps the locks of its parent."""
    fork = os.fork

    def fork_with_copies() -> int:
        copies = [os.dup(fd) for fd in descriptors.paths]
        pid = fork()
        if pid:
            for fd in copies:
                os.close(fd)
        return pid

    os.fork = fork_with_copies


def move_tasks_that_run() -> None:
    """What a failed fsync may have lost is written anew without a claim on it."""
    real_claimed, real_lock = rescue._claimed, files.try_lock

    @contextlib.contextmanager
    def claimed(segment: Segment, batch: list[bytes]) -> Iterator[Any]:
        files.try_lock = lambda fd, start, length: True
        try:
            with real_claimed(segment, batch) as found:
                files.try_lock = real_lock
                yield found
        finally:
            files.try_lock = real_lock

    rescue._claimed = claimed


@dataclass(frozen=True)
class Defect:
    """A defect, and a pair that finds it."""

    install: Callable[[], None]
    pair: tuple[str, str, str]
    first: int = 1
    """The call of the first process at which the search begins, to save time."""


DEFECTS = [
    Defect(claim_without_reading_on, ("live", "complete-warm", "complete")),
    Defect(claim_in_a_replaced_file, ("live", "complete", "maintain")),
    Defect(erase_without_reading_on, ("drained", "maintain-warm", "append")),
    Defect(compact_without_the_whole_lock, ("live", "maintain", "complete")),
    Defect(adopt_without_a_look_at_the_path, ("drained", "adopt", "maintain")),
    Defect(let_go_before_the_record, ("live", "complete", "retry"), 14),
    Defect(remove_what_came_behind_the_snapshot, ("live", "purge", "bury"), 15),
    Defect(retry_without_the_removal_lock, ("live", "take", "take")),
    Defect(add_dead_tasks_without_the_lock, ("live", "purge", "bury")),
    Defect(keep_inherited_descriptors, ("live", "fork-worker", "complete"), 14),
    Defect(move_tasks_that_run, ("live", "rescue", "complete-new")),
]
