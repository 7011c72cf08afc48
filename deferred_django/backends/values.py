"""The values that cross the contract of :mod:`deferred_django.backends.base`. No Django here."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MIN_PRIORITY, MAX_PRIORITY = -32768, 32767
QUEUE_PATTERN = re.compile(r"[A-Za-z0-9_.-]{1,100}")
"""The name of a queue, matched as a whole: a field of a log record, like an id."""
MAX_RECORD_BYTES = 64 * 1024 * 1024

DeadTaskRecord = dict[str, Any]
"""A dead task: ``id, task_class, queue, attempts, enqueued_at, failed_at, exception_class,
exception_message, backtrace`` (a list of lines) and ``context`` (``bytes``, as it was given)."""

Progress = Callable[[int, int], None]
"""Called now and then during long work with (done, total)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendConfig:
    """What the ``DEFERRED`` setting says, validated; built by :mod:`deferred_django.conf`."""

    path: Path
    prefix: str = "deferred-"
    fsync_frequency: float = 0.5
    file_permissions: int = 0o600
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewTask:
    """One of the tasks that :meth:`Backend.add_tasks` adds together; as ``add_task`` takes them."""

    context: bytes
    publish_at: float | None = None
    task_id: str | None = None
    queue: str = "default"
    priority: int = 0


@dataclass(frozen=True, slots=True)
class PendingTask:
    """A task that waits, is delayed, or runs."""

    id: str
    context: bytes
    publish_at: float
    queue: str
    priority: int
    status: str = "pending"
    """``pending`` (due), ``delayed`` or ``running``."""
    worker: str | None = None
    """The token of the worker process that runs it."""
    running_since: float | None = None


@dataclass(slots=True, eq=False)
class ClaimedTask:
    """One pending task, held exclusively by this process until it is let go or the process dies."""

    id: str
    context: bytes
    publish_at: float
    queue: str
    priority: int
    crashes: int = 0
    """How many workers died while they ran it since its last ``add`` (this boot of the host)."""
    handle: Any = None
    """The backend's own."""


@dataclass(frozen=True, slots=True)
class RunningTask:
    """A task that a worker has been running for a while."""

    id: str
    name: str
    """The task's dotted name."""
    since: float
    """When this attempt began."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """One worker process that is alive."""

    token: str
    pid: int
    host: str
    started_at: float
    threads: int = 0
    queues: tuple[str, ...] | None = None
    stopped: bool = False
    """The process is stopped (SIGSTOP): what it holds waits until it goes on or is gone."""
    heartbeat_at: float | None = None
    """Its last sign of life; ``None`` where the backend does not tell."""
    running: Sequence[RunningTask] = ()
    """What it runs for longer than a second, the longest first; at most a hundred."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """What :class:`Status` counts, of one queue."""

    pending: int = 0
    delayed: int = 0
    running: int = 0
    oldest_age: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """A store at a glance."""

    pending: int
    """Due and not claimed."""
    delayed: int
    running: int
    dead: int
    oldest_age: float | None
    """Seconds since the oldest pending task fell due; ``None`` if there is none."""
    workers: Sequence[WorkerInfo] = ()
    queues: Mapping[str, QueueStatus] = field(default_factory=dict)
    """The queues that have tasks which are pending, delayed or running."""
    problems: Sequence[str] = ()
    """Sentences for a person: files that could not be opened, damage that was met."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What is to be asked of a store; ``None``: it does not matter."""

    pending: int | None = None
    """More due tasks than these are too many."""
    age: float | None = None
    """The oldest due task must not wait for longer (seconds)."""
    dead: int | None = None
    """More dead tasks than these are too many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that a read-through of a store found."""

    file: str
    offset: int | None
    kind: str
    """``torn`` (an unfinished write: harmless), ``damage`` (bytes that no write left) or
    ``unreadable`` (the file could not be opened)."""
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadTaskFilter:
    """Which dead tasks: all conditions that are given must hold."""

    task: str | None = None
    """The task's dotted name, or its last parts (``send_mail`` finds ``shop.tasks.send_mail``)."""
    exception: str | None = None
    """The exception's dotted name, or its last parts."""
    queue: str | None = None
    since: float | None = None
    """Died at or after this time."""
    until: float | None = None
    """Died before this time."""
    search: str | None = None
    """Text in the id, the message or the encoded arguments, whatever its case."""

    def matches(self, record: DeadTaskRecord) -> bool:
        """Whether ``record`` fulfils every condition that is given."""
        if self.task is not None and not _names(self.task, record["task_class"]):
            return False
        if self.exception is not None and not _names(self.exception, record["exception_class"]):
            return False
        if self.queue is not None and record["queue"] != self.queue:
            return False
        if self.since is not None and record["failed_at"] < self.since:
            return False
        if self.until is not None and record["failed_at"] >= self.until:
            return False
        if self.search:
            wanted = self.search.casefold()
            texts = (record["id"], record["exception_message"], record["context"].decode("latin-1"))
            return any(wanted in text.casefold() for text in texts)
        return True


def _names(wanted: str, dotted: str) -> bool:
    return dotted == wanted or dotted.endswith("." + wanted)
