"""What is to be done about the periodic tasks at a moment: decided here, done by the scheduler.

Workers of different settings may live on one store at a time, while a new version is deployed. Each
serves the entries that it knows; where two have an entry of one name with different timings, that
of the settings which were read last counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache

from deferred_django import ticks
from deferred_django.backends.schedule import TickRecord
from deferred_django.schedule_setting import PeriodicTask, Schedule

BROKEN_CLOCK_SECONDS = 86400.0
"""A record that was written so far ahead of now says nothing: the clock was wrong then."""
UNSERVED_SECONDS = 60.0
"""An entry of other settings that has been overdue for so long is served by nobody."""
FORGOTTEN_SECONDS = 3600.0
"""An entry that is not known here is dropped after it has been overdue for so long."""


@dataclass(frozen=True, slots=True)
class State:
    """What the scheduler keeps in the ``data`` of a record."""

    timing: str
    """The signature of what the next tick was worked out by."""
    anchor: float
    """When the entry was first seen with that timing."""
    at: float
    """When this was written."""
    settings: float
    """When the process that wrote it had read its settings."""

    def to_bytes(self) -> bytes:
        """One JSON object."""
        return json.dumps(
            {
                "timing": self.timing,
                "anchor": self.anchor,
                "at": self.at,
                "settings": self.settings,
            }
        ).encode("ascii")

    @classmethod
    @lru_cache(maxsize=1024)  # of each entry the same bytes, until its next tick
    def from_bytes(cls, data: bytes) -> State | None:
        """``None`` for what another program, or another version, has written."""
        try:
            values = json.loads(data)
            return cls(
                str(values["timing"]),
                float(values["anchor"]),
                float(values["at"]),
                float(values["settings"]),
            )
        except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
            return None


@dataclass(frozen=True, slots=True)
class Due:
    """A tick whose task is to be enqueued."""

    entry: PeriodicTask
    at: float
    """When it was due."""
    is_resumed: bool
    """Whether a process that died or failed may have enqueued it already."""

    @property
    def task_id(self) -> str:
        """The id of the tick's task: the same whoever enqueues it, however often."""
        return ticks.task_id(self.entry.name, self.at)


@dataclass(slots=True)
class Plan:
    """What to save, and what to enqueue."""

    records: dict[str, TickRecord] = field(default_factory=dict)
    """As they are to be before anything is enqueued: with the ticks under way as unfinished."""
    due: list[Due] = field(default_factory=list)
    changed: bool = False
    """Whether the records are others than before."""
    notes: list[str] = field(default_factory=list)
    """Sentences for the log."""

    def finished(self, names: Iterable[str]) -> list[TickRecord]:
        """The records once the ticks of these entries are enqueued."""
        done = set(names)
        return [
            replace(record, unfinished_at=None) if record.name in done else record
            for record in self.records.values()
        ]


def make_plan(
    schedule: Schedule, records: Iterable[TickRecord], *, now: float, settings_read_at: float
) -> Plan:
    """What to do at ``now`` (unix seconds), given what the store has."""
    plan = Plan()
    entries = {entry.name: entry for entry in schedule}
    there = {record.name: record for record in records}
    for name, record in there.items():
        if name in entries:
            continue
        state = State.from_bytes(record.data)
        if (
            state is None
            or state.settings < settings_read_at
            or record.next_at < now - FORGOTTEN_SECONDS
        ):
            plan.changed = True
            plan.notes.append(f"periodic task {name!r} is in the settings no more")
        else:
            plan.records[name] = record
    for name, entry in entries.items():
        old = there.get(name)
        new = _serve(plan, entry, old, now, settings_read_at)
        plan.records[name] = new
        plan.changed = plan.changed or new != old
    return plan


def _serve(
    plan: Plan, entry: PeriodicTask, record: TickRecord | None, now: float, settings_read_at: float
) -> TickRecord:
    if record is None:
        return _begin(entry, None, now, settings_read_at)
    state = State.from_bytes(record.data)
    signature = entry.timing.signature
    is_other = state is not None and state.timing != signature
    if (
        state is not None
        and is_other
        and settings_read_at < state.settings <= now + BROKEN_CLOCK_SECONDS
        and record.next_at > now - UNSERVED_SECONDS
    ):
        return record  # of newer settings: theirs to serve
    if record.unfinished_at is not None:
        plan.due.append(Due(entry, record.unfinished_at, is_resumed=True))
    if state is None:
        plan.notes.append(f"what is kept of periodic task {entry.name!r} cannot be read")
        return _begin(entry, record, now, settings_read_at)
    if is_other:
        plan.notes.append(f"periodic task {entry.name!r} has another timing now: {signature}")
        return _begin(entry, record, now, settings_read_at)
    if state.at > now + BROKEN_CLOCK_SECONDS:
        plan.notes.append(f"periodic task {entry.name!r} begins anew: the clock was days ahead")
        return _begin(entry, record, now, settings_read_at)
    if record.next_at > now or record.unfinished_at is not None:
        return record
    # However many ticks were missed: this is the one, and the next is behind now.
    plan.due.append(Due(entry, record.next_at, is_resumed=False))
    return replace(
        record,
        next_at=entry.timing.next_after(now, state.anchor),
        last_at=record.next_at,
        unfinished_at=record.next_at,
        data=replace(state, at=now, settings=max(state.settings, settings_read_at)).to_bytes(),
    )


def _begin(
    entry: PeriodicTask, old: TickRecord | None, now: float, settings_read_at: float
) -> TickRecord:
    return TickRecord(
        name=entry.name,
        next_at=entry.timing.next_after(now, now),
        last_at=None if old is None else old.last_at,
        unfinished_at=None if old is None else old.unfinished_at,
        data=State(entry.timing.signature, now, now, settings_read_at).to_bytes(),
    )
