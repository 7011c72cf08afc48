"""A store's status for people and for programs."""

from __future__ import annotations

from typing import Any

from deferred_django.backends.base import Status, WorkerInfo
from deferred_django.console import times
from deferred_django.console.output import Output
from deferred_django.console.table import Column, write_table

_PID = Column(key="pid", title="PID", right=True, role="MIGRATE_LABEL")
_HOST = Column(key="host", title="HOST", least=12)
_STARTED = Column(key="started", title="STARTED")
_THREADS = Column(key="threads", title="THREADS", right=True)
_QUEUES = Column(key="queues", title="QUEUES", least=10)
_STATE = Column(key="state", title="STATE", role="WARNING")

_WORKER_LAYOUTS = (
    ((_PID, _STARTED, _THREADS, _STATE, _HOST, _QUEUES),),
    ((_PID, _STARTED), (_STATE, _THREADS), (_HOST,), (_QUEUES,)),
)


def as_dict(status: Status) -> dict[str, Any]:
    """The status as the JSON output has it: times in unix seconds, ages in seconds."""
    return {
        "pending": status.pending,
        "delayed": status.delayed,
        "running": status.running,
        "dead": status.dead,
        "oldest_age": status.oldest_age,
        "workers": [
            {
                "pid": worker.pid,
                "host": worker.host,
                "started": worker.started_at,
                "threads": worker.threads,
                "queues": None if worker.queues is None else list(worker.queues),
                "stopped": worker.stopped,
            }
            for worker in status.workers
        ],
        "problems": list(status.problems),
    }


def write_status(out: Output, status: Status) -> None:
    """Write the counts, the workers and the problems."""
    waiting = "" if status.oldest_age is None else _waiting(status.oldest_age)
    _write_count(out, "Pending", status.pending, waiting)
    _write_count(out, "Delayed", status.delayed)
    _write_count(out, "Running", status.running)
    _write_count(out, "Dead", status.dead, role="ERROR" if status.dead else None)
    _write_count(out, "Workers", len(status.workers))
    if status.workers:
        out.line()
        write_table(out, [_row(worker) for worker in status.workers], _WORKER_LAYOUTS)
    if status.problems:
        out.line()
        out.line("Problems", "MIGRATE_HEADING")
        for problem in status.problems:
            out.line(f"  {problem}", "WARNING")


def _waiting(age: float) -> str:
    return f"the oldest has been due for {times.format_duration(age)}"


def _write_count(
    out: Output, title: str, count: int, remark: str = "", role: str | None = None
) -> None:
    number = out.styled(f"{count:>8}", role)
    out.write(f"{title:<8}{number}{'  ' if remark else ''}{remark}\n")


def _row(worker: WorkerInfo) -> dict[str, str]:
    return {
        "pid": str(worker.pid),
        "host": worker.host,
        "started": times.ago(worker.started_at),
        "threads": str(worker.threads),
        "queues": "all" if worker.queues is None else ",".join(worker.queues),
        "state": "stopped" if worker.stopped else "running",
    }
