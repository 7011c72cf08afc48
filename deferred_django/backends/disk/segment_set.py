"""All segments of a store as this process reads them, kept up to date with the directory.

Not thread-safe: the tasks storage calls it under its mutex.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable

from deferred_django.backends.disk.names import StoreNames
from deferred_django.backends.disk.segment import Entry, OverwrittenError, Segment
from deferred_django.backends.disk.watch import POLL_SECONDS, DirectoryWatch

logger = logging.getLogger("deferred_django.disk")


class SegmentSet:
    """Opens segments that appear, reads on in those that grew, drops those that went."""

    def __init__(self, names: StoreNames, found: Callable[[list[Entry]], None]) -> None:
        """``found`` is given the pending tasks that were read."""
        self._names = names
        self._found = found
        self._by_name: dict[str, Segment] = {}
        self._dropped: list[Segment] = []
        self._listed_at = 0.0
        self.unreadable: dict[str, str] = {}
        """Why a file of the store could not be opened, by its name."""

    def segments(self) -> list[Segment]:
        """The segments that are known."""
        return list(self._by_name.values())

    def all_open(self) -> list[Segment]:
        """Those too whose file is no longer at its path but that are in use."""
        return [*self._by_name.values(), *filter(_is_in_use, self._dropped)]

    def problems(self) -> list[str]:
        """Sentences about files that cannot be used, and bytes that no write left."""
        found = [f"{name}: {why}" for name, why in sorted(self.unreadable.items())]
        for segment in self._by_name.values():
            damaged = segment.scanner.damaged
            if damaged:
                first = segment.scanner.damage[0].offset
                found.append(
                    f"{segment.path}: damaged records are skipped: {damaged:,}, "
                    f"the first at byte {first:,}"
                )
            if not segment.writable:
                found.append(f"{segment.path}: may not be written by this user")
        return found

    def refresh(self, watch: DirectoryWatch | None = None) -> None:
        """Bring everything up to date; only what the watch names, if it can tell."""
        changed = watch.changed() if watch is not None else None
        now = time.monotonic()
        if changed is None or now - self._listed_at >= POLL_SECONDS:
            self._listed_at = now
            names = set(self._names.segments())
            changed = names | self._by_name.keys()
            for name in self.unreadable.keys() - names:
                del self.unreadable[name]
        for name in sorted(filter(self._names.is_segment, changed)):
            self._look_at(name)
        for segment in [segment for segment in self._dropped if not _is_in_use(segment)]:
            self._dropped.remove(segment)
            segment.close()

    def _look_at(self, name: str) -> None:
        path = self._names.at(name)
        segment = self._by_name.get(name)
        try:
            there = os.stat(path)
            if segment is not None and not segment.writable:
                segment = self._try_to_write(segment)
            if segment is not None:
                here = os.fstat(segment.fd)
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
                segment = self._by_name[name] = Segment.open(name, path)
            try:
                self.read_on(segment)
            except OverwrittenError as error:
                logger.error("%s", error)
                segment = self._by_name[name] = Segment.open(name, path)
                self.read_on(segment)
            segment.size_read = there.st_size
            self.unreadable.pop(name, None)
        except FileNotFoundError as error:
            if segment is not None:
                self.drop(segment)
            if os.path.islink(path):  # to nowhere: it will not go by itself
                self._note_unreadable(name, error)
        except OSError as error:
            self._note_unreadable(name, error)

    def _note_unreadable(self, name: str, error: OSError) -> None:
        if name not in self.unreadable:
            logger.error("%s cannot be read: %s", self._names.at(name), error)
        self.unreadable[name] = str(error)

    def _try_to_write(self, segment: Segment) -> Segment:
        """The segment, opened anew if it may be written by now."""
        again = Segment.open(segment.name, segment.path)
        if not again.writable:
            again.close()
            return segment
        self.drop(segment)
        self._by_name[segment.name] = again
        return again

    def read_on(self, segment: Segment) -> None:
        """Read what was appended to one segment, and report damage that is new.

        :class:`OverwrittenError` if the file has lost what was read before: then it is dropped.
        """
        known = segment.scanner.damaged
        fresh: list[Entry] = []
        try:
            segment.read_on(fresh)
        except OverwrittenError:
            segment.was_cut = True
            self.drop(segment)
            raise
        finally:
            if segment.scanner.damaged > known:
                for damage in segment.scanner.damage[known:]:
                    logger.error("%s: byte %d: %s", segment.path, damage.offset, damage.reason)
            pending = [entry for entry in fresh if not entry.gone]
            if pending:
                self._found(pending)

    def drop(self, segment: Segment) -> None:
        """The file is not the store's any more; its descriptor lives on while it is in use."""
        if self._by_name.get(segment.name) is segment:
            del self._by_name[segment.name]
            segment.mark_all_gone()
            self._dropped.append(segment)

    def close(self) -> None:
        """Close all descriptors that no claim needs."""
        for segment in self.segments():
            self.drop(segment)
        for segment in self._dropped:
            if not segment.users:
                segment.close()
        self._dropped = [segment for segment in self._dropped if segment.users]
        self._listed_at = 0.0


def _is_in_use(segment: Segment) -> bool:
    return segment.users > 0 or (segment.was_cut and bool(segment.unsynced_adds))
