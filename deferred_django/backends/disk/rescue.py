"""What happens to tasks whose fsync failed: they are written anew elsewhere, then removed here.

After a failed fsync the kernel may drop the pages and report success the next time, so the file
cannot be trusted with them again. Each task is claimed first (gone: it has run; claimed elsewhere:
it runs now, and is looked at again later), written to another segment, and only when it is durable
there is it removed from the old one, so that it still runs once.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator

from deferred_django.backends.disk import files, log_records
from deferred_django.backends.disk.scanner import Scanner
from deferred_django.backends.disk.segment import Entry, Segment

logger = logging.getLogger("deferred_django.disk")

FIRST_PAUSE, MAX_PAUSE = 0.5, 30.0
"""Seconds between the timer's tries, doubling."""


class Rescue:
    """The unsynced adds of one segment on their way to another."""

    def __init__(
        self, segment: Segment, batch: list[bytes], *, close_when_done: bool = False
    ) -> None:
        """``segment`` is on a descriptor of its own, on which this process holds no claims."""
        self._segment = segment
        self._batch = batch
        self._closes = close_when_done

    @property
    def name(self) -> str:
        """The name of that file."""
        return self._segment.name

    @property
    def path(self) -> str:
        """The file that the adds may have been lost from."""
        return self._segment.path

    @property
    def size(self) -> int:
        """How many bytes of tasks wait."""
        return sum(map(len, self._batch))

    def leave(self, records: set[bytes]) -> bool:
        """Leave these to another rescue; whether nothing is left then."""
        self._batch = [record for record in self._batch if record not in records]
        return not self._batch

    def proceed(self, write_anew: Callable[[list[bytes]], None]) -> bool:
        """Move what can be moved; ``True`` when nothing is left.

        ``write_anew`` makes the adds durable in another segment. If it raises, nothing has
        changed and the call can be repeated.
        """
        segment = self._segment
        with _claimed(segment, self._batch) as (held, lost, running):
            write_anew(lost + [added for added, _ in held])
            _remove(segment, (entry for _, entry in held))
            self._batch = running
        if not running:
            self.close()
        return not running

    def close(self) -> None:
        """Let go of the descriptor, if it is this one's."""
        if self._closes:
            self._closes = False
            self._segment.close()


class Rescues:
    """All that wait. Not thread-safe: the writer calls it under its sync lock."""

    def __init__(self) -> None:
        self._waiting: list[Rescue] = []
        self._error: OSError | None = None
        self._again_at, self._pause = 0.0, FIRST_PAUSE
        self.size = 0
        """How many bytes of tasks wait."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def paths(self) -> set[str]:
        """The files that they read."""
        return {rescue.path for rescue in self._waiting}

    def add(self, rescue: Rescue) -> None:
        """Take in another one."""
        self._waiting.append(rescue)
        self.size += rescue.size

    def proceed(self, write_anew: Callable[[list[bytes]], None]) -> OSError | None:
        """Move what can be moved; what runs elsewhere now waits for a later call."""
        try:
            for rescue in list(self._waiting):
                try:
                    done = rescue.proceed(write_anew)
                except OSError as error:
                    logger.error("%s: tasks still wait to be written anew: %s", rescue.path, error)
                    return error
                if done:
                    self._waiting.remove(rescue)
            return None
        finally:
            self.size = sum(rescue.size for rescue in self._waiting)

    def proceed_if_due(self, write_anew: Callable[[list[bytes]], None]) -> OSError | None:
        """The same, more and more seldom: each try on a disk that fails leaves a file there."""
        if self._waiting and time.monotonic() >= self._again_at:
            self._error = self.proceed(write_anew)
            self._pause = min(self._pause * 2, MAX_PAUSE)
            self._again_at = time.monotonic() + self._pause
        if not self._waiting:
            self._error, self._again_at, self._pause = None, 0.0, FIRST_PAUSE
        return self._error

    def leave(self, names: set[str], batch: list[bytes]) -> None:
        """Forget copies that could not be made durable in the segments of these names."""
        copies = set(batch)
        self._waiting = [
            rescue
            for rescue in self._waiting
            if rescue.name not in names or not rescue.leave(copies)
        ]

    def close(self) -> None:
        """Let go of the descriptors."""
        for rescue in self._waiting:
            rescue.close()


def withdraw(segment: Segment, batch: list[bytes]) -> None:
    """Remove adds that were refused to their callers, except those that somebody runs already."""
    with _claimed(segment, batch) as (held, _, _):
        _remove(segment, (entry for _, entry in held))


@contextlib.contextmanager
def _claimed(
    segment: Segment, batch: list[bytes]
) -> Iterator[tuple[list[tuple[bytes, Entry]], list[bytes], list[bytes]]]:
    """Claim the adds of ``batch``: yield (claimed with their entries, lost, claimed elsewhere).

    *Lost* are those whose bytes the file does not show any more.
    """
    segment.read_on()
    written = _adds_in(segment)
    held: list[tuple[bytes, Entry]] = []
    lost: list[bytes] = []
    running: list[bytes] = []
    locked: list[Entry] = []
    try:
        for added in batch:
            task_id, nonce = log_records.names_in_add(added)
            entry = segment.tasks.get(task_id)
            if entry is None or entry.nonce != nonce:
                if (task_id, nonce) not in written:
                    lost.append(added)
            elif files.try_lock(segment.fd, entry.offset, entry.length):
                locked.append(entry)
                held.append((added, entry))
            else:
                running.append(added)
        segment.read_on()  # what was finished until the locks were had
        yield [(added, entry) for added, entry in held if not entry.gone], lost, running
    finally:
        for entry in locked:
            with contextlib.suppress(OSError):  # an unlock of a valid descriptor does not fail
                files.unlock(segment.fd, entry.offset, entry.length)


def _adds_in(segment: Segment) -> set[tuple[str, str]]:
    written = set()
    for _, _, body in Scanner().read(segment.fd):
        if body.startswith(b"add:"):
            with contextlib.suppress(ValueError):  # of an unknown form
                written.add(log_records.names_in(body))
    return written


def _remove(segment: Segment, entries: Iterable[Entry]) -> None:
    for entry in entries:
        # The file is in trouble already. Without its rem the task may run twice, not be lost.
        with contextlib.suppress(OSError):
            files.append_record(segment.fd, log_records.rem(entry.id, entry.nonce))
