"""What an operation of the disk store is, whose calls fail one after the other.

Each is prepared without faults, is done once with one, and is done again when the fault has ended.
What must be in the store before and after it is what a run without faults finds there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.faults.world import NEVER, World

Action = Callable[[World], Any]


def nothing(world: World) -> None:
    """No preparation, or nothing to be done."""


def complete(world: World, result: Any) -> bool:
    """The default: the operation is what it says, if it raised nothing."""
    return True


@dataclass(frozen=True)
class Operation:
    """Something done to a store."""

    name: str
    run: Action
    prepare: Action = nothing
    again: Action | None = None
    """When the fault has ended; ``run``, if it is not given."""
    frequency: float = NEVER
    """The subject's ``FSYNC_FREQUENCY``."""
    changes: bool = True
    """Whether the tasks in the store are others afterwards."""
    refuses: bool = False
    """An error means that nothing was done, and nothing of it ever happens."""
    durable: bool = False
    """What it did is durable when it returns: where no fsync succeeds any more it must fail."""
    called_back: bool = False
    """What it refuses may be in the store, claimed, until the timer has removed it."""
    late: bool = False
    """It refuses a task within itself, which may be in the store until the timer has removed it."""
    whole: bool = True
    """After an error all is as before, or all as after. Else each task is as before, as after, or
    both (a task between two stores is in both of them)."""
    quiet: bool = False
    """It tells of no error: what it could not do is done by its next call."""
    told: Callable[[World, Any], bool] = complete
    """Whether a result that came without an error is the whole truth; if not, the log must say
    what is missing."""
    settled: Callable[[World], bool] | None = None
    """What must be so in the end besides."""
