"""Looking into the dead-tasks file without an index, from its end.

What people ask for first is new: the first page, and the task that failed a minute ago. That must
not wait until a gigabyte was read through, in a command's process, or after a removal that made
all other processes' indexes stale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from deferred_django import ids
from deferred_django.backends.disk import dead_tasks_file, dead_tasks_tail, files, records
from deferred_django.backends.disk.dead_tasks_rows import Span
from deferred_django.backends.disk.long_line import HEAD_BYTES
from deferred_django.backends.disk.scanner import CHUNK_BYTES

SEARCH_BYTES = 1024 * 1024

Record = tuple[str, bytes]
Matcher = Callable[[str, bytes], bool]


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
    if end - start > CHUNK_BYTES and not dead_tasks_tail.is_valid_at(fd, start, end):
        return None
    return record_at(fd, (start, end - start))


class NewestRecords:
    """The newest record of each id, newest first, from at most ``lines`` lines of the end."""

    def __init__(self, fd: int, lines: int) -> None:
        self._fd = fd
        self._lines = lines
        self.all_seen = False
        """Whether there are no more in the whole file."""
        self.position = 0
        """Where the first line begins that was looked at."""

    def __iter__(self) -> Iterator[Record]:
        seen = set()
        tail = dead_tasks_tail.find_tail(self._fd)
        left = self._lines
        for start, end in dead_tasks_tail.lines_backwards(self._fd, tail.end):
            if left == 0:
                return
            left -= 1
            self.position = start
            record = _record_between(self._fd, start, end)
            if record is not None and record[0] not in seen:
                seen.add(record[0])
                yield record
        self.all_seen = True


def find_newest(fd: int, task_id: str) -> tuple[bytes | None, int]:
    """The newest record of the id, and how many bytes were searched: gigabytes a second."""
    if not ids.ID_PATTERN.fullmatch(task_id):
        return None, 0
    needle = b":" + dead_tasks_file.beginning(task_id.encode("ascii"))
    into_line = records.CRC_BYTES - 1
    file_end = dead_tasks_tail.find_tail(fd).end
    block_end = file_end
    while block_end > 0:
        start = max(0, block_end - SEARCH_BYTES)
        # With as much of the block behind as belongs to what begins in this one.
        end = min(file_end, block_end + len(needle) - 1)
        block = files.read_at(fd, end - start, start)
        cut = len(block)
        while (position := block.rfind(needle, 0, cut)) >= 0:
            line_start = start + position - into_line
            record = _record_of_line(fd, line_start, file_end)
            if record is not None and record[0] == task_id:
                return record[1], file_end - start
            cut = position + len(needle) - 1
        block_end = start
    return None, file_end


def _record_of_line(fd: int, start: int, file_end: int) -> Record | None:
    """The record that begins at ``start``, if a line does."""
    if start < 0 or (start > 0 and files.read_at(fd, 1, start - 1) != b"\n"):
        return None
    position = start
    while position < file_end:
        block = files.read_at(fd, min(CHUNK_BYTES, file_end - position), position)
        cut = block.find(b"\n")
        if cut >= 0:
            return _record_between(fd, start, position + cut)
        if not block:
            return None
        position += len(block)
    return _record_between(fd, start, file_end)
