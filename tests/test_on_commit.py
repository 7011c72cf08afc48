"""An enqueue waits for the transaction around it."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, connections, transaction

from deferred_django import context as contexts
from deferred_django import on_commit, registry
from deferred_django.on_commit import EnqueueOnCommit, current_transaction
from deferred_django.task import deferred
from tests.stub_queue import StubQueue
from tests.support import run_python
from tests.testapp.models import Note

both = pytest.mark.django_db(transaction=True, databases=["default", "other"])


@deferred
def work(number: int) -> None: ...


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> StubQueue:
    stub = StubQueue()
    monkeypatch.setattr(registry, "get_queue", lambda: stub)
    return stub


def ran(queue: StubQueue) -> list[int]:
    return [args[0] for args, _ in queue.arguments]


@both
def test_a_commit_enqueues_under_the_id_that_was_returned(queue: StubQueue) -> None:
    """C53 (c)."""
    with transaction.atomic():
        Note.objects.create(text="a")
        task_id = work.enqueue(1)
        assert queue.calls == []
    assert [call.task_id for call in queue.calls] == [task_id]


@both
def test_an_error_drops_it(queue: StubQueue) -> None:
    """C53 (a)."""
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        work.enqueue(1)
        raise ZeroDivisionError
    assert queue.calls == []


@both
def test_a_savepoint_drops_its_own_only(queue: StubQueue) -> None:
    """C53 (b)."""
    with transaction.atomic():
        work.enqueue(1)
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            work.enqueue(2)
            raise ZeroDivisionError
        with transaction.atomic():
            work.enqueue(3)
    assert ran(queue) == [1, 3]


@both
def test_an_error_at_the_commit_is_logged_and_other_hooks_run(
    queue: StubQueue, caplog: pytest.LogCaptureFixture
) -> None:
    """C53 (d)."""
    seen: list[str] = []
    with transaction.atomic():
        transaction.on_commit(lambda: seen.append("before"))
        task_id = work.enqueue(1)
        transaction.on_commit(lambda: seen.append("after"))
        queue.error = OSError(28, "No space left on device")
    assert seen == ["before", "after"]
    [record] = [record for record in caplog.records if record.name == "deferred_django"]
    assert record.levelno == logging.ERROR
    assert task_id in record.getMessage()
    assert record.exc_info


@both
def test_it_follows_the_only_alias_that_is_in_a_transaction(queue: StubQueue) -> None:
    """C53 (e)."""
    with transaction.atomic(using="other"):
        work.enqueue(1)
        assert queue.calls == []
    assert ran(queue) == [1]


@both
def test_the_default_alias_comes_first(queue: StubQueue) -> None:
    with transaction.atomic(using="other"):
        with transaction.atomic():
            work.enqueue(1)
        assert ran(queue) == [1]


@both
def test_a_named_alias_counts(queue: StubQueue) -> None:
    with transaction.atomic():
        with transaction.atomic(using="other"):
            work.using(on_commit="other").enqueue(1)
            assert queue.calls == []
        assert ran(queue) == [1]
        work.using(on_commit="other").enqueue(2)
        assert ran(queue) == [1, 2]
        with pytest.raises(ValueError, match="no such database alias"):
            work.using(on_commit="nowhere").enqueue(3)
    assert ran(queue) == [1, 2]


@both
def test_several_without_the_default_are_refused(
    queue: StubQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    third = connections.create_connection("other")
    third.alias = "third"
    found = [connections["other"], third]
    monkeypatch.setattr(on_commit, "_in_atomic_block", lambda: found)
    with pytest.raises(ValueError, match=r"\(other, third\)"):
        work.enqueue(1)
    assert queue.calls == []


@both
def test_without_waiting(queue: StubQueue) -> None:
    with transaction.atomic():
        work.using(on_commit=False).enqueue(1)
        assert ran(queue) == [1]


@both
def test_outside_an_atomic_block_it_is_at_once(queue: StubQueue) -> None:
    work.enqueue(1)
    transaction.set_autocommit(False)
    try:
        work.enqueue(2)
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    assert ran(queue) == [1, 2]


@both
def test_async_code_waits_for_the_transaction_of_its_thread(queue: StubQueue) -> None:
    with transaction.atomic():
        task_id = async_to_sync(work.aenqueue)(1)
        assert queue.calls == []
    assert [call.task_id for call in queue.calls] == [task_id]
    asyncio.run(work.aenqueue(2))
    assert ran(queue) == [1, 2]


@pytest.mark.django_db
def test_what_is_held_can_be_found_and_written(queue: StubQueue) -> None:
    task_id = work.using(queue="mail", priority=3).enqueue(1)
    assert queue.calls == []
    hooks = [hook for _, hook, *_ in connection.run_on_commit]
    [held] = [hook for hook in hooks if isinstance(hook, EnqueueOnCommit)]
    assert [call.task_id for call in held.calls] == [task_id]
    held.write()
    assert queue.calls[0].task_id == task_id
    assert (queue.calls[0].queue, queue.calls[0].priority) == ("mail", 3)
    assert current_transaction(True) is connections["default"]
    assert current_transaction(False) is None


@both
def test_errors_of_the_call_come_inside_the_block(
    queue: StubQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contexts, "MAX_RECORD_BYTES", 50)
    with transaction.atomic(), pytest.raises(ValueError, match="a record holds 50 at most"):
        work.enqueue(1)
    assert queue.calls == []


@both
def test_arguments_are_those_of_the_call_not_of_the_commit(queue: StubQueue) -> None:
    changing = [1]
    with transaction.atomic():
        work.enqueue(changing)  # type: ignore[arg-type]
        changing.append(2)
    assert queue.arguments == [(([1],), {})]


def test_outside_an_atomic_block_no_database_is_touched() -> None:
    """A project without databases, and one with a database that cannot even be set up."""
    for more in ("", "'default': {'ENGINE': 'django.db.backends.sqlite3'}, 'x': {'ENGINE': 'no'}"):
        run_python(
            f"""
            import sys, types
            from django.conf import settings
            settings.configure(INSTALLED_APPS=["deferred_django"], DATABASES={{{more}}})
            import django
            django.setup()
            from django.db import connections
            from deferred_django import registry
            from tests.stub_queue import StubQueue

            stub = StubQueue()
            registry.get_queue = lambda: stub
            module = types.ModuleType("some_tasks")
            sys.modules["some_tasks"] = module
            exec("from deferred_django import deferred\\n@deferred\\ndef t(): pass", vars(module))
            before = connections.all(initialized_only=True)  # Django's own, without a connection
            module.t.enqueue()
            assert len(stub.calls) == 1
            assert connections.all(initialized_only=True) == before
            assert all(connection.connection is None for connection in before)
            """
        )


@both
def test_only_connections_of_this_thread_are_looked_at(queue: StubQueue) -> None:
    def in_a_new_thread() -> None:
        before = connections.all(initialized_only=True)
        work.enqueue(1)
        seen.append((before, connections.all(initialized_only=True), ran(queue)))

    seen: list[object] = []
    with transaction.atomic(), transaction.atomic(using="other"):
        thread = threading.Thread(target=in_a_new_thread)
        thread.start()
        thread.join()
    assert seen == [([], [], [1])]
