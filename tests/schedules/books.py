"""Whether what the processes were told, and what is left, can be explained.

Each call is taken for one moment between its beginning and its end at which it happened (what takes
dead tasks out for two: the look and the removal). The books are right if there is an order of these
moments in which the plain model of a store answers as the store did and ends as the store ended.
A call that was cut off by a SIGKILL may have happened or not. A list is a look at each id by
itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tests.schedules import model
from tests.schedules.controller import Event
from tests.schedules.model import Effect, State

FOREVER = 1 << 30


@dataclass
class Call:
    """A call that a process made, between two events."""

    who: int
    kind: str
    arguments: list[Any]
    low: int
    high: int = FOREVER
    result: Any = None
    outcome: str = "cut off"
    inner: list[Call] = field(default_factory=list)

    def __str__(self) -> str:
        answer = self.result if self.outcome != "cut off" else ""
        place = f"[{self.low}-{self.high}]"
        return f"{self.who} {self.kind}{self.arguments} {place} {self.outcome} {answer}"


@dataclass
class Step:
    """One moment: between which events it lies, and what happens in it."""

    low: int
    high: int
    effect: Effect
    is_look: bool = False
    """It changes nothing."""


def calls_of(events: list[Event]) -> tuple[list[Call], dict[int, int]]:
    """The calls, those within others in these; and at which event a process was killed."""
    calls: list[Call] = []
    under_way: dict[int, list[Call]] = {}
    killed: dict[int, int] = {}
    for number, event in enumerate(events):
        stack = under_way.setdefault(event.who, [])
        if event.kind == "begin":
            call = Call(event.who, event.data[0], event.data[1], number)
            (stack[-1].inner if stack else calls).append(call)
            stack.append(call)
        elif event.kind in ("end", "failed"):
            call = stack.pop()
            call.high, call.result, call.outcome = number, event.data[0], event.kind
        elif event.kind == "killed":
            killed[event.who] = number
            for call in stack:
                call.high = number
    return calls, killed


_SIMPLE: dict[str, Callable[..., Effect]] = {
    "start": model.start,
    "complete": model.complete,
    "retry": model.retry,
    "release": model.release,
    "put back": lambda who, task_id, tag: model.put_back(task_id, tag),
    "add": model.add,
}


def _steps(call: Call) -> Iterator[Step]:
    """The moments of a call that is more than a look, one after the other."""
    cut_off = call.outcome == "cut off"
    effect: Effect
    if call.kind in _SIMPLE:
        effect = _SIMPLE[call.kind](call.who, *call.arguments)
        if call.outcome == "failed":
            yield Step(call.low, call.high, model.perhaps(effect))
            effect = model.withdraw(*call.arguments[:2])
    elif call.kind == "bury":
        effect = model.bury(*call.arguments)
    elif call.kind == "remove":
        effect = model.remove(call.arguments[0], answer=cut_off or call.result)
    elif call.kind == "claim":
        for found in call.result or ():
            yield Step(call.low, call.high, model.claim(call.who, *found))
        return
    elif call.kind in ("take", "purge"):
        yield from _steps_of_take(call, cut_off)
        return
    else:
        return
    yield Step(call.low, call.high, model.perhaps(effect) if cut_off else effect)


def _steps_of_take(call: Call, cut_off: bool) -> Iterator[Step]:
    look = model.take(call.who, call.arguments[0], None if cut_off else call.result)
    before = call.inner[0].low if call.inner else call.high
    after = call.inner[-1].high if call.inner else call.low
    yield Step(call.low, before, model.perhaps(look) if cut_off and not call.inner else look)
    for inner in call.inner:
        yield from _steps(inner)
    drop = model.drop_taken(call.who)
    yield Step(min(after, call.high), call.high, model.perhaps(drop) if cut_off else drop)


def _looks(call: Call, ids: set[str], moving: set[str]) -> Iterator[Step]:
    """What a look saw: of each id by itself.

    A list reads one segment after the other, so it may miss what is ``moving`` from one that it
    reads late to one that it has read.
    """
    seen: list[tuple[Callable[[State], Any], Any]] = []
    if call.kind == "find":
        seen.append((partial(model.dead_tag, call.arguments[0]), call.result))
    elif call.kind == "count":
        seen.append((model.dead_ids, call.result))
    elif call.kind == "dead":
        found = dict(call.result)
        seen += [(partial(model.dead_tag, name), found.get(name)) for name in ids | found.keys()]
    elif call.kind == "pending":
        tags: dict[str, frozenset[str]] = dict.fromkeys(ids, frozenset())
        for name, tag in call.result:
            tags[name] = tags.get(name, frozenset()) | {tag}
        for name, answer in tags.items():
            if name in moving and not answer:
                continue
            seen.append((partial(model.pending_tags, name), answer))
    for look, answer in seen:
        yield Step(call.low, call.high, model.seen(look, answer), is_look=True)


def _misses(call: Call) -> Iterator[Step]:
    """What was not claimed or removed was not to be had, at some moment."""
    missed: set[str] = set()
    is_free = model.is_due_and_free
    if call.kind == "claim":
        missed = set(call.arguments[0]) - {task_id for task_id, *_ in call.result}
    elif call.kind == "remove" and not call.result:
        missed, is_free = {call.arguments[0]}, model.is_free
    for task_id in missed:
        look = model.seen(partial(is_free, task_id), False)
        yield Step(call.low, call.high, look, is_look=True)


def _may_hold_up(other: Call, call: Call) -> bool:
    """Whether it locks for a moment what it then lets go, or moves what it locks."""
    kinds = ("claim", "remove", "maintain", "sync", "add", "close")
    return other.who != call.who and other.kind in kinds and _overlap(other, call)


def _overlap(one: Call, other: Call) -> bool:
    return one.low < other.high and other.low < one.high


def ids_in(calls: list[Call]) -> set[str]:
    """All ids that any call may have changed."""
    found = set()
    for call in calls:
        if call.kind in _SIMPLE or call.kind in ("bury", "remove"):
            found.add(call.arguments[0])
        elif call.kind in ("purge", "take"):
            found.update(call.arguments[0])
    return found


def _added(calls: Iterable[Call]) -> Iterator[model.Task]:
    """What a sync of this process may have to move to another segment."""
    for call in calls:
        if call.kind == "add":
            yield call.arguments[0], call.arguments[1]
        elif call.kind == "retry":
            yield call.arguments[0], call.arguments[2]


def explain(
    state: State, calls: list[Call], killed: dict[int, int], fits: Callable[[State], bool]
) -> bool:
    """Whether there is an order of the moments that leads to a state which ``fits``."""
    ids = ids_in(calls) | {task[0] for task in state.pending} | {task[0] for task in state.dead}
    sequences: dict[int, list[Step]] = {}
    lanes: list[list[Step]] = []
    for call in calls:
        sequences.setdefault(call.who, []).extend(_steps(call))
        moving = {
            task_id
            for other in calls
            if other.kind == "sync" and _overlap(other, call)
            for task_id, _ in _added(each for each in calls if each.who == other.who)
        }
        if call.outcome == "end":
            lanes += [[step] for step in _looks(call, ids, moving)]
            if not any(_may_hold_up(other, call) for other in calls):
                lanes += [[step] for step in _misses(call)]
    for who, number in killed.items():
        own = [call for call in calls if call.who == who]
        at_a_sync = any(call.kind == "sync" and call.outcome == "cut off" for call in own)
        moved = frozenset(_added(own) if at_a_sync else ())
        sequences.setdefault(who, []).append(Step(number, number, model.die(who, moved)))
    lanes += [steps for steps in sequences.values() if steps]
    return _search(lanes, state, fits)


def _search(lanes: list[list[Step]], state: State, fits: Callable[[State], bool]) -> bool:
    stack = [((0,) * len(lanes), state)]
    known = set(stack)
    while stack:
        places, state = stack.pop()
        following = [
            (number, steps[place])
            for number, (steps, place) in enumerate(zip(lanes, places, strict=True))
            if place < len(steps)
        ]
        if not following:
            if fits(state):
                return True
            continue
        soonest = min(step.high for _, step in following)
        possible = [
            ((*places[:number], places[number] + 1, *places[number + 1 :]), step, list(results))
            for number, step in following
            if step.low <= soonest and (results := step.effect(state))
        ]
        # A look that can have been made now need not be tried later: it changes nothing.
        looks = [each for each in possible if each[1].is_look and each[2]]
        for further, _, results in looks[:1] or possible:
            for result in results:
                node = (further, result)
                if node not in known:
                    known.add(node)
                    stack.append(node)
    return False
