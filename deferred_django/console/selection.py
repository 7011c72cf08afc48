"""Which dead tasks a bulk command is about, gathered before anybody is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from deferred_django.backends.base import Backend, DeadTaskRecord
from deferred_django.console import times
from deferred_django.console.output import Output
from deferred_django.console.records import short_name
from deferred_django.console.table import Column, write_table

SHOWN_KINDS = 10

_KINDS_LAYOUT = (
    (
        Column(key="count", title="COUNT", right=True),
        Column(key="task", title="TASK", least=12, keep_end=True),
        Column(key="exception", title="EXCEPTION", least=12, keep_end=True, role="ERROR"),
    ),
)


@dataclass(slots=True)
class Selection:
    """Ids with the time each died, and what a person wants to know about them all."""

    died: dict[str, float] = field(default_factory=dict)
    kinds: Counter[tuple[str, str]] = field(default_factory=Counter)
    """How many of each task and exception class."""

    def add(self, record: DeadTaskRecord) -> None:
        """Take a record in."""
        self.died[record["id"]] = record["failed_at"]
        self.kinds[record["task_class"], short_name(record["exception_class"])] += 1

    def unchanged_in(self, later: Iterable[DeadTaskRecord]) -> list[str]:
        """The ids whose record is still the one that was seen here.

        One that was run again meanwhile and died again has another time: nobody has seen that.
        """
        return [
            record["id"] for record in later if self.died.get(record["id"]) == record["failed_at"]
        ]


def selected(records: Iterable[DeadTaskRecord]) -> Selection:
    """These dead tasks; of each no more is kept than its id and its time."""
    selection = Selection()
    for record in records:
        selection.add(record)
    return selection


def find_all(backend: Backend, ids: Iterable[str]) -> Iterator[DeadTaskRecord]:
    """The dead tasks of these ids, in the order given."""
    for id in ids:
        record = backend.find_dead_task(id)
        if record is not None:
            yield record


def write_summary(out: Output, selection: Selection, *, what_happens: str) -> None:
    """Say how many tasks are concerned, of which kinds, and from when to when they died."""
    out.line(f"{counted(len(selection.died))} {what_happens}:")
    common = selection.kinds.most_common(SHOWN_KINDS)
    rows = [
        {"count": str(count), "task": task, "exception": exception}
        for (task, exception), count in common
    ]
    write_table(out, rows, [_KINDS_LAYOUT])
    if len(selection.kinds) > len(common):
        out.line(f"and {len(selection.kinds) - len(common)} more kinds of fewer each")
    oldest, newest = min(selection.died.values()), max(selection.died.values())
    if oldest == newest:
        out.line(f"Died {times.local_with_age(oldest)}.")
    else:
        out.line(f"Oldest died {times.local_with_age(oldest)},")
        out.line(f"newest died {times.local_with_age(newest)}.")


def counted(number: int) -> str:
    """``1 dead task``, ``2 dead tasks``."""
    return f"{number} dead task{'' if number == 1 else 's'}"


def named(ids: Sequence[str]) -> str:
    """A sentence about ids that are not there."""
    return f"No dead task {', '.join(ids)}."
