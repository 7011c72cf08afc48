"""Tasks that use the database, well and badly."""

from __future__ import annotations

from asgiref.sync import sync_to_async
from django.db import IntegrityError, connection, transaction

from deferred_django import deferred
from tests.testapp.models import Note
from tests.worker import tasks


def use() -> None:
    """Use the connection and note how it was found."""
    found = (
        Note.objects.count(),
        connection.get_autocommit(),
        connection.in_atomic_block,
        len(connection.queries_log),
        connection.force_debug_cursor,
    )
    tasks.ran.append(found)


def end_session() -> None:
    Note.objects.count()
    connection.connection.close()  # as if the server had ended it


def leave_block() -> None:
    transaction.atomic().__enter__()
    Note.objects.create(text="never committed")


def close_in_block() -> None:
    transaction.atomic().__enter__()
    Note.objects.count()
    connection.close()


def leave_autocommit_off() -> None:
    transaction.set_autocommit(False)
    Note.objects.create(text="never committed")


def leave_raw_transaction() -> None:
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
    Note.objects.create(text="never committed")


def break_block() -> None:
    with transaction.atomic():
        raise IntegrityError


def leave_debugging_on() -> None:
    connection.force_debug_cursor = True
    Note.objects.count()


def fail_in_hook() -> None:
    with transaction.atomic():
        transaction.on_commit(lambda: [][1])


HABITS = {
    function.__name__: function
    for function in (
        end_session,
        leave_block,
        close_in_block,
        leave_autocommit_off,
        leave_raw_transaction,
        break_block,
        leave_debugging_on,
        fail_in_hook,
    )
}


@deferred
def good() -> None:
    use()


@deferred
def bad(habit: str) -> None:
    HABITS[habit]()


@deferred
async def async_good() -> None:
    await sync_to_async(use)()


@deferred
async def async_bad(habit: str) -> None:
    await sync_to_async(HABITS[habit])()
