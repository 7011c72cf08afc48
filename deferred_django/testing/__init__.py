"""For the tests of projects that use this package.

:func:`own_store` and the pytest fixture ``deferred_store`` give a test a store that nobody else
sees; :func:`run_enqueued` runs what the test enqueued. The suite that every backend passes is in
:mod:`deferred_django.testing.contract`.

The names are imported when they are first asked for: pytest loads the plugin in this package at
its start, in projects without Django too.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deferred_django.execution import Outcome
    from deferred_django.testing.running import TaskRun, run_enqueued
    from deferred_django.testing.stores import own_store

__all__ = ["Outcome", "TaskRun", "own_store", "run_enqueued"]

_MODULES = {
    "Outcome": "deferred_django.execution",
    "TaskRun": "deferred_django.testing.running",
    "own_store": "deferred_django.testing.stores",
    "run_enqueued": "deferred_django.testing.running",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
