"""A plain model of a store: what each call does to it, and what it may answer then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

LATER = "-later"
"""What the tag of a delayed task ends with."""
Task = tuple[str, str]
"""The id and the tag of a pending or dead task: each add has a tag of its own."""
Pending = tuple[str, str, int]
"""The same with the number of runs that have not ended."""


@dataclass(frozen=True, slots=True)
class State:
    """What the store holds."""

    pending: frozenset[Pending]
    dead: tuple[Task, ...]
    """In the order of the file."""
    claims: frozenset[tuple[int, str, str]] = frozenset()
    """Who, and what."""
    taken: tuple[int, tuple[Task, ...]] | None = None
    """Who is at a retry of dead tasks, and which."""
    copies: frozenset[Task] = frozenset()
    """Pending tasks that are there twice, since a process was killed that moved them."""


Effect = Callable[[State], Iterable[State]]
"""The states that a call may lead to from a state; none, if it cannot have happened there."""


def newest(dead: Iterable[Task]) -> dict[str, str]:
    """The newest tag of each id, the newest id first."""
    found: dict[str, str] = {}
    for task_id, tag in reversed(tuple(dead)):
        found.setdefault(task_id, tag)
    return found


def pending_tags(task_id: str, state: State) -> frozenset[str]:
    """The tags of the pending tasks of one id."""
    return frozenset(tag for name, tag, _ in state.pending if name == task_id)


def is_free(task_id: str, state: State) -> bool:
    """Whether there are tasks of the id, and nobody has one of them."""
    tags = pending_tags(task_id, state)
    return bool(tags) and not any(claim[1] == task_id for claim in state.claims)


def is_due_and_free(task_id: str, state: State) -> bool:
    """Whether there is a task of the id that is due and that nobody has."""
    return is_free(task_id, state) and not all(
        tag.endswith(LATER) for tag in pending_tags(task_id, state)
    )


def dead_tag(task_id: str, state: State) -> str | None:
    """The newest tag of a dead task."""
    return newest(state.dead).get(task_id)


def dead_ids(state: State) -> int:
    """How many dead tasks there are."""
    return len(newest(state.dead))


def _with(state: State, task: Pending) -> Iterator[State]:
    """A later add of an id replaces the earlier one, if that is in the same segment."""
    yield replace(state, pending=state.pending | {task})
    others = frozenset(other for other in state.pending if other[0] != task[0])
    if len(others) < len(state.pending):
        yield replace(state, pending=others | {task})


def _entry(state: State, task_id: str, tag: str) -> Pending | None:
    found = (task for task in state.pending if task[:2] == (task_id, tag))
    return next(found, None)


def _without(state: State, who: int, task_id: str, tag: str) -> State:
    claims = state.claims - {(who, task_id, tag)}
    entry = _entry(state, task_id, tag)
    pending = state.pending if entry is None else state.pending - {entry}
    if (task_id, tag) in state.copies:  # the other one is as it was written
        pending |= {(task_id, tag, 0)}
    copies = state.copies - {(task_id, tag)}
    return replace(state, pending=pending, claims=claims, copies=copies)


def _runs(state: State, task_id: str, tag: str, more: int) -> State:
    entry = _entry(state, task_id, tag)
    if entry is None:
        return state
    changed = (task_id, tag, entry[2] + more)
    return replace(state, pending=state.pending - {entry} | {changed})


# -- the effects -----------------------------------------------------------------------------------


def add(who: int, task_id: str, tag: str, source: str | None) -> Effect:
    """One pending task more; ``source`` is the dead record that it was."""

    def effect(state: State) -> Iterator[State]:
        taken = state.taken[1] if state.taken is not None and state.taken[0] == who else ()
        if source is None or (task_id, source) in taken:
            yield from _with(state, (task_id, tag, 0))

    return effect


def withdraw(task_id: str, tag: str) -> Effect:
    """An add that is taken back: unless somebody runs it already."""

    def effect(state: State) -> Iterator[State]:
        entry = _entry(state, task_id, tag)
        if entry is None or any(claim[1:] == (task_id, tag) for claim in state.claims):
            yield state
        else:
            yield replace(state, pending=state.pending - {entry})

    return effect


def claim(who: int, task_id: str, tag: str, crashes: int) -> Effect:
    """A task that is pending, and that nobody has."""

    def effect(state: State) -> Iterator[State]:
        free = all(claim[1:] != (task_id, tag) for claim in state.claims)
        there = free and (task_id, tag, crashes) in state.pending
        if there or (task_id, tag) in state.copies:
            yield replace(state, claims=state.claims | {(who, task_id, tag)})

    return effect


def start(who: int, task_id: str, tag: str) -> Effect:
    """One run more."""
    return lambda state: [_runs(state, task_id, tag, 1)]


def complete(who: int, task_id: str, tag: str) -> Effect:
    """The task goes, and nobody has it."""
    return lambda state: [_without(state, who, task_id, tag)]


def retry(who: int, task_id: str, tag: str, new_tag: str) -> Effect:
    """Another task of the id is in its place."""
    return lambda state: _with(_without(state, who, task_id, tag), (task_id, new_tag, 0))


def release(who: int, task_id: str, tag: str) -> Effect:
    """The run does not count, and nobody has the task."""

    def effect(state: State) -> Iterator[State]:
        state = _runs(state, task_id, tag, -1)
        yield replace(state, claims=state.claims - {(who, task_id, tag)})

    return effect


def put_back(task_id: str, tag: str) -> Effect:
    """The run does not count, and the claim is kept."""
    return lambda state: [_runs(state, task_id, tag, -1)]


def remove(task_id: str, *, answer: bool) -> Effect:
    """``True``: it was there, and nobody had it."""

    def effect(state: State) -> Iterator[State]:
        there = {task for task in state.pending if task[0] == task_id}
        held = {task for task in there if any(task[:2] == c[1:] for c in state.claims)}
        if answer and there and not held:
            yield replace(state, pending=state.pending - there)
        if not answer:
            yield state
            if len(there) > 1:  # in two segments, and one of them is another's
                yield replace(state, pending=state.pending - there | held)

    return effect


def bury(task_id: str, tag: str) -> Effect:
    """One record more."""
    return lambda state: [replace(state, dead=(*state.dead, (task_id, tag)))]


def take(who: int, ids: list[str], answer: list[str] | int | None) -> Effect:
    """The first half of a retry or a purge: these are its own from now on.

    Readers see them until the second half; what is added between the two stays.
    """

    def effect(state: State) -> Iterator[State]:
        there = newest(task for task in state.dead if task[0] in ids)
        if answer is not None and answer not in (len(there), [*filter(there.get, ids)]):
            return
        if not there:
            yield state
        elif state.taken is None:
            yield replace(state, taken=(who, tuple(task for task in state.dead if task[0] in ids)))

    return effect


def drop_taken(who: int) -> Effect:
    """The second half: they go."""

    def effect(state: State) -> Iterator[State]:
        if state.taken is None or state.taken[0] != who:
            yield state
        else:
            dead = list(state.dead)
            for task in state.taken[1]:
                dead.remove(task)
            yield replace(state, dead=tuple(dead), taken=None)

    return effect


def die(who: int, moved: frozenset[Task]) -> Effect:
    """What a process had is free; what it was moving (``moved``) may be in both places."""

    def effect(state: State) -> Iterator[State]:
        claims = frozenset(claim for claim in state.claims if claim[0] != who)
        taken = None if state.taken is not None and state.taken[0] == who else state.taken
        dead = replace(state, claims=claims, taken=taken)
        yield dead
        for task in moved:
            if _entry(state, *task) is not None:
                yield replace(dead, copies=frozenset({task}))

    return effect


def seen(look: Callable[[State], Any], answer: Any) -> Effect:
    """A look changes nothing."""
    return lambda state: [state] if look(state) == answer else []


def perhaps(effect: Effect) -> Effect:
    """A call that was cut off."""

    def either(state: State) -> Iterator[State]:
        yield state
        yield from effect(state)

    return either
