"""Middleware around enqueues and attempts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.test import override_settings

from deferred_django import (
    DeferredTask,
    EnqueueStopped,
    current_task,
    deferred,
    enqueue_many,
    get_queue,
)
from deferred_django.context import TaskContext
from deferred_django.current import UserContext
from deferred_django.execution import Outcome
from deferred_django.testing import TaskRun, run_enqueued
from tests.support import wait_until
from tests.testapp import middleware
from tests.testapp.models import Note
from tests.worker import tasks
from tests.worker.fakes import Running

HERE = "tests.testapp.middleware."


@pytest.fixture(autouse=True)
def clean_middleware() -> Iterator[None]:
    """Nothing of another test."""
    middleware.seen.clear()
    middleware.change.clear()
    middleware.fails.clear()
    yield
    assert middleware.tenant.get() == "nobody"


@pytest.fixture
def use(tmp_path: Path) -> Iterator[Any]:
    """A store of the test's own with this middleware of :mod:`tests.testapp.middleware`."""
    with contextlib.ExitStack() as stack:

        def use(*, enqueue: tuple[str, ...] = (), perform: tuple[str, ...] = ()) -> None:
            setting = {
                "PATH": tmp_path / "store",
                "ENQUEUE_MIDDLEWARE": [HERE + name for name in enqueue],
                "PERFORM_MIDDLEWARE": [HERE + name for name in perform],
            }
            stack.enter_context(override_settings(DEFERRED=setting))

        yield use


def pending() -> list[TaskContext]:
    return [TaskContext.from_bytes(task.context) for task in get_queue().backend.pending_tasks()]


@deferred(max_retries=1, retry_interval=lambda error, attempt: 0)
def look(*args: Any, **kwargs: Any) -> None:
    middleware.seen.append(("task", middleware.tenant.get(), args, kwargs))
    middleware.seen.append(current_task().user_context)


@deferred(max_retries=1, retry_interval=lambda error, attempt: 0)
async def async_look(*args: Any, **kwargs: Any) -> None:
    await asyncio.sleep(0)
    middleware.seen.append(("task", middleware.tenant.get(), args, kwargs))
    middleware.seen.append(current_task().user_context)


@deferred(max_retries=1, retry_interval=lambda error, attempt: 0)
def fail(reason: str) -> None:
    middleware.seen.append("task")
    raise ValueError(reason)


@deferred(max_retries=1, retry_interval=lambda error, attempt: 0)
async def async_fail(reason: str) -> None:
    middleware.seen.append("task")
    raise ValueError(reason)


both_looks = pytest.mark.parametrize("task", [look, async_look])
both_fail = pytest.mark.parametrize("task", [fail, async_fail])


# -- enqueue -----------------------------------------------------------------------------------


def test_the_first_listed_sees_the_call_first(use: Any) -> None:
    use(enqueue=("first", "second"))
    look.enqueue(1, x=2)
    assert middleware.seen == [
        ("first", (1,), {"x": 2}, {}),
        ("second", (1,), {"x": 2}, {"order": ["first"]}),
    ]
    run_enqueued()
    assert middleware.seen[-1] == {"order": ["first", "second"]}


def test_a_call_can_be_changed(use: Any) -> None:
    use(enqueue=("changing",))

    def make(call: Any) -> None:
        assert (call.name, call.queue, call.priority) == (look.name, "mail", 3)
        assert call.publish_at is None
        middleware.seen.append(call.id)
        call.args = (*call.args, "more")
        call.kwargs["y"] = call.kwargs.pop("x")
        call.user_context = {"user": 7}

    middleware.change.append(make)
    task_id = look.using(queue="mail", priority=3).enqueue("one", x=1)
    assert middleware.seen == [task_id]
    assert [run.outcome for run in run_enqueued()] == [Outcome.SUCCEEDED]
    assert middleware.seen[1:] == [("task", "nobody", ("one", "more"), {"y": 1}), {"user": 7}]


def test_what_the_caller_passed_is_not_changed(use: Any) -> None:
    use(enqueue=("changing",))
    middleware.change.append(lambda call: call.kwargs.clear())
    options = {"x": 1}
    look.enqueue(**options)
    assert options == {"x": 1}
    assert pending()[0].kwargs == {}


@pytest.mark.parametrize("attribute", ["id", "name", "queue", "priority", "publish_at", "other"])
def test_what_is_settled_cannot_be_changed(use: Any, attribute: str) -> None:
    use(enqueue=("changing",))
    middleware.change.append(lambda call: setattr(call, attribute, "x"))
    with pytest.raises(AttributeError):
        look.enqueue()
    assert pending() == []


