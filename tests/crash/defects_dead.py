"""Defects of the dead tasks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest import mock

from deferred_django.backends.disk import (
    dead_tasks_file,
    dead_tasks_index,
    dead_tasks_removal,
    dead_tasks_tail,
    descriptors,
    files,
)
from deferred_django.backends.disk.dead_tasks_file import DeadTasksFile
from deferred_django.backends.disk.dead_tasks_removal import Removal
from tests.crash.defect import Found, nothing, sees


def no_fsync_of_a_dead_task() -> AbstractContextManager[Any]:
    """A dead task is acknowledged without an fsync."""
    return sees(dead_tasks_file, fsync=nothing)


def no_directory_fsync_of_dead_tasks() -> AbstractContextManager[Any]:
    """Neither a new file's name nor a replacement is made durable."""
    return sees(dead_tasks_file, fsync_directory=nothing)


def rename_before_fsync() -> AbstractContextManager[Any]:
    """A removal's copy takes the file's place before it is durable."""
    return sees(dead_tasks_removal, fsync=nothing)


def no_repair() -> AbstractContextManager[Any]:
    """An add is appended behind a torn line."""

    def repair(self: DeadTasksFile, fd: int, lock_fd: int) -> int:
        return os.fstat(fd).st_size

    return mock.patch.object(DeadTasksFile, "_repair", repair)


def _repair_off_by(distance: int) -> AbstractContextManager[Any]:
    def repair(self: DeadTasksFile, fd: int, lock_fd: int) -> int:
        tail = dead_tasks_tail.find_tail(fd)
        if tail.end < tail.size:
            files.truncate(fd, tail.end + distance)
        return tail.end + distance

    return mock.patch.object(DeadTasksFile, "_repair", repair)


def repair_cuts_a_byte_too_much() -> AbstractContextManager[Any]:
    """The newline of the last good record goes with the torn one."""
    return _repair_off_by(-1)


def repair_cuts_a_byte_too_little() -> AbstractContextManager[Any]:
    """The first byte of the torn record stays."""
    return _repair_off_by(1)


def removal_in_place() -> AbstractContextManager[Any]:
    """What stays is written over the file instead of beside it."""

    def replace(self: Removal) -> Any:
        with self._lock.hold() as lock_fd:
            before = self._file.identity(self._source, lock_fd)
            with open(self._temp_path, "rb") as temp:
                kept = temp.read()
            files.truncate(self._source, 0)
            files.write(self._source, kept)
            files.fsync(self._source)
            return dead_tasks_index.Replacement(before, before, self._starts, self._ends)

    return mock.patch.object(Removal, "replace", replace)


@contextmanager
def cached_descriptor() -> Iterator[None]:
    """An add uses the descriptor of the add before."""
    real = DeadTasksFile._open_to_append
    kept: dict[DeadTasksFile, int] = {}

    def open_to_append(self: DeadTasksFile, lock_fd: int) -> int:
        if self not in kept:
            fd = real(self, lock_fd)
            kept[self] = os.dup(fd)
            return fd
        return descriptors.register(os.dup(kept[self]), self.path)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(DeadTasksFile, "_open_to_append", open_to_append))
        stack.enter_context(mock.patch.object(DeadTasksFile, "_is_undisturbed", return_value=True))
        yield
    for fd in kept.values():
        os.close(fd)


def removal_without_what_came_meanwhile() -> AbstractContextManager[Any]:
    """A removal's copy is the snapshot alone."""
    return mock.patch.object(Removal, "_copy_to", nothing)


DEFECTS: tuple[Found, ...] = (
    (no_fsync_of_a_dead_task, "dead: add"),
    (no_directory_fsync_of_dead_tasks, "dead: first use"),
    (no_directory_fsync_of_dead_tasks, "dead: remove"),
    (rename_before_fsync, "dead: remove"),
    (no_repair, "dead: add behind a torn line"),
    (repair_cuts_a_byte_too_much, "dead: add behind a torn line"),
    (repair_cuts_a_byte_too_little, "dead: add behind a torn line"),
    (removal_in_place, "dead: remove"),
    (cached_descriptor, "dead: add, remove, add"),
    (removal_without_what_came_meanwhile, "dead: remove while others add"),
)
