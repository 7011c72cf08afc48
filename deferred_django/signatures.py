"""Whether arguments fit a function's signature, answered quickly.

``inspect.Signature.bind`` takes longer than all the rest of an enqueue, so what it needs to know
is worked out once. It is still what words the error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from inspect import Parameter
from typing import Any

_POSITIONAL_ONLY = Parameter.POSITIONAL_ONLY
_POSITIONAL = (_POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


class CallChecker:
    """The parameters of one function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._signature = inspect.signature(function)
        parameters = list(self._signature.parameters.values())
        positional = [p for p in parameters if p.kind in _POSITIONAL]
        kinds = {p.kind for p in parameters}
        self.names = tuple(p.name for p in positional)
        """The names of the positional parameters, in order."""
        self._max_args = len(positional)
        self._any_args = Parameter.VAR_POSITIONAL in kinds
        self._any_names = Parameter.VAR_KEYWORD in kinds
        self._by_name = frozenset(p.name for p in parameters if p.kind in _BY_NAME)
        # By the number of positional arguments: what is still required (a positional-only
        # parameter under a key that no keyword argument has), and what is already given.
        self._required: list[frozenset[object]] = []
        self._given: list[frozenset[str]] = []
        for count in range(len(positional) + 1):
            filled = positional[:count]
            self._required.append(
                frozenset(
                    object() if p.kind is _POSITIONAL_ONLY else p.name
                    for p in parameters
                    if p.default is Parameter.empty
                    and p.kind in (*_POSITIONAL, Parameter.KEYWORD_ONLY)
                    and p not in filled
                )
            )
            self._given.append(frozenset(p.name for p in filled if p.kind is not _POSITIONAL_ONLY))

    def check(self, task: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise a ``TypeError`` that names the task and the argument if they do not fit."""
        count = len(args)
        if count > self._max_args:
            fits = self._any_args
            count = self._max_args
        else:
            fits = True
        if not kwargs:
            fits = fits and not self._required[count]
        elif fits:
            names = kwargs.keys()
            fits = (
                self._required[count] <= names
                and self._given[count].isdisjoint(names)
                and (self._any_names or names <= self._by_name)
            )
        if not fits:
            raise TypeError(f"arguments of {task} do not fit: {self._reason(args, kwargs)}")

    def _reason(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            return str(error)
        # Python 3.13's bind takes f(a=1) for def f(a, /, **more), which is no call that works.
        missing = [name for name in self.names[len(args) :] if name in kwargs]
        return f"missing a required positional-only argument: {', '.join(missing)}"
