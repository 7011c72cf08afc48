"""Durable background tasks for Django with nothing to run but a worker.

The public names are imported when they are first asked for, so that importing this package, or
the store alone, imports no Django.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deferred_django.bulk import aenqueue_many, enqueue_many
    from deferred_django.cancellation import acancel, cancel
    from deferred_django.current import current_task
    from deferred_django.exceptions import (
        DeadTasksLockTimeout,
        EnqueueStopped,
        PushTimeout,
        TaskTimeout,
        UnknownTask,
        WorkerLost,
    )
    from deferred_django.registry import get_backend, get_queue
    from deferred_django.retry import DEFAULT
    from deferred_django.task import DeferredTask, deferred
    from deferred_django.task_call import TaskCall

__version__ = "0.1.0"

__all__ = [
    "DEFAULT",
    "DeadTasksLockTimeout",
    "DeferredTask",
    "EnqueueStopped",
    "PushTimeout",
    "TaskCall",
    "TaskTimeout",
    "UnknownTask",
    "WorkerLost",
    "__version__",
    "acancel",
    "aenqueue_many",
    "cancel",
    "current_task",
    "deferred",
    "enqueue_many",
    "get_backend",
    "get_queue",
]

_MODULES = {
    "DEFAULT": "retry",
    "DeadTasksLockTimeout": "exceptions",
    "DeferredTask": "task",
    "EnqueueStopped": "exceptions",
    "PushTimeout": "exceptions",
    "TaskCall": "task_call",
    "TaskTimeout": "exceptions",
    "UnknownTask": "exceptions",
    "WorkerLost": "exceptions",
    "acancel": "cancellation",
    "aenqueue_many": "bulk",
    "cancel": "cancellation",
    "current_task": "current",
    "deferred": "task",
    "enqueue_many": "bulk",
    "get_backend": "registry",
    "get_queue": "registry",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
