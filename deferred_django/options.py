"""How one call is enqueued: when, where to, and after which transaction."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.conf import settings
from django.utils import timezone

from deferred_django.backends.base import MAX_PRIORITY, MIN_PRIORITY, QUEUE_PATTERN
from deferred_django.references import short
from deferred_django.retry import MAX_DELAY


@dataclass(frozen=True, slots=True)
class EnqueueOptions:
    """Validated options. At most one of ``delay`` and ``publish_at`` is set."""

    delay: float | None = None
    """Seconds from the enqueue."""
    publish_at: float | None = None
    """Unix seconds."""
    queue: str = "default"
    priority: int = 0
    on_commit: bool | str = True
    """See :func:`deferred_django.on_commit.current_transaction`."""

    def using(
        self,
        *,
        delay: float | timedelta | None = None,
        delay_until: datetime | None = None,
        queue: str | None = None,
        priority: int | None = None,
        on_commit: bool | str | None = None,
    ) -> EnqueueOptions:
        """These options with those that are not ``None`` replaced.

        Raises ``TypeError`` or ``ValueError`` naming the option.
        """
        new = self
        if delay is not None and delay_until is not None:
            raise ValueError("give delay or delay_until, not both")
        if delay is not None:
            new = replace(new, delay=_seconds(delay), publish_at=None)
        if delay_until is not None:
            new = replace(new, delay=None, publish_at=_unix_seconds(delay_until))
        if queue is not None:
            new = replace(new, queue=_queue_name(queue))
        if priority is not None:
            new = replace(new, priority=_priority(priority))
        if on_commit is not None:
            new = replace(new, on_commit=_on_commit(on_commit))
        return new

    def due_at(self) -> float | None:
        """Unix seconds at which a task that is enqueued now falls due; ``None`` for at once."""
        return self.publish_at if self.delay is None else time.time() + self.delay


def timeout_seconds(timeout: object) -> float | None:
    """The seconds that an attempt of a task may take; ``None`` stands for no limit.

    Raises ``TypeError`` or ``ValueError`` naming ``timeout``.
    """
    if timeout is None:
        return None
    if isinstance(timeout, timedelta):
        timeout = timeout.total_seconds()
    elif isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise TypeError(f"timeout must be seconds, a timedelta or None, not {short(timeout)}")
    if not 0 < timeout <= MAX_DELAY:  # NaN neither
        raise ValueError(
            f"timeout must be more than 0 seconds and at most 100 years, not {short(timeout)} "
            "(None for no limit)"
        )
    return float(timeout)


def _seconds(delay: object) -> float:
    if isinstance(delay, timedelta):
        delay = delay.total_seconds()
    elif isinstance(delay, bool) or not isinstance(delay, int | float):
        raise TypeError(f"delay must be seconds or a timedelta, not {short(delay)}")
    if not 0 <= delay <= MAX_DELAY:  # NaN neither
        raise ValueError(f"delay must be from 0 seconds to 100 years, not {short(delay)}")
    return float(delay)


def _unix_seconds(moment: object) -> float:
    if not isinstance(moment, datetime):
        raise TypeError(f"delay_until must be a datetime with a time of day, not {moment!r}")
    if moment.utcoffset() is None:
        if settings.USE_TZ:
            raise ValueError(
                f"delay_until={moment!r} has no time zone, and USE_TZ is on: make it aware"
            )
        # The zone of the settings, not one activated for a request: the same everywhere. A time
        # that exists twice is the one that its fold says, one that was skipped is as far behind
        # the change as it pretends to be.
        moment = timezone.make_aware(moment, timezone.get_default_timezone())
    return max(moment.timestamp(), 0.0)


def _queue_name(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"queue must be a str, not {short(name)}")
    if not QUEUE_PATTERN.fullmatch(name):
        raise ValueError(f"queue must be 1 to 100 characters of [A-Za-z0-9_.-], not {short(name)}")
    return name


def _priority(priority: object) -> int:
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise TypeError(f"priority must be an int, not {short(priority)}")
    if not MIN_PRIORITY <= priority <= MAX_PRIORITY:
        raise ValueError(
            f"priority must be from {MIN_PRIORITY} to {MAX_PRIORITY}, not {short(priority)}"
        )
    return priority


def _on_commit(on_commit: object) -> bool | str:
    if isinstance(on_commit, bool) or (isinstance(on_commit, str) and on_commit):
        return on_commit
    raise TypeError(f"on_commit must be True, False or a database alias, not {on_commit!r}")
