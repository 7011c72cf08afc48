"""The perform middleware around one attempt of a task."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from deferred_django import logs
from deferred_django.current import CurrentTask, running
from deferred_django.middleware_setting import Middleware
from deferred_django.references import short


class Around:
    """The context managers of one attempt. Called in the attempt's own context."""

    __slots__ = ("_current", "_entered", "_middleware")

    def __init__(self, middleware: Middleware, current: CurrentTask) -> None:
        self._middleware = middleware
        self._current = current
        self._entered: list[tuple[str, AbstractContextManager[Any]]] = []

    def enter(self) -> BaseException | None:
        """Enter all, the first listed first; return what one of them raised instead."""
        try:
            with running(self._current):
                for path, make in self._middleware:
                    manager = make(self._current)
                    if not hasattr(type(manager), "__enter__"):
                        raise TypeError(
                            f"the perform middleware {path} returned {short(manager)}, which is "
                            "not a context manager"
                        )
                    manager.__enter__()
                    self._entered.append((path, manager))
        except BaseException as error:  # an attempt's failure, as if the task had raised it
            return error
        return None

    def leave(self, error: BaseException | None) -> BaseException | None:
        """Leave those that were entered, the last first. Each sees what those inside of it and
        the task have raised.

        Returns what the attempt fails with: ``error``, or what was raised in its place. One that
        swallows an error does not make the attempt succeed.
        """
        with running(self._current):
            while self._entered:
                path, manager = self._entered.pop()
                kind, traceback = (type(error), error.__traceback__) if error else (None, None)
                try:
                    swallowed = manager.__exit__(kind, error, traceback)
                except BaseException as raised:
                    error = raised
                else:
                    if swallowed and error is not None:
                        logs.error_swallowed(path, self._current.name)
        return error
