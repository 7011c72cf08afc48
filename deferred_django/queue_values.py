"""What the queue is given: calls to keep, and what runs them where no backend keeps them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from deferred_django.context import TaskContext


class NewCall(NamedTuple):
    """One call that :meth:`Queue.enqueue_many` keeps; the arguments of :meth:`Queue.enqueue`."""

    context: TaskContext
    task_id: str
    publish_at: float | None
    queue: str
    priority: int


class LocalRunner(Protocol):
    """Runs tasks in this process, for a backend that keeps none."""

    def enqueue(
        self, context: bytes, *, task_id: str, publish_at: float | None, queue: str, priority: int
    ) -> None:
        """Run the task once it is due."""

    def cancel(self, task_id: str) -> bool:
        """Drop a task that has not begun; ``False`` if there is none of this id."""

    def close(self) -> None:
        """Drop what has not begun."""
