"""Which queues a worker takes tasks from, and which of them it prefers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from deferred_django.backends.base import QUEUE_PATTERN

OTHERS = "*"
"""In a list of queues: all those that it does not name."""


@dataclass(frozen=True, slots=True)
class QueueChoice:
    """The queues of a worker, as :meth:`Backend.claim_tasks` wants them.

    A plain list limits the work to its queues and prefers none of them: higher priority first, then
    the soonest due. A list that ends with ``*`` limits nothing and sets an order: what is due in
    its first queue comes before anything else, then its second, and so on.
    """

    only: tuple[str, ...] | None = None
    """Nothing but these; ``None``: all queues."""
    exclude: tuple[str, ...] = ()
    prefer: tuple[str, ...] = ()
    """Due tasks of these come first, in this order."""

    @classmethod
    def of(cls, queues: Iterable[str] | None = None, exclude: Iterable[str] = ()) -> QueueChoice:
        """The choice that lists of names make; ``ValueError`` says what is wrong with them."""
        excluded = tuple(checked_names(exclude))
        if queues is None:
            return cls(exclude=excluded)
        names = tuple(checked_names(queues, others=True))
        if not names:
            raise ValueError("it names no queue")
        both = [name for name in names if name in excluded]
        if both:
            are = "is" if len(both) == 1 else "are"
            raise ValueError(f"{', '.join(both)} {are} wanted and excluded at once")
        if OTHERS in names:
            return cls(exclude=excluded, prefer=names[:-1])
        return cls(only=names, exclude=excluded)

    def listed(self) -> list[str] | None:
        """The choice as others see it in a list of workers; ``None`` for all queues alike."""
        if self.only is not None:
            return list(self.only)
        if not self.prefer and not self.exclude:
            return None
        return [*self.prefer, OTHERS, *(f"!{name}" for name in self.exclude)]

    def __str__(self) -> str:
        if self.only is not None:
            return f"{_plural(self.only)} {', '.join(self.only)}"
        text = "all queues"
        if self.exclude:
            text += f" but {', '.join(self.exclude)}"
        if self.prefer:
            text += f", {', '.join(self.prefer)} first"
        return text


def checked_names(names: Iterable[str], *, others: bool = False) -> list[str]:
    """The names without spaces around them, each once; ``ValueError`` for one that is none.

    With ``others`` the last of them may be ``*``.
    """
    found = list(dict.fromkeys(str(name).strip() for name in names))
    for name in found:
        if name == OTHERS and others:
            if found[-1] != OTHERS:
                raise ValueError("* stands for all other queues: it must be the last")
        elif not QUEUE_PATTERN.fullmatch(name):
            hint = "; it can stand in --queues only" if name == OTHERS else ""
            raise ValueError(
                f"{name!r} is no queue name (1 to 100 characters of [A-Za-z0-9_.-]){hint}"
            )
    return found


def _plural(names: tuple[str, ...]) -> str:
    return "queue" if len(names) == 1 else "queues"


ALL_QUEUES = QueueChoice()
