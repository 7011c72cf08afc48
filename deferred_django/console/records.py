"""Dead tasks as people and programs read them: the record is enough, never the task's code."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from typing import Any

from deferred_django import context
from deferred_django.backends.base import DeadTaskRecord
from deferred_django.console import times
from deferred_django.console.output import Output
from deferred_django.console.table import Column, write_table
from deferred_django.console.text import first_line

_ID = Column(key="id", title="ID", role="MIGRATE_LABEL")
_DIED = Column(key="died", title="DIED")
_ATTEMPTS = Column(key="attempts", title="TRIES", right=True)
_TASK = Column(key="task", title="TASK", least=26, keep_end=True)
_ERROR = Column(key="error", title="ERROR", least=40, role="ERROR")

_LAYOUTS = (
    ((_ID, _DIED, _ATTEMPTS, _TASK, _ERROR),),
    ((_ID, _DIED, _ATTEMPTS), (_TASK, _ERROR)),
    ((_ID,), (_DIED,), (_TASK,), (_ERROR,)),
)


def displayed(record: DeadTaskRecord) -> dict[str, Any]:
    """The record with its context as ``{"args": …, "kwargs": …}``, as the JSON output has it."""
    return {**record, "context": context.displayed(record["context"])}


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Strict JSON, in ASCII: a number that JSON lacks becomes text, a foreign value its repr."""
    try:
        return json.dumps(value, allow_nan=False, indent=indent)
    except RecursionError:  # indenting is done in Python, which nests less deep
        return json.dumps(value, allow_nan=False)
    except (ValueError, TypeError):
        return json.dumps(_carried(value), allow_nan=False, indent=indent)


def _carried(value: Any) -> Any:
    # For records that this version did not write: one odd value must not hide all the others.
    if isinstance(value, dict):
        return {str(key): _carried(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_carried(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return repr(value)


def write_json_list(out: Output, records: Iterable[DeadTaskRecord]) -> None:
    """Write an array with one record on each line."""
    out.write("[")
    separator, end = "\n", "]\n"
    for record in records:
        if out.closed:
            return
        out.write(separator + to_json(displayed(record)))
        separator, end = ",\n", "\n]\n"
    out.write(end)


def write_table_of(out: Output, records: Sequence[DeadTaskRecord]) -> None:
    """Write the records as a table."""
    rows = [
        {
            "id": record["id"],
            "died": times.local_with_age(record["failed_at"]),
            "attempts": str(record["attempts"]),
            "task": record["task_class"],
            "error": summary(record),
        }
        for record in records
    ]
    write_table(out, rows, _LAYOUTS)


def summary(record: DeadTaskRecord) -> str:
    """The exception's own name and the first line of its message."""
    name = short_name(record["exception_class"])
    message = first_line(record["exception_message"])
    return f"{name}: {message}" if message else name


def short_name(dotted: str) -> str:
    """The last part of a dotted name."""
    return dotted.rpartition(".")[2] or dotted


def write_detail(out: Output, record: DeadTaskRecord) -> None:
    """Write all that is known about one dead task, the traceback last."""
    arguments = context.displayed(record["context"])
    out.line(f"Dead task {record['id']}", "MIGRATE_HEADING")
    for title, value in (
        ("Task", record["task_class"]),
        ("Queue", record["queue"]),
        ("Attempts", str(record["attempts"])),
        ("Enqueued", times.local_with_age(record["enqueued_at"], seconds=True)),
        ("Died", times.local_with_age(record["failed_at"], seconds=True)),
        ("Exception", record["exception_class"]),
    ):
        out.line(f"  {title:<10} {value}")
    _write_section(out, "Message", record["exception_message"])
    _write_section(out, "Arguments", _call(arguments))
    backtrace = "\n".join(str(line).rstrip("\n") for line in record["backtrace"])
    _write_section(out, "Traceback", backtrace)


def _write_section(out: Output, title: str, text: str) -> None:
    out.line()
    out.line(title, "MIGRATE_LABEL")
    out.block(text or "(none)", indent="  ")


def _call(arguments: dict[str, Any]) -> str:
    if "unreadable" in arguments:
        return f"(not readable) {arguments['unreadable']}"
    lines = [_readable(value) for value in arguments["args"]]
    lines += [f"{name} = {_readable(value)}" for name, value in arguments["kwargs"].items()]
    return "\n".join(lines)


def _readable(value: Any) -> str:
    # People's text stays readable here; what the terminal cannot show is escaped on output.
    return json.dumps(value, ensure_ascii=False)
