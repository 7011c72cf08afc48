"""A store's status for people and for programs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from deferred_django.backends.base import QueueStatus, RunningTask, Status, WorkerInfo
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
_QUEUE = Column(key="queue", title="QUEUE", least=16, role="MIGRATE_LABEL")
_COUNTS = (
    Column(key="pending", title="PENDING", right=True),
    Column(key="delayed", title="DELAYED", right=True),
    Column(key="running", title="RUNNING", right=True),
    Column(key="oldest", title="DUE FOR", right=True),
)

_QUEUE_LAYOUTS = (((_QUEUE, *_COUNTS),), ((_QUEUE,), _COUNTS))
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
        "queues": {name: asdict(queue) for name, queue in status.queues.items()},
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
    if set(status.queues) - {"default"}:
        _write_queues(out, status.queues)
    if status.workers:
        out.line()
        write_table(out, [_row(worker) for worker in status.workers], _WORKER_LAYOUTS)
        _write_running(out, status.workers)
    if status.problems:
        out.line()
        out.line("Problems", "MIGRATE_HEADING")
        for problem in status.problems:
            out.line(f"  {problem}", "WARNING")


def _write_queues(out: Output, queues: Mapping[str, QueueStatus]) -> None:
    rows = [
        {
            "queue": name,
            "pending": str(queue.pending),
            "delayed": str(queue.delayed),
            "running": str(queue.running),
            "oldest": "" if queue.oldest_age is None else times.format_duration(queue.oldest_age),
        }
        for name, queue in queues.items()
    ]
    out.line()
    write_table(out, rows, _QUEUE_LAYOUTS)


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
        "state": state_of(worker),
    }


def state_of(worker: WorkerInfo) -> str:
    """``running``, ``stopped`` (by a signal) or ``stuck`` (no sign of life for a minute)."""
    if worker.stopped:
        return "stopped"
    heartbeat_at = worker.heartbeat_at
    silent = heartbeat_at is not None and time.time() - heartbeat_at > STUCK_SECONDS
    return "stuck" if silent else "running"


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
