"""Which schedules are run: all of two processes, and walks of three by chance."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.schedules.controller import DROP, KILL, Schedule, Script
from tests.schedules.laboratory import Laboratory, Outcome
from tests.schedules.operations import OPERATIONS

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
        for first, second in itertools.product(OPERATIONS, repeat=2)
        for store in common_stores(first, second)
    ]


def common_stores(*names: str) -> list[str]:
    """The stores that all of these operations are for."""
    first, *others = (OPERATIONS[name].stores for name in names)
    return [store for store in first if all(store in stores for stores in others)]


def scripts(laboratory: Laboratory, pair: Pair, first: int = 1) -> Iterator[tuple[Script, Outcome]]:
    """Every way in which the second comes between two calls of the first.

    The first makes i calls, the second j, the first ends (or is killed where it stands), the second
    ends. Where j is 0 nobody comes between but after a kill; i = 0 is the pair the other way.
    """
    store, *operations = pair

    def run(script: Script) -> Outcome:
        return laboratory.run(Schedule(store, (operations[0], operations[1]), script))

    forks = operations[0].startswith("fork")
    alone = run(())
    yield (), alone
    for i in range(first, alone.calls[0] if alone.calls else 1):
        for j in itertools.count():
            script: Script = ((0, i), (1, j)) if j else ((0, i),)
            killed = (*script, (0, DROP if j and not forks else KILL))
            yield killed, run(killed)
            if not j:
                continue
            outcome = run(script)
            yield script, outcome
            if outcome.violation is not None or outcome.states[1] in ("done", "wait"):
                break


def run_pair(laboratory: Laboratory, pair: Pair, stop_after: int = 3, first: int = 1) -> Tally:
    """All schedules of a pair from i = ``first`` on, up to so many violations."""
    tally = Tally(f"{pair[0]}:{pair[1]}+{pair[2]}")
    for _, outcome in scripts(laboratory, pair, first):
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