def test_it_is_called_when_the_task_is_enqueued_not_at_the_commit(use: Any, db: None) -> None:
    use(enqueue=("first",))
    with transaction.atomic():
        look.enqueue(1)
        assert [what[0] for what in middleware.seen] == ["first"]
        assert pending() == []
    run_enqueued()
    assert middleware.seen[-1] == {"order": ["first"]}


def test_aenqueue_and_an_object(use: Any) -> None:
    use(enqueue=("instance", "stopping"))
    with pytest.raises(EnqueueStopped, match="switched off"):
        asyncio.run(look.aenqueue(1))
    assert middleware.seen == [("instance", look.name)]
    assert pending() == []


def test_a_call_can_be_stopped(use: Any) -> None:
    use(enqueue=("stopping", "first"))
    with pytest.raises(EnqueueStopped, match=r"test_middleware\.look is switched off"):
        look.enqueue(1)
    assert middleware.seen == []
    assert pending() == []


def test_each_call_of_a_bulk_is_seen_and_one_that_is_stopped_stops_all(use: Any) -> None:
    use(enqueue=("first", "changing"))
    enqueue_many(look.call(number) for number in range(2))
    assert [what[1] for what in middleware.seen] == [(0,), (1,)]
    assert [context.user_context for context in pending()] == [{"order": ["first"]}] * 2

    def stop(call: Any) -> None:
        if call.args == (3,):
            raise EnqueueStopped

    middleware.change.append(stop)
    with pytest.raises(EnqueueStopped):
        enqueue_many(look.call(number) for number in (2, 3))
    assert len(pending()) == 2


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda call: 1 / 0, ZeroDivisionError, "division"),
        (lambda call: call, TypeError, r"middleware\.changing returned <EnqueueCall .*look"),
        (lambda call: middleware.asynchronous(call), TypeError, r"changing returned <coroutine"),
        (lambda call: call.kwargs.update(z=object()), TypeError, "argument 'z' of "),
        (
            lambda call: call.user_context.update(request=object()),
            TypeError,
            r"user_context\['request'\]",
        ),
        (lambda call: call.user_context.update({7: 1}), TypeError, r"user_context\[7\]"),
        *(
            (
                lambda call, name=name, value=value: setattr(call, name, value),
                TypeError,
                f"changing set the call's {name} to .*: it must be a {kind}",
            )
            for name, value, kind in (
                ("args", None, "tuple"),
                ("args", "ab", "tuple"),
                ("kwargs", None, "dict"),
                ("user_context", [("a", 1)], "dict"),
            )
        ),
    ],
)
def test_errors_are_the_callers_and_nothing_is_enqueued(
    use: Any, change: Any, error: type[Exception], message: str
) -> None:
    use(enqueue=("changing",))
    middleware.change.append(change)
    with pytest.raises(error, match=message):
        look.enqueue()
    assert pending() == []


def test_arguments_that_do_not_fit_after_a_change(use: Any) -> None:
    use(enqueue=("changing",))
    middleware.change.append(lambda call: call.kwargs.update(surprise=1))
    with pytest.raises(TypeError, match="surprise"):
        fail.enqueue("x")


# -- perform -----------------------------------------------------------------------------------


@both_looks
def test_the_first_listed_is_the_outermost(use: Any, task: DeferredTask[..., Any]) -> None:
    use(perform=("outer", "inner"))
    task_id = task.enqueue()
    run_enqueued()
    assert middleware.seen == [
        ("outer", "enter", task_id, 1),
        ("inner", "enter", task_id, 1),
        ("task", "nobody", (), {}),
        {},
        ("inner", "leave"),
        ("outer", "leave"),
    ]


@both_fail
def test_each_attempt_is_wrapped_and_its_error_is_seen(
    use: Any, task: DeferredTask[..., Any]
) -> None:
    use(perform=("outer", "inner"))
    task_id = task.enqueue("the reason")
    runs = run_enqueued()
    assert [run.outcome for run in runs] == [Outcome.RETRIED, Outcome.DIED]
    expected: list[Any] = []
    for attempt in (1, 2):
        expected += [("outer", "enter", task_id, attempt), ("inner", "enter", task_id, attempt)]
        expected += ["task", ("inner", "error", "ValueError"), ("outer", "error", "ValueError")]
    assert middleware.seen == expected
    (dead,) = get_queue().backend.list_dead_tasks()
    assert dead["exception_message"] == "the reason"
    text = "\n".join(dead["backtrace"])
    assert "attempt.py" not in text
    assert "attempt_middleware.py" not in text


