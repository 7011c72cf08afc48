"""The contract that every backend keeps.

The backend is a facade over a store: it knows ids, times, bytes, queue names and priorities, and
never a task function. Retries, giving up and running a dead task again are the queue's decisions;
the backend only makes each of them durable. No Django is imported here.

All times are unix seconds (``float``, kept to milliseconds). All methods may be called from any
thread. Every error of the store is an :class:`OSError` that names the file, or one of
:mod:`deferred_django.exceptions`.

It has more than 300 lines because it is one text to be read as a whole: the contract.
"""

from __future__ import annotations

import abc
import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

from deferred_django import ids
from deferred_django.backends import failures
from deferred_django.backends.schedule import ScheduleStore
from deferred_django.backends.values import (
    MAX_PRIORITY,
    MAX_RECORD_BYTES,
    MIN_PRIORITY,
    QUEUE_PATTERN,
    BackendConfig,
    ClaimedTask,
    DeadTaskFilter,
    DeadTaskRecord,
    Finding,
    Limits,
    NewTask,
    PendingTask,
    Progress,
    QueueStatus,
    RunningTask,
    Status,
    WorkerInfo,
)

__all__ = [
    "MAX_PRIORITY",
    "MAX_RECORD_BYTES",
    "MIN_PRIORITY",
    "QUEUE_PATTERN",
    "Backend",
    "BackendConfig",
    "ClaimedTask",
    "DeadTaskFilter",
    "DeadTaskRecord",
    "Finding",
    "Limits",
    "NewTask",
    "PendingTask",
    "Progress",
    "QueueStatus",
    "RunningTask",
    "Status",
    "WorkerInfo",
]


