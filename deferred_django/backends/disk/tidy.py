"""Erasing drained segments and compacting those that are mostly dead.

Both work under the whole lock, on a descriptor of its own, so that nobody appends new tasks or
holds a claim meanwhile. The order is always: lock, look whether the file is still the one at its
path, read to the end, and only then decide.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Callable, Iterator

from deferred_django.backends.disk import files, locks, log_records, survey
from deferred_django.backends.disk.names import ASIDE_SUFFIX, TEMP_SUFFIX, StoreNames
from deferred_django.backends.disk.segment import Entry, Segment

logger = logging.getLogger("deferred_django.disk")

COMPACT_BYTES = 64 * 1024
"""A smaller segment is not worth two fsyncs."""
GROWN_BYTES = 8_000_000
"""One that retries made larger gets no new claims until it could be compacted."""

ReadOn = Callable[[Segment], None]


def is_mostly_dead(segment: Segment) -> bool:
    """Whether less than half of it is pending tasks.

    Each compaction so frees at least what it copies: a segment of live tasks is left to grow, by
    half each time at least, rather than copied again and again.
    """
    return segment.live_bytes * 2 < segment.scanner.offset


def is_overgrown(segment: Segment) -> bool:
    """Whether it must be compacted before anything more is claimed in it.

    Retries are what makes a segment grow without end. A long queue that is simply worked off is
    not held up: it is about to be erased as a whole.
    """
    return (
        segment.scanner.offset > GROWN_BYTES
        and segment.superseded_bytes * 4 > segment.scanner.offset
        and is_mostly_dead(segment)
        and not segment.is_damaged
        and not locks.is_owned(segment.fd)
    )


def tidy(names: StoreNames, segment: Segment, read_on: ReadOn) -> bool:
    """Erase, set aside or compact the segment if it is free and worth it; whether it was."""
    drained = not segment.table.live
    if not segment.writable or segment.users or segment.size_read < 0:
        return False
    if not drained and (
        segment.scanner.offset < COMPACT_BYTES or segment.is_damaged or not is_mostly_dead(segment)
    ):
        return False
    if not locks.is_whole_free(segment.fd):
        return False
    with _whole(segment) as fd:
        if fd is None:
            return False
        read_on(segment)
        segment.scanner.at_end()
        if not segment.table.live:
            _erase(names, segment, fd)
            return True
        if segment.is_damaged or not is_mostly_dead(segment):
            return False
        _compact(names, segment, fd)
        return True


def tidied(names: StoreNames, segment: Segment, read_on: ReadOn) -> bool:
    """The same; what cannot be done now is left for another time."""
    try:
        return tidy(names, segment, read_on)
    except FileNotFoundError:
        pass  # somebody else erased it
    except OSError as error:
        if segment.untidy != (untidy := str(error)):  # once, not at each try
            segment.untidy = untidy
            logger.warning("%s could not be tidied: %s", segment.path, error)
    return False


@contextlib.contextmanager
def _whole(segment: Segment) -> Iterator[int | None]:
    """The whole lock on a descriptor of its own; ``None`` if it cannot be had."""
    try:
        fd = files.open_file(segment.path, os.O_RDWR | os.O_APPEND)
    except FileNotFoundError:
        yield None
        return
    try:
        if not locks.try_whole(fd):
            yield None
            return
        same = files.is_at_path(fd, segment.path) and files.is_at_path(segment.fd, segment.path)
        yield fd if same else None
    finally:
        locks.close_whole(fd)


def _erase(names: StoreNames, segment: Segment, fd: int) -> None:
    # Should the unlink be undone by a power cut, the removals must be there to be read.
    files.fsync(fd)
    if segment.is_damaged:
        files.rename(segment.path, _free_name(segment.path + ASIDE_SUFFIX))
        files.fsync_directory(names.path)
    else:
        with contextlib.suppress(FileNotFoundError):
            files.unlink(segment.path)


def _free_name(path: str) -> str:
    candidate, number = path, 0
    while os.path.lexists(candidate):
        number += 1
        candidate = f"{path}.{number}"
    return candidate


def _compact(names: StoreNames, segment: Segment, fd: int) -> None:
    temp = segment.path + TEMP_SUFFIX
    # Only who has the segment's whole lock writes its temp, so one that is there was left behind.
    with contextlib.suppress(FileNotFoundError):
        files.unlink(temp)
    target = os.stat(segment.path)
    temp_fd = files.create_file(temp, os.O_RDWR | os.O_APPEND, 0o600, like=target)
    try:
        # Locked until its name is durable: what is acknowledged in it must not vanish with it.
        locks.try_whole(temp_fd)
        for chunk in _live_chunks(segment):
            files.append_record(temp_fd, chunk)
        files.fsync(temp_fd)
        files.rename(temp, segment.path)
    except BaseException:
        try:
            with contextlib.suppress(OSError):
                files.unlink(temp)
        finally:
            locks.close_whole(temp_fd)
        raise
    try:
        files.fsync_directory(names.path)
    finally:
        locks.close_whole(temp_fd)


def _live_chunks(segment: Segment) -> Iterator[bytes]:
    """The live adds as they are and their runs, in the order of the file, in blocks."""
    block: list[bytes] = []
    size = 0
    for row, line in survey.lines(segment, segment.table.live_rows()):
        entry = Entry(segment, row)
        try:
            entry.name(line)
        except ValueError as error:
            # A copy that is less than the record must not replace it.
            raise OSError(errno.EIO, str(error), segment.path) from error
        block.append(b"\n%b\n" % line)
        block += [log_records.run(entry.id, entry.nonce, run) for run in entry.runs]
        size += len(line)
        if size > 1_000_000:
            yield b"".join(block)
            block, size = [], 0
    if block:
        yield b"".join(block)


def remove_stale_temps(names: StoreNames, listing: list[str]) -> None:
    """Remove what a killed compaction left, if no compaction is under way."""
    present = set(listing)
    for temp in names.temps(listing):
        target = temp.removesuffix(TEMP_SUFFIX)
        with contextlib.suppress(OSError):
            # The segment's whole lock is what a compactor holds; without a segment, its temp's.
            name = target if target in present else temp
            fd = files.open_file(names.at(name), os.O_RDWR)
            try:
                if locks.try_whole(fd) and files.is_at_path(fd, names.at(name)):
                    files.unlink(names.at(temp))
            finally:
                locks.close_whole(fd)
