"""Enqueueing many calls with one write."""

from __future__ import annotations

from collections.abc import Iterable

from asgiref.sync import sync_to_async

from deferred_django import registry
from deferred_django.backends.base import MAX_RECORD_BYTES
from deferred_django.on_commit import enqueue_or_hold_many
from deferred_django.queue import Queue
from deferred_django.queue_values import NewCall
from deferred_django.task import prepare
from deferred_django.task_call import TaskCall

_Prepared = list[tuple[NewCall, bool | str]]


def enqueue_many(calls: Iterable[TaskCall]) -> list[str]:
    """Enqueue calls of tasks together; return their ids in the order of the calls.

    ::

        enqueue_many(send.call(user.pk) for user in users)
        enqueue_many([charge.using(queue="money").call(7), send.using(delay=60).call(7)])

    It is one write, and one fsync where ``FSYNC_FREQUENCY`` is 0: all of them are enqueued, or
    after an error none. Everything is checked before anything is written. If the process dies
    before this returns, some of them may be there. Those that wait for the commit of a transaction
    are held together, and written together after it.

    Raises what ``enqueue`` raises (the exception has a note that says for which call), and
    ``ValueError`` for more than 64 MiB in all. Where ``BACKPRESSURE`` is on it waits once, and then
    enqueues all of them.
    """
    prepared, ids = _prepare(calls)
    queue = registry.get_queue()
    if queue.gate is not None and prepared:
        queue.gate.wait()
    _enqueue(queue, prepared)
    return ids


async def aenqueue_many(calls: Iterable[TaskCall]) -> list[str]:
    """:func:`enqueue_many` without holding up the event loop while the store is written.

    The arguments are encoded at once; the rest is as for ``aenqueue``.
    """
    prepared, ids = _prepare(calls)
    queue = registry.get_queue()
    if queue.gate is not None and prepared:
        await queue.gate.await_room()
    await sync_to_async(_enqueue)(queue, prepared)
    return ids


def _prepare(calls: Iterable[TaskCall]) -> tuple[_Prepared, list[str]]:
    prepared: _Prepared = []
    for number, call in enumerate(calls):
        if not isinstance(call, TaskCall):
            raise TypeError(
                f"enqueue_many takes calls of tasks, such as send.call(7), not {call!r:.100} "
                f"(number {number})"
            )
        try:
            _, context, task_id, publish_at, options = prepare(
                call.task, call.options, call.args, dict(call.kwargs)
            )
        except Exception as error:
            error.add_note(f"In call number {number} (from 0) of enqueue_many.")
            raise
        new = NewCall(context, task_id, publish_at, options.queue, options.priority)
        prepared.append((new, options.on_commit))
    return prepared, [new.task_id for new, _ in prepared]


def _enqueue(queue: Queue, prepared: _Prepared) -> None:
    enqueue_or_hold_many(queue, prepared, most_bytes=MAX_RECORD_BYTES)
