"""The cases: every operation with every fault at each of its calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from tests.faults.injector import DONE_THEN_FAIL, ERRORS, Fault, Injector, Level, Mode
from tests.faults.operation import Operation
from tests.faults.watching import logged
from tests.faults.world import State, World, read_state

GIVE_A_RESULT = frozenset(("open", "pipe", "init", "open_file", "create_file"))
"""Calls whose result an interruption right behind them would lose in any program."""


@dataclass(frozen=True)
class Expected:
    """What a run without faults finds and does."""

    before: State
    after: State
    final: State
    calls: list[str]


@dataclass
class Case:
    """An operation with a fault."""

    operation: Operation
    level: Level
    fault: Fault
    call: str = ""
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.operation.name}: {self.level.value} {self.call}, {self.fault}"

    def check(self, so: bool, what: str) -> None:
        """Note a violation unless ``so``."""
        if not so:
            self.violations.append(what)


def faults_at(number: int, call: str, level: Level) -> Iterator[Fault]:
    """All faults of one call."""
    for mode in (Mode.ONCE, Mode.LASTING):
        for code in ERRORS:
            yield Fault(number, mode, code)
    if call in DONE_THEN_FAIL:
        return  # there is nobody left who could do it again: the number may be another file's
    yield Fault(number, Mode.INTERRUPT)
    if call not in GIVE_A_RESULT:
        yield Fault(number, Mode.INTERRUPT_AFTER)


def expect(operation: Operation, level: Level) -> Expected:
    """Prepare and run the operation without a fault."""
    world = World(operation.frequency)
    injector = Injector(level)
    try:
        with logged():
            operation.prepare(world)
            before = read_state(world.path)
            with injector.armed():
                result = operation.run(world)
            after = read_state(world.path)
            assert operation.told(world, result), f"{operation.name}: {result!r}"
            assert (before != after) == operation.changes, operation.name
            if operation.again is not None:
                operation.again(world)
            assert operation.settled is None or operation.settled(world), operation.name
            return Expected(before, after, read_state(world.path), injector.calls)
    finally:
        world.remove()


Planned = tuple[Operation, Level, Fault]


def plan(
    expected: Callable[[Operation, Level], Expected],
    operations: Iterable[Operation],
    levels: Iterable[Level],
) -> Iterator[Planned]:
    """All cases. ``expected`` is :func:`expect`, or remembers what that found."""
    for operation in operations:
        for level in levels:
            for number, call in enumerate(expected(operation, level).calls):
                for fault in faults_at(number, call, level):
                    yield operation, level, fault
