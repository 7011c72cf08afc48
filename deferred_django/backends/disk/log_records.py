"""The records of the write-ahead log and what they say about tasks.

====  ====================================================================================
op    fields
====  ====================================================================================
add   id : nonce : publish_at (ms) : priority : queue : payload
run   id : nonce : worker : boot id : time (ms)
end   id : nonce
rem   id : nonce
====  ====================================================================================

``run``, ``end`` and ``rem`` concern the ``add`` with that nonce only, so that a late one never
touches a task that was added again under its old id. A later ``add`` of an id replaces the
earlier one. On the disk a record has a newline in front of it and one behind it.
"""

from __future__ import annotations

from typing import NamedTuple
from zlib import crc32

from deferred_django import ids
from deferred_django.backends.base import (
    MAX_PRIORITY,
    MAX_RECORD_BYTES,
    MIN_PRIORITY,
    QUEUE_PATTERN,
)
from deferred_django.backends.disk import records


class Run(NamedTuple):
    """One start of a task that has neither ended nor been put back."""

    worker: str
    boot_id: str
    started_ms: int


def check_fields(task_id: str, queue: str, priority: int) -> None:
    """Raise ``ValueError`` for what cannot be a field of a record."""
    if ids.ID_PATTERN.fullmatch(task_id) is None:
        raise ValueError(f"task id {task_id!r} is not 1 to 200 of the characters A-Z a-z 0-9 _ . -")
    if queue != "default" and QUEUE_PATTERN.fullmatch(queue) is None:
        raise ValueError(f"queue {queue!r} is not 1 to 100 of the characters A-Z a-z 0-9 _ . -")
    if type(priority) is not int or not MIN_PRIORITY <= priority <= MAX_PRIORITY:
        raise ValueError(
            f"priority {priority!r} is not a whole number from {MIN_PRIORITY} to {MAX_PRIORITY}"
        )


def add(
    task_id: str, nonce: str, publish_ms: int, priority: int, queue: str, payload: bytes
) -> bytes:
    """The bytes to append for a new task; ``ValueError`` if they are over 64 MiB."""
    head = f"add:{task_id}:{nonce}:{publish_ms}:{priority}:{queue}:".encode("ascii")
    return _framed(head + records.escape(payload))


def names_in_add(record: bytes) -> tuple[str, str]:
    """The id and the nonce in what :func:`add` returned."""
    return names_in(record[1 + records.CRC_BYTES :])


def names_in(body: bytes) -> tuple[str, str]:
    """The id and the nonce in the body of a record."""
    _, task_id, nonce, _ = body.split(b":", 3)
    return task_id.decode("ascii"), nonce.decode("ascii")


def run(task_id: str, nonce: str, run: Run) -> bytes:
    """The bytes to append when a task starts."""
    worker, boot_id, started_ms = run
    return _framed(f"run:{task_id}:{nonce}:{worker}:{boot_id}:{started_ms}".encode("ascii"))


def end(task_id: str, nonce: str) -> bytes:
    """The bytes to append when a start does not count."""
    return _framed(f"end:{task_id}:{nonce}".encode("ascii"))


def rem(task_id: str, nonce: str) -> bytes:
    """The bytes to append when a task is done or handed over."""
    return _framed(f"rem:{task_id}:{nonce}".encode("ascii"))


def _framed(body: bytes) -> bytes:
    if len(body) > MAX_RECORD_BYTES:
        records.encode(body)  # raises, with the explanation
    return b"\n%08x:%b\n" % (crc32(body), body)


def payload_of(line: bytes) -> bytes:
    """The payload of a valid ``add`` line."""
    return records.unescape(line[records.CRC_BYTES :].split(b":", 6)[6])
