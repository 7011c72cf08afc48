"""Making durable what this process appends under its claims, and what a dead owner left."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
import time

from deferred_django import ids
from deferred_django.backends.disk import files, locks, log_records
from deferred_django.backends.disk.rescue import Rescue
from deferred_django.backends.disk.segment import Entry, Segment
from deferred_django.backends.disk.segment_set import SegmentSet
from deferred_django.backends.disk.writer import SegmentWriter

logger = logging.getLogger("deferred_django.disk")

FIRST_PAUSE, MAX_PAUSE = 0.5, 30.0
"""Seconds between the timer's fsyncs of a file whose fsync fails, doubling."""


class WorkerAppends:
    """Fsyncs the segments of a :class:`SegmentSet`; the mutex is the tasks storage's."""

    def __init__(self, segments: SegmentSet, mutex: threading.RLock, writer: SegmentWriter) -> None:
        """``writer`` takes what cannot stay in its segment; it is called without the mutex."""
        self._segments = segments
        self._mutex = mutex
        self._writer = writer

    def append(self, segment: Segment, record: bytes, *, again: bytes = b"") -> None:
        """Append a ``run``, ``end`` or ``rem`` that the caller takes note of. Needs no mutex.

        An fsync that fails between the write and the note of it may have lost the write, though
        the next one succeeds. Such a record is appended again; to repeat it does no harm, or else
        ``again`` is what is appended then.
        """
        again = again or record
        failures = segment.failed_fsyncs
        line = record[1:-1]
        segment.own_lines.add(line)  # before the write: it may be read at once
        try:
            files.append_record(segment.fd, record)
        except OSError:
            segment.own_lines.discard(line)
            raise
        segment.unsynced.append(again)
        if segment.failed_fsyncs != failures:
            files.append_record(segment.fd, again)
            segment.unsynced.append(again)

    def append_end(self, entry: Entry) -> None:
        """Append the ``end`` of a task that this process has started."""
        end = log_records.end(entry.id, entry.nonce)
        # Written again, the own run goes with it: another worker's may be the last one by then.
        own = (log_records.run(entry.id, entry.nonce, run) for run in entry.runs[-1:])
        self.append(entry.segment, end, again=b"".join((*own, end)))

    def append_retry(self, entry: Entry, payload: bytes, publish_ms: int) -> None:
        """Write a claimed task anew behind its old record."""

        def record(nonce: str) -> bytes:
            fields = entry.id, nonce, publish_ms, entry.priority, entry.queue, payload
            return log_records.add(*fields)

        segment, nonce = entry.segment, ids.new_nonce()
        added = record(nonce)
        with self._mutex:  # what fails to be synced has it in its list
            files.append_record(segment.fd, added)
            segment.unsynced_adds.append(added)
            segment.supersede(entry)
        try:
            there = files.is_at_path(segment.fd, segment.path)
        except OSError:  # nobody can look it up now; to write it once more would run it once more
            there = True
        if not there:
            # Nothing of this package replaces a file with a claim in it: an operator removed it.
            # Should he put it back, the task is elsewhere. By another nonce, since this process
            # may own the same file, and then writes it anew with its next sync.
            self._writer.append(record(ids.new_nonce()))
            logger.error("%s was removed, a retry moves to another segment", segment.path)
            with contextlib.suppress(OSError):
                files.append_record(segment.fd, log_records.rem(entry.id, nonce))

    def sync(self, *, free_ones: bool, patient: bool = False) -> OSError | None:
        """Fsync what was appended; with ``free_ones`` also, once, what a dead owner left unsynced.

        With ``patient``, a file whose fsync fails is tried more and more seldom: each failure has
        everything in question appended again.
        Returns the error of an fsync that failed, or that an operator made useless; what it may
        have lost is being written anew.
        """
        failed = None
        for segment, appended, adds in self._jobs(free_ones=free_ones, patient=patient):
            try:
                segment.fsync()
                segment.sync_pause = 0.0
                if segment.was_cut and adds:
                    failed = OSError(errno.ESTALE, "was cut by another program", segment.path)
                    self._rescue(segment, adds)
            except OSError as error:
                failed = error
                logger.error("%s: what was appended is not durable: %s", segment.path, error)
                self._set_right(segment, appended, adds)
            finally:
                with self._mutex:
                    segment.users -= 1
        return failed

    def _jobs(
        self, *, free_ones: bool, patient: bool
    ) -> list[tuple[Segment, list[bytes], list[bytes]]]:
        jobs = []
        now = time.monotonic()
        with self._mutex:
            for segment in self._segments.all_open():
                if patient and segment.sync_pause and now < segment.sync_again_at:
                    continue
                dirty = bool(segment.unsynced or segment.unsynced_adds)
                if free_ones and segment.writable:
                    try:
                        free = not locks.is_owned(segment.fd)
                    except OSError:
                        free = False  # it is looked at again the next time
                    dirty = dirty or (free and not segment.is_synced_free)
                    segment.is_synced_free = free
                if dirty:
                    segment.users += 1
                    jobs.append((segment, segment.unsynced, segment.unsynced_adds))
                    segment.unsynced, segment.unsynced_adds = [], []
        return jobs

    def _set_right(self, segment: Segment, appended: list[bytes], adds: list[bytes]) -> None:
        """A failed fsync is a lost write: removals are appended again, tasks move elsewhere."""
        segment.failed_fsyncs += 1  # before the lists are taken: see append()
        segment.sync_pause = min(max(segment.sync_pause * 2, FIRST_PAUSE), MAX_PAUSE)
        segment.sync_again_at = time.monotonic() + segment.sync_pause
        with self._mutex:
            segment.is_synced_free = False
            appended = appended + segment.unsynced
            adds = adds + segment.unsynced_adds
            segment.unsynced, segment.unsynced_adds = appended, []
        try:
            if not files.is_at_path(segment.fd, segment.path):
                return  # replaced: a compaction made what it copied durable
            if adds:
                self._rescue(segment, adds)
                adds = []
            files.append_record(segment.fd, b"".join(appended) or b"\n")
        except OSError as error:
            logger.error("%s: %s", segment.path, error)
            with self._mutex:
                segment.unsynced_adds = adds + segment.unsynced_adds

    def _rescue(self, segment: Segment, adds: list[bytes]) -> None:
        # On a descriptor of its own: this process's claims are no obstacle to themselves.
        own = Segment.open(segment.name, segment.path)
        try:
            same = os.path.samestat(files.status(segment.fd), files.status(own.fd))
        except BaseException:
            own.close()
            raise
        if not same:
            # A compaction came in between, and made what it copied durable. What it left out has
            # been finished: in its file that looks as if it had been lost.
            own.close()
            return
        self._writer.rescue(Rescue(own, adds, owned=False))
