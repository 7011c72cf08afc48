"""One call of a task as a value: what ``enqueue_many`` takes."""

from __future__ import annotations

from typing import Any

from deferred_django.options import EnqueueOptions


class TaskCall:
    """One call of a task with its options, to be enqueued together with others.

    It can be enqueued more than once, each time under another id. Its arguments are encoded then;
    until then they are the caller's own objects.
    """

    __slots__ = ("args", "kwargs", "options", "task")

    def __init__(
        self,
        task: Any,
        options: EnqueueOptions,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.task = task
        """The ``DeferredTask``."""
        self.options = options
        self.args = args
        self.kwargs = kwargs

    def __repr__(self) -> str:
        return f"<TaskCall {self.task.name}>"
