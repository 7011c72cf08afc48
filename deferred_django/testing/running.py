"""Running what a test enqueued, in the test's own thread."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Final

from django.db import connections

from deferred_django import registry
from deferred_django.backends.base import ClaimedTask
from deferred_django.context import TaskContext
from deferred_django.execution import Outcome, execute
from deferred_django.on_commit import EnqueueOnCommit
from deferred_django.queue import Guard, Queue

MAX_TASKS: Final = 10_000


@dataclass(frozen=True, slots=True)
class TaskRun:
    """One attempt that :func:`run_enqueued` made."""

    id: str
    task: str | None
    """The task's dotted name (``None`` if its stored bytes could not be read)."""
    outcome: Outcome
    exception: BaseException | None = None
    """What the task raised, if it did."""


def run_enqueued(*, raise_exceptions: bool = False, max_tasks: int = MAX_TASKS) -> list[TaskRun]:
    """Run the tasks that are due in the store, one after the other, in this thread.

    Returns what was run, in its order. Tasks that these tasks enqueue run too. Whatever is held
    for the commit of a transaction that is open in this thread, such as the one around each test
    of a ``TestCase``, is enqueued first. Delayed tasks, and failed ones that wait for their next
    attempt, stay pending.

    A task that fails is retried later or becomes a dead task, as a worker would have it, and the
    rest still runs. Its exception is in the answer; with ``raise_exceptions`` it is raised, and
    nothing runs after it (the failure is recorded all the same).

    Raises ``RuntimeError`` after ``max_tasks`` tasks, for tasks that enqueue each other without
    end, and on a backend that keeps no tasks. Give the test a store of its own (:func:`own_store`,
    the fixture ``deferred_store``): this runs all that is due in the store, whoever enqueued it.
    """
    backend = registry.get_backend()
    if not backend.keeps_tasks:
        raise RuntimeError(
            'DEFERRED["BACKEND"] keeps no tasks, so there is nothing to run here; use the '
            "fixture deferred_store, or deferred_django.testing.own_store()"
        )
    queue = _Witness(backend, features=registry.get_features())
    runs: list[TaskRun] = []
    while True:
        _enqueue_what_waits_for_commits()
        if len(runs) >= max_tasks and backend.status().pending:
            raise RuntimeError(f"{max_tasks} tasks have run and more are due: do they ever end?")
        claims = queue.claim(1)
        if not claims:
            return runs
        runs.append(_run(queue, claims[0]))
        if runs[-1].outcome is Outcome.NOT_STARTED:  # nor will the store take another start
            return runs
        exception = runs[-1].exception
        if raise_exceptions and exception is not None:
            raise exception


class _Witness(Queue):
    """The queue, remembering what the last failed attempt raised."""

    exception: BaseException | None = None

    def fail(
        self,
        claim: ClaimedTask,
        context: TaskContext,
        exception: BaseException,
        wait: float | None,
        *,
        guard: Guard = nullcontext(),  # noqa: B008 - stateless
    ) -> None:
        self.exception = exception
        super().fail(claim, context, exception, wait, guard=guard)


def _run(queue: _Witness, claim: ClaimedTask) -> TaskRun:
    try:
        name = TaskContext.from_bytes(claim.context).task
    except ValueError:
        name = None
    queue.exception = None
    outcome = execute(queue, claim)
    return TaskRun(claim.id, name, outcome, queue.exception)


def _enqueue_what_waits_for_commits() -> None:
    for connection in connections.all(initialized_only=True):
        hooks: list[Any] = connection.run_on_commit  # triples; the stubs say pairs
        for position, (savepoints, hook, robust) in enumerate(hooks):
            if isinstance(hook, EnqueueOnCommit):
                # Replaced, not removed: captureOnCommitCallbacks counts positions in this list.
                hooks[position] = (savepoints, _already_enqueued, robust)
                hook.write()


def _already_enqueued() -> None:
    """What is left in the place of a hook that was called."""
