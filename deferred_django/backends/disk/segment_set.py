"""All segments of a store as this process reads them, kept up to date with the directory.
Not thread-safe: the tasks storage calls it under its mutex. It has more than 300 lines because what
is open, what is unread and what was dropped is one state.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import time
from collections.abc import Callable, Iterator

from deferred_django.backends.disk import files
from deferred_django.backends.disk.long_line import HEAD_BYTES
from deferred_django.backends.disk.names import StoreNames
from deferred_django.backends.disk.segment import OverwrittenError, Segment
from deferred_django.backends.disk.segment_turns import Turns, room
from deferred_django.backends.disk.task_table import TaskTable
from deferred_django.backends.disk.watch import POLL_SECONDS, DirectoryWatch

logger = logging.getLogger("deferred_django.disk")

FRESH_BYTES = 64 * 1024
"""So much is read at least of what was appended to segments that had been read to the end."""


class SegmentSet:
    """Opens segments that appear, reads on in those that grew, drops those that went."""

    def __init__(
        self,
        names: StoreNames,
        found: Callable[[Segment, range], None],
        lost: Callable[[Segment], None],
        make_table: Callable[[], TaskTable] = TaskTable,
    ) -> None:
        """``found`` is given the rows of tasks that were read; none of a ``lost`` one count."""
        self._names = names
        self._found = found
        self._lost = lost
        self._make_table = make_table
        self._unread: dict[str, int] = {}
        """Segments that have grown, by name, and how far they are to be read."""
        self._by_name: dict[str, Segment] = {}
        self._dropped: list[Segment] = []
        self._turns = Turns(names.path)
        self._listed_at = 0.0
        self._budget = math.inf
        """How many bytes the refresh under way may still read."""
        self.unreadable: dict[str, str] = {}
        """Why a file of the store could not be opened, by its name."""

    def segments(self) -> list[Segment]:
        """The segments that are known."""
        return list(self._by_name.values())

    @property
    def any_open(self) -> bool:
        """Whether there is a segment that is known, or in use."""
        return bool(self._by_name or self._dropped)

    def all_open(self) -> list[Segment]:
        """Those too whose file is no longer at its path but that are in use."""
        return [*self._by_name.values(), *filter(_is_in_use, self._dropped)]

    def problems(self) -> list[str]:
        """Sentences about files that cannot be used."""
        return [f"{name}: {why}" for name, why in sorted(self.unreadable.items())]

    def crowd(self) -> list[str]:
        """A sentence about segments that wait for a descriptor, if any do."""
        return self._turns.problem()

    def check_readable(self, began: float) -> None:
        """Raise ``OSError`` if a file was not read since ``began``: it may have what is sought."""
        for name, why in self.unreadable.items():
            raise OSError(errno.EIO, f"a file cannot be read: {why}", self._names.at(name))
        if self.wants_turns(began):
            raise OSError(errno.EMFILE, *self.crowd())

    def refresh(self, watch: DirectoryWatch | None = None, budget: int | None = None) -> bool:
        """Bring everything up to date; only what the watch names, if it can tell.

        ``False`` if more was left to read after ``budget`` bytes: call it again. Segments that
        were read before are first, and then those whose first task was due first.
        """
        changed = watch.changed() if watch is not None else None
        now = time.monotonic()
        if changed is None or now - self._listed_at >= POLL_SECONDS:
            self._listed_at = now
            names = set(self._names.segments())
            changed = names | self._by_name.keys()
            for name in self.unreadable.keys() - names:
                del self.unreadable[name]
            self._turns.keep(names)
        for segment in [segment for segment in self._dropped if not _is_in_use(segment)]:
            self._dropped.remove(segment)
            segment.close()
        for name in self._turns.next_ones(len(self._by_name) + len(self._dropped)):
            self._look_at(name)  # before those that come only now
        for name in sorted(filter(self._names.is_segment, changed)):
            self._look_at(name)
        limit = math.inf if budget is None else budget
        self._budget = max(limit, FRESH_BYTES)
        for name in self._reading_order():
            if self._by_name[name].size_read < 0:  # and so are all that follow
                self._budget = min(self._budget, limit)
            if self._budget <= 0:
                break
            self._guarded(name, self._read_unread)
        return self.all_read

    def wants_turns(self, before: float | None = None) -> bool:
        """Whether segments wait for a descriptor that were not looked at since ``before``.

        Without it: for some seconds.
        """
        return self._turns.are_due(before) > 0

    def take_turns(self, before: float | None = None, *, durable: bool = True) -> bool:
        """Let go of segments for those, which the next refresh opens; ``False`` if it cannot.

        ``durable``: only of such as hold nothing that a power cut might still undo.
        """
        wanted = self._turns.are_due(before)
        for segment in (chosen := self._turns.make_room(self.segments(), wanted, durable=durable)):
            self.drop(segment)
        return bool(chosen)

    def each(self, *, all_of_them: bool) -> Iterator[Segment]:
        """The segments, for a look: those that are open, or all of them, one after another."""
        began = time.monotonic()
        seen: set[str] = set()
        while True:
            new = [segment for segment in self.segments() if segment.name not in seen]
            seen.update(segment.name for segment in new)
            yield from new
            if not all_of_them or not self.take_turns(began, durable=False):
                return
            self.refresh()

    @property
    def all_read(self) -> bool:
        """Whether the last refresh left nothing to be read."""
        return not self._unread

    def _reading_order(self) -> list[str]:
        if len(self._unread) < 2:
            return list(self._unread)
        found = []
        for name in self._unread:
            segment = self._by_name.get(name)
            known = segment is None or segment.size_read >= 0
            found.append((0, name) if known or segment is None else (_first_ms(segment), name))
        return [name for _, name in sorted(found)]

    def _guarded(self, name: str, action: Callable[[str], None]) -> None:
        """Do something with a file of the store, which may not be there or not be readable."""
        try:
            action(name)
            return
        except FileNotFoundError as error:
            segment = self._by_name.get(name)
            if segment is not None:
                self.drop(segment)
            if os.path.islink(self._names.at(name)):  # to nowhere: it will not go by itself
                self._note_unreadable(name, error)
        except OSError as error:
            self._note_unreadable(name, error)
        self._unread.pop(name, None)

    def _note_unreadable(self, name: str, error: OSError) -> None:
        if name not in self.unreadable:
            logger.error("%s cannot be read: %s", self._names.at(name), error)
        self.unreadable[name] = str(error)

    def _look_at(self, name: str) -> None:
        self._guarded(name, self._open)

    def _open(self, name: str) -> None:
        path = self._names.at(name)
        segment = self._by_name.get(name)
        there = os.stat(path)
        if segment is not None and not segment.writable:
            segment = self._try_to_write(segment)
        if segment is not None:
            here = files.status(segment.fd)
            if (here.st_ino, here.st_dev) != (there.st_ino, there.st_dev):
                self.drop(segment)
                segment = None
            elif there.st_size < segment.scanner.offset:
                logger.error("%s was cut off to %d bytes", path, there.st_size)
                segment.was_cut = True
                self.drop(segment)
                segment = None
            elif there.st_size == segment.size_read:
                self.unreadable.pop(name, None)
                return
        if segment is None:
            if room(len(self._by_name) + len(self._dropped)) <= 0:
                self._turns.wait(name)
                return
            self._by_name[name] = self._opened(name, path)
        self._unread.setdefault(name, there.st_size)

    def _opened(self, name: str, path: str) -> Segment:
        segment = Segment.open(name, path)
        segment.table = self._make_table()
        return segment

    def _read_unread(self, name: str) -> None:
        segment, size = self._by_name[name], self._unread[name]
        try:
            self._read_a_part(segment)
        except OverwrittenError as error:
            logger.error("%s", error)
            segment = self._by_name[name] = self._opened(name, segment.path)
            self._read_a_part(segment)
        self._unread[name] = size  # which dropping the old one has removed
        if segment.scanner.stopped and segment.scanner.offset < size:
            return
        segment.size_read = self._unread.pop(name)
        self.unreadable.pop(name, None)
        self._index(segment)

    def _read_a_part(self, segment: Segment) -> None:
        before = segment.scanner.offset
        try:
            self.read_on(segment, None if self._budget == math.inf else int(self._budget))
        finally:
            self._budget -= segment.scanner.offset - before

    def _try_to_write(self, segment: Segment) -> Segment:
        """The segment, opened anew if it may be written by now."""
        again = self._opened(segment.name, segment.path)
        if not again.writable:
            again.close()
            return segment
        self.drop(segment)
        self._by_name[segment.name] = again
        return again

    def read_on(self, segment: Segment, budget: int | None = None) -> None:
        """Read what was appended to one segment, and report damage that is new.

        :class:`OverwrittenError` if the file has lost what was read before: then it is dropped.
        """
        known = segment.scanner.damaged
        try:
            segment.read_on(budget)
        except OverwrittenError:
            segment.was_cut = True
            self.drop(segment)
            raise
        except OSError:
            self._index(segment)
            raise
        finally:
            if segment.scanner.damaged > known:
                for damage in segment.scanner.damage[known:]:
                    logger.error("%s: byte %d: %s", segment.path, damage.offset, damage.reason)
        if not segment.scanner.stopped:
            self._index(segment)

    def _index(self, segment: Segment) -> None:
        # Only when it was read to the end: so that to claim a task of it reads no more than what
        # was appended meanwhile, and its tasks are in order.
        rows = range(segment.indexed, len(segment.table))
        if rows:
            segment.indexed = len(segment.table)
            self._found(segment, rows)

    def drop(self, segment: Segment) -> None:
        """The file is not the store's any more; its descriptor lives on while it is in use."""
        if self._by_name.get(segment.name) is segment:
            del self._by_name[segment.name]
            self._unread.pop(segment.name, None)
            segment.mark_all_gone()
            self._lost(segment)
            self._dropped.append(segment)

    def close(self) -> None:
        """Close all descriptors that no claim needs."""
        for segment in self.segments():
            self.drop(segment)
        for segment in self._dropped:
            if not segment.users:
                segment.close()
        self._dropped = [segment for segment in self._dropped if segment.users]
        self._turns.clear()
        self._listed_at = 0.0


def _is_in_use(segment: Segment) -> bool:
    return segment.users > 0 or (segment.was_cut and bool(segment.unsynced_adds))


def _first_ms(segment: Segment) -> int:
    if segment.first_ms is None:
        try:
            head = files.read_at(segment.fd, HEAD_BYTES, 0).lstrip(b"\n")
            segment.first_ms = int(head.split(b":", 5)[4])
        except (OSError, ValueError, IndexError):
            segment.first_ms = 0
    return segment.first_ms
