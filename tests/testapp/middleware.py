"""Middleware for the tests: what it saw is in ``seen``, what it does is what a test asks for."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from deferred_django import EnqueueStopped, current_task
from deferred_django.current import CurrentTask
from deferred_django.enqueue_call import EnqueueCall

seen: list[Any] = []
change: list[Callable[[EnqueueCall], Any]] = []
"""What :func:`changing` does to a call."""
fails: dict[str, BaseException] = {}
"""What is raised at "enter", "success" and "failure" of :func:`failing`."""

tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="nobody")
unset: contextvars.ContextVar[str] = contextvars.ContextVar("unset", default="default")
not_callable = 7


def first(call: EnqueueCall) -> None:
    """Enqueue middleware."""
    seen.append(("first", call.args, dict(call.kwargs), dict(call.user_context)))
    call.user_context["order"] = ["first"]


def second(call: EnqueueCall) -> None:
    """Enqueue middleware."""
    seen.append(("second", call.args, dict(call.kwargs), dict(call.user_context)))
    call.user_context["order"] = [*call.user_context["order"], "second"]


def changing(call: EnqueueCall) -> Any:
    """Enqueue middleware."""
    for make in change:
        return make(call)
    return None


def stopping(call: EnqueueCall) -> None:
    """Enqueue middleware."""
    raise EnqueueStopped(f"{call.name} is switched off")


def carry_tenant(call: EnqueueCall) -> None:
    """Enqueue middleware."""
    call.user_context["tenant"] = tenant.get()


class Instance:
    """Enqueue middleware of which an object is named."""

    def __call__(self, call: EnqueueCall) -> None:
        """Note it."""
        seen.append(("instance", call.name))


instance = Instance()


async def asynchronous(call: EnqueueCall) -> None:
    """Nobody waits for it."""


def _noting(name: str, task: CurrentTask) -> Iterator[None]:
    seen.append((name, "enter", task.id, task.attempt))
    assert current_task() is task
    try:
        yield
    except BaseException as error:
        seen.append((name, "error", type(error).__name__))
        assert current_task() is task
        raise
    seen.append((name, "leave"))


@contextlib.contextmanager
def outer(task: CurrentTask) -> Iterator[None]:
    """Perform middleware."""
    yield from _noting("outer", task)


@contextlib.contextmanager
def inner(task: CurrentTask) -> Iterator[None]:
    """Perform middleware."""
    yield from _noting("inner", task)


@contextlib.contextmanager
def as_tenant(task: CurrentTask) -> Iterator[None]:
    """Perform middleware that sets a context variable and takes it back."""
    token = tenant.set(task.user_context["tenant"])
    try:
        yield
    finally:
        seen.append(("tenant at the end", tenant.get()))
        tenant.reset(token)


@contextlib.contextmanager
def failing(task: CurrentTask) -> Iterator[None]:
    """Perform middleware that raises what :data:`fails` says."""
    if "enter" in fails:
        raise fails["enter"]
    try:
        yield
    except BaseException:
        if "failure" in fails:
            raise fails["failure"] from None
        raise
    if "success" in fails:
        raise fails["success"]


class Swallowing:
    """Perform middleware: a class, of which each attempt has an instance."""

    def __init__(self, task: CurrentTask) -> None:
        self.task = task

    def __enter__(self) -> Swallowing:
        return self

    def __exit__(self, *error: object) -> bool:
        return True


def no_manager(task: CurrentTask) -> object:
    """Perform middleware that is none."""
    return task


def a_generator(task: CurrentTask) -> Iterator[None]:
    """It lacks its decorator."""
    yield


@contextlib.asynccontextmanager
async def async_manager(task: CurrentTask) -> AsyncIterator[None]:
    """It is asynchronous."""
    yield