class Backend(ScheduleStore, abc.ABC):
    """The facade over one store. See the module's docstring for units and errors."""

    keeps_tasks: ClassVar[bool] = True
    """False where nothing is stored and a worker has nothing to do."""

    def __init__(self, config: BackendConfig) -> None:
        """Touch nothing: a facade is built before anybody knows whether it will be used."""
        self.config = config

    # -- tasks -------------------------------------------------------------------------------

    @abc.abstractmethod
    def add_task(
        self,
        context: bytes,
        *,
        publish_at: float | None = None,
        task_id: str | None = None,
        queue: str = "default",
        priority: int = 0,
    ) -> str:
        """Keep a task and return its id.

        ``publish_at`` is when it falls due (now, if ``None``). On return the task survives the
        death of this process; it survives a power cut after the next fsync, which is before the
        return where ``fsync_frequency`` is 0 (see :meth:`sync`). A later add of an id replaces
        the earlier one. Raises ``ValueError`` for an id, queue or priority that cannot be stored
        and for a record over 64 MiB, ``OSError`` if it could not be written: then nothing runs.
        """

    def add_tasks(self, tasks: Sequence[NewTask]) -> list[str]:
        """Keep several tasks; return their ids in this order.

        All of them, or after an error none. Errors and durability as in :meth:`add_task`; a
        backend may raise ``ValueError`` for more than 64 MiB in all. If the process dies before
        this returns, some of them may be there. (Here they are added one by one, and removed
        again after an error. A backend that can write them together should.)
        """
        added: list[str] = []
        try:
            for task in tasks:
                added.append(  # noqa: PERF401 - what was added is removed again
                    self.add_task(
                        task.context,
                        publish_at=task.publish_at,
                        task_id=task.task_id,
                        queue=task.queue,
                        priority=task.priority,
                    )
                )
        except BaseException:
            for task_id in added:
                with contextlib.suppress(Exception):
                    self.remove_task(task_id)
            raise
        return added

    @abc.abstractmethod
    def remove_task(self, task_id: str) -> bool:
        """Drop a pending task; durable when it returns ``True``.

        ``False`` if there is none of this id or if it is claimed (it runs) elsewhere.
        """

    def pending_count(self, *, max_age: float = 1.0) -> int:
        """How many tasks of this store are due or run; delayed ones count when they are due.

        What this facade has added is counted at once, what others have done is at most ``max_age``
        seconds old. It is asked before each enqueue where ``BACKPRESSURE`` is on. (Here it is taken
        from :meth:`status`, which may cost too much for that.)
        """
        now = self.status()
        return now.pending + now.running

    @abc.abstractmethod
    def pending_tasks(self) -> list[PendingTask]:
        """All tasks that are due, delayed or running, the soonest due first."""

    @abc.abstractmethod
    def claim_tasks(
        self,
        limit: int,
        *,
        queues: Collection[str] | None = None,
        exclude: Collection[str] = (),
        prefer: Sequence[str] = (),
        ids: Collection[str] | None = None,
    ) -> list[ClaimedTask]:
        """Claim up to ``limit`` due tasks: higher priority first, then the soonest due.

        A claim is exclusive among all threads and processes and is freed by this process's
        death at once. ``queues`` limits the choice to these, ``exclude`` leaves queues out,
        ``ids`` limits it to these tasks. Due tasks of the queues in ``prefer`` come before all
        others, in the order of the queues there, whatever their priority. None says that there are
        none, unless :meth:`claim_was_cut_short`.
        """

    def claim_was_cut_short(self) -> bool:
        """Whether the last claim of tasks found none because :meth:`wake` ended it early.

        Then nothing is known of the tasks that it had not looked at yet. For the one thread of a
        worker that claims; always ``False`` where a claim takes no time worth ending.
        """
        return False

    @abc.abstractmethod
    def start_task(self, claim: ClaimedTask) -> None:
        """Record that the claimed task starts now. On ``OSError`` it must not be started."""

    @abc.abstractmethod
    def complete_task(self, claim: ClaimedTask) -> None:
        """Remove the claimed task (done, or handed over) and let go of the claim.

        On ``OSError`` the claim is still held and the call can be repeated. Survives the
        death of this process on return, and a power cut after the next fsync.
        """

    @abc.abstractmethod
    def reschedule_task(self, claim: ClaimedTask, context: bytes, *, publish_at: float) -> None:
        """Replace the claimed task by ``context``, due at ``publish_at``; let go of the claim.

        The id, queue and priority stay. Errors and durability as in :meth:`complete_task`.
        """

    @abc.abstractmethod
    def release_task(self, claim: ClaimedTask, *, hold: bool = False) -> None:
        """Put the claimed task back as it was: if it was started, that start does not count.

        With ``hold`` the claim is kept until this process is gone, so that a thread that cannot
        be stopped never runs beside the task's next run.
        """

    def forgive_crash(self, claim: ClaimedTask) -> None:
        """Put the claimed task back; its last run, under which a worker died, does not count.

        For a worker that was killed for another's sake. A backend that counts no crashes needs
        none of its own.
        """
        self.release_task(claim)

    @abc.abstractmethod
    def sync(self) -> None:
        """Make all that this process has written to the store durable before returning."""

    @abc.abstractmethod
    def status(self) -> Status:
        """The store at a glance. Changes nothing and creates no file."""

    def bounded_status(self, limits: Limits) -> Status:
        """The status as far as it takes to know which of the limits are exceeded.

        A number over its limit is a lower bound, what no limit asks for may be missing, and a
        problem is what keeps the rest from being true. A probe that runs every few seconds asks
        this: it must not count a million tasks to know that there are more than a hundred.
        """
        return replace(self.status(), problems=())

    def verify(self) -> list[Finding]:
        """Read the whole store through and report what is not as it was written; change nothing."""
        return []

    # -- waiting and life cycle ----------------------------------------------------------------

    @abc.abstractmethod
    def wait(self, timeout: float) -> None:
        """Return once there may be something to claim, :meth:`wake` is called, or time is up.

        For one thread of a worker. A wake-up that comes between two waits is not lost.
        """

    @abc.abstractmethod
    def wake(self) -> None:
        """End the running or the next :meth:`wait` early. Safe in threads and signal handlers.

        A claim that has found nothing so far may end early too; the wait that follows then does,
        so that a worker comes to see why it was woken, and the wake-up is not lost on the way.
        """

    def maintain(self) -> None:
        """Tidy the store (workers call this about once a second, and a drain before its exit)."""

    def worker_started(self, *, threads: int = 0, queues: Sequence[str] | None = None) -> None:
        """This process works on the store from now on."""

    def worker_heartbeat(self, running: Sequence[RunningTask] = ()) -> None:
        """This worker process goes on claiming tasks (called about once a second while it does).

        ``running``: what it has been running for a while, the longest first. Both are for
        :attr:`Status.workers`; nothing depends on them, and nothing of it need be durable.
        """

    def worker_stopped(self) -> None:
        """This process works on the store no more."""

    def close(self) -> None:
        """Make durable what is not yet, and let go of everything. The facade can be used again."""

    # -- dead tasks ----------------------------------------------------------------------------

    def add_dead_task(
        self,
        task_id: str,
        context: bytes,
        exception: BaseException,
        *,
        task_class: str,
        attempts: int,
        queue: str = "default",
        enqueued_at: float | None = None,
    ) -> str:
        """Keep a task that gave up; durable when it returns (its id).

        ``enqueued_at`` is taken from the id if it is not given. Raises ``OSError`` or
        ``DeadTasksLockTimeout`` if it could not be written: the task must stay where it was.
        """
        exception_class, message, backtrace = failures.describe(exception)
        now = time.time()
        if enqueued_at is None:
            seconds = ids.seconds_of(task_id)
            enqueued_at = now if seconds is None else float(seconds)
        self._store_dead_task(
            {
                "id": task_id,
                "task_class": task_class,
                "queue": queue,
                "attempts": attempts,
                "enqueued_at": round(enqueued_at, 3),
                "failed_at": round(now, 3),
                "exception_class": exception_class,
                "exception_message": message,
                "backtrace": backtrace,
                "context": context,
            }
        )
        return task_id

    @abc.abstractmethod
    def _store_dead_task(self, record: DeadTaskRecord) -> None:
        """Store the record; durable when it returns."""

    @abc.abstractmethod
    def list_dead_tasks(
        self,
        *,
        limit: int | None = None,
        offset: int = 0,
        filter: DeadTaskFilter | None = None,  # the word that users know from querysets
    ) -> list[DeadTaskRecord]:
        """Dead tasks, newest first; the newest record of an id counts."""

    def iterate_dead_tasks(
        self,
        *,
        limit: int | None = None,
        offset: int = 0,
        filter: DeadTaskFilter | None = None,
    ) -> Iterator[DeadTaskRecord]:
        """As :meth:`list_dead_tasks`, one after the other: any number of them in little memory.

        They are those of one moment, whatever is added or removed while they are read. Close the
        iterator (a generator) if it is not read to its end.
        """
        yield from self.list_dead_tasks(limit=limit, offset=offset, filter=filter)

    @abc.abstractmethod
    def count_dead_tasks(self, *, filter: DeadTaskFilter | None = None) -> int:
        """How many ids :meth:`list_dead_tasks` would give without a limit."""

    def dead_tasks_problems(self) -> list[str]:
        """Sentences about dead tasks that cannot be read. They are left out wherever others are
        given; :attr:`Status.problems` has these sentences too."""
        return []

    @abc.abstractmethod
    def find_dead_task(self, id: str) -> DeadTaskRecord | None:
        """The newest record of the id."""

    @abc.abstractmethod
    def remove_dead_tasks(
        self, ids: str | Iterable[str], *, progress: Progress | None = None
    ) -> int:
        """Remove one id or several, all or nothing; return how many distinct ids were there.

        Durable when it returns. A record that is added while this runs stays.
        """

    @abc.abstractmethod
    def take_dead_tasks(
        self,
        ids: Iterable[str],
        handover: Callable[[DeadTaskRecord], None],
        *,
        progress: Progress | None = None,
    ) -> list[str]:
        """Give each record to ``handover``, make what that wrote durable, remove the records.

        Returns the ids that were there, in the order given. Two callers never get the same
        record. If ``handover`` raises, nothing is removed. A task that dies again meanwhile
        stays in the store.
        """
