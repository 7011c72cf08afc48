"""Counting pending tasks no further than a limit asks: one segment after the other, oldest first.

Within a segment nothing is known before its end, where the removals of its first tasks may be; a
segment is a few megabytes, however many there are.
"""

from __future__ import annotations

import time

from deferred_django.backends.base import Limits, Status
from deferred_django.backends.disk import survey
from deferred_django.backends.disk.dead_tasks_storage import DeadTasksStorage
from deferred_django.backends.disk.names import StoreNames
from deferred_django.backends.disk.segment import OverwrittenError, Segment
from deferred_django.backends.disk.survey import Counts


def status(names: StoreNames, dead_tasks: DeadTasksStorage, limits: Limits) -> Status:
    """What :meth:`Backend.bounded_status` gives."""
    counts, problems = _count_tasks(names, limits)
    dead = 0
    if limits.dead is not None:
        try:
            dead = dead_tasks.count_up_to(limits.dead + 1)
        except OSError as error:
            problems.append(f"dead tasks cannot be counted: {error}")
    return Status(
        pending=counts.due,
        delayed=counts.delayed,
        running=counts.running,
        dead=dead,
        oldest_age=counts.oldest_age,
        problems=problems,
    )


def _count_tasks(names: StoreNames, limits: Limits) -> tuple[Counts, list[str]]:
    counts, problems = Counts(), []
    now_ms = time.time() * 1000
    if limits.pending is None and limits.age is None:
        return counts, []
    for name in names.segments():
        try:
            _count(name, names.at(name), now_ms, counts)
        except (FileNotFoundError, OverwrittenError):
            continue  # erased, or written anew, in this moment
        except OSError as error:
            problems.append(f"{name} cannot be read: {error}")
        if _is_over(counts, limits, now_ms):
            break
    return counts, problems


def _count(name: str, path: str, now_ms: float, counts: Counts) -> None:
    segment = Segment.open(name, path)
    try:
        segment.read_on()
        survey.count(segment, now_ms, counts)
    finally:
        segment.close()


def _is_over(counts: Counts, limits: Limits, now_ms: float) -> bool:
    """Whether every limit that is asked for is exceeded."""
    over_pending = limits.pending is None or counts.due > limits.pending
    over_age = limits.age is None or (
        counts.oldest_ms is not None and now_ms - counts.oldest_ms > limits.age * 1000
    )
    return over_pending and over_age
