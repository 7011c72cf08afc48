"""The disk backend: the facade over the tasks log and the dead-tasks store of one directory.

It is longer than 300 lines because it has all the calls of the contract, and nothing else.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager

from deferred_django import ids as task_ids
from deferred_django.backends.base import (
    Backend,
    BackendConfig,
    ClaimedTask,
    DeadTaskFilter,
    DeadTaskRecord,
    Finding,
    Limits,
    NewTask,
    PendingTask,
    Progress,
    RunningTask,
    Status,
)
from deferred_django.backends.disk import bounded, dead_task_json, verify
from deferred_django.backends.disk.boot import boot_id
from deferred_django.backends.disk.dead_tasks_storage import DeadTasksStorage
from deferred_django.backends.disk.schedule_file import ScheduleFile
from deferred_django.backends.disk.segment import Entry
from deferred_django.backends.disk.tasks_storage import TasksStorage
from deferred_django.backends.disk.worker_files import WorkerFiles
from deferred_django.backends.schedule import ScheduleHold, TickRecord
from deferred_django.shield import shield, shielded


class DiskBackend(Backend):
    """Tasks in a write-ahead log, dead tasks in a file beside it. See :class:`Backend`."""

    keeps_schedule = True

    def __init__(self, config: BackendConfig) -> None:
        super().__init__(config)
        path = str(config.path)
        self.tasks = TasksStorage(
            path,
            config.prefix,
            fsync_frequency=config.fsync_frequency,
            file_permissions=config.file_permissions,
        )
        self.dead_tasks = DeadTasksStorage(
            path, config.prefix, file_permissions=config.file_permissions
        )
        self._workers = WorkerFiles(self.tasks.names, config.file_permissions)
        self._schedule = ScheduleFile(self.tasks.names, config.file_permissions)

    # -- tasks ---------------------------------------------------------------------------------

    def add_task(
        self,
        context: bytes,
        *,
        publish_at: float | None = None,
        task_id: str | None = None,
        queue: str = "default",
        priority: int = 0,
    ) -> str:
        if task_id is None:
            task_id = task_ids.new_id()
        if publish_at is None:
            publish_at = time.time()
        self.tasks.add(task_id, context, publish_at=publish_at, queue=queue, priority=priority)
        return task_id

    def add_tasks(self, tasks: Sequence[NewTask]) -> list[str]:
        return self.tasks.add_together(tasks)

    @shielded
    def remove_task(self, task_id: str) -> bool:
        return self.tasks.remove(task_id)

    @shielded
    def pending_count(self, *, max_age: float = 1.0) -> int:
        return self.tasks.pending_count(max_age)

    @shielded
    def pending_tasks(self) -> list[PendingTask]:
        now_ms = time.time() * 1000
        found = [
            _pending(entry, context, claimed=claimed, now_ms=now_ms)
            for entry, claimed, context in self.tasks.survey_with_payloads()
        ]
        return sorted(found, key=lambda task: (task.publish_at, task.id))

    def claim_tasks(
        self,
        limit: int,
        *,
        queues: Collection[str] | None = None,
        exclude: Collection[str] = (),
        prefer: Sequence[str] = (),
        ids: Collection[str] | None = None,
    ) -> list[ClaimedTask]:
        if limit < 1:
            return []
        boot = boot_id()
        return [
            ClaimedTask(
                id=entry.id,
                context=context,
                publish_at=entry.publish_ms / 1000,
                queue=entry.queue,
                priority=entry.priority,
                crashes=entry.crashes(boot) if entry.runs else 0,
                handle=entry,
            )
            for entry, context in self.tasks.claim(limit, queues, exclude, ids, prefer)
        ]

    def claim_was_cut_short(self) -> bool:
        return self.tasks.cut_short

    def start_task(self, claim: ClaimedTask) -> None:
        self.tasks.start(_held(claim))

    def complete_task(self, claim: ClaimedTask) -> None:
        self.tasks.complete(_held(claim))
        claim.handle = None

    def reschedule_task(self, claim: ClaimedTask, context: bytes, *, publish_at: float) -> None:
        self.tasks.reschedule(_held(claim), context, publish_at)
        claim.handle = None

    def release_task(self, claim: ClaimedTask, *, hold: bool = False) -> None:
        self.tasks.release(_held(claim), hold=hold)
        if not hold:
            claim.handle = None

    def forgive_crash(self, claim: ClaimedTask) -> None:
        self.tasks.forgive(_held(claim))
        claim.handle = None

    @shielded
    def sync(self) -> None:
        self.tasks.sync()

    @shielded
    def status(self) -> Status:
        counts, problems = self.tasks.overview()
        try:
            dead = self.dead_tasks.count()
            problems += self.dead_tasks.problems()
        except OSError as error:
            dead = 0
            problems.append(f"dead tasks cannot be counted: {error}")
        workers, unreadable = self._workers.alive()
        problems += self._schedule.problems()
        return Status(
            pending=counts.due,
            delayed=counts.delayed,
            running=counts.running,
            dead=dead,
            oldest_age=counts.oldest_age,
            workers=workers,
            queues=counts.by_queue(),
            problems=problems + unreadable,
        )

    @shielded
    def bounded_status(self, limits: Limits) -> Status:
        return bounded.status(self.tasks.names, self.dead_tasks, limits)

    def verify(self) -> list[Finding]:
        names = self.tasks.names
        others = [names.at(name) for name in [*names.temps(), *names.workers()]]
        return [
            *verify.verify_segments(names),
            *self.dead_tasks.verify(),
            *self._schedule.verify(),
            *verify.verify_other_files(
                [*others, *self.dead_tasks.other_paths(), *self._schedule.other_paths()]
            ),
        ]

    # -- periodic tasks ------------------------------------------------------------------------

    @shielded
    def tick_records(self) -> list[TickRecord]:
        return self._schedule.read()

    def hold_schedule(self) -> AbstractContextManager[ScheduleHold | None]:
        return self._schedule.hold()

    # -- waiting and life cycle ----------------------------------------------------------------

    def wait(self, timeout: float) -> None:
        self.tasks.wait(timeout)

    def wake(self) -> None:
        self.tasks.wake()

    def maintain(self) -> None:
        self.tasks.maintain()
        self._workers.remove_stale()
        self._workers.stay_listed()

    def worker_started(self, *, threads: int = 0, queues: Sequence[str] | None = None) -> None:
        self._workers.start(threads=threads, queues=queues)

    def worker_heartbeat(self, running: Sequence[RunningTask] = ()) -> None:
        self._workers.heartbeat(running)

    def worker_stopped(self) -> None:
        self._workers.stop()

    @shielded
    def close(self) -> None:
        try:
            self.tasks.close()
        finally:
            self._workers.stop()
            self.dead_tasks.close()

    # -- dead tasks ----------------------------------------------------------------------------

    @shielded
    def _store_dead_task(self, record: DeadTaskRecord) -> None:
        self.dead_tasks.add(record["id"], dead_task_json.encode(record))

    @shielded
    def list_dead_tasks(
        self,
        *,
        limit: int | None = None,
        offset: int = 0,
        filter: DeadTaskFilter | None = None,
    ) -> list[DeadTaskRecord]:
        found = self.dead_tasks.read(limit=limit, offset=offset, matches=_matcher(filter))
        return [dead_task_json.decode(data, task_id) for task_id, data in found]

    def iterate_dead_tasks(
        self,
        *,
        limit: int | None = None,
        offset: int = 0,
        filter: DeadTaskFilter | None = None,
    ) -> Iterator[DeadTaskRecord]:
        found = self.dead_tasks.iterate(limit=limit, offset=offset, matches=_matcher(filter))
        with contextlib.closing(found):
            while True:
                with shield():
                    each = next(found, None)
                if each is None:
                    return
                yield dead_task_json.decode(each[1], each[0])

    @shielded
    def count_dead_tasks(self, *, filter: DeadTaskFilter | None = None) -> int:
        return self.dead_tasks.count(_matcher(filter))

    def dead_tasks_problems(self) -> list[str]:
        return self.dead_tasks.problems()

    @shielded
    def find_dead_task(self, id: str) -> DeadTaskRecord | None:
        data = self.dead_tasks.find(id)
        return None if data is None else dead_task_json.decode(data, id)

    @shielded
    def remove_dead_tasks(
        self, ids: str | Iterable[str], *, progress: Progress | None = None
    ) -> int:
        wanted = [ids] if isinstance(ids, str) else list(ids)
        return self.dead_tasks.remove(wanted, progress=progress)

    @shielded
    def take_dead_tasks(
        self,
        ids: Iterable[str],
        handover: Callable[[DeadTaskRecord], None],
        *,
        progress: Progress | None = None,
    ) -> list[str]:
        return self.dead_tasks.take(
            ids,
            lambda task_id, data: handover(dead_task_json.decode(data, task_id)),
            self.tasks.sync,
            progress=progress,
        )


def _held(claim: ClaimedTask) -> Entry:
    if claim.handle is None:
        raise ValueError(f"the claim on task {claim.id} was let go already")
    entry: Entry = claim.handle
    return entry


def _pending(entry: Entry, context: bytes, *, claimed: bool, now_ms: float) -> PendingTask:
    run = entry.runs[-1] if claimed and entry.runs else None
    waiting = "delayed" if entry.publish_ms > now_ms else "pending"
    return PendingTask(
        id=entry.id,
        context=context,
        publish_at=entry.publish_ms / 1000,
        queue=entry.queue,
        priority=entry.priority,
        status="running" if claimed else waiting,
        worker=run.worker if run else None,
        running_since=run.started_ms / 1000 if run else None,
    )


def _matcher(filter: DeadTaskFilter | None) -> Callable[[str, bytes], bool] | None:
    if filter is None or filter == DeadTaskFilter():
        return None
    return lambda task_id, data: filter.matches(dead_task_json.decode(data, task_id))
