"""``deferred_status --check``: whether all is well, for what restarts workers or wakes people."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from django.core.management.base import CommandError

from deferred_django import heartbeat_file
from deferred_django.backends.base import Backend, Limits, Status
from deferred_django.console import times


class Unhealthy(CommandError):  # noqa: N818 - Django prints the name in front of the reason
    """Not all is well: exit code 1, and a line for each reason on stderr."""

    def __init__(self, reasons: Sequence[str]) -> None:
        """``reasons``: sentences, escaped for the terminal."""
        super().__init__(reasons[0], returncode=1)
        self.reasons = tuple(reasons)

    def __str__(self) -> str:
        # What Django puts in front of the first line stands in front of the others too.
        return f"\n{type(self).__name__}: ".join(self.reasons)


def reasons_of_store(backend: Backend, limits: Limits) -> list[str]:
    """What is wrong with the store: nothing if it can be read and exceeds none of the limits."""
    status = backend.bounded_status(limits)
    return [*_exceeded(status, limits), *status.problems]


def _exceeded(status: Status, limits: Limits) -> Iterator[str]:
    if limits.pending is not None and status.pending > limits.pending:
        yield f"more than {limits.pending} tasks are pending"
    if limits.age is not None and (status.oldest_age or 0.0) > limits.age:
        age = times.format_duration(status.oldest_age or 0.0)
        yield f"the oldest pending task has been due for {age}, longer than {limits.age:g} s"
    if limits.dead is not None and status.dead > limits.dead:
        yield f"there are more than {limits.dead} dead tasks"


def reasons_of_heartbeat(path: str, max_age: float) -> list[str]:
    """What is wrong with a worker: nothing if its heartbeat file is no older (seconds)."""
    path = os.path.abspath(path)
    try:
        age = heartbeat_file.age_of(path)
    except FileNotFoundError:
        return [f"there is no heartbeat file {path}: the worker is not at work, or has stopped"]
    except OSError as error:
        return [f"the heartbeat file cannot be looked at: {error}"]
    if age > max_age:
        shown = times.format_duration(age)
        return [f"the heartbeat of {path} is {shown} old, older than {max_age:g} s"]
    return []
