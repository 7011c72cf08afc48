"""One write-ahead-log file as a reader knows it: which tasks are in it and where."""

from __future__ import annotations

import contextlib
import errno
import os
import sys

from deferred_django.backends.disk import files, log_records, records
from deferred_django.backends.disk.log_records import Run
from deferred_django.backends.disk.scanner import Damage, Scanner

MARK_BYTES = 64
MAX_BLOCK_BYTES = 256 * 1024
_NO_RUNS: tuple[Run, ...] = ()


class Entry:
    """One pending task: the newest ``add`` of its id in a segment, and its unfinished runs."""

    __slots__ = (
        "claimed",
        "gone",
        "id",
        "length",
        "nonce",
        "offset",
        "priority",
        "publish_ms",
        "queue",
        "runs",
        "segment",
        "started",
    )

    def __init__(
        self,
        segment: Segment,
        offset: int,
        length: int,
        task_id: str,
        nonce: str,
        publish_ms: int,
        priority: int,
        queue: str,
    ) -> None:
        self.segment = segment
        self.offset = offset
        self.length = length
        self.id = task_id
        self.nonce = nonce
        self.publish_ms = publish_ms
        self.priority = priority
        self.queue = queue
        self.runs = _NO_RUNS
        self.gone = False
        """Removed, replaced by a later ``add``, or its file is no longer the one at the path."""
        self.claimed = False
        """Claimed by this process: locks on one descriptor do not keep threads apart, this does."""
        self.started = False
        """This process has written its ``run``."""

    def crashes(self, boot_id: str) -> int:
        """How many workers died running it since the host's boot (if nobody runs it now)."""
        return sum(run.boot_id == boot_id for run in self.runs)


class OverwrittenError(OSError):
    """A segment does not hold any more what was read from it."""


