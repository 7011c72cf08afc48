"""The task's own code: called in isolation, and whatever it raises caught.

Each attempt runs in a context of its own (:mod:`contextvars`), so that language, time zone,
decimal context and context variables of one task never reach the next. ``SystemExit``,
``KeyboardInterrupt``, ``GeneratorExit`` and ``CancelledError`` are failures like any other.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import os
import sys
import traceback
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, NoReturn

from asgiref.sync import async_to_sync
from django.core.cache import caches

from deferred_django import (
    attempt_middleware,
    connections,
    coroutine_guard,
    event_loop,
    thread_guard,
    time_limit,
)
from deferred_django.attempt_middleware import Around
from deferred_django.context import TaskContext
from deferred_django.current import CurrentTask, running
from deferred_django.event_loop import EventLoop
from deferred_django.middleware_setting import Middleware
from deferred_django.task import DeferredTask
from deferred_django.time_limit import TimeLimit

_OWN_MODULES = (attempt_middleware, coroutine_guard, event_loop, thread_guard, time_limit)
_OWN_FILES = frozenset(module.__file__ for module in _OWN_MODULES) | {__file__}

Failure = tuple[BaseException, float | None]
"""What a task raised, and the seconds to its next attempt (``None``: there is none)."""


def run_attempt(
    task: DeferredTask[..., object],
    context: TaskContext,
    current: CurrentTask,
    *,
    loop: EventLoop | None = None,
    check_connections: bool = False,
    middleware: Middleware = (),
    limit: TimeLimit | None = None,
) -> Failure | None:
    """Run the task once, in this thread or (``async def``) on ``loop``, and ask its retry policy.

    Without a ``loop``, an async task runs on one that lives for this call only, and its
    thread-sensitive code runs in this thread. The ``middleware`` is entered and left in this
    thread, in the attempt's context, around all that the task does. ``limit`` concerns the task's
    function and nothing around it: not the reading of the arguments, the middleware, the clean-up
    or the retry policy.
    """
    own = contextvars.Context()
    pid = os.getpid()
    if check_connections:
        connections.before_task()
    around = Around(middleware, current) if middleware else None
    error = None if around is None else own.run(around.enter)
    if error is None and task.is_async:
        # With middleware in a copy: the loop's thread may still be on its way out of the context.
        inner = own if around is None else own.copy()
        error = _run_async(task, context, current, inner, loop, check_connections, limit)
    elif error is None:
        error = own.run(_run_sync, task, context, current, limit)
    if os.getpid() != pid:
        # The task forked and its child came back here, where only the parent has a claim.
        _end_child(error)
    if around is not None:
        error = own.run(around.leave, error)
    # Empty, the task used no cache and nothing else that has a context. (What an async task used
    # is closed on the loop's thread, which may still be on its way out of the context.)
    if len(own) and (around is not None or not task.is_async):
        own.run(_close_caches)
    failure = None
    if error is not None:
        error = BaseException.with_traceback(error, _without_own_frames(error.__traceback__))
        # A copy: the loop's thread may still be on its way out of the context.
        failure = error, own.copy().run(_wait_after, error, current)
    if check_connections:
        connections.after_task()
    return failure


def _end_child(error: BaseException | None) -> NoReturn:
    """End a forked child as Python would have ended it at the end of its program."""
    code = 0
    if isinstance(error, SystemExit):
        code = 0 if error.code is None else error.code if isinstance(error.code, int) else 1
    elif error is not None:
        code = 1
        traceback.print_exception(error)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, AttributeError):
            stream.flush()
    os._exit(code)


def _wait_after(error: BaseException, current: CurrentTask) -> float | None:
    with running(current):
        return current.decision.wait(error)


def _run_sync(
    task: DeferredTask[..., object],
    context: TaskContext,
    current: CurrentTask,
    limit: TimeLimit | None,
) -> BaseException | None:
    try:
        with running(current):
            args, kwargs = context.arguments()
            if limit is None:
                result = task.func(*args, **kwargs)
            else:
                result, error = limit.call(task.func, args, kwargs)
                if error is not None:
                    return error
            if inspect.iscoroutine(result):  # an async function under a decorator that is not
                return async_to_sync(_error_of)(result, limit)
    except BaseException as error:
        return error
    return None


async def _error_of(
    coroutine: Coroutine[Any, Any, object], limit: TimeLimit | None
) -> BaseException | None:
    try:
        if limit is None:
            await coroutine
        else:
            await limit.wait_for(lambda: coroutine, (), {})
    except BaseException as error:
        return error
    return None


def _run_async(
    task: DeferredTask[..., object],
    context: TaskContext,
    current: CurrentTask,
    own: contextvars.Context,
    loop: EventLoop | None,
    check_connections: bool,
    limit: TimeLimit | None,
) -> BaseException | None:
    async def call() -> None:
        with running(current):
            if check_connections:
                await connections.before_async_task()
            error = None
            try:
                if limit is None:
                    await task.func(*args, **kwargs)  # type: ignore[misc]
                else:
                    await limit.wait_for(task.func, args, kwargs)  # type: ignore[arg-type]
            except BaseException as raised:
                error = raised
            # Not while it is handled: sync_to_async would raise it again, with frames of its own.
            _close_caches()
            if check_connections:
                await connections.after_async_task()
            try:
                if error is not None:
                    raise error
            finally:
                del error

    async def guarded() -> BaseException | None:
        try:
            await call()
        except BaseException as error:
            return error
        return None

    try:
        args, kwargs = own.run(context.arguments)
    except BaseException as error:
        return error
    if loop is None and not _in_event_loop():
        return own.run(async_to_sync(guarded))
    return (loop or event_loop.process_loop()).run(call, own)


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _without_own_frames(whole: TracebackType | None) -> TracebackType | None:
    # People want to see their code; if it was never reached, the frames stay.
    inner = whole
    while inner is not None and inner.tb_frame.f_code.co_filename in _OWN_FILES:
        inner = inner.tb_next
    return inner or whole


def _close_caches() -> None:
    # A task's context has cache connections of its own, as a request's has.
    for cache in caches.all(initialized_only=True):
        cache.close()
