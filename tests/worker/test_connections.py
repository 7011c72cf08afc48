"""Database connections between tasks (C54)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from sqlite3 import ProgrammingError

import pytest
from django.db import OperationalError, connection
from django.db.backends.signals import connection_created
from django.db.backends.sqlite3.base import DatabaseWrapper

from deferred_django import connections
from deferred_django.queue import Queue
from tests.support import wait_until
from tests.worker import database_tasks, tasks
from tests.worker.fakes import MemoryBackend, Running, add

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def opened() -> Iterator[list[int]]:
    """The threads in which a connection was opened, one entry for each time."""
    threads: list[int] = []

    def note(**kwargs: object) -> None:
        threads.append(threading.get_ident())

    connection_created.connect(note)
    yield threads
    connection_created.disconnect(note)


@pytest.fixture
def honest_sqlite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Django takes every SQLite connection for usable; this one is asked, as on PostgreSQL."""

    def is_usable(self: DatabaseWrapper) -> bool:
        try:
            self.connection.execute("SELECT 1")
        except ProgrammingError:
            return False
        return True

    monkeypatch.setattr(DatabaseWrapper, "is_usable", is_usable)


@pytest.mark.usefixtures("honest_sqlite")
@pytest.mark.parametrize(
    ("habit", "is_async"),
    [
        *((habit, False) for habit in sorted(database_tasks.HABITS)),
        *((habit, True) for habit in sorted(database_tasks.HABITS)),
    ],
)
def test_what_a_task_leaves_behind_does_not_reach_the_next(
    queue: Queue, backend: MemoryBackend, habit: str, is_async: bool
) -> None:
    good = database_tasks.async_good if is_async else database_tasks.good
    bad = database_tasks.async_bad if is_async else database_tasks.bad
    with Running(queue, threads=1):
        for number in range(1, 4):
            bad_id = add(backend, bad, habit)
            add(backend, good)
            wait_until(lambda number=number: len(tasks.ran) == number)  # type: ignore[misc]
    assert tasks.ran == [(0, True, False, 0, False)] * 3
    # What raised has failed, and only that.
    failed = habit in ("break_block", "fail_in_hook")
    assert len(backend.tasks) == (3 if failed else 0)
    assert (bad_id in backend.tasks) is failed


def test_a_healthy_connection_is_kept_until_the_thread_is_idle(
    queue: Queue,
    backend: MemoryBackend,
    opened: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also with CONN_MAX_AGE=0, which is what the tests' settings have."""
    assert connection.settings_dict["CONN_MAX_AGE"] == 0
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.3)
    closed = threading.Event()
    close_here = connections.close_here

    def close_and_tell() -> None:
        close_here()
        closed.set()

    with Running(queue, threads=1):
        for number in range(1, 11):
            add(backend, database_tasks.good)
            wait_until(lambda number=number: len(tasks.ran) == number)  # type: ignore[misc]
        assert len(opened) == 1
        monkeypatch.setattr(connections, "close_here", close_and_tell)
        wait_until(closed.is_set)
        add(backend, database_tasks.good)
        wait_until(lambda: len(tasks.ran) == 11)
        assert len(opened) == 2


def test_the_connection_behind_async_tasks_is_kept_and_closed_when_idle(
    queue: Queue, backend: MemoryBackend, opened: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "IDLE_SECONDS", 0.1)
    monkeypatch.setattr("deferred_django.housekeeping.PERIOD_SECONDS", 0.1)
    with Running(queue, threads=1):
        for number in range(1, 4):
            add(backend, database_tasks.async_good)
            wait_until(lambda number=number: len(tasks.ran) == number)  # type: ignore[misc]
        wait_until(lambda: not connections.opened_for_async())
        before = len(opened)
        add(backend, database_tasks.async_good)
        wait_until(lambda: len(tasks.ran) == 4)
    assert len(opened) == before + 1


def test_a_database_that_is_down_fails_tasks_and_nothing_else(
    queue: Queue, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = DatabaseWrapper.get_new_connection
    down = True

    def refuse(self: DatabaseWrapper, *args: object) -> object:
        if down:
            raise OperationalError("connection refused")
        return connect(self, *args)

    monkeypatch.setattr(DatabaseWrapper, "get_new_connection", refuse)
    with Running(queue, threads=1):
        failing = add(backend, database_tasks.good)
        wait_until(lambda: failing in backend.calls.of("reschedule_task"))
        down = False
        add(backend, database_tasks.good)
        wait_until(lambda: len(tasks.ran) == 1)
    assert list(backend.tasks) == [failing]


def test_a_thread_without_connections_pays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_initialized", lambda: pytest.fail("looked"))

    def check() -> None:
        connections.before_task()
        connections.after_task()
        connections.close_here()

    thread = threading.Thread(target=check)
    thread.start()
    thread.join()
