"""Database connections of threads that run tasks one after another.

Django closes or checks connections at the borders of a request; a worker has none. Here each task
is such a border, with one difference: a healthy connection is kept, also with ``CONN_MAX_AGE=0``,
until its thread has been idle for :data:`IDLE_SECONDS`.

A thread that never opened a connection pays for none of this: :func:`opened_here` is then false,
and nothing else is called. Connections of async tasks live in the one thread that asgiref runs
thread-sensitive code in; :func:`before_async_task` and :func:`after_async_task` work there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

logger = logging.getLogger("deferred_django")

IDLE_SECONDS = 5.0
"""How long a thread keeps its connections while it has nothing to do."""


class _Opened(threading.local):
    here = False


_opened = _Opened()
# Threads with a connection that are not ours to check (asgiref's): whether there may be one.
_opened_for_async = False
_checked_threads: set[int] = set()


def _on_connection_created(**kwargs: Any) -> None:
    global _opened_for_async
    _opened.here = True
    if threading.get_ident() not in _checked_threads:
        _opened_for_async = True


connection_created.connect(
    _on_connection_created, dispatch_uid="deferred_django.connections", weak=False
)


def opened_here() -> bool:
    """Whether this thread has opened a connection since :func:`close_here`."""
    return _opened.here


def opened_for_async() -> bool:
    """Whether a thread other than those that :func:`watch_thread` named opened a connection."""
    return _opened_for_async


def watch_thread() -> None:
    """This thread runs tasks and checks its connections itself."""
    _checked_threads.add(threading.get_ident())


def unwatch_thread() -> None:
    """This thread ends: close its connections."""
    _checked_threads.discard(threading.get_ident())
    close_here()


def before_task() -> None:
    """Make this thread's connections ready for a task, as the start of a request does.

    A connection that is open is asked whether it still works when the task first uses it.
    """
    if not _opened.here:
        return
    for connection in _initialized():
        _forget_debugging(connection)
        if connection.connection is not None:
            _quietly(_close_leftovers, connection)
            # Django's own health check, made lazily by the first query.
            connection.health_check_enabled = True  # type: ignore[attr-defined]
            connection.health_check_done = False  # type: ignore[attr-defined]


def after_task() -> None:
    """Clean up this thread's connections, as the end of a request does.

    Closed are those with a transaction left open or autocommit left off, those that had an error
    and no longer work, and those older than a ``CONN_MAX_AGE`` above 0.
    """
    if not _opened.here:
        return
    for connection in _initialized():
        _forget_debugging(connection)
        if connection.connection is not None:
            _quietly(_close_leftovers, connection)
            _quietly(_close_broken, connection)


def before_receivers() -> None:
    """:func:`before_task` for receivers of signals, in a thread that :func:`watch_thread` named."""
    if _opened.here and threading.get_ident() in _checked_threads:
        before_task()


def close_here() -> None:
    """Close this thread's connections; they open again when they are needed."""
    if not _opened.here:
        return
    for connection in _initialized():
        _quietly(_close, connection)
    _opened.here = False


async def before_async_task() -> None:
    """:func:`before_task` for the thread that async tasks' database code runs in."""
    if _opened_for_async:
        await sync_to_async(before_task)()


async def after_async_task() -> None:
    """:func:`after_task` for that thread."""
    if _opened_for_async:
        await sync_to_async(after_task)()


async def close_for_async() -> None:
    """:func:`close_here` for that thread."""
    global _opened_for_async
    if _opened_for_async:
        _opened_for_async = False
        await sync_to_async(close_here)()


def close_before_fork() -> None:
    """Close this thread's connections: two processes must never talk on one of them."""
    for connection in _initialized():
        _quietly(_close, connection)


def _initialized() -> list[BaseDatabaseWrapper]:
    try:
        return list(connections.all(initialized_only=True))
    except ImproperlyConfigured:  # a project without a usable DATABASES setting
        return []


def _forget_debugging(connection: BaseDatabaseWrapper) -> None:
    connection.queries_log.clear()
    connection.force_debug_cursor = False


def _close_leftovers(connection: BaseDatabaseWrapper) -> None:
    if connection.in_atomic_block or connection.closed_in_transaction:
        _close(connection)
    elif connection.get_autocommit() != connection.settings_dict["AUTOCOMMIT"] or (
        connection.get_autocommit() and _is_in_transaction(connection.connection)
    ):
        connection.close()


def _is_in_transaction(driver: Any) -> bool:
    """Whether a transaction is open that Django knows nothing of: by a ``BEGIN`` of the task's own.

    Asks the driver, not the server; of drivers that do not know it is not known.
    """
    status = getattr(getattr(driver, "info", None), "transaction_status", None)
    if status is not None:  # psycopg: 0 is idle
        return bool(status)
    return bool(getattr(driver, "in_transaction", False))  # sqlite3


def _close_broken(connection: BaseDatabaseWrapper) -> None:
    if connection.connection is None:
        return
    if connection.errors_occurred:
        if not connection.is_usable():
            connection.close()
            return
        connection.errors_occurred = False
    max_age = connection.settings_dict["CONN_MAX_AGE"]
    if max_age and connection.close_at is not None and time.monotonic() >= connection.close_at:
        connection.close()


def _close(connection: BaseDatabaseWrapper) -> None:
    # Inside an atomic block Django would keep the closed connection, unusable, until the end of
    # the block, which does not come any more.
    connection.in_atomic_block = False
    connection.closed_in_transaction = False
    connection.close()


def _quietly(
    action: Callable[[BaseDatabaseWrapper], None], connection: BaseDatabaseWrapper
) -> None:
    try:
        action(connection)
    except Exception:  # a driver may raise anything on a broken connection; the next task matters
        logger.warning(
            "Database connection %r could not be cleaned up; it is dropped.",
            connection.alias,
            exc_info=True,
        )
        connection.connection = None
        connection.in_atomic_block = connection.closed_in_transaction = False


__all__ = [
    "IDLE_SECONDS",
    "after_async_task",
    "after_task",
    "before_async_task",
    "before_receivers",
    "before_task",
    "close_before_fork",
    "close_for_async",
    "close_here",
    "opened_for_async",
    "opened_here",
    "unwatch_thread",
    "watch_thread",
]
