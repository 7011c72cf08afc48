"""What happens to tasks whose fsync failed: they are written anew elsewhere, then removed here.

After a failed fsync the kernel may drop the pages and report success the next time, so the file
cannot be trusted with them again. Each task is claimed first (gone: it has run; claimed elsewhere:
it runs now, and is looked at again later), written to another segment, and only when it is durable
there is it removed from the old one, so that it still runs once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

from deferred_django.backends.disk import files, log_records
from deferred_django.backends.disk.scanner import Scanner
from deferred_django.backends.disk.segment import Entry, Segment


class Rescue:
    """The unsynced adds of one segment on their way to another."""

    def __init__(
        self, segment: Segment, batch: list[bytes], *, close_when_done: bool = False
    ) -> None:
        """``segment`` is on a descriptor of its own, on which this process holds no claims."""
        self._segment = segment
        self._batch = batch
        self._close_when_done = close_when_done

    @property
    def name(self) -> str:
        """The name of that file."""
        return self._segment.name

    @property
    def path(self) -> str:
        """The file that the adds may have been lost from."""
        return self._segment.path

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
        if not running and self._close_when_done:
            segment.close()
        return not running


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
            files.unlock(segment.fd, entry.offset, entry.length)


def _adds_in(segment: Segment) -> set[tuple[str, str]]:
    written = set()
    for _, _, body in Scanner().read(segment.fd):
        if body.startswith(b"add:"):
            written.add(log_records.names_in(body))
    return written


def _remove(segment: Segment, entries: Iterable[Entry]) -> None:
    for entry in entries:
        # The file is in trouble already. Without its rem the task may run twice, not be lost.
        with contextlib.suppress(OSError):
            files.append_record(segment.fd, log_records.rem(entry.id, entry.nonce))
