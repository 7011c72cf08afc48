"""The queue: what becomes of a task, decided above the store and made durable in it.

The backend keeps ids, times and bytes; the queue knows what the bytes are. It turns the end of an
attempt into records: done, a retry, a dead task, put back. Whatever it is told, a task leaves the
pending tasks only after what follows from it is durable.

Every method that ends a claim may raise ``OSError`` (``DeadTasksLockTimeout`` is one). The claim
is then still held and the same call can be repeated; what it did already is not done twice.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from deferred_django.backends.base import Backend, ClaimedTask, DeadTaskRecord, NewTask, Progress
from deferred_django.backpressure import gate_of
from deferred_django.conf_features import Features
from deferred_django.context import TaskContext
from deferred_django.exceptions import UnknownTask, WorkerLost
from deferred_django.queue_choice import ALL_QUEUES, QueueChoice
from deferred_django.queue_values import LocalRunner, NewCall
from deferred_django.shield import shield
from deferred_django.signals import announce_enqueued, task_enqueued

MAX_CRASHES = 3
"""A task is not run again after so many of its runs ended with the death of their worker."""
UNKNOWN_FIRST_DELAY = 10.0
UNKNOWN_LONGEST_DELAY = 600.0
UNKNOWN_GIVEN_UP_AFTER = 24 * 3600.0
UNREADABLE_TASK = "(unreadable)"
"""The ``task_class`` of a dead task whose context says nothing, not even its task's name."""

Guard = AbstractContextManager[Any]
"""Entered around the one call that lets go of a claim; it may raise to prevent it."""

NO_FEATURES = Features()
_NO_GUARD: Guard = nullcontext()