@both_looks
@pytest.mark.parametrize("in_worker", [False, True])
def test_context_variables_reach_the_task(
    use: Any, task: DeferredTask[..., Any], in_worker: bool
) -> None:
    """And nothing of them is left: see ``clean_middleware``."""
    use(enqueue=("carry_tenant",), perform=("as_tenant",))

    def enqueue() -> None:
        middleware.tenant.set("acme")
        for number in range(20):
            task.enqueue(number)

    copy_context().run(enqueue)
    if in_worker:
        with Running(get_queue(), drain=True, threads=3) as running:
            running.join()
    else:
        run_enqueued()
    told = [what for what in middleware.seen if isinstance(what, tuple) and what[0] == "task"]
    assert sorted(what[2] for what in told) == [(number,) for number in range(20)]
    assert {what[1] for what in told} == {"acme"}
    # What a plain function sets, the middleware sees; a coroutine's is its own.
    assert middleware.seen.count(("tenant at the end", "acme")) == 20


@deferred
async def become() -> None:
    middleware.tenant.set("another")


def test_what_an_async_task_sets_is_its_own(use: Any) -> None:
    use(enqueue=("carry_tenant",), perform=("as_tenant",))
    become.enqueue()
    run_enqueued()
    assert middleware.seen == [("tenant at the end", "nobody")]


@pytest.mark.django_db(transaction=True)
def test_it_is_entered_before_the_arguments_are_read(use: Any) -> None:
    use(perform=("outer",))
    note = Note.objects.create(text="x")
    look.enqueue(note)
    note.delete()
    (run, _) = run_enqueued()
    assert isinstance(run.exception, Note.DoesNotExist)
    assert [what[:2] for what in middleware.seen] == [("outer", "enter"), ("outer", "error")] * 2


@both_looks
def test_an_error_at_the_beginning_is_a_failure_and_the_task_does_not_run(
    use: Any, task: DeferredTask[..., Any]
) -> None:
    use(perform=("outer", "failing", "inner"))
    middleware.fails["enter"] = SystemExit("not now")
    task.enqueue()
    runs = run_enqueued()
    assert [run.outcome for run in runs] == [Outcome.RETRIED, Outcome.DIED]
    assert isinstance(runs[0].exception, SystemExit)
    assert [what[:2] for what in middleware.seen] == [("outer", "enter"), ("outer", "error")] * 2


@both_looks
def test_an_error_at_the_end_is_a_failure(use: Any, task: DeferredTask[..., Any]) -> None:
    use(perform=("outer", "failing", "inner"))
    middleware.fails["success"] = RuntimeError("at the end")
    task.enqueue()
    first, _ = run_enqueued()
    assert first.outcome is Outcome.RETRIED
    assert str(first.exception) == "at the end"
    assert middleware.seen[4] == ("inner", "leave")
    assert middleware.seen[5] == ("outer", "error", "RuntimeError")


@both_fail
def test_another_error_in_the_place_of_the_tasks(use: Any, task: DeferredTask[..., Any]) -> None:
    use(perform=("failing",))
    middleware.fails["failure"] = LookupError("translated")
    task.enqueue("x")
    assert [str(run.exception) for run in run_enqueued()] == ["translated"] * 2


@both_fail
def test_a_swallowed_error_is_a_failure_all_the_same(
    use: Any, task: DeferredTask[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    use(perform=("outer", "Swallowing"))
    task.enqueue("x")
    runs = run_enqueued()
    assert [run.outcome for run in runs] == [Outcome.RETRIED, Outcome.DIED]
    assert str(runs[0].exception) == "x"
    assert ("outer", "error", "ValueError") in middleware.seen
    (record,) = [record for record in caplog.records if "swallowed" in record.getMessage()]
    assert record.levelno == logging.WARNING
    assert "middleware.Swallowing swallowed an error of tests" in record.getMessage()


def test_what_is_no_context_manager(use: Any) -> None:
    use(perform=("outer", "no_manager"))
    look.enqueue()
    run: TaskRun = run_enqueued()[0]
    assert isinstance(run.exception, TypeError)
    assert "middleware.no_manager returned CurrentTask(" in str(run.exception)
    assert middleware.seen[1] == ("outer", "error", "TypeError")


def test_a_retried_dead_task_keeps_its_user_context(use: Any) -> None:
    use(enqueue=("changing",))
    middleware.change.append(lambda call: call.user_context.update(who={"a": (1, 2)}))
    task_id = fail.enqueue("x")
    run_enqueued()
    (stored,) = [task["context"] for task in get_queue().backend.list_dead_tasks()]
    get_queue().retry_dead_tasks([task_id])
    (again,) = pending()
    assert again.user_context == TaskContext.from_bytes(stored).user_context
    assert UserContext(again.user_context).decoded == {"who": {"a": (1, 2)}}


def test_the_none_backend() -> None:
    setting = {
        "BACKEND": None,
        "ENQUEUE_MIDDLEWARE": [HERE + "first"],
        "PERFORM_MIDDLEWARE": [HERE + "outer"],
    }
    with override_settings(DEFERRED=setting):
        tasks.note.enqueue("x")
        wait_until(lambda: ("outer", "leave") in middleware.seen)
    assert tasks.ran == ["x"]
