"""One call on its way into the queue, as enqueue middleware sees it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from deferred_django.middleware_setting import Middleware
from deferred_django.references import short

_KINDS: dict[str, tuple[type, ...]] = {
    "args": (tuple, list),
    "kwargs": (dict,),
    "user_context": (dict,),
}


@dataclass(frozen=True, slots=True)
class CallTarget:
    """Which task is enqueued, and how: settled before any middleware sees the call."""

    id: str
    name: str
    queue: str
    priority: int
    publish_at: float | None


class EnqueueCall:
    """One call of a task that is about to be enqueued.

    ``args``, ``kwargs`` and ``user_context`` can be changed, and be replaced.
    """

    __slots__ = ("_target", "args", "kwargs", "user_context")

    def __init__(self, target: CallTarget, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._target = target
        self.args: tuple[Any, ...] = args
        """The positional arguments, as they were given."""
        self.kwargs: dict[str, Any] = kwargs
        """The keyword arguments, in a dict of the call's own."""
        self.user_context: dict[str, Any] = {}
        """What travels with the task besides: values that an argument can be, by name."""

    @property
    def id(self) -> str:
        """The id that the task will have."""
        return self._target.id

    @property
    def name(self) -> str:
        """The task's dotted name."""
        return self._target.name

    @property
    def queue(self) -> str:
        """The queue that it goes to."""
        return self._target.queue

    @property
    def priority(self) -> int:
        """Its priority."""
        return self._target.priority

    @property
    def publish_at(self) -> float | None:
        """When it falls due (unix seconds); ``None``: at once."""
        return self._target.publish_at

    def __repr__(self) -> str:
        return f"<EnqueueCall {self.name} {self.id}>"

    def pass_through(self, middleware: Middleware) -> None:
        """Let each middleware see and change the call, the first listed first.

        Raises what a middleware raises, and ``TypeError`` if one returns something, or leaves
        something of another kind in the place of the arguments.
        """
        for path, see in middleware:
            answer = see(self)
            if answer is not None:
                if inspect.iscoroutine(answer):
                    answer.close()  # it would warn that nobody awaited it
                raise TypeError(
                    f"the enqueue middleware {path} returned {short(answer)}: it must change the "
                    "call, or raise, and return nothing"
                )
            for name, kinds in _KINDS.items():
                value = getattr(self, name)
                if not isinstance(value, kinds):
                    raise TypeError(
                        f"the enqueue middleware {path} set the call's {name} to {short(value)}: "
                        f"it must be a {kinds[0].__name__}"
                    )
