"""Calls that no timeout interrupts.

``TaskTimeout`` is raised between any two steps of a thread's Python code: also between the taking
of a lock and the block that gives it back. A task that is enqueueing at its deadline would leave
the store locked for every thread of its process, and its books wrong. So the exception waits until
such a call returns; before it or after it, it is raised in the caller's code.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Interrupting(Protocol):
    """What may raise an exception in a thread."""

    def hold_back(self) -> bool:
        """Raise nothing from now on; ``False`` if that was so already. What is on its way is raised
        in here. For that thread."""

    def go_on(self) -> None:
        """It may be raised again; what has been held back is raised by this."""


_interrupting: dict[int, Interrupting] = {}
"""By the thread that is interrupted."""
_NONE: AbstractContextManager[Any] = nullcontext()


def enter_on_record(thread_id: int, interrupting: Interrupting) -> None:
    """This may raise an exception in the thread."""
    _interrupting[thread_id] = interrupting


def strike_off(thread_id: int) -> None:
    """Nothing raises exceptions in the thread any more. Can be called again."""
    _interrupting.pop(thread_id, None)


def shield() -> AbstractContextManager[Any]:
    """The block is not interrupted. Costs next to nothing where there are no timeouts."""
    if _interrupting:
        interrupting = _interrupting.get(threading.get_ident())
        if interrupting is not None:
            return _Shield(interrupting)
    return _NONE


def shielded(method: Callable[P, R]) -> Callable[P, R]:
    """The same for a function."""

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with shield():
            return method(*args, **kwargs)

    return call


class _Shield:
    __slots__ = ("_interrupting", "_is_outermost")

    def __init__(self, interrupting: Interrupting) -> None:
        self._interrupting = interrupting

    def __enter__(self) -> None:
        self._is_outermost = self._interrupting.hold_back()

    def __exit__(self, *error: object) -> None:
        if self._is_outermost:
            self._interrupting.go_on()
