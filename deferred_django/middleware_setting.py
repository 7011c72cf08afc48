"""The keys ``ENQUEUE_MIDDLEWARE``, ``PERFORM_MIDDLEWARE`` and ``LOG_CONTEXT_VARS`` of the
``DEFERRED`` setting: lists of dotted paths."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Final

from django.utils.module_loading import import_string

from deferred_django.conf_wording import Reject, named, shown

ENQUEUE_KEY: Final = "ENQUEUE_MIDDLEWARE"
PERFORM_KEY: Final = "PERFORM_MIDDLEWARE"
LOG_CONTEXT_KEY: Final = "LOG_CONTEXT_VARS"

Middleware = tuple[tuple[str, Callable[[Any], Any]], ...]
"""The dotted path and the callable of each, the outermost first."""
LogContextVars = tuple[tuple[str, ContextVar[Any]], ...]
"""The dotted path and the variable of each."""


def read_enqueue_middleware(value: object, reject: Reject) -> Middleware:
    """Callables that are given an :class:`~deferred_django.enqueue_call.EnqueueCall`."""
    return tuple(_callables(ENQUEUE_KEY, value, reject, _not_for_enqueue))


def read_perform_middleware(value: object, reject: Reject) -> Middleware:
    """Callables that are given a task and return a context manager."""
    return tuple(_callables(PERFORM_KEY, value, reject, _not_for_perform))


def read_log_context_vars(value: object, reject: Reject) -> LogContextVars:
    """Context variables that travel with each task."""
    found = []
    for where, path, imported in _imported(LOG_CONTEXT_KEY, value, reject):
        if isinstance(imported, ContextVar):
            found.append((path, imported))
        else:
            reject(
                f"{where} is {shown(path)}, which is {_described(imported)}; it must be a "
                "contextvars.ContextVar at module level.",
                None,
            )
    return tuple(found)


def _callables(
    key: str, value: object, reject: Reject, wrong: Callable[[Any], tuple[str, str | None] | None]
) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    for where, path, imported in _imported(key, value, reject):
        problem = wrong(imported)
        if problem is None:
            yield path, imported
        else:
            reject(f"{where} is {shown(path)}, which is {problem[0]}.", problem[1])


def _imported(key: str, value: object, reject: Reject) -> Iterator[tuple[str, str, Any]]:
    """(the entry as it is written in a program, its dotted path, what that leads to)."""
    if not isinstance(value, list | tuple):
        hint = f"Did you mean [{value!r}]?" if isinstance(value, str) else None
        reject(f"{named(key)} is {shown(value)}; it must be a list of dotted paths.", hint)
        return
    for position, path in enumerate(value):
        where = f"{named(key)}[{position}]"
        if not isinstance(path, str):
            reject(f"{where} is {shown(path)}; it must be a dotted path, a str.", None)
            continue
        try:
            yield where, path, import_string(path)
        except Exception as error:  # the module is the project's: its import may raise anything
            reject(
                f"{where} is {shown(path)}, which could not be imported "
                f"({type(error).__name__}: {error}).",
                None,
            )


def _not_for_enqueue(found: Any) -> tuple[str, str | None] | None:
    if isinstance(found, type):
        return (
            f"the class {found.__qualname__}; it must be a function of one argument, the call",
            "Name a function, or an instance with a __call__ method.",
        )
    return _not_callable(found) or _not_sync(found)


def _not_for_perform(found: Any) -> tuple[str, str | None] | None:
    if inspect.isgeneratorfunction(found):
        return "a generator function", "Decorate it with contextlib.contextmanager."
    return _not_callable(found) or _not_sync(found)


def _not_callable(found: Any) -> tuple[str, str | None] | None:
    return None if callable(found) else (f"{_described(found)}; it must be callable", None)


def _not_sync(found: Any) -> tuple[str, str | None] | None:
    innermost = inspect.unwrap(found)  # that of @asynccontextmanager is an async generator's
    call = innermost if inspect.isroutine(innermost) else getattr(innermost, "__call__", None)  # noqa: B004
    if inspect.iscoroutinefunction(call) or inspect.isasyncgenfunction(call):
        return "asynchronous; middleware is synchronous, also around async tasks", None
    return None


def _described(found: object) -> str:
    return f"{shown(found)} of type {type(found).__name__}"
