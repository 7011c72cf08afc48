"""The values of the options of ``deferred_worker``, from the command line or ``call_command``."""

from __future__ import annotations

from typing import Any

from deferred_django.console.arguments import positive_int
from deferred_django.queue_choice import checked_names
from deferred_django.recycling import parse_size

MAX_PROCESSES, MAX_THREADS = 512, 1000
"""A slip of the hand must not bring the machine down."""


def process_count(value: Any) -> int:
    """How many processes; ``ValueError`` also for a number that can only be a slip."""
    return _at_most(MAX_PROCESSES, positive_int(value))


def thread_count(value: Any) -> int:
    """How many threads; ``ValueError`` also for a number that can only be a slip."""
    return _at_most(MAX_THREADS, positive_int(value))


def _at_most(limit: int, number: int) -> int:
    if number > limit:
        raise ValueError(f"it must be {limit} at most")
    return number


def queue_names(value: Any) -> list[str]:
    """Queue names from a comma-separated text or a list; ``ValueError`` if one is none.

    The last one may be ``*``.
    """
    return checked_names(value.split(",") if isinstance(value, str) else value, others=True)


def excluded_names(value: Any) -> list[str]:
    """The same without ``*``."""
    return checked_names(value.split(",") if isinstance(value, str) else value)


def memory_size(value: Any) -> int:
    """Bytes from ``512M`` or a number of bytes; ``ValueError`` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("it must be a size such as 512M or 2G")
    return parse_size(str(value))