class Queue:
    """The tasks of one backend. Thread-safe."""

    def __init__(
        self,
        backend: Backend,
        *,
        local_runner: LocalRunner | None = None,
        features: Features = NO_FEATURES,
    ) -> None:
        """``local_runner`` runs what is enqueued where the backend keeps no tasks."""
        self.backend = backend
        self.features = features
        self.gate = None if local_runner else gate_of(backend, features.backpressure)
        self._local_runner = local_runner
        # Claims whose dead task is written and whose removal is not: a repeated call must not
        # write it again, since the dead task may have been retried or purged meanwhile.
        self._handed_over: set[ClaimedTask] = set()

    # -- producers ---------------------------------------------------------------------------

    def enqueue(
        self,
        context: TaskContext,
        *,
        task_id: str,
        publish_at: float | None = None,
        queue: str = "default",
        priority: int = 0,
    ) -> str:
        """Keep one call, due at ``publish_at`` (unix seconds; now, if ``None``); return its id.

        Errors and durability are those of ``Backend.add_task``. Then :data:`task_enqueued` is sent.
        """
        data = context.to_bytes()
        with shield():
            if self._local_runner is not None:
                self._local_runner.enqueue(
                    data, task_id=task_id, publish_at=publish_at, queue=queue, priority=priority
                )
            else:
                self.backend.add_task(
                    data, publish_at=publish_at, task_id=task_id, queue=queue, priority=priority
                )
        if task_enqueued.is_heard:
            announce_enqueued(context.task, task_id, queue, priority, publish_at)
        return task_id

    def enqueue_many(self, calls: Sequence[NewCall]) -> None:
        """Keep several calls: all of them, or after an error none.

        Errors and durability are those of ``Backend.add_tasks``. Then :data:`task_enqueued` is
        sent for each.
        """
        tasks = [
            NewTask(
                call.context.to_bytes(),
                publish_at=call.publish_at,
                task_id=call.task_id,
                queue=call.queue,
                priority=call.priority,
            )
            for call in calls
        ]
        with shield():
            if self._local_runner is None:
                self.backend.add_tasks(tasks)
            else:
                for context, task_id, due, queue, priority in calls:
                    data = context.to_bytes()
                    self._local_runner.enqueue(
                        data, task_id=task_id, publish_at=due, queue=queue, priority=priority
                    )
        if task_enqueued.is_heard:
            for context, task_id, publish_at, queue, priority in calls:
                announce_enqueued(context.task, task_id, queue, priority, publish_at)

    def cancel(self, task_id: str) -> bool:
        """Remove a task that nobody runs: see ``Backend.remove_task``."""
        runner = self._local_runner
        with shield():
            return runner.cancel(task_id) if runner else self.backend.remove_task(task_id)

    # -- workers -----------------------------------------------------------------------------

    def claim(
        self,
        limit: int,
        choice: QueueChoice = ALL_QUEUES,
        ids: Collection[str] | None = None,
    ) -> list[ClaimedTask]:
        """Claim due tasks: see ``Backend.claim_tasks``."""
        return self.backend.claim_tasks(
            limit, queues=choice.only, exclude=choice.exclude, prefer=choice.prefer, ids=ids
        )

    def start(self, claim: ClaimedTask) -> None:
        """Record that the claim's task starts. On ``OSError`` it must not be started."""
        self.backend.start_task(claim)

    def release(self, claim: ClaimedTask, *, hold: bool = False) -> None:
        """Put a claim back as it was, no attempt and no crash counted.

        With ``hold`` nobody else gets it before this process is gone.
        """
        self.backend.release_task(claim, hold=hold)

    def complete(self, claim: ClaimedTask) -> None:
        """The task succeeded: remove it."""
        self.backend.complete_task(claim)

    def fail(
        self,
        claim: ClaimedTask,
        context: TaskContext,
        exception: BaseException,
        wait: float | None,
        *,
        guard: Guard = _NO_GUARD,
    ) -> None:
        """One attempt failed: run the task again in ``wait`` seconds, or give up (``None``).

        Giving up writes the dead task, durably, and only then removes the task.
        """
        attempts = context.attempts + 1
        if wait is not None:
            later = replace(context, attempts=attempts, unknown_since=None, put_backs=0)
            data = later.to_bytes()
            with guard:
                self.backend.reschedule_task(claim, data, publish_at=time.time() + wait)
            return
        buried = replace(context, attempts=attempts)
        self._bury(claim, buried.to_bytes(), exception, context.task, attempts, buried, guard)

    def unknown_task(
        self,
        claim: ClaimedTask,
        context: TaskContext,
        error: BaseException,
        *,
        guard: Guard = _NO_GUARD,
    ) -> UnknownTask | None:
        """The task's name leads to no task here: put it back for a worker with newer code.

        It uses up no attempt. The delay grows from 10 s to 10 min; 24 hours after it was first
        found unknown it becomes a dead task, which can be retried once the code is there.
        Returns the reason if that happened.
        """
        now = time.time()
        since = now if context.unknown_since is None else context.unknown_since
        if now - since >= UNKNOWN_GIVEN_UP_AFTER:
            reason = UnknownTask(
                f"no worker could import the task {context.task!r} for 24 hours: {error}"
            )
            reason.__cause__ = error
            data = claim.context
            self._bury(claim, data, reason, context.task, context.attempts, context, guard)
            return reason
        delay = min(UNKNOWN_FIRST_DELAY * 2 ** min(context.put_backs, 10), UNKNOWN_LONGEST_DELAY)
        later = replace(context, unknown_since=since, put_backs=context.put_backs + 1)
        data = later.to_bytes()
        with guard:
            self.backend.reschedule_task(claim, data, publish_at=now + delay)
        return None

    def lost(
        self, claim: ClaimedTask, context: TaskContext | None, *, guard: Guard = _NO_GUARD
    ) -> tuple[WorkerLost, int]:
        """The task's workers died under it too often: a dead task, and it is not run again.

        Returns the reason and the attempts that were recorded.
        """
        reason = WorkerLost(
            f"the worker process died {claim.crashes} times while it ran this task; "
            "it is not run again by itself"
        )
        name = UNREADABLE_TASK if context is None else context.task
        attempts = claim.crashes + (0 if context is None else context.attempts)
        self._bury(claim, claim.context, reason, name, attempts, context, guard)
        return reason, attempts

    def unreadable(
        self, claim: ClaimedTask, error: BaseException, *, guard: Guard = _NO_GUARD
    ) -> None:
        """The claim's bytes are no context: a dead task that keeps them as they are."""
        self._bury(claim, claim.context, error, UNREADABLE_TASK, 0, None, guard)

    def _bury(
        self,
        claim: ClaimedTask,
        data: bytes,
        exception: BaseException,
        task_class: str,
        attempts: int,
        context: TaskContext | None,
        guard: Guard,
    ) -> None:
        if claim not in self._handed_over:
            if claim.priority and context is not None:
                data = replace(context, priority=claim.priority).to_bytes()
            self.backend.add_dead_task(
                claim.id,
                data,
                exception,
                task_class=task_class,
                attempts=attempts,
                queue=claim.queue,
                enqueued_at=None if context is None else context.enqueued_at,
            )
            self._handed_over.add(claim)
        with guard:
            self.backend.complete_task(claim)
        self._handed_over.discard(claim)

    # -- dead tasks --------------------------------------------------------------------------

    def retry_dead_tasks(
        self, ids: Iterable[str], *, progress: Progress | None = None
    ) -> list[str]:
        """Enqueue dead tasks again, due now; return the ids that were there.

        Each keeps its id, queue and priority and begins anew, with no attempt used. It is durably
        pending before it leaves the dead tasks, and of two callers one gets it.
        """
        # Receivers are not called within: the backend holds a lock meanwhile.
        enqueued: list[tuple[str, str, str, int]] | None = [] if task_enqueued.is_heard else None
        try:
            return self.backend.take_dead_tasks(
                ids,
                lambda record: self._enqueue_again(record, enqueued),
                progress=progress,
            )
        finally:
            for told in enqueued or ():
                announce_enqueued(*told)

    def _enqueue_again(
        self, record: DeadTaskRecord, enqueued: list[tuple[str, str, str, int]] | None
    ) -> None:
        task_id, queue, data = record["id"], record["queue"], record["context"]
        priority = 0
        try:
            context = TaskContext.from_bytes(data)
        except ValueError:
            pass  # bytes that cannot be read die again with the same reason; the rest goes on
        else:
            priority = context.priority
            data = TaskContext(
                context.task,
                context.args,
                context.kwargs,
                enqueued_at=time.time(),
                user_context=context.user_context,
            ).to_bytes()
        self.backend.add_task(data, task_id=task_id, queue=queue, priority=priority)
        if enqueued is not None:
            enqueued.append((record["task_class"], task_id, queue, priority))
