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

import math
import re
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


MAX_NAME_BYTES = 100
"""Of a nonce, a worker, a boot and, as anywhere, a queue. An id is longer."""
MAX_DIGITS = 18
"""Of a time: no calculation with it overflows."""
_ADD = re.compile(
    rb"add:([A-Za-z0-9_.-]{1,%d}):[A-Za-z0-9_.-]{1,%d}:(-?[0-9]{1,%d})"
    rb":(-?[0-9]{1,5}:[A-Za-z0-9_.-]{1,%d}):"
    % (ids.MAX_ID_LENGTH, MAX_NAME_BYTES, MAX_DIGITS, MAX_NAME_BYTES)
)
_WORD = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-"


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


def milliseconds(seconds: float) -> int:
    """A time as records have it; ``ValueError`` for what is none."""
    # Rounded down, so that what is due now is due at once; whole milliseconds survive the float.
    try:
        at = math.floor(float(seconds) * 1000 + 0.001)
    except (OverflowError, ValueError):
        at = 10**MAX_DIGITS
    if abs(at) >= 10**MAX_DIGITS:
        raise ValueError(f"publish_at is {seconds!r:.50}, not a time")
    return at


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


def fields_of_add(body: bytes) -> tuple[bytes, int, bytes]:
    """Id, publish_at and kind (see :func:`kind_of`) of an ``add``'s body, or of its beginning.

    ``ValueError`` for what :func:`add` never writes: it would be carried to places where it fails.
    """
    match = _ADD.match(body)
    if match is None:
        raise ValueError("an add's fields are of another form")
    task_id, publish_ms, kind = match.group(1, 2, 3)
    return task_id, int(publish_ms), kind


def kind_of(kind: bytes) -> tuple[int, str]:
    """Priority and queue; ``ValueError`` for a priority that :func:`add` never writes."""
    priority, queue = kind.split(b":")
    if not MIN_PRIORITY <= int(priority) <= MAX_PRIORITY:
        raise ValueError("a priority that cannot be")
    return int(priority), queue.decode("ascii")


def fields_of_change(body: bytes) -> tuple[bytes, bytes, bytes, Run | None]:
    """Op, id, nonce and, of a ``run``, the run; ``ValueError`` for any other record."""
    op, task_id, nonce, *rest = body.split(b":", 6)
    if (
        op not in _CHANGES
        or len(rest) != _CHANGES[op]
        or not 0 < len(task_id) <= ids.MAX_ID_LENGTH
        or not all(0 < len(name) <= MAX_NAME_BYTES for name in (nonce, *rest))
        or b"".join((task_id, nonce, *rest)).translate(None, _WORD)
    ):
        raise ValueError("a record of an unknown form")
    run = None
    if rest:
        worker, boot_id, started_ms = rest
        run = Run(worker.decode("ascii"), boot_id.decode("ascii"), _number(started_ms, MAX_DIGITS))
    return op, task_id, nonce, run


_CHANGES = {b"run": 3, b"end": 0, b"rem": 0}
"""How many fields follow the nonce."""


def _number(field: bytes, most_digits: int) -> int:
    # int() takes signs, spaces and underscores too, and so many digits as nothing can use.
    digits = field.removeprefix(b"-")
    if not digits.isdigit() or len(digits) > most_digits:
        raise ValueError(f"a number of another form: {field!r:.40}")
    return int(field)


def _framed(body: bytes) -> bytes:
    if len(body) > MAX_RECORD_BYTES:
        records.encode(body)  # raises, with the explanation
    return b"\n%08x:%b\n" % (crc32(body), body)


def named_payload(line: bytes) -> tuple[bytes, bytes, bytes]:
    """Id, nonce and escaped payload of a valid ``add`` line; ``ValueError`` if it is none."""
    op, task_id, nonce, _, _, _, payload = line[records.CRC_BYTES :].split(b":", 6)
    if op != b"add":
        raise ValueError(f"a record of the kind {op!r:.50} where a task was")
    return task_id, nonce, payload
