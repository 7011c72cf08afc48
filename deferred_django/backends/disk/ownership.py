"""Becoming the one process that appends to a segment: a free one with room, or a new one."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from deferred_django import ids
from deferred_django.backends.disk import files, locks
from deferred_django.backends.disk.names import StoreNames
from deferred_django.backends.disk.scanner import Scanner
from deferred_django.backends.disk.segment import MARK_BYTES, Segment

ADOPT_TRIES = 16
MAKE_TRIES = 100
TAIL_BYTES = 64 * 1024


@dataclass(slots=True, eq=False)
class OwnedSegment:
    """A segment whose ownership byte this process has locked."""

    name: str
    path: str
    fd: int
    size: int = 0
    added: int = 0
    added_bytes: int = 0
    """What the syncs so far were of; not yet that of ``unsynced``."""
    synced_size: int = 0
    durable: int = 0
    """How many of the ``added`` an fsync has covered."""
    unsynced: list[bytes] = field(default_factory=list)
    mark: tuple[int, bytes] = (0, b"")
    """Where the first of the ``unsynced`` is in the file, and its beginning."""
    used_at: float = field(default_factory=time.monotonic)
    error: OSError | None = None
    """Why it is not trusted any more."""
    keep: bool = False
    """Owned for as long as there is room for it, so that nobody appends to it."""

    def appended(self, record: bytes) -> None:
        """Take note of an ``add`` that was written just now."""
        if not self.unsynced:
            at = files.end_of_write(self.fd) - len(record)
            self.mark = max(0, at), record[1 : 1 + MARK_BYTES]
        self.size += len(record)
        self.added += 1
        self.unsynced.append(record)

    def appended_together(self, records: list[bytes], size: int) -> None:
        """The same of several that one write of ``size`` bytes wrote."""
        if not self.unsynced:
            at = files.end_of_write(self.fd) - size
            self.mark = max(0, at), records[0][1 : 1 + MARK_BYTES]
        self.size += size
        self.added += len(records)
        self.unsynced += records

    def is_whole(self, mark: tuple[int, bytes]) -> bool:
        """Whether what ``mark`` was taken of is still there: no other program has cut the file."""
        at, beginning = mark
        # One byte more: a write that was short by its newline alone ended one byte sooner.
        return beginning in files.read_at(self.fd, len(beginning) + 2, at)

    def reader(self) -> Segment:
        """The tasks in it, read on the descriptor that owns it."""
        return Segment(self.name, self.path, self.fd, writable=True)

    def release(self) -> None:
        """Let others adopt or erase it. Explicit, for a child that shares the descriptor."""
        try:
            with contextlib.suppress(OSError):
                locks.release_ownership(self.fd)
        finally:
            with contextlib.suppress(OSError):
                files.close(self.fd)


def open_segment(
    names: StoreNames, *, file_permissions: int, room_below: int, distrusted: Collection[str]
) -> OwnedSegment:
    """Own a segment: one smaller than ``room_below`` bytes that nobody has, or a new one.

    Its name is durable on return, and the directory's. That is made if it is missing.
    """
    if not files.is_directory(names.path):
        files.make_directory(names.path, file_permissions)
    files.fsync_parent(names.path)
    segment = _adopt(names, room_below, distrusted) or _make(names, file_permissions)
    try:
        # Whoever made the file: its name must be durable before the first acknowledgement.
        files.fsync_directory(names.path)
    except BaseException:
        segment.release()
        raise
    return segment


def _adopt(names: StoreNames, room_below: int, distrusted: Collection[str]) -> OwnedSegment | None:
    tries = 0
    for name in names.segments():
        path = names.at(name)
        try:
            if os.stat(path).st_size >= room_below or name in distrusted:
                continue
            if (tries := tries + 1) > ADOPT_TRIES:
                return None
            fd = files.open_file(path, os.O_RDWR | os.O_APPEND)
        except OSError:
            continue  # gone, or not ours to write: the readers report what is unreadable
        try:
            segment = _own(name, path, fd)
        except OSError:
            continue
        if segment is None:
            continue
        try:
            segment.size = segment.synced_size = files.status(fd).st_size
            if _look_at_tail(segment):
                return segment
        except OSError:
            pass  # the readers report what is unreadable
        except BaseException:
            segment.release()
            raise
        segment.release()
    return None


def _make(names: StoreNames, file_permissions: int) -> OwnedSegment:
    for _ in range(MAKE_TRIES):
        name = names.new_segment()
        path = names.at(name)
        fd = files.create_file(path, os.O_RDWR | os.O_APPEND, file_permissions)
        segment = _own(name, path, fd)
        if segment is not None:
            return segment
    raise OSError(errno.EAGAIN, "every new segment was erased before it could be locked", path)


def _own(name: str, path: str, fd: int) -> OwnedSegment | None:
    """Lock, and only then look whether the file is still the one at its path."""
    try:
        if locks.try_ownership(fd):
            if files.is_at_path(fd, path):
                return OwnedSegment(name, path, fd)
            locks.release_ownership(fd)
    except BaseException:
        files.close(fd)
        raise
    files.close(fd)
    return None


def _look_at_tail(segment: OwnedSegment) -> bool:
    """Let new ids start behind the newest here; ``False`` if foreign bytes are at the end."""
    scanner = Scanner(max(0, segment.size - TAIL_BYTES))
    newest = 0
    for _, _, body in scanner.read(segment.fd):
        if body.startswith(b"add:"):
            seconds = ids.seconds_of(body[4:].partition(b":")[0].decode("ascii", "replace"))
            newest = max(newest, seconds or 0)
    ids.start_from(newest)
    # The first line of the window is cut, as a rule, and says nothing.
    return scanner.damaged - (1 if segment.size > TAIL_BYTES else 0) <= 0
