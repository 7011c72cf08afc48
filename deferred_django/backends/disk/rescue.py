"""What happens to tasks whose fsync failed: they are written anew elsewhere, then removed here.

After a failed fsync the kernel may drop the pages and report success the next time, so the file
cannot be trusted with them again. Each task is claimed first (gone: it has run; claimed elsewhere:
it runs now, and is looked at again later), written to another segment, and only when it is durable
there is it removed from the old one, so that it still runs once. The removal is fsynced too, as far
as the disk still does that: after a power cut the old file may show what was thought lost.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

from deferred_django.backends.disk import files, log_records
from deferred_django.backends.disk.scanner import Scanner
from deferred_django.backends.disk.segment import Entry, OverwrittenError, Segment

logger = logging.getLogger("deferred_django.disk")

WriteAnew = Callable[[list[bytes]], tuple[set[bytes], OSError | None]]
"""Makes adds durable in another segment: what is there afterwards, and why it is not all."""


class Rescue:
    """The unsynced adds of one segment on their way to another."""

    def __init__(
        self, segment: Segment, batch: list[bytes], *, owned: bool, refused: bool = False
    ) -> None:
        """``segment`` is on a descriptor on which this process holds no claims: ``owned`` by this
        process until the end, or one of the rescue's own.

        Of adds that were ``refused`` the caller knows: they are removed and written nowhere.
        """
        self._segment = segment
        self._batch = batch
        self._owned = owned
        self._refused = refused
        self._unremoved: list[tuple[Entry, set[str]]] = []
        """Claimed until their ``rem`` can be written: they wait in another segment. With the nonces
        of all adds of the id: if the newest was lost, an older one would count again."""

    @property
    def is_refused(self) -> bool:
        """Whether its tasks must not run."""
        return self._refused

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

    def proceed(self, write_anew: WriteAnew) -> bool:
        """Move what can be moved; ``True`` when nothing is left.

        After an ``OSError`` the call can be repeated.
        """
        segment = self._up_to_date()
        self._remove_moved()
        with _claimed(segment, self._batch) as (held, lost, running, locked, written):
            if not self._owned and not files.is_at_path(segment.fd, segment.path):
                held, lost, running = [], [], []  # a compaction made what it copied durable
            there = _adds_at_path(segment, self._batch) if self._owned else set()
            lost = [added for added in lost if log_records.names_in_add(added) not in there]
            kept = {added for added, _ in held if log_records.names_in_add(added) in there}
            batch = lost + [added for added, _ in held if added not in kept]
            if self._refused:
                running = []  # nobody can call those back
                moved, error = set(batch), None
            else:
                moved, error = write_anew(batch)
            moved |= kept
            for added, entry in held:
                if added in moved:  # claimed until it is removed here, or it would run twice
                    locked.remove(entry)
                    nonces = {entry.nonce} if self._refused else written[entry.id]
                    self._unremoved.append((entry, nonces))
            self._batch = running + [added for added in batch if added not in moved]
        self._remove_moved()
        if error is not None:
            raise error
        done = not self._batch and not self._unremoved
        if done:
            self.close()
        return done

    def _up_to_date(self) -> Segment:
        try:
            self._segment.read_on()
        except OverwrittenError:  # what was read is gone: another program cut the file, again
            old = self._segment
            self._segment = Segment(old.name, old.path, old.fd, writable=True)
        return self._segment

    def _remove_moved(self) -> None:
        segment = self._segment
        if self._unremoved and _remove(segment, *self._unremoved):
            _fsync_removals(segment)
            for entry, _ in self._unremoved:
                _unlock(segment, entry)
            self._unremoved.clear()

    def close(self) -> None:
        """Let go of the descriptor, if it is this one's."""
        if not self._owned:
            self._segment.close()


def withdraw(segment: Segment, batch: list[bytes]) -> set[bytes]:
    """Remove adds again, except those that somebody runs already; return what is not there."""
    with _claimed(segment, batch) as (held, lost, _, _, _):
        removed = [added for added, entry in held if _remove(segment, (entry, {entry.nonce}))]
        if removed:
            _fsync_removals(segment)
        return {*lost, *removed}


