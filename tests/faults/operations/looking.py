"""Looking at a store."""

from __future__ import annotations

from typing import Any

from tests.faults.operation import Operation
from tests.faults.operations.working import two_segments
from tests.faults.world import World


def some_of_all(world: World) -> None:
    two_segments(world)
    world.bury("x", "y")
    world.claim("a")
    world.subject.start_task(world.claims[0])
    world.subject.worker_started(threads=1)


def pending_tasks(world: World) -> list[str]:
    return sorted(task.id for task in world.subject.pending_tasks())


def all_pending(world: World, result: Any) -> bool:
    return bool(result == ["a", "b", "c", "d", "e", "later"])


def status(world: World) -> Any:
    return world.subject.status()


def all_counted(world: World, result: Any) -> bool:
    counts = (result.pending, result.delayed, result.running, result.dead, len(result.workers))
    return counts == (4, 1, 1, 2, 1) or bool(result.problems)


def verify(world: World) -> Any:
    return world.subject.verify()


def nothing_found(world: World, result: Any) -> bool:
    return not result or all(found.kind == "unreadable" for found in result)


def look_at_dead(world: World) -> Any:
    subject = world.subject
    page = [record["id"] for record in subject.list_dead_tasks(limit=5)]
    every = [record["id"] for record in subject.list_dead_tasks()]
    found = subject.find_dead_task("x")
    return page, every, subject.count_dead_tasks(), found and found["id"]


def all_dead(world: World, result: Any) -> bool:
    return bool(result == (["y", "x"], ["y", "x"], 2, "x"))


OPERATIONS = (
    Operation("pending_tasks", pending_tasks, some_of_all, changes=False, told=all_pending),
    Operation("status", status, some_of_all, changes=False, told=all_counted),
    Operation("verify", verify, some_of_all, changes=False, told=nothing_found),
    Operation("look at dead tasks", look_at_dead, some_of_all, changes=False, told=all_dead),
)
