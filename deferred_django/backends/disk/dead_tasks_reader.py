"""Reading the dead-tasks file: without a lock, from a snapshot that nobody waits for.

The file is opened by its path for each operation. A removal leaves an open file as it is, adds come
behind its end, and whatever changes at its end (a tail repaired, a failed write taken back) fails
its checksum or the index's second look, and is read again.

Building the index of a large file takes seconds. The first pages and single records are had without
it; so nobody waits for it but who needs all of the file: counts, the far pages, whole lists.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager

from deferred_django.backends.disk import dead_tasks_located, files
from deferred_django.backends.disk.dead_tasks_cold import (
    Matcher,
    NewestRecords,
    Record,
    find_newest,
    record_at,
)
from deferred_django.backends.disk.dead_tasks_file import READ, DeadTasksFile
from deferred_django.backends.disk.dead_tasks_index import Index, Replacement
from deferred_django.backends.disk.dead_tasks_located import Located

PAGE_RECORDS = 2000
"""Up to here a page is read from the file's end."""
COLD_LINES = 10_000
"""Lines of the end that are looked at before the index is built: some tens of milliseconds."""
SOON_BYTES = 4 * 1024 * 1024
"""What the index takes in at once, by whomever it is asked; some ten milliseconds."""
SEARCHES = 10
"""Searches through the whole file take about as long as building the index, which ends them."""
_PATIENCE = 0.01
_TRIES = 5