class _Claimed(NamedTuple):
    """What became of the adds of a batch."""

    held: list[tuple[bytes, Entry]]
    lost: list[bytes]
    """Those whose bytes the file does not show any more."""
    running: list[bytes]
    """Claimed elsewhere."""
    locked: list[Entry]
    """To be unlocked at the end."""
    written: dict[str, set[str]]
    """The nonces of all adds in the file, by their ids."""


@contextlib.contextmanager
def _claimed(segment: Segment, batch: list[bytes]) -> Iterator[_Claimed]:
    """Claim the adds of ``batch``."""
    segment.read_on()
    written: dict[str, set[str]] = {}
    for task_id, nonce in _adds_in(segment, _ids_of(batch)):
        written.setdefault(task_id, set()).add(nonce)
    held: list[tuple[bytes, Entry]] = []
    lost: list[bytes] = []
    running: list[bytes] = []
    locked: list[Entry] = []
    try:
        for added in batch:
            task_id, nonce = log_records.names_in_add(added)
            row = segment.find(task_id, nonce)
            if row is None:
                if nonce not in written.get(task_id, ()):
                    lost.append(added)
            else:
                entry = segment.take(row)
                entry.id, entry.nonce = task_id, nonce
                locked.append(entry)  # first: an interrupted call may have locked it
                if _lock(segment, row):
                    held.append((added, entry))
                else:
                    locked.pop()
                    segment.let_go(entry)
                    running.append(added)
        segment.read_on()  # what was finished until the locks were had
        held = [(added, entry) for added, entry in held if not entry.gone]
        yield _Claimed(held, lost, running, locked, written)
    finally:
        for entry in locked:
            _unlock(segment, entry)


def _adds_at_path(segment: Segment, batch: list[bytes]) -> set[tuple[str, str]]:
    """The adds in a file that another program (an editor) put in the place of an owned one."""
    if files.is_at_path(segment.fd, segment.path):
        return set()
    try:
        other = Segment.open(segment.name, segment.path)
    except FileNotFoundError:
        return set()
    try:
        found = _adds_in(other, _ids_of(batch))
        files.fsync(other.fd)
        return found
    finally:
        other.close()


def _ids_of(batch: list[bytes]) -> set[str]:
    return {log_records.names_in_add(added)[0] for added in batch}


def _adds_in(segment: Segment, wanted: set[str]) -> set[tuple[str, str]]:
    """The adds of these ids in the file, with their nonces, whatever became of them."""
    written = set()
    for _, _, body in Scanner().read(segment.fd):
        if body.startswith(b"add:"):
            with contextlib.suppress(ValueError):  # of an unknown form
                names = log_records.names_in(body)
                if names[0] in wanted:
                    written.add(names)
    return written


def _lock(segment: Segment, row: int) -> bool:
    table = segment.table
    return files.try_lock(segment.fd, table.offsets[row], table.lengths[row])


def _remove(segment: Segment, *entries: tuple[Entry, set[str]]) -> bool:
    """Write the removals of tasks, by their nonces, together."""
    removals = [
        log_records.rem(entry.id, nonce) for entry, nonces in entries for nonce in sorted(nonces)
    ]
    try:
        files.append_record(segment.fd, b"".join(removals))
    except OSError as error:
        more = f" and {len(entries) - 1} more" if len(entries) > 1 else ""
        first = entries[0][0].id
        logger.error("%s: task %s%s cannot be removed: %s", segment.path, first, more, error)
        return False
    return True


def _fsync_removals(segment: Segment) -> None:
    # On a disk that fails again it is at least once, after a power cut.
    with contextlib.suppress(OSError):
        files.fsync(segment.fd)


def _unlock(segment: Segment, entry: Entry) -> None:
    segment.let_go(entry)
    with contextlib.suppress(OSError):  # an unlock of a valid descriptor does not fail
        files.unlock(segment.fd, entry.offset, entry.length)
