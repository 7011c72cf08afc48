"""A dead task's record as the JSON that is stored, and back from whatever is found there."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from deferred_django import ids as task_ids
from deferred_django.backends.base import QUEUE_PATTERN, DeadTaskRecord
from deferred_django.nesting import is_too_deep


def encode(record: DeadTaskRecord) -> bytes:
    """The record in ASCII, without a raw newline."""
    # Bytes as the characters of the same numbers: readable where they are ASCII, and exact.
    stored = {**record, "context": record["context"].decode("latin-1")}
    return json.dumps(stored, separators=(",", ":")).encode("ascii")


def decode(data: bytes, task_id: str) -> DeadTaskRecord:
    """The record; what another version or a foreign hand has left out of it is filled in.

    One odd record must neither hide all the others nor be out of reach of a purge.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    usable = isinstance(found, dict) and not is_too_deep(found, data)
    record: dict[str, Any] = found if usable else {}
    record["id"] = task_id  # by which it is found and removed, whatever it says itself
    try:
        record["context"] = record["context"].encode("latin-1")
    except (LookupError, AttributeError, UnicodeError):
        record["context"] = data
    for name, fits in _FORMS:
        if not fits(record.get(name)):
            record[name] = _default(name, task_id)
    return record


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and abs(value) <= _MAX_SECONDS  # type: ignore[arg-type]


def _is_queue(value: object) -> bool:
    return isinstance(value, str) and QUEUE_PATTERN.fullmatch(value) is not None


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MAX_COUNT


def _is_lines(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(line, str) for line in value)


_MAX_SECONDS = 1e15
_MAX_COUNT = 10**9
_FORMS: tuple[tuple[str, Callable[[object], bool]], ...] = (
    ("task_class", _is_text),
    ("queue", _is_queue),
    ("attempts", _is_count),
    ("enqueued_at", _is_time),
    ("failed_at", _is_time),
    ("exception_class", _is_text),
    ("exception_message", _is_text),
    ("backtrace", _is_lines),
)


def _default(name: str, task_id: str) -> Any:
    if name in ("enqueued_at", "failed_at"):
        return float(task_ids.seconds_of(task_id) or 0)
    known = {"queue": "default", "attempts": 0, "backtrace": []}
    return known.get(name, "(unreadable)")
