"""More segments than files may be open: some wait until others are done, or have had their turn.

A worker has the segments open that it knows. Half of the descriptors that the process may have are
for that; the others are for its tasks, its connections and the dead tasks.
"""

from __future__ import annotations

import itertools
import logging
import resource
import sys
import time
from collections.abc import Container, Iterable

from deferred_django.backends.disk import locks
from deferred_django.backends.disk.segment import Segment

logger = logging.getLogger("deferred_django.disk")

LOOK_AGAIN_SECONDS = 5.0
"""How soon a worker looks again at a segment that had to make room for others."""


class Turns:
    """The segments that wait for a descriptor, those first that have waited longest."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._waiting: dict[str, float] = {}
        """When they were last looked at, by name; 0 if they never were."""

    def problem(self) -> list[str]:
        """A sentence about those that wait, if any do."""
        count = len(self._waiting)
        text = (
            f"{self._path}: {count:,} segments wait for their turn, since no more files can be "
            "open at a time: raise the limit (ulimit -n)"
        )
        return [text] if count else []

    def clear(self) -> None:
        """Nothing waits."""
        self._waiting.clear()

    def keep(self, names: Container[str]) -> None:
        """Forget those whose files are gone."""
        for name in [name for name in self._waiting if name not in names]:
            del self._waiting[name]

    def wait(self, name: str) -> None:
        """There is no descriptor for a segment."""
        self._waiting.setdefault(name, 0.0)

    def next_ones(self, in_use: int) -> list[str]:
        """Those for which there are descriptors now: they wait no more."""
        if not self._waiting:
            return []
        names = list(self._waiting)[: max(0, room(in_use))]
        for name in names:
            del self._waiting[name]
        return names

    def are_due(self, before: float | None) -> int:
        """How many were not looked at since ``before``, or for some seconds."""
        if not self._waiting:
            return 0
        if before is None:
            before = time.monotonic() - LOOK_AGAIN_SECONDS
        return sum(looked_at < before for looked_at in self._waiting.values())

    def make_room(
        self, segments: Iterable[Segment], wanted: int, *, durable: bool
    ) -> list[Segment]:
        """Choose so many segments to be closed, which wait from now on.

        ``durable``: only such as hold nothing that is not, also of owners that have died.
        """
        idle = filter(_is_durable if durable else _is_idle, segments)
        chosen = list(itertools.islice(idle, wanted))
        if durable and chosen and not any(self._waiting.values()):
            logger.warning("%s", *self.problem())
        now = time.monotonic()
        self._waiting.update((segment.name, now) for segment in chosen)
        return chosen


def _is_idle(segment: Segment) -> bool:
    return not (segment.users or segment.unsynced or segment.unsynced_adds)


def _is_durable(segment: Segment) -> bool:
    if not _is_idle(segment):
        return False
    try:
        return segment.is_synced_free or not segment.writable or locks.is_owned(segment.fd)
    except OSError:
        return False


def room(in_use: int) -> int:
    """How many more segments may be open."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else max(1, limit // 2) - in_use
