"""Taking back what was enqueued and has not started."""

from __future__ import annotations

from asgiref.sync import sync_to_async

from deferred_django import registry
from deferred_django.on_commit import cancel_held


def cancel(task_id: str) -> bool:
    """Have a task that was enqueued not run; ``task_id`` is what ``enqueue`` returned.

    ``True`` if it was removed: it is due or delayed, waits for its next attempt, or is held for
    the commit of a transaction of this thread. It will not run, and that is durable on return,
    whatever ``FSYNC_FREQUENCY`` says. It is part of no transaction: a rollback does not bring the
    task back.

    ``False`` if there is nothing to remove: the task has finished, is dead or unknown, was
    cancelled already, is held by another thread's transaction, or a worker has it in hand. Then
    nothing was changed.

    Raises ``OSError`` if the store cannot be read or written. The task may run then.
    """
    if not isinstance(task_id, str):
        raise TypeError(f"task_id must be a str, as enqueue returns it, not {task_id!r:.100}")
    return cancel_held(task_id) or registry.get_queue().cancel(task_id)


async def acancel(task_id: str) -> bool:
    """:func:`cancel` without holding up the event loop.

    It runs in the thread that ``sync_to_async`` gives to the ORM here, as ``aenqueue`` does.
    """
    return await sync_to_async(cancel)(task_id)
