"""One write-ahead-log file as a reader knows it: which tasks are in it and where."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os

from deferred_django.backends.disk import files, log_records, records
from deferred_django.backends.disk.log_records import Run
from deferred_django.backends.disk.scanner import Damage, Scanner
from deferred_django.backends.disk.task_table import CLAIMED, GONE, HASH_MASK, TaskTable

MARK_BYTES = 64
_NO_RUNS: tuple[Run, ...] = ()
_serials = itertools.count()
hash_of = hash


class Entry:
    """One pending task in hand: the newest ``add`` of its id in a segment, and its open runs."""

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
        "row",
        "runs",
        "segment",
        "started",
    )

    def __init__(self, segment: Segment, row: int) -> None:
        table = segment.table
        self.segment = segment
        self.row = row
        self.offset = table.offsets[row]
        self.length = table.lengths[row]
        self.publish_ms = table.publish_ms[row]
        self.priority = table.priority_of(row)
        self.queue = table.queue_of(row)
        self.runs = segment.runs.get(row, _NO_RUNS)
        self.id = self.nonce = ""
        """Not there before the record is read: see :meth:`name`."""
        self.gone = False
        """Removed, replaced by a later ``add``, or its file is no longer the one at the path."""
        self.claimed = False
        """By this process."""
        self.started = False
        """This process has written its ``run``."""

    def name(self, line: bytes) -> bytes:
        """Take id and nonce from the task's record, and return its context.

        ``ValueError`` if the record is not the one that was read here before.
        """
        if len(line) != self.length or not records.is_valid(line):
            raise ValueError(f"the record at byte {self.offset} of {self.segment.path} has changed")
        task_id, nonce, payload = log_records.named_payload(line)
        if hash_of(task_id) & HASH_MASK != self.segment.table.hashes[self.row]:
            raise ValueError(f"another record is at byte {self.offset} of {self.segment.path}")
        self.id, self.nonce = task_id.decode("ascii"), nonce.decode("ascii")
        return records.unescape(payload)

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
        self.serial = next(_serials)
        self.own_lines: set[bytes] = set()
        """What this process wrote under its claims and knows: two lines in three of a busy log."""
        self.scanner = Scanner(own=self.own_lines)  # payloads are read when claimed
        self.table = TaskTable()
        self.claimed: dict[int, Entry] = {}
        """The tasks that this process claims, by row."""
        self.runs: dict[int, tuple[Run, ...]] = {}
        """The open runs of tasks that have any."""
        self._heads: dict[int, bytes] = {}
        """The beginnings of their records, which say id and nonce."""
        self.indexed = 0
        """So many rows were given to those who want to know of new tasks."""
        self.superseded_bytes = 0
        """Adds that a later one of their id replaced: retries, as a rule."""
        self._last_at = 0
        self._last = b""
        """The beginning of the last record that was read, and where it is."""
        self.first_ms: int | None = None
        """When its first task is or was due; 0 if that is not to be seen."""
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

    @property
    def live_bytes(self) -> int:
        """The bytes of pending tasks."""
        return self.table.live_bytes

    # -- reading on ----------------------------------------------------------------------------

    def read_on(self, budget: int | None = None) -> bool:
        """Read what was appended; ``False`` if more was left after ``budget`` bytes.

        :class:`OverwrittenError` if what was read before is not in the file any more.
        """
        if files.read_at(self.fd, len(self._last), self._last_at) != self._last:
            raise OverwrittenError(errno.ESTALE, "was written over", self.path)
        offset, body = 0, b""
        for offset, length, body in self.scanner.read(self.fd, budget=budget):
            try:
                if body.startswith(b"add:"):
                    self._added(offset, length, body)
                elif len(body) + records.CRC_BYTES == length:
                    self._happened(body)
                else:
                    raise ValueError("only an add is as long as that")
            except ValueError:
                self.scanner.note_damage(Damage(offset, length, "a record of an unknown form"))
            except OSError:
                self.scanner.offset = offset  # what could not be looked up is read again
                raise
        if body:
            self._last_at, self._last = offset + records.CRC_BYTES, body[:MARK_BYTES]
        return not self.scanner.stopped

    def _added(self, offset: int, length: int, body: bytes) -> None:
        task_id, publish_ms, kind = log_records.fields_of_add(body)
        table = self.table
        key = hash_of(task_id) & HASH_MASK
        number = table.number_of(kind)
        if not table.add(key, offset, length, publish_ms, number):
            replaced = self._row_of(task_id, b"add:%b:" % task_id)
            if replaced is not None:
                self.superseded_bytes += table.lengths[replaced]
                self._drop(replaced)
            table.add(key, offset, length, publish_ms, number, force=True)

    def _happened(self, body: bytes) -> None:
        """Take in a ``run``, ``end`` or ``rem``; most are this process's own and known already."""
        op, task_id, nonce, run = log_records.fields_of_change(body)
        head = b"add:%b:%b:" % (task_id, nonce)
        row = self._row_of(task_id, head)
        if row is None:
            return
        if op == b"rem":
            self._drop(row)
            return
        entry = self.claimed.get(row)
        runs = self.runs.get(row, _NO_RUNS) if entry is None else entry.runs
        if run is None:
            runs = runs[:-1]
        elif run not in runs:  # after a failed fsync it is written again
            runs += (run,)
        if entry is not None:
            entry.runs = runs
        self._heads[row] = head
        self.runs[row] = runs

    def _row_of(self, task_id: bytes, head: bytes) -> int | None:
        """The pending task whose record begins with ``head``."""
        for row in self.table.rows_like(hash_of(task_id) & HASH_MASK):
            if self._is_head(row, head):
                return row
        return None

    def _is_head(self, row: int, head: bytes) -> bool:
        known = self._heads.get(row)
        if known is not None:
            return known.startswith(head)
        start = self.table.offsets[row] + records.CRC_BYTES
        return files.read_at(self.fd, len(head), start) == head

    def find(self, task_id: str, nonce: str = "") -> int | None:
        """The row of a pending task by its id, and by the nonce of its ``add`` if one is given."""
        head = f"add:{task_id}:{nonce}:" if nonce else f"add:{task_id}:"
        return self._row_of(task_id.encode("ascii", "replace"), head.encode("ascii", "replace"))

    # -- what becomes of tasks -----------------------------------------------------------------

    def _drop(self, row: int) -> None:
        self.table.drop(row)
        self._heads.pop(row, None)
        self.runs.pop(row, None)
        entry = self.claimed.get(row)
        if entry is not None:
            entry.gone = True

    def take(self, row: int) -> Entry:
        """Note that this process claims the task."""
        entry = self.claimed[row] = Entry(self, row)
        self.table.flags[row] |= CLAIMED
        entry.claimed = True
        return entry

    def let_go(self, entry: Entry) -> None:
        """Note that this process does not claim the task any more."""
        entry.claimed = entry.started = False
        if self.claimed.get(entry.row) is entry:
            del self.claimed[entry.row]
            self.table.flags[entry.row] &= ~CLAIMED

    def forget(self, entry: Entry) -> None:
        """Take note of a ``rem`` that this process wrote before it is read back."""
        if self.claimed.get(entry.row) is entry:
            if not self.table.flags[entry.row] & GONE:
                self._drop(entry.row)
            del self.claimed[entry.row]

    def supersede(self, entry: Entry) -> None:
        """Take note of a later ``add`` that this process wrote before it is read back."""
        if self.claimed.get(entry.row) is entry and not self.table.flags[entry.row] & GONE:
            self.superseded_bytes += entry.length
            self._drop(entry.row)

    def mark_all_gone(self) -> None:
        """The file is no longer the store's: none of what was read from it counts."""
        for entry in self.claimed.values():
            entry.gone = True
        self.claimed.clear()
        self.runs.clear()
        self._heads.clear()
        self.table = TaskTable.all_gone(len(self.table))

    # -- the records ---------------------------------------------------------------------------

    def line(self, entry: Entry) -> bytes:
        """A task's record as it is in the file; ``OSError`` if it is not there as a whole."""
        line = files.read_at(self.fd, entry.length, entry.offset)
        if len(line) != entry.length:
            raise OSError(errno.EIO, f"gave {len(line)} of {entry.length} bytes", self.path)
        return line

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
