"""A queue that only notes what it is given, for tests of everything above it."""

from __future__ import annotations

from typing import Any, NamedTuple

from deferred_django.conf_features import Features
from deferred_django.context import TaskContext


class Enqueued(NamedTuple):
    """One call of ``enqueue``."""

    context: TaskContext
    task_id: str
    publish_at: float | None
    queue: str
    priority: int


class StubQueue:
    """Set ``error`` to have it fail."""

    features = Features()
    gate = None

    def __init__(self) -> None:
        self.calls: list[Enqueued] = []
        self.error: BaseException | None = None

    def enqueue(
        self,
        context: TaskContext,
        *,
        task_id: str,
        publish_at: float | None = None,
        queue: str = "default",
        priority: int = 0,
    ) -> str:
        if self.error is not None:
            raise self.error
        self.calls.append(Enqueued(context, task_id, publish_at, queue, priority))
        return task_id

    @property
    def arguments(self) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
        """The arguments of each call, as a worker would decode them from the bytes."""
        stored = (call.context.to_bytes() for call in self.calls)
        return [TaskContext.from_bytes(data).arguments() for data in stored]
