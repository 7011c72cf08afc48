"""How the store is spoiled, to see that the enumeration notices.

Defects are patched in from outside; the product has no switch for any. A module's view of
:mod:`deferred_django.backends.disk.files` is replaced as a rule, so that the recorder, which wraps
``files`` itself, sees what the defective code does.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any
from unittest import mock

from deferred_django.backends.disk import files

Defect = Callable[[], AbstractContextManager[Any]]
Found = tuple[Defect, str]
"""A defect and the name of a scenario in which it is to be found."""


class Seen:
    """A module as another one sees it, with some of its functions others."""

    def __init__(self, module: ModuleType, replaced: dict[str, Callable[..., Any]]) -> None:
        self._module = module
        self._replaced = replaced

    def __getattr__(self, name: str) -> Any:
        return self._replaced.get(name) or getattr(self._module, name)


def sees(
    module: ModuleType, other: ModuleType = files, **replaced: Callable[..., Any]
) -> AbstractContextManager[Any]:
    name = other.__name__.rpartition(".")[2]
    return mock.patch.object(module, name, Seen(other, replaced))


def nothing(*arguments: Any) -> None:
    """What a call that was left out does."""
