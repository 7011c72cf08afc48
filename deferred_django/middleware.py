"""What travels with a task from its enqueuer to its attempts, and what is done around these.

The types of middleware of one's own, and the middleware that comes with the package: it carries
what log lines are to say. In the settings::

    DEFERRED = {
        "ENQUEUE_MIDDLEWARE": ["deferred_django.middleware.carry_log_context"],
        "PERFORM_MIDDLEWARE": ["deferred_django.middleware.log_context"],
        "LOG_CONTEXT_VARS": ["shop.context.request_id"],
    }
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import importlib
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, Final, Protocol

from deferred_django import codec, logs, registry
from deferred_django.backends.failures import safe_str
from deferred_django.current import CurrentTask
from deferred_django.enqueue_call import EnqueueCall
from deferred_django.references import NotCarriedError

LOG_CONTEXT: Final = "log_context"
"""The name in the user context under which the log context travels."""


class EnqueueMiddleware(Protocol):
    """Sees each call before it is enqueued."""

    def __call__(self, call: EnqueueCall, /) -> None:
        """Change the call, or raise to stop it: nothing is enqueued, and the caller of ``enqueue``
        gets the exception (:class:`~deferred_django.EnqueueStopped`, for example)."""


class PerformMiddleware(Protocol):
    """Makes the context manager around one attempt of a task, plain or ``async def``."""

    def __call__(self, task: CurrentTask, /) -> contextlib.AbstractContextManager[Any]:
        """The context manager to enter before the task's arguments are read, and to leave after
        the task. What it raises is the attempt's failure; what it swallows is one all the same."""


def carry_log_context(call: EnqueueCall) -> None:
    """Enqueue middleware: let structlog's context and ``LOG_CONTEXT_VARS`` travel with the task.

    Of structlog's context what no argument can be is carried as text. A listed variable that holds
    such a value is not carried, which is logged once; those that are not set are not carried.
    """
    carried: dict[str, dict[str, Any]] = {}
    # A process that has not imported structlog has bound nothing.
    structlog = sys.modules.get("structlog.contextvars")
    if structlog is not None:
        bound: Mapping[str, Any] = structlog.get_contextvars()
        if bound:
            carried["structlog"] = {
                name: value if _why_not(value) is None else safe_str(value)
                for name, value in bound.items()
            }
    listed = registry.get_features().log_context_vars
    if listed:
        here = contextvars.copy_context()
        values = {}
        for path, variable in listed:
            if variable in here:
                why_not = _why_not(here[variable])
                if why_not is None:
                    values[path] = here[variable]
                else:
                    logs.not_carried(path, why_not)
        if values:
            carried["vars"] = values
    if carried:
        call.user_context[LOG_CONTEXT] = carried


def _why_not(value: object) -> str | None:
    try:
        codec.encode(value)
    except NotCarriedError as refusal:
        return refusal.reason
    return None


@contextlib.contextmanager
def log_context(task: CurrentTask) -> Iterator[None]:
    """Perform middleware: set what :func:`carry_log_context` carried, in the attempt's context.

    Where structlog is installed, ``task_id`` and ``task`` are bound as well. Nothing needs to be
    taken back: the context ends with the attempt.
    """
    carried = task.user_context.get(LOG_CONTEXT, {})
    structlog = _structlog()
    if structlog is not None:
        bound = carried.get("structlog", {})
        structlog.bind_contextvars(**{**bound, "task_id": task.id, "task": task.name})
    values = carried.get("vars", {})
    if values:
        for path, variable in registry.get_features().log_context_vars:
            if path in values:
                variable.set(values[path])
    yield


@functools.cache
def _structlog() -> ModuleType | None:
    try:
        return importlib.import_module("structlog.contextvars")
    except ImportError:
        return None
