"""Holding an enqueue until the transaction around it commits.

Which transaction that is: the default alias's if that is in an ``atomic`` block, else that of
the only alias that is in one. Only connections that this thread has used already are looked at,
so outside an atomic block nothing of a database is touched.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from asgiref.sync import sync_to_async
from django.db import DEFAULT_DB_ALIAS, connections

from deferred_django.context import TaskContext
from deferred_django.options import EnqueueOptions
from deferred_django.queue_values import NewCall

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from deferred_django.queue import Queue

logger = logging.getLogger("deferred_django")


class EnqueueOnCommit:
    """Calls that one enqueue holds: the hook that a transaction calls after its commit."""

    __slots__ = ("calls", "target")

    def __init__(self, target: Queue, calls: list[NewCall]) -> None:
        self.target = target
        """The queue of the settings at the time of the call."""
        self.calls = calls
        """What was not cancelled. Where nothing is left the hook stays: who counts the hooks of a
        transaction goes by their positions."""

    def write(self) -> None:
        """Enqueue now. Raises what the queue raises."""
        if len(self.calls) == 1:
            context, task_id, publish_at, queue, priority = self.calls[0]
            self.target.enqueue(
                context, task_id=task_id, publish_at=publish_at, queue=queue, priority=priority
            )
        elif self.calls:
            self.target.enqueue_many(self.calls)

    def __call__(self) -> None:
        """Enqueue after the commit.

        The transaction is over, so an error can undo nothing and must not keep other hooks from
        running: it is logged with the tasks' ids.
        """
        try:
            self.write()
        except Exception:
            for call in self.calls:
                logger.error(
                    "task %s (%s) could not be enqueued after the commit and will not run",
                    call.task_id,
                    call.context.task,
                    exc_info=call is self.calls[0],
                )

    def cancel(self, task_id: str) -> bool:
        """Do not enqueue the task; ``False`` if it is not among the calls."""
        left = [call for call in self.calls if call.task_id != task_id]
        found = len(left) < len(self.calls)
        self.calls = left
        return found


def current_transaction(on_commit: bool | str) -> BaseDatabaseWrapper | None:
    """The connection whose commit an enqueue in this thread waits for, if there is one.

    ``on_commit`` is ``True`` for the rule of this module, the alias to look at, or ``False`` for
    none. Raises ``ValueError`` if several aliases, the default not among them, are in an atomic
    block, or if there is no such alias.
    """
    if on_commit is False:
        return None
    in_atomic = _in_atomic_block()
    if on_commit is not True and on_commit not in connections.settings:
        raise ValueError(f"on_commit={on_commit!r}: there is no such database alias")
    if not in_atomic:
        return None
    wanted = DEFAULT_DB_ALIAS if on_commit is True else on_commit
    for connection in in_atomic:
        if connection.alias == wanted:
            return connection
    if on_commit is not True:
        return None
    if len(in_atomic) > 1:
        aliases = ", ".join(sorted(connection.alias for connection in in_atomic))
        raise ValueError(
            f"several databases are in an atomic block ({aliases}): say which one to wait for, "
            "as in using(on_commit='alias')"
        )
    return in_atomic[0]


def _in_atomic_block() -> list[BaseDatabaseWrapper]:
    # connections.all(initialized_only=True) would look each of them up twice, which costs more
    # than all the rest of preparing an enqueue.
    used = connections._connections  # type: ignore[attr-defined]
    found = []
    for alias in connections.settings:
        connection = getattr(used, alias, None)
        if connection is not None and connection.in_atomic_block:
            found.append(connection)
    return found


Prepared: TypeAlias = "tuple[Queue, TaskContext, str, float | None, EnqueueOptions]"
"""One call, checked and encoded: what :func:`enqueue_or_hold` takes."""


def enqueue_or_hold(
    target: Queue,
    context: TaskContext,
    task_id: str,
    publish_at: float | None,
    options: EnqueueOptions,
) -> str:
    """Enqueue now, or at the commit of the transaction around the call; return the id.

    What is held is dropped by a rollback of its block or savepoint.
    """
    transaction = current_transaction(options.on_commit)
    if transaction is None:
        return target.enqueue(
            context,
            task_id=task_id,
            publish_at=publish_at,
            queue=options.queue,
            priority=options.priority,
        )
    context.to_bytes()  # an oversized record is the caller's error, not the commit's
    call = NewCall(context, task_id, publish_at, options.queue, options.priority)
    transaction.on_commit(EnqueueOnCommit(target, [call]), robust=True)
    return task_id


def enqueue_with_room(prepared: Prepared) -> str:
    """:func:`enqueue_or_hold` once the queue's gate is open; a commit never waits for that."""
    gate = prepared[0].gate
    if gate is not None:
        gate.wait()
    return enqueue_or_hold(*prepared)


async def aenqueue_with_room(prepared: Prepared) -> str:
    """The same on an event loop, in the thread whose database connections its code uses."""
    gate = prepared[0].gate
    if gate is not None:
        await gate.await_room()
    return await sync_to_async(enqueue_or_hold)(*prepared)


def enqueue_or_hold_many(
    target: Queue, calls: Iterable[tuple[NewCall, bool | str]], *, most_bytes: int
) -> None:
    """The same for several calls, each with its ``on_commit``, by one write for each transaction.

    Everything is looked at before anything is written; what is held, is held after what is not was
    written. Raises ``ValueError`` for more than ``most_bytes`` that one write would have to take.
    """
    transactions: dict[bool | str, BaseDatabaseWrapper | None] = {}
    parts: dict[BaseDatabaseWrapper | None, list[NewCall]] = {}
    for call, on_commit in calls:
        if on_commit not in transactions:
            transactions[on_commit] = current_transaction(on_commit)
        parts.setdefault(transactions[on_commit], []).append(call)
    for transaction, part in parts.items():
        size = sum(len(call.context.to_bytes()) for call in part) if transaction else 0
        if size > most_bytes:
            raise ValueError(
                f"{len(part):,} tasks of {size:,} bytes are more than one write takes, which is "
                f"{most_bytes:,} bytes: enqueue them in several parts"
            )
    now = parts.pop(None, [])
    if now:
        target.enqueue_many(now)
    for transaction, part in parts.items():
        assert transaction is not None
        transaction.on_commit(EnqueueOnCommit(target, part), robust=True)


def cancel_held(task_id: str) -> bool:
    """Drop what this thread's open transactions hold under this id; whether there was such."""
    for connection in _in_atomic_block():
        hooks: list[Any] = connection.run_on_commit  # triples; the stubs say pairs
        for _, hook, _ in hooks:
            if isinstance(hook, EnqueueOnCommit) and hook.cancel(task_id):
                return True
    return False
