"""An in-memory backend with switches for faults, and helpers to run workers on it in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deferred_django import ids as task_ids
from deferred_django.backends.base import (
    Backend,
    BackendConfig,
    ClaimedTask,
    DeadTaskFilter,
    DeadTaskRecord,
    PendingTask,
    Progress,
    RunningTask,
    Status,
)
from deferred_django.context import TaskContext
from deferred_django.queue import Queue
from deferred_django.recycling import Ended
from deferred_django.task import DeferredTask
from deferred_django.worker import Worker


@dataclass(eq=False)
class Stored:
    """One pending task of the fake."""

    context: bytes
    publish_at: float
    queue: str
    priority: int
    crashes: int = 0
    claimed: bool = False
    started: bool = False


@dataclass
class Calls:
    """What the fake was asked to do, in order: (method, task id)."""

    made: list[tuple[str, str]] = field(default_factory=list)

    def of(self, method: str) -> list[str]:
        return [task_id for name, task_id in self.made if name == method]


class MemoryBackend(Backend):
    """Keeps tasks in a dict. ``failing[method]`` is raised by that method while it is there."""

    def __init__(self) -> None:
        super().__init__(BackendConfig(path=Path()))
        self.tasks: dict[str, Stored] = {}
        self.dead: dict[str, DeadTaskRecord] = {}
        self.calls = Calls()
        self.failing: dict[str, BaseException] = {}
        self.running: list[RunningTask] = []
        """What the last heartbeat said."""
        self._lock = threading.RLock()
        self._woken = threading.Event()

    def _called(self, method: str, task_id: str = "") -> None:
        self.calls.made.append((method, task_id))
        if method in self.failing:
            raise self.failing[method]

    def add_task(
        self,
        context: bytes,
        *,
        publish_at: float | None = None,
        task_id: str | None = None,
        queue: str = "default",
        priority: int = 0,
    ) -> str:
        task_id = task_id or task_ids.new_id()
        self._called("add_task", task_id)
        with self._lock:
            due = time.time() if publish_at is None else publish_at
            self.tasks[task_id] = Stored(context, due, queue, priority)
        self.wake()
        return task_id

    def remove_task(self, task_id: str) -> bool:
        with self._lock:
            return self.tasks.pop(task_id, None) is not None

    def pending_tasks(self) -> list[PendingTask]:
        with self._lock:
            return [
                PendingTask(task_id, task.context, task.publish_at, task.queue, task.priority)
                for task_id, task in self.tasks.items()
            ]

    def claim_tasks(
        self,
        limit: int,
        *,
        queues: Collection[str] | None = None,
        exclude: Collection[str] = (),
        prefer: Sequence[str] = (),
        ids: Collection[str] | None = None,
    ) -> list[ClaimedTask]:
        self._called("claim_tasks")
        now = time.time()
        claims = []
        with self._lock:
            due = sorted(
                (
                    prefer.index(task.queue) if task.queue in prefer else len(prefer),
                    -task.priority,
                    task.publish_at,
                    task_id,
                )
                for task_id, task in self.tasks.items()
                if not task.claimed
                and task.publish_at <= now
                and (queues is None or task.queue in queues)
                and task.queue not in exclude
                and (ids is None or task_id in ids)
            )
            for *_, task_id in due[:limit]:
                task = self.tasks[task_id]
                task.claimed = True
                claims.append(
                    ClaimedTask(
                        task_id,
                        task.context,
                        task.publish_at,
                        task.queue,
                        task.priority,
                        task.crashes,
                        task,
                    )
                )
        return claims

    def _held(self, claim: ClaimedTask) -> Stored:
        task: Stored = claim.handle
        assert self.tasks.get(claim.id) is task, f"{claim.id} is not pending any more"
        assert task.claimed, f"{claim.id} is not claimed"
        return task

    def start_task(self, claim: ClaimedTask) -> None:
        self._called("start_task", claim.id)
        with self._lock:
            self._held(claim).started = True

    def complete_task(self, claim: ClaimedTask) -> None:
        self._called("complete_task", claim.id)
        with self._lock:
            self._held(claim)
            del self.tasks[claim.id]

    def reschedule_task(self, claim: ClaimedTask, context: bytes, *, publish_at: float) -> None:
        self._called("reschedule_task", claim.id)
        with self._lock:
            self._held(claim)
            self.tasks[claim.id] = Stored(context, publish_at, claim.queue, claim.priority)
        self.wake()

    def release_task(self, claim: ClaimedTask, *, hold: bool = False) -> None:
        self._called("hold_task" if hold else "release_task", claim.id)
        with self._lock:
            task = self._held(claim)
            task.started = False
            task.claimed = hold

    def sync(self) -> None:
        self._called("sync")

    def status(self) -> Status:
        return Status(
            pending=len(self.tasks), delayed=0, running=0, dead=len(self.dead), oldest_age=None
        )

    def wait(self, timeout: float) -> None:
        with self._lock:
            delayed = [task.publish_at for task in self.tasks.values() if not task.claimed]
        soonest = min(delayed, default=float("inf")) - time.time()
        self._woken.wait(max(min(timeout, soonest), 0.001))
        self._woken.clear()

    def wake(self) -> None:
        self._woken.set()

    def maintain(self) -> None:
        self._called("maintain")

    def worker_started(self, *, threads: int = 0, queues: Any = None) -> None:
        self._called("worker_started")

    def worker_heartbeat(self, running: Sequence[RunningTask] = ()) -> None:
        self.running = list(running)
        self._called("worker_heartbeat")

    def worker_stopped(self) -> None:
        self._called("worker_stopped")

    def _store_dead_task(self, record: DeadTaskRecord) -> None:
        self._called("add_dead_task", record["id"])
        self.dead[record["id"]] = record

    def list_dead_tasks(
        self,
        *,
        limit: int | None = None,
        offset: int = 0,
        filter: DeadTaskFilter | None = None,
    ) -> list[DeadTaskRecord]:
        return list(self.dead.values())

    def count_dead_tasks(self, *, filter: DeadTaskFilter | None = None) -> int:
        return len(self.dead)

    def find_dead_task(self, id: str) -> DeadTaskRecord | None:
        return self.dead.get(id)

    def remove_dead_tasks(
        self, ids: str | Iterable[str], *, progress: Progress | None = None
    ) -> int:
        wanted = [ids] if isinstance(ids, str) else list(ids)
        return sum(self.dead.pop(task_id, None) is not None for task_id in wanted)

    def take_dead_tasks(
        self,
        ids: Iterable[str],
        handover: Callable[[DeadTaskRecord], None],
        *,
        progress: Progress | None = None,
    ) -> list[str]:
        found = [task_id for task_id in ids if task_id in self.dead]
        for task_id in found:
            handover(self.dead[task_id])
        for task_id in found:
            del self.dead[task_id]
        return found


class Running:
    """A worker that runs in a thread of the test; a context manager that stops it."""

    def __init__(self, queue: Queue, **options: Any) -> None:
        self.worker = Worker(queue, **{"threads": 2, "shutdown_timeout": 5.0, **options})
        self.ended: Ended | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self.ended = self.worker.run()

    def join(self, timeout: float = 10.0) -> Ended:
        self._thread.join(timeout)
        assert not self._thread.is_alive(), "the worker did not end"
        assert self.ended is not None
        return self.ended

    def __enter__(self) -> Running:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.worker.request_stop(now=error[0] is not None)
        self.join()


def add(
    backend: Backend, task: DeferredTask[..., Any], *args: Any, crashes: int = 0, **options: Any
) -> str:
    """Enqueue a call on this backend, as ``task.enqueue`` does on the configured one."""
    context = TaskContext.build(task.name, args, {})
    task_id = Queue(backend).enqueue(context, task_id=task_ids.new_id(), **options)
    if crashes:
        assert isinstance(backend, MemoryBackend)
        backend.tasks[task_id].crashes = crashes
    return task_id
