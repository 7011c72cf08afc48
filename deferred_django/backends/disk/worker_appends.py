"""Making durable what this process appends under its claims, and what a dead owner left."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from deferred_django.backends.disk import files, locks
from deferred_django.backends.disk.rescue import Rescue
from deferred_django.backends.disk.segment import Segment, UnsyncedAdd
from deferred_django.backends.disk.segment_set import SegmentSet

logger = logging.getLogger("deferred_django.disk")


class WorkerAppends:
    """Fsyncs the segments of a :class:`SegmentSet`; the mutex is the tasks storage's."""

    def __init__(
        self, segments: SegmentSet, mutex: threading.RLock, rescue: Callable[[Rescue], None]
    ) -> None:
        self._segments = segments
        self._mutex = mutex
        self._rescue = rescue

    def sync(self, *, free_ones: bool) -> OSError | None:
        """Fsync what was appended; with ``free_ones`` also, once, what a dead owner left unsynced.

        Returns the error of an fsync that failed; what it may have lost is being written anew.
        """
        failed = None
        for segment, appended, adds in self._jobs(free_ones=free_ones):
            try:
                files.fsync(segment.fd)
            except OSError as error:
                failed = error
                logger.error("%s: what was appended is not durable: %s", segment.path, error)
                self._repeat(segment, appended, adds)
            finally:
                with self._mutex:
                    segment.users -= 1
        return failed

    def _jobs(self, *, free_ones: bool) -> list[tuple[Segment, list[bytes], list[UnsyncedAdd]]]:
        jobs = []
        with self._mutex:
            for segment in self._segments.all_open():
                dirty = bool(segment.unsynced or segment.unsynced_adds)
                if free_ones and segment.writable:
                    free = not locks.is_owned(segment.fd)
                    dirty = dirty or (free and not segment.is_synced_free)
                    segment.is_synced_free = free
                if dirty:
                    segment.users += 1
                    jobs.append((segment, segment.unsynced, segment.unsynced_adds))
                    segment.unsynced, segment.unsynced_adds = [], []
        return jobs

    def _repeat(self, segment: Segment, appended: list[bytes], adds: list[UnsyncedAdd]) -> None:
        """A failed fsync is a lost write: removals are appended again, tasks move elsewhere."""
        segment.is_synced_free = False
        if not files.is_at_path(segment.fd, segment.path):
            return  # replaced: a compaction made what it copied durable
        try:
            files.append_record(segment.fd, b"".join(appended) or b"\n")
        except OSError as error:
            logger.error("%s: %s", segment.path, error)
        with self._mutex:
            segment.unsynced = appended + segment.unsynced
        if adds:
            # On a descriptor of its own: this process's claims are no obstacle to themselves.
            own = Segment.open(segment.name, segment.path)
            self._rescue(Rescue(own, adds, close_when_done=True))
