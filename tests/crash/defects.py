"""Defects to be found: each is the store with one thing of it wrong.

They are patched in from here; the product has no switch for any. A module's view of
:mod:`deferred_django.backends.disk.files` is replaced as a rule, so that the recorder, which wraps
``files`` itself, sees what the defective code does.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

from deferred_django.backends.disk import (
    dead_tasks_file,
    dead_tasks_index,
    dead_tasks_removal,
    dead_tasks_tail,
    descriptors,
    files,
    log_records,
    ownership,
    records,
    rescue,
    segment,
    tidy,
    writer,
)
from deferred_django.backends.disk.dead_tasks_file import DeadTasksFile
from deferred_django.backends.disk.dead_tasks_removal import Removal
from deferred_django.backends.disk.segment import Entry, Segment
from deferred_django.backends.disk.tasks_storage import TasksStorage
from deferred_django.queue import Queue

Defect = Callable[[], AbstractContextManager[Any]]


class _Seen:
    """A module as another one sees it, with some of its functions others."""

    def __init__(self, module: ModuleType, replaced: dict[str, Callable[..., Any]]) -> None:
        self._module = module
        self._replaced = replaced

    def __getattr__(self, name: str) -> Any:
        return self._replaced.get(name) or getattr(self._module, name)


def _sees(
    module: ModuleType, other: ModuleType = files, **replaced: Callable[..., Any]
) -> AbstractContextManager[Any]:
    name = other.__name__.rpartition(".")[2]
    return mock.patch.object(module, name, _Seen(other, replaced))


def _nothing(*arguments: Any) -> None:
    """What a call that was left out does."""


# -- the log -----------------------------------------------------------------------------------


def no_fsync_of_the_log() -> AbstractContextManager[Any]:
    """An add is acknowledged without an fsync."""
    return _sees(writer, fsync=_nothing)


def fsync_before_the_write() -> AbstractContextManager[Any]:
    """What was there before is fsynced, and then the record is written."""

    def append_record(fd: int, record: bytes) -> None:
        files.fsync(fd)
        files.append_record(fd, record)

    return _sees(writer, append_record=append_record, fsync=_nothing)


def no_directory_fsync_of_a_segment() -> AbstractContextManager[Any]:
    """A segment's name is not made durable."""
    return _sees(ownership, fsync_directory=_nothing)


@contextmanager
def no_directory_fsync_of_an_adopted_segment() -> Iterator[None]:
    """Only who made a segment makes its name durable."""
    made: list[str] = []
    real = ownership.open_segment

    def open_segment(*arguments: Any, **options: Any) -> ownership.OwnedSegment:
        made.clear()
        return real(*arguments, **options)

    def create_file(path: str, *arguments: Any) -> int:
        made.append(path)
        return files.create_file(path, *arguments)

    def fsync_directory(path: str) -> None:
        if made:
            files.fsync_directory(path)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(ownership, "open_segment", open_segment))
        stack.enter_context(
            _sees(ownership, create_file=create_file, fsync_directory=fsync_directory)
        )
        yield


def no_fsync_of_the_way_to_the_directory() -> AbstractContextManager[Any]:
    """A directory that somebody else has made is taken for durable."""
    return mock.patch.object(files, "fsync_parent", _nothing)


def no_newline_in_front() -> AbstractContextManager[Any]:
    """A record is written directly behind what may be torn."""
    framed = mock.Mock(side_effect=lambda body: records.encode(body) + b"\n")
    return mock.patch.object(log_records, "_framed", framed)


def no_fsync_in_tidy() -> AbstractContextManager[Any]:
    """A copy takes a segment's place before it is durable; removals are not, before the unlink."""
    return _sees(tidy, fsync=_nothing)


def compaction_without_runs() -> AbstractContextManager[Any]:
    """A compaction copies the adds alone."""
    return _sees(tidy, log_records, run=lambda *arguments: b"")


