"""Holding an enqueue until the transaction around it commits.

Which transaction that is: the default alias's if that is in an ``atomic`` block, else that of
the only alias that is in one. Only connections that this thread has used already are looked at,
so outside an atomic block nothing of a database is touched.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db import DEFAULT_DB_ALIAS, connections

from deferred_django.context import TaskContext
from deferred_django.options import EnqueueOptions

if TYPE_CHECKING:
    from django.db.backends.base.base import BaseDatabaseWrapper

    from deferred_django.queue import Queue

logger = logging.getLogger("deferred_django")


@dataclass(slots=True, eq=False)
class EnqueueOnCommit:
    """One enqueue, ready to be written: the hook that a transaction calls after its commit."""

    target: Queue
    """The queue of the settings at the time of the call."""
    context: TaskContext
    task_id: str
    publish_at: float | None
    queue: str
    priority: int
    cancelled: bool = False
    """Nothing is to be done. The hook stays: who counts the hooks of a transaction goes by their
    positions."""

    def write(self) -> None:
        """Enqueue now. Raises what the queue raises."""
        if self.cancelled:
            return
        self.target.enqueue(
            self.context,
            task_id=self.task_id,
            publish_at=self.publish_at,
            queue=self.queue,
            priority=self.priority,
        )

    def cancel(self, task_id: str) -> bool:
        """Do not enqueue the task; ``False`` if it is another's, or was cancelled before."""
        if self.cancelled or self.task_id != task_id:
            return False
        self.cancelled = True
        return True

    def __call__(self) -> None:
        """Enqueue after the commit.

        The transaction is over, so an error can undo nothing and must not keep other hooks from
        running: it is logged with the task's id.
        """
        try:
            self.write()
        except Exception:
            logger.error(
                "task %s (%s) could not be enqueued after the commit and will not run",
                self.task_id,
                self.context.task,
                exc_info=True,
            )


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
    hook = EnqueueOnCommit(target, context, task_id, publish_at, options.queue, options.priority)
    transaction.on_commit(hook, robust=True)
    return task_id


def cancel_held(task_id: str) -> bool:
    """Drop what this thread's open transactions hold under this id; whether there was such."""
    for connection in _in_atomic_block():
        hooks: list[Any] = connection.run_on_commit  # triples; the stubs say pairs
        for _, hook, _ in hooks:
            if isinstance(hook, EnqueueOnCommit) and hook.cancel(task_id):
                return True
    return False