class Segment:
    """The state of one segment, brought up to date by :meth:`read_on`. Not thread-safe."""

    def __init__(self, name: str, path: str, fd: int, *, writable: bool) -> None:
        self.name = name
        self.path = path
        self.fd = fd
        self.writable = writable
        self.own_lines: set[bytes] = set()
        """What this process wrote under its claims and knows: two lines in three of a busy log."""
        self.scanner = Scanner(own=self.own_lines)  # payloads are read when claimed
        self.tasks: dict[str, Entry] = {}
        self.live_bytes = 0
        self.superseded_bytes = 0
        """Adds that a later one of their id replaced: retries, as a rule."""
        self._last_at = 0
        self._last = b""
        """The beginning of the last record that was read, and where it is."""
        self.size_read = -1
        """The file's size when it was last read to the end."""
        self.users = 0
        """Claims of this process and calls under way: the descriptor stays open for them."""
        self.unsynced: list[bytes] = []
        self.unsynced_adds: list[bytes] = []
        """What this process appended through this descriptor since the last fsync."""
        self._name_is_durable = False
        self.failed_fsyncs = 0
        self.sync_pause = self.sync_again_at = 0.0
        self.is_synced_free = False
        """Its last owner's writes are durable: it was fsynced when nobody owned it."""
        self.untidy = ""
        """Why it could not be erased or compacted the last time."""
        self.was_cut = False
        """Another program cut the file, or wrote over it: what was appended may be gone."""

    @classmethod
    def open(cls, name: str, path: str) -> Segment:
        """Open for reading and, where the file's mode allows, for claims."""
        try:
            return cls(name, path, files.open_file(path, os.O_RDWR | os.O_APPEND), writable=True)
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
        return cls(name, path, files.open_file(path, os.O_RDONLY), writable=False)

    @property
    def is_damaged(self) -> bool:
        """Whether it holds bytes that no write left: then it is kept, never erased."""
        return self.scanner.damaged > 0

    def read_on(self, fresh: list[Entry] | None = None) -> None:
        """Read what was appended. New tasks are put into ``fresh``, before an ``OSError`` too.

        :class:`OverwrittenError` if what was read before is not in the file any more.
        """
        if files.read_at(self.fd, len(self._last), self._last_at) != self._last:
            raise OverwrittenError(errno.ESTALE, "was written over", self.path)
        offset, body = 0, b""
        for offset, length, body in self.scanner.read(self.fd):
            try:
                if body.startswith(b"add:"):
                    entry = self._added(offset, length, body)
                    if fresh is not None:
                        fresh.append(entry)
                elif len(body) + records.CRC_BYTES == length:
                    self._happened(body)
                else:
                    raise ValueError("only an add is as long as that")
            except ValueError:
                self.scanner.note_damage(Damage(offset, length, "a record of an unknown form"))
        if body:
            self._last_at, self._last = offset + records.CRC_BYTES, body[:MARK_BYTES]

    def _added(self, offset: int, length: int, body: bytes) -> Entry:
        task_id, nonce, publish_ms, priority, queue = log_records.fields_of_add(body)
        entry = Entry(self, offset, length, task_id, nonce, publish_ms, priority, sys.intern(queue))
        known = self.tasks.get(task_id)
        if known is not None:
            self.superseded_bytes += known.length
            self._drop(known)
        self.tasks[task_id] = entry
        self.live_bytes += length
        return entry

    def _happened(self, body: bytes) -> None:
        """Take in a ``run``, ``end`` or ``rem``; most are this process's own and known already."""
        op, task_id, nonce, run = log_records.fields_of_change(body)
        entry = self.tasks.get(task_id)
        if entry is None or entry.nonce != nonce:
            return
        if op == b"rem":
            self._drop(entry)
        elif run is None:
            entry.runs = entry.runs[:-1]
        elif run not in entry.runs:  # after a failed fsync it is written again
            entry.runs += (run,)

    def _drop(self, entry: Entry) -> None:
        entry.gone = True
        self.live_bytes -= entry.length
        del self.tasks[entry.id]

    def forget(self, entry: Entry) -> None:
        """Take note of a ``rem`` that this process wrote before it is read back."""
        if self.tasks.get(entry.id) is entry:
            self._drop(entry)

    def supersede(self, entry: Entry) -> None:
        """Take note of a later ``add`` that this process wrote before it is read back."""
        if self.tasks.get(entry.id) is entry:
            self.superseded_bytes += entry.length
            self._drop(entry)

    def line(self, entry: Entry) -> bytes:
        """The task's record; ``ValueError`` if the bytes have changed since they were read."""
        line = files.read_at(self.fd, entry.length, entry.offset)
        if len(line) != entry.length:
            raise OSError(errno.EIO, f"gave {len(line)} of {entry.length} bytes", self.path)
        if not records.is_valid(line):
            raise ValueError(f"the record at byte {entry.offset} of {self.path} has changed")
        return line

    def payload(self, entry: Entry, block: bytes = b"", block_at: int = 0) -> bytes:
        """The task's context; ``ValueError`` as :meth:`line`.

        ``block`` is what was read of the file from ``block_at`` on, if it was.
        """
        start = entry.offset - block_at
        line = block[start : start + entry.length]
        if len(line) == entry.length and records.is_valid(line):
            return log_records.payload_of(line)
        return log_records.payload_of(self.line(entry))

    def read_around(self, entries: list[Entry]) -> tuple[bytes, int]:
        """The bytes that all the entries are in and where they begin; none if they are many."""
        start = min(entry.offset for entry in entries)
        length = max(entry.offset + entry.length for entry in entries) - start
        if len(entries) == 1 or length > MAX_BLOCK_BYTES:
            return b"", 0
        try:
            return files.read_at(self.fd, length, start), start
        except OSError:
            return b"", 0  # each is tried by itself

    def mark_all_gone(self) -> None:
        """The file is no longer the store's: none of what was read from it counts."""
        for entry in self.tasks.values():
            entry.gone = True
        self.tasks.clear()
        self.live_bytes = 0

    def fsync(self) -> None:
        """Make what is in it durable, and the first time its name too.

        A compaction that was killed may have left the name to a file that a power cut replaces by
        the old one again: with the tasks in it that were finished here.
        """
        files.fsync(self.fd)
        if not self._name_is_durable:
            with contextlib.suppress(FileNotFoundError):  # removed, and the file with it
                files.fsync_directory(os.path.dirname(self.path))
            self._name_is_durable = True

    def close(self) -> None:
        """Close the descriptor; this process holds no claims in it."""
        with contextlib.suppress(OSError):  # the number is another's all the same
            files.close(self.fd)
