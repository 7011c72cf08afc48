"""Which schedules are run: all of two processes, and walks of three by chance."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, product

from tests.schedules.conflicts import accesses, locked, meet
from tests.schedules.laboratory import Laboratory, Outcome
from tests.schedules.operations import OPERATIONS
from tests.schedules.schedule import DROP, KILL, TO_THE_END, Schedule

KILL_CHANCE = 0.4
"""In so many of the walks a process is killed."""
FINE_CHANCE = 0.5


@dataclass
class Tally:
    """What came of many schedules."""

    what: str
    schedules: int = 0
    kills: int = 0
    """Schedules in which a process was killed."""
    violations: list[Outcome] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Count one."""
        self.schedules += 1
        self.kills += any(count in (KILL, DROP) for _, count in outcome.schedule.script)
        if outcome.violation is not None:
            self.violations.append(outcome)


Pair = tuple[str, str, str]
"""The store, who begins, and who comes between."""


def pairs() -> list[Pair]:
    """All pairs that can meet, in both orders, on each store that both are for."""
    return [
        (store, first, second)
        for first, second in product(OPERATIONS, repeat=2)
        for store in common_stores(first, second)
    ]


def common_stores(*names: str) -> list[str]:
    """The stores that all of these operations are for."""
    first, *others = (OPERATIONS[name].stores for name in names)
    return [store for store in first if all(store in stores for stores in others)]


def scripts(laboratory: Laboratory, pair: Pair, first: int = 1) -> Iterator[Outcome]:
    """Every way in which the second comes between two calls of the first.

    The first makes i calls, the second j, the first ends, the second ends. i = 0 is the pair the
    other way. Or the first is killed: before the second begins, or before the second looks at a
    lock that the first may hold; at other times nobody can tell. Left out are schedules that come
    to the same as another, see ``conflicts``.
    """
    store, *operations = pair

    def run(*script: tuple[int, int], traced: bool = False) -> Outcome:
        schedule = Schedule(store, (operations[0], operations[1]), script)
        return laboratory.run(schedule, traced=traced)

    kill = (0, KILL if operations[0].startswith("fork") else DROP)
    alone, after = run(traced=True), run((1, TO_THE_END), traced=True)
    yield from (alone, after)
    if not (alone.passed and after.passed):
        return
    calls = alone.passed[0]
    others = accesses(chain(*alone.passed[1], *after.passed[1]))
    for i in range(first, len(calls)):
        yield run((0, i), (0, KILL))
        if not meet(accesses(calls[i]), others):
            continue
        between = run((0, i), (1, TO_THE_END), traced=True)
        yield between
        if not between.passed:
            continue
        if between.states[1] == "wait":
            yield run((0, i), (1, TO_THE_END), kill)
        rest = accesses(chain(*calls[i:], *between.passed[0][i:]))
        held = locked(chain(*calls[:i]))
        for j in range(1, between.done[1]):
            following = between.passed[1][j]
            if meet(accesses(following), rest):
                yield run((0, i), (1, j))
            if held & locked(following):
                yield run((0, i), (1, j), kill)


def run_pair(laboratory: Laboratory, pair: Pair, stop_after: int = 3, first: int = 1) -> Tally:
    """All schedules of a pair from i = ``first`` on, up to so many violations."""
    tally = Tally(f"{pair[0]}:{pair[1]}+{pair[2]}")
    for outcome in scripts(laboratory, pair, first):
        tally.add(outcome)
        if len(tally.violations) >= stop_after:
            break
    return tally


def run_walks(laboratory: Laboratory, seed: int, count: int, size: int = 3) -> Tally:
    """Random walks of three processes."""
    dice = random.Random(seed)
    tally = Tally(f"walks of {size}, seed {seed}")
    names = sorted(OPERATIONS)
    while tally.schedules < count:
        operations = tuple(dice.choices(names, k=size))
        found = common_stores(*operations)
        if not found:
            continue
        fine = dice.random() < FINE_CHANCE
        schedule = Schedule(dice.choice(found), operations, (), fine)
        tally.add(laboratory.wander(schedule, dice, KILL_CHANCE))
    return tally
