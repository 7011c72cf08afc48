"""What is promised about each task: the books that an image of the disk is held against.

For each id the books have the *outcomes* that are right at this moment: where the task may be, with
which bytes. An operation that begins adds outcomes, one that has returned with its promise leaves
only those. An id that is not in the books was never written and must not be found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Pending(NamedTuple):
    """A task in the log."""

    payload: bytes
    runs: int = 0
    """Starts without an end."""


class Outcome(NamedTuple):
    """Where one id is: in the log, among the dead tasks, in both, in neither."""

    log: Pending | None = None
    dead: bytes | None = None


NOWHERE = Outcome()
ANYTHING = b"*"
"""Stands for a payload or a record whose bytes the scenario does not know beforehand."""


@dataclass(frozen=True)
class Books:
    """A page of the books: it does not change."""

    outcomes: Mapping[str, frozenset[Outcome]]
    together: tuple[frozenset[str], ...] = ()
    """Ids whose dead records are removed by one call: all of them are there, or none."""
    repeated: frozenset[str] = frozenset()
    """Ids that may be pending in two segments for the moment."""

    def complaints(
        self, log: Mapping[str, list[Pending]], dead: Mapping[str, bytes]
    ) -> Iterable[str]:
        """What is wrong with a store that has these pending and these dead tasks."""
        for task_id in sorted({*log, *dead, *self.outcomes}):
            allowed = self.outcomes.get(task_id, frozenset((NOWHERE,)))
            pending = log.get(task_id, [])
            if len(pending) > 1 and task_id not in self.repeated:
                yield f"{task_id} is pending {len(pending)} times: {pending}"
            states: list[Pending | None] = [*pending]
            for state in states or [None]:
                found = Outcome(state, dead.get(task_id))
                if not any(_fits(found, outcome) for outcome in allowed):
                    right = " or ".join(sorted(map(describe, allowed)))
                    yield f"{task_id} is {describe(found)}; right were: {right}"
        for ids in self.together:
            there = sorted(ids & dead.keys())
            if there and len(there) < len(ids):
                yield f"of {sorted(ids)}, removed by one call, {there} are there"


def _fits(found: Outcome, allowed: Outcome) -> bool:
    if found.log is None or allowed.log is None:
        fits = found.log is allowed.log
    else:
        fits = found.log.runs == allowed.log.runs
        fits = fits and _is_same(found.log.payload, allowed.log.payload)
    return fits and _is_same(found.dead, allowed.dead)


def _is_same(found: bytes | None, allowed: bytes | None) -> bool:
    return found == allowed or (found is not None and allowed == ANYTHING)


def describe(outcome: Outcome) -> str:
    """The outcome in words."""
    places = []
    if outcome.log is not None:
        places.append(f"in the log ({outcome.log.payload[:20]!r}, {outcome.log.runs} runs)")
    if outcome.dead is not None:
        places.append(f"dead ({outcome.dead[:20]!r})")
    return " and ".join(places) or "nowhere"


class Bookkeeper:
    """Keeps the books of one scenario; each change of a promise is told to ``changed``."""

    def __init__(self, changed: Callable[[Books], None]) -> None:
        self._changed = changed
        self._outcomes: dict[str, frozenset[Outcome]] = {}
        self._together: tuple[frozenset[str], ...] = ()
        self._repeated: frozenset[str] = frozenset()

    def page(self) -> Books:
        """The books as they are now."""
        return Books(dict(self._outcomes), self._together, self._repeated)

    def of(self, task_id: str) -> frozenset[Outcome]:
        """What is right for the id now."""
        return self._outcomes.get(task_id, frozenset((NOWHERE,)))

    def ids(self) -> list[str]:
        """The ids that are in the books."""
        return list(self._outcomes)

    def _set(self, task_id: str, outcomes: Iterable[Outcome]) -> None:
        self._outcomes[task_id] = frozenset(outcomes)
        self._changed(self.page())

    def log_may_be(self, task_id: str, *states: Pending | None) -> None:
        """A change of the log begins: what was right stays right until it is durable."""
        known = self.of(task_id)
        new = {outcome._replace(log=state) for outcome in known for state in states}
        self._set(task_id, known | new)

    def log_is(self, task_id: str, state: Pending | None) -> None:
        """It is durable."""
        self._set(task_id, {outcome._replace(log=state) for outcome in self.of(task_id)})

    def dead_may_be(self, task_id: str, *records: bytes | None) -> None:
        """A change of the dead tasks begins."""
        known = self.of(task_id)
        new = {outcome._replace(dead=record) for outcome in known for record in records}
        self._set(task_id, known | new)

    def dead_is(self, task_id: str, record: bytes | None) -> None:
        """It is durable."""
        self._set(task_id, {outcome._replace(dead=record) for outcome in self.of(task_id)})

    def may_be(self, task_id: str, *outcomes: Outcome) -> None:
        """More is right than before."""
        self._set(task_id, self.of(task_id) | set(outcomes))

    def is_one_of(self, task_id: str, *outcomes: Outcome) -> None:
        """Nothing else is right."""
        self._set(task_id, outcomes)

    def removed_together(self, *ids: str) -> None:
        """From now on these go together or stay together; without ids: no longer."""
        self._together = (frozenset(ids),) if ids else ()
        self._changed(self.page())

    def may_be_repeated(self, *ids: str) -> None:
        """From now on these may be pending in two segments, and no others."""
        self._repeated = frozenset(ids)
        self._changed(self.page())
