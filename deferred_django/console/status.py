"""A store's status for people and for programs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from deferred_django.backends.base import RunningTask, Status, WorkerInfo
from deferred_django.console import times
from deferred_django.console.output import Output
from deferred_django.console.table import Column, write_table

_PID = Column(key="pid", title="PID", right=True, role="MIGRATE_LABEL")
_HOST = Column(key="host", title="HOST", least=12)
_STARTED = Column(key="started", title="STARTED")
_THREADS = Column(key="threads", title="THREADS", right=True)
_QUEUES = Column(key="queues", title="QUEUES", least=10)
_STATE = Column(key="state", title="STATE", role="WARNING")

STUCK_SECONDS = 60.0
"""A worker whose last sign of life is older is shown as stuck."""
SHOWN_TASKS = 20
"""So many of the running tasks stand in the table."""

_FOR = Column(key="for", title="FOR", right=True)
_TASK = Column(key="task", title="TASK", least=24, keep_end=True, role="MIGRATE_LABEL")
_ID = Column(key="id", title="ID")
_BY = Column(key="pid", title="PID", right=True)

_TASK_LAYOUTS = (
    ((_FOR, _TASK, _ID, _BY),),
    ((_FOR, _TASK, _BY), (_ID,)),
    ((_FOR, _TASK), (_ID,), (_BY,)),
)
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
                "heartbeat": worker.heartbeat_at,
                "running": [
                    {"id": task.id, "task": task.name, "since": task.since}
                    for task in worker.running
                ],
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
        _write_running(out, status.workers)
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
        "state": _state(worker),
    }


def _state(worker: WorkerInfo) -> str:
    if worker.stopped:
        return "stopped"
    return "stuck" if is_stuck(worker) else "running"


def is_stuck(worker: WorkerInfo) -> bool:
    """Whether the worker gives no sign of life."""
    heartbeat_at = worker.heartbeat_at
    return heartbeat_at is not None and time.time() - heartbeat_at > STUCK_SECONDS


def _write_running(out: Output, workers: Sequence[WorkerInfo]) -> None:
    running = [(task, worker) for worker in workers for task in worker.running]
    if not running:
        return
    running.sort(key=lambda pair: pair[0].since)
    out.line()
    write_table(out, [_task_row(*pair) for pair in running[:SHOWN_TASKS]], _TASK_LAYOUTS)
    if len(running) > SHOWN_TASKS:
        out.line(f"and {len(running) - SHOWN_TASKS} more: --format json has them all")


def _task_row(task: RunningTask, worker: WorkerInfo) -> dict[str, str]:
    return {
        "for": times.format_duration(max(time.time() - task.since, 0.0)),
        "task": task.name,
        "id": task.id,
        "pid": str(worker.pid),
    }
