"""What a backend keeps of periodic tasks: when each is due next. No Django is imported here.

The backend knows names, times and bytes. Which entries there are, when they are due and what is
enqueued then is decided above it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import ClassVar, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class TickRecord:
    """Where one periodic task stands. Times are unix seconds."""

    name: str
    """Any text."""
    next_at: float
    """When its next tick is due."""
    last_at: float | None = None
    """The tick that was enqueued last, by the time at which it was due."""
    unfinished_at: float | None = None
    """A tick that somebody was about to enqueue when this was written. Once the schedule is free
    again, that was the intention of a process that died or failed: nobody knows how far it came."""
    data: bytes = b""
    """The scheduler's own."""


class ScheduleHold(Protocol):
    """The schedule of a store, in one's own hands."""

    @property
    def records(self) -> Sequence[TickRecord]:
        """What is kept, as it was when the hold began; each name once."""

    def save(self, records: Iterable[TickRecord]) -> None:
        """Keep these in the place of all others: all or nothing, and durable when it returns.

        On ``OSError`` the old ones are kept, or the new ones, not yet durably.
        """


class ScheduleStore:
    """The part of the backend contract that concerns periodic tasks."""

    keeps_schedule: ClassVar[bool] = False
    """Whether ticks are kept here: where it is false, periodic tasks never fall due."""

    def tick_records(self) -> list[TickRecord]:
        """Where each periodic task stands, by name. Takes no lock and changes nothing.

        Raises ``OSError`` where that cannot be read.
        """
        return []

    def hold_schedule(self) -> AbstractContextManager[ScheduleHold | None]:
        """Hold the schedule; ``None`` at once if another thread or process has it.

        At most one holds it at a time, and the death of the holder's process frees it at once. In a
        database this is a transaction with the row locked (``FOR UPDATE SKIP LOCKED``); tasks that
        are added meanwhile may be a part of it. Raises ``OSError`` where it cannot be read.
        """
        return contextlib.nullcontext()
