"""One attempt of one claimed task, from its stored bytes to the record of its outcome."""

from __future__ import annotations

import enum
import functools
import time
from collections.abc import Callable
from typing import Any, TypeVar

from deferred_django import connections, logs, ticks
from deferred_django.attempt import Failure, run_attempt
from deferred_django.backends.base import ClaimedTask
from deferred_django.context import TaskContext
from deferred_django.current import CurrentTask, UserContext
from deferred_django.event_loop import EventLoop
from deferred_django.hold import Abandoned, Hold, LimitedAttempt
from deferred_django.queue import MAX_CRASHES, UNREADABLE_TASK, Queue
from deferred_django.retry import RetryDecision
from deferred_django.signals import (
    EventSignal,
    sender_of,
    task_died,
    task_retried,
    task_started,
    task_succeeded,
)
from deferred_django.task import DeferredTask, resolve_task
from deferred_django.time_limit import TimeLimit

T = TypeVar("T")

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds between the tries to write an outcome, doubling."""


class Outcome(enum.Enum):
    """What became of a claim."""

    SUCCEEDED = "succeeded"
    RETRIED = "retried"
    DIED = "died"
    PUT_BACK = "put back"
    """Its name is not known here."""
    NOT_STARTED = "not started"
    """The start could not be recorded; the claim is let go."""


def execute(
    queue: Queue,
    claim: ClaimedTask,
    *,
    hold: Hold | None = None,
    loop: EventLoop | None = None,
    check_connections: bool = False,
    resolve: Callable[[str], DeferredTask[..., object]] = resolve_task,
) -> Outcome:
    """Run one attempt of a claimed task in this thread and write what came of it.

    ``async def`` tasks run on ``loop``, or without one on a loop that lives for this call only.
    ``check_connections`` says that the thread does nothing but run tasks (see
    :mod:`deferred_django.connections`), ``resolve`` finds a task by its name. Raises ``OSError``
    only without a ``hold`` that has a ``stopping`` event, and :class:`Abandoned` if the claim was
    taken away.
    """
    hold = hold or Hold()
    hold.claim = claim
    hold.settling = False
    hold.limited = None
    try:
        context = TaskContext.from_bytes(claim.context)
    except Exception as error:  # whatever the bytes do to the decoder: no worker can run them
        if claim.crashes >= MAX_CRASHES:
            return _end_lost(queue, claim, None, hold)
        return _end_unreadable(queue, claim, error, hold)
    if claim.crashes >= MAX_CRASHES:
        return _end_lost(queue, claim, context, hold)
    try:
        task = resolve(context.task)
    except Exception as error:  # the import of a project's module may raise anything
        return _end_unknown(queue, claim, context, error, hold)
    attempt = context.attempts + 1
    current = CurrentTask(
        claim.id,
        context.task,
        attempt,
        RetryDecision(task.retry_policy, attempt),
        claim.queue,
        UserContext(context.user_context) if context.user_context else None,
    )
    limit = None
    if task.timeout is not None:
        limit = TimeLimit(task.timeout, hold.on_stuck, hold.board, claim.id)
        hold.limited = LimitedAttempt(task, context, current, limit)
    if ticks.MARK in claim.id:
        ticks.await_note(queue.backend, claim.id)
    try:
        with hold:
            queue.start(claim)
    except OSError as error:
        logs.store_error("Recording the start of a task", error)
        with hold.ending:
            queue.release(claim)
        return Outcome.NOT_STARTED
    hold.check()
    if task_started.is_heard:
        latency = max(time.time() - claim.publish_at, 0.0)
        _tell(task_started, task, claim, context.task, attempt=attempt, latency=latency)
    began = time.monotonic()
    hold.begun = (current, began)
    failure = run_attempt(
        task,
        context,
        current,
        loop=loop,
        check_connections=check_connections,
        limit=limit,
        middleware=queue.features.perform_middleware,
    )
    duration = time.monotonic() - began
    hold.settling = True
    if failure is None:
        try:  # the hot path: the store works
            with hold.ending:
                queue.complete(claim)
        except OSError as error:
            _settle(hold, functools.partial(_complete, queue, claim, hold), error)
        if task_succeeded.is_heard:
            _tell(task_succeeded, task, claim, context.task, attempt=attempt, duration=duration)
        return Outcome.SUCCEEDED
    return end_failed(queue, claim, context, task, failure, duration, hold)


def _tell(
    signal: EventSignal, sender: object, claim: ClaimedTask, task: str, **arguments: Any
) -> None:
    connections.before_receivers()
    signal.notify(sender, task_id=claim.id, task=task, queue=claim.queue, **arguments)


def _complete(queue: Queue, claim: ClaimedTask, hold: Hold) -> None:
    with hold.ending:
        queue.complete(claim)


def _settle(hold: Hold, write: Callable[[], T], failed: Exception | None = None) -> T:
    """Write an outcome; if that fails, keep it and try again. The task is not run again.

    ``failed`` is what the first try has already failed with. Returns what ``write`` returns.
    """
    pause = FIRST_PAUSE
    while True:
        if failed is None:
            try:
                return write()
            except Abandoned:
                raise
            except Exception as error:  # of the store; any other must not lose the outcome either
                failed = error
        logs.store_error("Recording the outcome of a task", failed)
        hold.pause(pause, failed)
        pause = min(pause * 2, LONGEST_PAUSE)
        failed = None


def end_failed(
    queue: Queue,
    claim: ClaimedTask,
    context: TaskContext,
    task: DeferredTask[..., object],
    failure: Failure,
    duration: float,
    hold: Hold,
) -> Outcome:
    """Write and log what comes of a failed attempt. Errors as those of :func:`execute`."""
    error, wait = failure
    _settle(hold, lambda: queue.fail(claim, context, error, wait, guard=hold.ending))
    attempt = context.attempts + 1
    if wait is None:
        _tell_died(queue, claim, context.task, attempt, error, duration, task)
        return Outcome.DIED
    if task_retried.is_heard:
        _tell(
            task_retried,
            task,
            claim,
            context.task,
            attempt=attempt,
            exception=error,
            wait=wait,
            duration=duration,
        )
    return Outcome.RETRIED


def _end_lost(queue: Queue, claim: ClaimedTask, context: TaskContext | None, hold: Hold) -> Outcome:
    reason, attempts = _settle(hold, lambda: queue.lost(claim, context, guard=hold.ending))
    name = UNREADABLE_TASK if context is None else context.task
    _tell_died(queue, claim, name, attempts, reason)
    return Outcome.DIED


def _end_unreadable(queue: Queue, claim: ClaimedTask, error: Exception, hold: Hold) -> Outcome:
    _settle(hold, lambda: queue.unreadable(claim, error, guard=hold.ending))
    _tell_died(queue, claim, UNREADABLE_TASK, 0, error)
    return Outcome.DIED


def _end_unknown(
    queue: Queue, claim: ClaimedTask, context: TaskContext, error: Exception, hold: Hold
) -> Outcome:
    reason = _settle(hold, lambda: queue.unknown_task(claim, context, error, guard=hold.ending))
    if reason is not None:
        _tell_died(queue, claim, context.task, context.attempts, reason)
        return Outcome.DIED
    logs.task_unknown(context.task, error)
    return Outcome.PUT_BACK


def _tell_died(
    queue: Queue,
    claim: ClaimedTask,
    name: str,
    attempts: int,
    error: BaseException,
    duration: float | None = None,
    task: DeferredTask[..., object] | None = None,
) -> None:
    """``duration`` and ``task`` are there if it died of an attempt that was made just now."""
    if task_died.is_heard:
        _tell(
            task_died,
            sender_of(name) if task is None else task,
            claim,
            name,
            attempt=attempts,
            exception=error,
            duration=duration,
            kept=queue.backend.keeps_tasks,
        )