def unlink_without_a_look() -> AbstractContextManager[Any]:
    """A mostly dead segment is unlinked with its live tasks."""
    return mock.patch.object(tidy, "_compact", tidy._erase)


def worker_trusts_names() -> AbstractContextManager[Any]:
    """A worker does not make the name of a segment durable that it works in."""
    return _sees(segment, fsync_directory=_nothing)


def failed_fsync_is_ignored() -> AbstractContextManager[Any]:
    """The next fsync is believed to make up for it."""

    def fsync(fd: int) -> None:
        with contextlib.suppress(OSError):
            files.fsync(fd)

    return _sees(writer, fsync=fsync)


def rescue_leaves_older_adds() -> AbstractContextManager[Any]:
    """Only the newest add of a task that moved is removed."""
    real = rescue._remove

    def remove(segment: Segment, entry: Entry, nonces: set[str]) -> bool:
        return real(segment, entry, {entry.nonce})

    return mock.patch.object(rescue, "_remove", remove)


def rescue_does_not_fsync_removals() -> AbstractContextManager[Any]:
    """What has moved may come back where it was."""
    return mock.patch.object(rescue, "_fsync_removals", _nothing)


# -- the dead tasks ----------------------------------------------------------------------------


def no_fsync_of_a_dead_task() -> AbstractContextManager[Any]:
    """A dead task is acknowledged without an fsync."""
    return _sees(dead_tasks_file, fsync=_nothing)


def no_directory_fsync_of_dead_tasks() -> AbstractContextManager[Any]:
    """Neither a new file's name nor a replacement is made durable."""
    return _sees(dead_tasks_file, fsync_directory=_nothing)


def rename_before_fsync() -> AbstractContextManager[Any]:
    """A removal's copy takes the file's place before it is durable."""
    return _sees(dead_tasks_removal, fsync=_nothing)


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
    return mock.patch.object(Removal, "_copy_to", _nothing)


# -- between the two ---------------------------------------------------------------------------


def removed_before_it_is_dead() -> AbstractContextManager[Any]:
    """The task leaves the log before its dead task is written."""
    real = Queue._bury

    def bury(self: Queue, claim: Any, *arguments: Any) -> None:
        complete = self.backend.complete_task
        complete(claim)
        self.backend.sync()
        with mock.patch.object(self.backend, "complete_task", _nothing):
            real(self, claim, *arguments)

    return mock.patch.object(Queue, "_bury", bury)


def retry_is_not_made_durable() -> AbstractContextManager[Any]:
    """A dead task is removed before its new life in the log was fsynced."""
    return mock.patch.object(TasksStorage, "sync", _nothing)


DEFECTS: tuple[tuple[Defect, str], ...] = (
    (no_fsync_of_the_log, "log: adopt, durable at once"),
    (no_fsync_of_the_log, "log: rotate"),
    (fsync_before_the_write, "log: adopt, durable at once"),
    (no_directory_fsync_of_a_segment, "log: first use, durable at once"),
    (
        no_directory_fsync_of_an_adopted_segment,
        "log: first use, durable at once; killed, another_enqueues",
    ),
    (
        no_fsync_of_the_way_to_the_directory,
        "log: first use, durable at once; killed, another_enqueues",
    ),
    (no_newline_in_front, "log: adopt behind a torn record"),
    (no_fsync_in_tidy, "log: compact"),
    (no_fsync_in_tidy, "log: erase"),
    (compaction_without_runs, "log: compact"),
    (unlink_without_a_look, "log: compact, nothing else"),
    (worker_trusts_names, "log: compact; killed, another_works"),
    (failed_fsync_is_ignored, "log: fsync fails, timer"),
    (rescue_leaves_older_adds, "log: fsync fails, retry"),
    (rescue_does_not_fsync_removals, "log: fsync fails, timer"),
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
    (removed_before_it_is_dead, "both: hand over"),
    (retry_is_not_made_durable, "both: retry"),
)
"""Each with a scenario in which it is to be found."""
