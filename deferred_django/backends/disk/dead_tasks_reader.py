"""Reading the dead-tasks file: without a lock, from a snapshot that nobody waits for.

The file is opened by its path for each operation. A removal leaves an open file as it is, adds come
behind its end, and whatever changes at its end (a tail repaired, a failed write taken back) fails
its checksum or the index's second look, and is read again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar

from deferred_django.backends.base import Finding
from deferred_django.backends.disk import dead_tasks_file, files, records
from deferred_django.backends.disk.dead_tasks_file import READ, DeadTasksFile
from deferred_django.backends.disk.dead_tasks_index import Index, Span
from deferred_django.backends.disk.long_line import HEAD_BYTES
from deferred_django.backends.disk.scanner import CHUNK_BYTES, Damage, Scanner

COLD_PAGE_RECORDS = 1000
"""Up to here a process that has no index yet reads the newest records from the file's end."""
_TRIES = 5

Record = tuple[str, bytes]
Matcher = Callable[[bytes], bool]
T = TypeVar("T")


class _MovedError(Exception):
    """A record is not where the index says."""


class Reader:
    """The readers of one store, with their index. Thread-safe."""

    def __init__(self, file: DeadTasksFile) -> None:
        self._file = file
        self.forget()

    def forget(self) -> None:
        """Start anew in a forked child: another thread may have been at work on the index."""
        self._index = Index()
        self._index_lock = threading.Lock()

    def clear(self) -> None:
        """Free the index."""
        with self._index_lock:
            self._index.clear()

    # -- for removals --------------------------------------------------------------------------

    def any_there(self, ids: list[str]) -> bool:
        """Whether there is a record of any of these ids."""
        generation = self._file.generation()
        try:
            with self._file.opened(READ) as fd, self._index_lock:
                self._index.refresh(fd, generation)
                return any(self._index.span(fd, task_id) for task_id in ids)
        except FileNotFoundError:
            return False

    def spans_below(self, fd: int, ids: list[str], end: int) -> dict[str, list[Span]]:
        """All records before ``end`` of each id that has any, the newest last."""
        generation = self._file.generation()
        with self._index_lock:
            self._index.refresh(fd, generation)
            return self._index.spans_below(fd, ids, end)

    # -- records -------------------------------------------------------------------------------

    def read(self, limit: int | None, offset: int, matches: Matcher | None) -> list[Record]:
        """The newest record of each id that matches, newest first."""
        if limit is not None and limit <= 0:
            return []
        if matches is None and limit is not None and limit + offset <= COLD_PAGE_RECORDS:
            with self._index_lock:
                cold = self._index.is_cold
            if cold:
                return self._read_from_end(limit, offset)
        return self._consistently(list, limit, offset, matches)

    def count(self, matches: Matcher | None) -> int:
        """How many ids have a newest record that matches."""
        if matches is not None:
            return self._consistently(lambda found: sum(1 for _ in found), None, 0, matches)
        generation = self._file.generation()
        try:
            with self._file.opened(READ) as fd, self._index_lock:
                self._index.refresh(fd, generation)
                return len(self._index)
        except FileNotFoundError:
            return 0

    def find(self, task_id: str) -> bytes | None:
        """The newest record of the id."""
        for _ in range(_TRIES):
            generation = self._file.generation()
            try:
                with self._file.opened(READ) as fd, self._index_lock:
                    self._index.refresh(fd, generation)
                    span = self._index.span(fd, task_id)
                    if span is None:
                        return None
                    record = record_at(fd, span)
                    if record is not None and record[0] == task_id:
                        return record[1]
                    self._index.clear()
            except FileNotFoundError:
                return None
        return None

    def _read_from_end(self, limit: int, offset: int) -> list[Record]:
        found: dict[str, bytes] = {}
        try:
            with self._file.opened(READ) as fd:
                tail = dead_tasks_file.find_tail(fd)
                for start, end in dead_tasks_file.lines_backwards(fd, tail.end):
                    record = _record_between(fd, start, end)
                    if record is not None:
                        found.setdefault(*record)
                    if len(found) == limit + offset:
                        break
        except FileNotFoundError:
            pass
        return list(found.items())[offset:]

    def _consistently(
        self,
        gather: Callable[[Iterator[Record]], T],
        limit: int | None,
        offset: int,
        matches: Matcher | None,
    ) -> T:
        """Gather records; again, with a new index, if one is not where the index says."""
        tries = 0
        while True:
            generation = self._file.generation()
            try:
                with self._file.opened(READ) as fd:
                    found = self._records(fd, generation, limit, offset, matches, tries < _TRIES)
                    return gather(found)
            except FileNotFoundError:
                return gather(iter(()))
            except _MovedError:
                tries += 1
                self.clear()

    def _records(
        self,
        fd: int,
        generation: int,
        limit: int | None,
        offset: int,
        matches: Matcher | None,
        strict: bool,
    ) -> Iterator[Record]:
        with self._index_lock:
            self._index.refresh(fd, generation)
            if matches is None:
                spans = self._index.newest_first(offset, limit)
                offset = 0
            else:
                spans = self._index.newest_first()
        given = 0
        for span in spans:
            record = record_at(fd, span)
            if record is None:
                if strict:
                    raise _MovedError
                continue
            if matches is not None and not matches(record[1]):
                continue
            if offset:
                offset -= 1
                continue
            yield record
            given += 1
            if given == limit:
                return

    # -- reports -------------------------------------------------------------------------------

    def problems(self) -> list[str]:
        """Sentences about what could not be read."""
        generation = self._file.generation()
        path = self._file.path
        try:
            with self._file.opened(READ) as fd, self._index_lock:
                self._index.refresh(fd, generation)
                flaws = self._index.flaws
        except FileNotFoundError:
            return []
        except OSError as error:
            return [f"{path} cannot be read: {error}"]
        return [f"{path}: {sentence}" for sentence in flaws.sentences()]

    def verify(self) -> list[Finding]:
        """What a read-through of the whole file finds wrong."""
        try:
            with self._file.opened(READ) as fd:
                found = self._findings(fd)
                for _ in range(_TRIES):
                    # Believed when seen twice: an add may have been at work on the last line.
                    again = self._findings(fd) if found else found
                    if again == found:
                        break
                    found = again
                return found
        except FileNotFoundError:
            return []
        except OSError as error:
            return [self._finding("unreadable", None, str(error))]

    def _findings(self, fd: int) -> list[Finding]:
        size = os.fstat(fd).st_size
        scanner = Scanner(newline_in_front=False)
        for offset, length, body in scanner.read(fd, size):
            if dead_tasks_file.id_of(body) is None:
                scanner.note_damage(Damage(offset, length, "a record that is no dead task's"))
        found = [
            self._finding("damage", damage.offset, f"{damage.length:,} bytes: {damage.reason}")
            for damage in scanner.damage
        ]
        further = scanner.damaged - len(scanner.damage)
        if further:
            found.append(self._finding("damage", None, f"{further:,} more bad places"))
        if scanner.torn_in_all:
            found.append(self._finding("torn", scanner.offset, "an unfinished write at the end"))
        return found

    def _finding(self, kind: str, offset: int | None, detail: str) -> Finding:
        return Finding(file=self._file.path, offset=offset, kind=kind, detail=detail)


def record_at(fd: int, span: Span) -> Record | None:
    """The record of a line, or ``None`` if there is no such record there (any more)."""
    offset, length = span
    line = files.read_at(fd, length, offset)
    if len(line) != length or not records.is_valid(line):
        return None
    task_id = dead_tasks_file.id_of(line[records.CRC_BYTES :][:HEAD_BYTES])
    if task_id is None:
        return None
    start = records.CRC_BYTES + len(dead_tasks_file.beginning(task_id))
    return task_id.decode("ascii"), line[start:]


def _record_between(fd: int, start: int, end: int) -> Record | None:
    """As :func:`record_at`, for a line that nobody has looked at: it may be of any length."""
    if start == end:
        return None
    if end - start > CHUNK_BYTES and not dead_tasks_file.is_valid_at(fd, start, end):
        return None
    return record_at(fd, (start, end - start))
