"""The periodic tasks, for people and for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from deferred_django.backends.base import Backend
from deferred_django.console import times
from deferred_django.console.output import Output
from deferred_django.console.table import Column, write_table
from deferred_django.schedule_setting import Schedule

_NAME = Column(key="name", title="PERIODIC TASK", least=12, role="MIGRATE_LABEL")
_WHEN = Column(key="when", title="WHEN", least=12)
_NEXT = Column(key="next", title="NEXT")
_LAST = Column(key="last", title="LAST")
_TASK = Column(key="task", title="TASK", least=16, keep_end=True)

_LAYOUTS = (
    ((_NAME, _WHEN, _NEXT, _LAST, _TASK),),
    ((_NAME, _NEXT), (_WHEN, _LAST), (_TASK,)),
    ((_NAME,), (_NEXT,), (_LAST,), (_WHEN,), (_TASK,)),
)


def as_list(backend: Backend, schedule: Schedule | None) -> list[dict[str, Any]]:
    """The periodic tasks as the JSON output has them: times in unix seconds.

    One that no worker has seen yet has no ``next``. What the store has besides is of other
    settings, and is not listed. Where the store cannot be read nothing is known of any; its status
    says so.
    """
    try:
        records = {record.name: record for record in backend.tick_records()}
    except OSError:
        records = {}
    found = []
    for entry in schedule or ():
        record = records.get(entry.name)
        found.append(
            {
                "name": entry.name,
                "task": entry.task,
                "when": entry.timing.words,
                "next": None if record is None else record.next_at,
                "last": None if record is None else record.last_at,
            }
        )
    return found


def write_schedule(out: Output, entries: Sequence[dict[str, Any]]) -> None:
    """Write the table, the soonest due first."""
    if not entries:
        return
    out.line()
    soonest = sorted(entries, key=lambda entry: (entry["next"] is None, entry["next"] or 0.0))
    write_table(out, [_row(entry) for entry in soonest], _LAYOUTS)


def _row(entry: dict[str, Any]) -> dict[str, str]:
    next_at, last_at = entry["next"], entry["last"]
    return {
        "name": entry["name"],
        "when": entry["when"],
        "next": "not seen by a worker" if next_at is None else times.local_with_age(next_at),
        "last": "never" if last_at is None else times.local_with_age(last_at),
        "task": entry["task"],
    }
