"""The middleware that carries the log context from the enqueuer to the attempts."""

from __future__ import annotations

import contextvars
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from django.test import override_settings

from deferred_django import deferred, get_queue
from deferred_django import middleware as shipped
from deferred_django.context import TaskContext
from deferred_django.testing import run_enqueued
from tests.support import run_python
from tests.testapp import middleware

HERE = "tests.testapp.middleware."
seen: list[Any] = []


@deferred
def look() -> None:
    seen.append((structlog.contextvars.get_contextvars(), middleware.tenant.get()))


@deferred
async def async_look() -> None:
    seen.append((structlog.contextvars.get_contextvars(), middleware.tenant.get()))


both = pytest.mark.parametrize("task", [look, async_look])


@pytest.fixture(autouse=True)
def setting(tmp_path: Path) -> Iterator[None]:
    seen.clear()
    setting = {
        "PATH": tmp_path / "store",
        "ENQUEUE_MIDDLEWARE": ["deferred_django.middleware.carry_log_context"],
        "PERFORM_MIDDLEWARE": ["deferred_django.middleware.log_context"],
        "LOG_CONTEXT_VARS": [HERE + "tenant", HERE + "unset"],
    }
    with override_settings(DEFERRED=setting):
        yield


def in_context(bind: Callable[[], object], call: Callable[[], str]) -> str:
    """Call it as a request would that has bound something."""

    def request() -> str:
        bind()
        return call()

    return contextvars.Context().run(request)


def user_context() -> dict[str, Any]:
    (task,) = get_queue().backend.pending_tasks()
    return TaskContext.from_bytes(task.context).user_context


@both
def test_both_contexts_travel_with_the_task(task: Any) -> None:
    def bind() -> None:
        structlog.contextvars.bind_contextvars(request_id="r-1", user=7)
        middleware.tenant.set("acme")

    task_id = in_context(bind, task.enqueue)
    run_enqueued()
    about = {"task_id": task_id, "task": task.name}
    assert seen == [({"request_id": "r-1", "user": 7, **about}, "acme")]
    assert structlog.contextvars.get_contextvars() == {}
    assert middleware.tenant.get() == "nobody"


@both
def test_where_nothing_is_bound_nothing_travels(task: Any) -> None:
    """What a variable's default is here, it is there."""
    task_id = in_context(lambda: None, task.enqueue)
    assert user_context() == {}
    run_enqueued()
    assert seen == [({"task_id": task_id, "task": task.name}, "nobody")]


def test_it_goes_on_to_the_tasks_that_a_task_enqueues() -> None:
    in_context(lambda: structlog.contextvars.bind_contextvars(request_id="r-1"), relay.enqueue)
    run_enqueued()
    ((bound, _),) = seen
    assert bound["request_id"] == "r-1"
    assert bound["task"] == look.name


@deferred
def relay() -> None:
    look.enqueue()


def test_what_cannot_be_carried_fails_no_enqueue(caplog: pytest.LogCaptureFixture) -> None:
    class Request:
        def __str__(self) -> str:
            return "GET /"

    def bind() -> None:
        structlog.contextvars.bind_contextvars(request=Request(), path="/")
        middleware.tenant.set(Request())  # type: ignore[arg-type]

    for _ in range(2):
        in_context(bind, look.enqueue)
    run_enqueued()
    assert [(bound["request"], bound["path"], tenant) for bound, tenant in seen] == [
        ("GET /", "/", "nobody")
    ] * 2
    records = [record for record in caplog.records if "not carried" in record.getMessage()]
    assert len(records) <= 1  # once in a process
    assert all(record.levelno == logging.WARNING for record in records)


def test_without_structlog(monkeypatch: pytest.MonkeyPatch) -> None:
    """In an enqueuer that has not imported it, and in a worker that lacks it."""
    bind = lambda: structlog.contextvars.bind_contextvars(request_id="r-1")  # noqa: E731
    in_context(bind, look.enqueue)
    shipped._structlog.cache_clear()
    monkeypatch.setitem(sys.modules, "structlog.contextvars", None)
    try:
        run_enqueued()
        assert seen == [({}, "nobody")]
        in_context(lambda: middleware.tenant.set("acme"), look.enqueue)
        assert list(user_context()["log_context"]) == ["vars"]
        run_enqueued()
        assert seen[1:] == [({}, "acme")]
    finally:
        shipped._structlog.cache_clear()


def test_structlog_is_not_imported_for_an_enqueue(tmp_path: Path) -> None:
    run_python(
        """
        import sys
        from django.conf import settings
        settings.configure(
            INSTALLED_APPS=["deferred_django", "tests.testapp"],
            DEFERRED={
                "PATH": sys.argv[1],
                "ENQUEUE_MIDDLEWARE": ["deferred_django.middleware.carry_log_context"],
                "PERFORM_MIDDLEWARE": ["deferred_django.middleware.log_context"],
            },
        )
        import django
        django.setup()
        from tests.testapp.tasks import record
        record.enqueue(1)
        assert "structlog" not in sys.modules
        """,
        str(tmp_path / "store"),
    )
