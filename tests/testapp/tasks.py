"""Tasks for the tests; what they were called with is in ``calls``."""

from __future__ import annotations

import threading
from typing import Any

from deferred_django import deferred
from tests.testapp.models import Note

calls: list[Any] = []


@deferred
def record(*args: Any, **kwargs: Any) -> None:
    """Remember the call."""
    calls.append((args, kwargs))


@deferred
async def record_async(value: Any) -> None:
    """Remember the call, from an event loop."""
    calls.append(value)


@deferred
def record_thread() -> None:
    """Remember the name of the thread that this runs on."""
    calls.append(threading.current_thread().name)


@deferred(max_retries=0)
def die(message: str) -> None:
    """Fail for good."""
    raise ValueError(message)


@deferred(max_retries=1, retry_interval=lambda error, attempt: 60)
def fail_once(message: str) -> None:
    """Fail, to be run again in a minute."""
    raise LookupError(message)


@deferred
def enqueue_more(count: int) -> None:
    """Enqueue this task again, so many times one after the other."""
    calls.append(count)
    if count:
        enqueue_more.enqueue(count - 1)


@deferred
def change_note(note: Note, text: str) -> None:
    """Change a row of the database."""
    note.text = text
    note.save()