class Reader:
    """The readers of one store, with their index. Thread-safe."""

    def __init__(self, file: DeadTasksFile) -> None:
        self._file = file
        self.forget()

    def forget(self) -> None:
        """Start anew in a forked child: another thread may have been at work on the index."""
        self._index = Index()
        self._index_lock = threading.Lock()
        self._searched = 0

    def clear(self) -> None:
        """Free the index."""
        with self._index_lock:
            self._index.clear()

    @contextmanager
    def _index_at_once(self, fd: int, generation: int) -> Iterator[Index | None]:
        """The index, up to date, if it can be had without a wait that a person would notice."""
        if not self._index_lock.acquire(timeout=_PATIENCE):
            yield None  # another thread is building it
            return
        try:
            at_once = self._index.unread(fd, generation) <= SOON_BYTES
            if at_once:
                self._index.refresh(fd, generation)
                self._searched = 0
            yield self._index if at_once else None
        finally:
            self._index_lock.release()

    @contextmanager
    def _whole_index(self, fd: int, generation: int) -> Iterator[Index]:
        with self._index_lock:
            self._index.refresh(fd, generation)
            self._searched = 0
            yield self._index

    # -- for removals --------------------------------------------------------------------------

    def may_have(self, ids: Iterable[str]) -> bool:
        """Whether there may be a record of any of these ids; certain if it says no."""
        generation = self._file.generation()
        try:
            with self._file.opened(READ) as fd, self._index_at_once(fd, generation) as index:
                return index is None or any(index.span(fd, task_id) for task_id in ids)
        except FileNotFoundError:
            return False

    def locate(self, fd: int, ids: Mapping[str, int], end: int) -> Located:
        """All records before ``end`` of the ids, which are numbered from 0 in their order."""
        generation = self._file.generation()
        with self._index_at_once(fd, generation) as index:
            if index is not None and len(ids) < len(index) // 2:
                return index.locate(fd, ids, end)
        return dead_tasks_located.scan(fd, ids, end)

    def replaced(self, replacement: Replacement) -> None:
        """This process has put another file in place; the index need not be built anew for it."""
        with self._index_lock:
            self._index.replaced(replacement)

    # -- records -------------------------------------------------------------------------------

    def read(
        self, limit: int | None, offset: int, matches: Matcher | None
    ) -> Generator[Record, None, None]:
        """The newest record of each id that matches, newest first, all of one snapshot.

        The file stays open until the iterator is at its end, or is closed.
        """
        if limit is not None and limit <= 0:
            return
        generation, process = self._file.generation(), os.getpid()
        try:
            fd = self._file.open(READ)
        except FileNotFoundError:
            return
        try:
            yield from self._read(fd, generation, limit, offset, matches)
        finally:
            if os.getpid() == process:  # the fork hook has closed it in a child
                files.close(fd)

    def _read(
        self, fd: int, generation: int, limit: int | None, offset: int, matches: Matcher | None
    ) -> Iterator[Record]:
        if self._begins_cold(fd, generation, limit, offset):
            return _page(self._newest_cold(fd, generation), limit, offset, matches)
        if matches is not None:
            return _page(self._newest_by_index(fd, generation), limit, offset, matches)
        return _page(self._newest_by_index(fd, generation, skip=offset), limit, 0, None)

    def _begins_cold(self, fd: int, generation: int, limit: int | None, offset: int) -> bool:
        if limit is not None and limit + offset <= PAGE_RECORDS:
            return True
        if offset >= COLD_LINES:
            return False
        with self._index_at_once(fd, generation) as index:
            return index is None

    def _newest_cold(self, fd: int, generation: int) -> Iterator[Record]:
        newest = NewestRecords(fd, COLD_LINES)
        yield from newest
        if not newest.all_seen:
            yield from self._newest_by_index(fd, generation, before=newest.position)

    def _newest_by_index(
        self, fd: int, generation: int, *, skip: int = 0, before: int | None = None
    ) -> Iterator[Record]:
        for tries in range(_TRIES + 1):
            with self._whole_index(fd, generation) as index:
                spans = index.newest_first(skip)
            for span in spans:
                if before is not None and span[0] >= before:
                    continue
                record = record_at(fd, span)
                if record is not None:
                    skip, before = 0, span[0]
                    yield record
                elif tries < _TRIES:
                    self.clear()  # and go on from here with a new one
                    break
            else:
                return

    def count(self, matches: Matcher | None) -> int:
        """How many ids have a newest record that matches."""
        if matches is not None:
            return sum(1 for _ in self.read(None, 0, matches))
        generation = self._file.generation()
        try:
            with self._file.opened(READ) as fd, self._whole_index(fd, generation) as index:
                return len(index)
        except FileNotFoundError:
            return 0

    def count_up_to(self, most: int) -> int:
        """How many ids there are; ``most`` if there are as many or more."""
        generation = self._file.generation()
        try:
            with self._file.opened(READ) as fd:
                with self._index_at_once(fd, generation) as index:
                    if index is not None:
                        return min(len(index), most)
                return sum(1 for _ in itertools.islice(NewestRecords(fd, sys.maxsize), most))
        except FileNotFoundError:
            return 0

    def find(self, task_id: str) -> bytes | None:
        """The newest record of the id."""
        for _ in range(_TRIES):
            generation = self._file.generation()
            try:
                with self._file.opened(READ) as fd, self._for_finding(fd, generation) as index:
                    if index is None:
                        record_bytes, searched = find_newest(fd, task_id)
                        self._searched += searched
                        return record_bytes
                    span = index.span(fd, task_id)
                    if span is None:
                        return None
                    record = record_at(fd, span)
                    if record is not None and record[0] == task_id:
                        return record[1]
                    index.clear()
            except FileNotFoundError:
                return None
        return None

    @contextmanager
    def _for_finding(self, fd: int, generation: int) -> Iterator[Index | None]:
        if self._searched >= SEARCHES * files.status(fd).st_size:
            with self._whole_index(fd, generation) as index:
                yield index
            return
        with self._index_at_once(fd, generation) as at_once:
            if at_once is not None:
                yield at_once
                return
        yield None

    # -- reports -------------------------------------------------------------------------------

    def problems(self) -> list[str]:
        """Sentences about what could not be read."""
        generation = self._file.generation()
        path = self._file.path
        try:
            with self._file.opened(READ) as fd, self._whole_index(fd, generation) as index:
                sentences = index.flaws.sentences()
        except FileNotFoundError:
            return []
        except OSError as error:
            return [f"{path} cannot be read: {error}"]
        return [f"{path}: {sentence}" for sentence in sentences]


def _page(
    records: Iterable[Record], limit: int | None, offset: int, matches: Matcher | None
) -> Iterator[Record]:
    given = 0
    for record in records:
        if matches is not None and not matches(*record):
            continue
        if offset:
            offset -= 1
            continue
        yield record
        given += 1
        if given == limit:
            return
