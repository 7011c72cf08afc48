"""A store's status as Prometheus reads it: the text exposition format, version 0.0.4."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping

from deferred_django.backends.base import QUEUE_PATTERN, QueueStatus, Status
from deferred_django.console.output import Output
from deferred_django.console.status import state_of

DEFAULT_QUEUE = "default"
"""There is always a number for this one, so that a sum over the queues is never missing."""
STATES = ("running", "stopped", "stuck")
_EMPTY = QueueStatus()

Sample = tuple[Mapping[str, str], float]


def write_metrics(out: Output, status: Status) -> None:
    """Write each metric with its help, its type and its samples."""
    for name, text, samples in _metrics(status):
        out.write(f"# HELP {name} {text}\n# TYPE {name} gauge\n")
        for labels, value in samples:
            out.write(f"{name}{_labels(labels)} {_number(value)}\n")


def _metrics(status: Status) -> Iterator[tuple[str, str, Iterable[Sample]]]:
    queues = _queues(status)
    for name, text in (
        ("pending", "Tasks that are due and that no worker has claimed."),
        ("delayed", "Tasks that are not due yet."),
        ("running", "Tasks that a worker has claimed."),
    ):
        samples = [({"queue": queue}, getattr(found, name)) for queue, found in queues.items()]
        yield f"deferred_{name}", text, samples
    yield (
        "deferred_oldest_age_seconds",
        "How long the oldest pending task has been due; 0 if none is pending.",
        [({"queue": queue}, found.oldest_age or 0.0) for queue, found in queues.items()],
    )
    yield "deferred_dead", "Dead tasks.", [({}, status.dead)]
    states = [state_of(worker) for worker in status.workers]
    yield (
        "deferred_workers",
        "Worker processes that are alive: at work, stopped by a signal, or silent for a minute.",
        [({"state": state}, states.count(state)) for state in STATES],
    )
    threads = sum(worker.threads for worker in status.workers)
    yield "deferred_worker_threads", "Threads of all worker processes.", [({}, threads)]
    began = [task.since for worker in status.workers for task in worker.running]
    longest = max(time.time() - min(began), 0.0) if began else 0.0
    yield (
        "deferred_longest_running_seconds",
        "How long the task that has been running for longest has; 0 if none for over a second.",
        [({}, round(longest, 3))],
    )
    yield (
        "deferred_problems",
        "What deferred_status lists as problems, such as files that cannot be read.",
        [({}, len(status.problems))],
    )


def _queues(status: Status) -> dict[str, QueueStatus]:
    """Those with tasks, the default one, and those that a worker was started for."""
    names = {DEFAULT_QUEUE, *status.queues}
    for worker in status.workers:
        # One that prefers or leaves out queues says "*" and "!name" for it.
        names.update(filter(QUEUE_PATTERN.fullmatch, worker.queues or ()))
    return {name: status.queues.get(name, _EMPTY) for name in sorted(names)}


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    # A file of a store is read by whoever wrote it: nothing in it may end a line or a label.
    text = text.encode("utf-8", "replace").decode()
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return repr(value) if isinstance(value, int) else repr(float(value))
