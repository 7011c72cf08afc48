"""The ticks of the schedule."""

from __future__ import annotations

from typing import Any

from deferred_django.backends.schedule import TickRecord
from tests.faults.operation import Operation
from tests.faults.world import FUTURE, PAST, World


def one_tick(world: World) -> None:
    _save_ticks(world, TickRecord(name="a", next_at=PAST))


def save_ticks(world: World) -> None:
    _save_ticks(world, TickRecord(name="a", next_at=FUTURE), TickRecord(name="b", next_at=PAST))


def _save_ticks(world: World, *ticks: TickRecord) -> None:
    with world.subject.hold_schedule() as hold:
        assert hold is not None, "somebody has it"
        # What is there was there before, or is what a save that failed was to bring.
        there = [(tick.name, tick.next_at) for tick in hold.records]
        assert there in ([], [("a", PAST)], [("a", FUTURE), ("b", PAST)]), there
        hold.save(ticks)


def both_ticks(world: World) -> bool:
    return [tick.name for tick in world.subject.tick_records()] == ["a", "b"]


def look_at_ticks(world: World) -> list[str]:
    return [tick.name for tick in world.subject.tick_records()]


def one_seen(world: World, result: Any) -> bool:
    return bool(result == ["a"])


OPERATIONS = (
    Operation("first ticks", save_ticks, changes=False, durable=True, settled=both_ticks),
    Operation("ticks", save_ticks, one_tick, changes=False, durable=True, settled=both_ticks),
    Operation("look at ticks", look_at_ticks, one_tick, changes=False, told=one_seen),
)
