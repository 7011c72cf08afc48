"""Defects of the log."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest import mock

from deferred_django.backends.disk import (
    files,
    log_records,
    ownership,
    records,
    rescue,
    segment,
    tidy,
    writer,
)
from deferred_django.backends.disk.segment import Entry, Segment
from tests.crash.defect import Found, nothing, sees


def no_fsync_of_the_log() -> AbstractContextManager[Any]:
    """An add is acknowledged without an fsync."""
    return sees(writer, fsync=nothing)


def fsync_before_the_write() -> AbstractContextManager[Any]:
    """What was there before is fsynced, and then the record is written."""

    def append_record(fd: int, record: bytes) -> None:
        files.fsync(fd)
        files.append_record(fd, record)

    return sees(writer, append_record=append_record, fsync=nothing)


def no_directory_fsync_of_a_segment() -> AbstractContextManager[Any]:
    """A segment's name is not made durable."""
    return sees(ownership, fsync_directory=nothing)


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
            sees(ownership, create_file=create_file, fsync_directory=fsync_directory)
        )
        yield


def no_fsync_of_the_way_to_the_directory() -> AbstractContextManager[Any]:
    """A directory that somebody else has made is taken for durable."""
    return mock.patch.object(files, "fsync_parent", nothing)


def no_newline_in_front() -> AbstractContextManager[Any]:
    """A record is written directly behind what may be torn."""
    framed = mock.Mock(side_effect=lambda body: records.encode(body) + b"\n")
    return mock.patch.object(log_records, "_framed", framed)


def no_fsync_in_tidy() -> AbstractContextManager[Any]:
    """A copy takes a segment's place before it is durable; removals are not, before the unlink."""
    return sees(tidy, fsync=nothing)


def compaction_without_runs() -> AbstractContextManager[Any]:
    """A compaction copies the adds alone."""
    return sees(tidy, log_records, run=lambda *arguments: b"")


def unlink_without_a_look() -> AbstractContextManager[Any]:
    """A mostly dead segment is unlinked with its live tasks."""
    return mock.patch.object(tidy, "_compact", tidy._erase)


def worker_trusts_names() -> AbstractContextManager[Any]:
    """A worker does not make the name of a segment durable that it works in."""
    return sees(segment, fsync_directory=nothing)


def failed_fsync_is_ignored() -> AbstractContextManager[Any]:
    """The next fsync is believed to make up for it."""

    def fsync(fd: int) -> None:
        with contextlib.suppress(OSError):
            files.fsync(fd)

    return sees(writer, fsync=fsync)


def rescue_leaves_older_adds() -> AbstractContextManager[Any]:
    """Only the newest add of a task that moved is removed."""
    real = rescue._remove

    def remove(segment: Segment, *entries: tuple[Entry, set[str]]) -> bool:
        return real(segment, *((entry, {entry.nonce}) for entry, _ in entries))

    return mock.patch.object(rescue, "_remove", remove)


def rescue_does_not_fsync_removals() -> AbstractContextManager[Any]:
    """What has moved may come back where it was."""
    return mock.patch.object(rescue, "_fsync_removals", nothing)


DEFECTS: tuple[Found, ...] = (
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
)
