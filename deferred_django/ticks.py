"""The tasks of ticks: their ids, and that none begins before its tick is noted down.

A worker that begins with a tick's task at once may be done with it before whoever enqueued it has
noted that down. Should that process die then, the next would not find the task, and would enqueue
it again. So its start waits for the note: as a rule for the milliseconds of an fsync or three.
"""

from __future__ import annotations

import re
import time
import zlib

from deferred_django.backends.base import Backend

MARK = "-tick-"
PATIENCE_SECONDS = 2.0
"""If nobody notes it down in this time (whoever was to is stopped, or the disk is full), the task
begins all the same: late is worse than the chance of a second time."""
_LOOK_SECONDS = 0.005
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


def task_id(name: str, at: float) -> str:
    """The id of the task of a tick that is due at ``at`` (unix seconds): whoever enqueues it."""
    slug = _UNSAFE.sub("_", name)
    if slug != name:  # another name may give the same
        slug = f"{slug[:60]}-{zlib.crc32(name.encode()):08x}"
    milliseconds = int(at * 1000)
    return f"{milliseconds // 1000}{MARK}{slug}-{milliseconds % 1000:03d}"


def await_note(backend: Backend, id: str) -> None:
    """Return once the tick whose task has this id is noted down, or after the patience."""
    end = time.monotonic() + PATIENCE_SECONDS
    while _is_unfinished(backend, id) and time.monotonic() < end:
        time.sleep(_LOOK_SECONDS)


def _is_unfinished(backend: Backend, id: str) -> bool:
    try:
        records = backend.tick_records()
    except OSError:  # the workers' log and the status say so
        return False
    return any(
        record.unfinished_at is not None and task_id(record.name, record.unfinished_at) == id
        for record in records
    )
