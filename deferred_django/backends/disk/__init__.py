"""The disk backend: a task log and a dead-tasks store in one directory. Imports no Django."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deferred_django.backends.disk.backend import DiskBackend

__all__ = ["DiskBackend"]


def __getattr__(name: str) -> Any:
    if name == "DiskBackend":
        from deferred_django.backends.disk.backend import DiskBackend

        return DiskBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
