"""The locks of :mod:`logging`, after an exception that was raised from outside.

A handler takes its lock in Python code of its own. An exception that comes just then leaves it
taken, for good: every other thread that logs would wait for ever.
"""

from __future__ import annotations

import logging
from typing import Any


def free_own() -> None:
    """Give back what this thread holds of them. To be called where it logs nothing."""
    handlers: list[Any] = [ref() for ref in list(logging._handlerList)]  # type: ignore[attr-defined]
    locks = [logging._lock, *(getattr(each, "lock", None) for each in handlers)]  # type: ignore[attr-defined]
    for lock in locks:
        is_owned = getattr(lock, "_is_owned", None)
        while is_owned is not None and is_owned():
            lock.release()
