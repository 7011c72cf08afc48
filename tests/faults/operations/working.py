"""What workers do with tasks, and with segments."""

from __future__ import annotations

import os
from typing import Any

from deferred_django.backends.disk import tidy
from deferred_django.context import TaskContext
from tests.faults.operation import Operation
from tests.faults.world import FUTURE, World, context


def two_segments(world: World) -> None:
    world.enqueue("a", "b", "c")
    producer = world.backend()
    world.enqueue("d", "e", by=producer)
    producer.sync()
    producer.add_task(context("later"), task_id="later", publish_at=FUTURE)


def claim(world: World) -> list[Any]:
    found = world.subject.claim_tasks(4)
    world.claims += found
    return found


def claim_named(world: World) -> list[Any]:
    found = world.subject.claim_tasks(2, ids=["b", "d"])
    world.claims += found
    return found


def rest(world: World) -> None:
    """What was not claimed before can be."""
    world.claims += world.subject.claim_tasks(100)
    assert {"a", "b", "c", "d", "e"} <= world.held(), world.held()


def claimed(world: World) -> None:
    world.enqueue("a", "b", "c")
    world.claim("a", "b")


def started(world: World) -> None:
    claimed(world)
    world.subject.start_task(world.claims[0])


def worked(world: World) -> None:
    """Appended and not synced: a run, a removal, a retry, a task put back."""
    world.enqueue("a", "b", "c", "d")
    for task in world.claim("a", "b", "c", "d"):
        world.subject.start_task(task)
    first, second, third, _ = world.claims
    world.subject.complete_task(first)
    world.subject.reschedule_task(second, context("b", 1), publish_at=FUTURE)
    world.subject.release_task(third)


def start(world: World) -> None:
    world.subject.start_task(world.claims[0])


def finish(world: World) -> None:
    if world.claims[0].handle is not None:
        world.subject.complete_task(world.claims[0])


def reschedule(world: World) -> None:
    if world.claims[0].handle is not None:
        world.subject.reschedule_task(world.claims[0], context("a", 1), publish_at=FUTURE)


def release(world: World) -> None:
    if world.claims[0].handle is not None:
        world.subject.release_task(world.claims[0])


def remove_task(world: World) -> bool:
    return world.subject.remove_task("b")


def is_true(world: World, result: Any) -> bool:
    return bool(result)


def die(world: World) -> None:
    """The hand-over: a dead task, then the removal."""
    if world.claims[0].handle is not None:
        running = TaskContext.from_bytes(world.claims[0].context)
        world.queue.fail(world.claims[0], running, ValueError("a"), None)


# -- tidying --------------------------------------------------------------------------------------


def maintain(world: World) -> None:
    world.subject.maintain()


def one_known(world: World) -> None:
    """The subject reads the store as a worker does."""
    world.subject.claim_tasks(1, ids=["none"])


def drained(world: World) -> None:
    world.enqueue("a", "b")
    for task in world.claim("a", "b"):
        world.subject.start_task(task)
        world.subject.complete_task(task)
    world.subject.sync()


def damaged(world: World) -> None:
    drained(world)
    with open(world.subject.tasks.names.at(world.segments()[0]), "ab") as file:
        file.write(b"\nforeign\n\n")
    one_known(world)


def mostly_dead(world: World) -> None:
    names = [f"t{number}" for number in range(8)]
    world.enqueue(*names, size=tidy.COMPACT_BYTES // 7)
    for task in world.claim(*names[:6]):
        world.subject.start_task(task)
        world.subject.complete_task(task)
    world.subject.sync()


def left_behind(world: World) -> None:
    """The temp of a killed compaction, and the file of a dead worker."""
    world.enqueue("a")
    one_known(world)
    names = world.subject.tasks.names
    for name in (f"{world.segments()[0]}.tmp", names.worker("0" * 13)):
        with open(names.at(name), "w") as file:
            file.write("{}")


def no_segment(world: World) -> bool:
    return not world.segments()


def kept_aside(world: World) -> bool:
    return no_segment(world) and len(world.subject.tasks.names.asides()) == 1


def small(world: World) -> bool:
    paths = map(world.subject.tasks.names.at, world.segments())
    return sum(map(os.path.getsize, paths)) < tidy.COMPACT_BYTES // 2


def nothing_left_behind(world: World) -> bool:
    names = world.subject.tasks.names
    return not names.temps() and not names.workers()


OPERATIONS = (
    Operation("claim", claim, two_segments, again=rest, changes=False, quiet=True),
    Operation("claim by id", claim_named, two_segments, again=rest, changes=False, quiet=True),
    Operation("start", start, claimed, changes=False),
    Operation("complete", finish, started),
    Operation("complete without a start", finish, claimed),
    Operation("reschedule", reschedule, started),
    Operation("release", release, claimed, changes=False),
    Operation("release of a started task", release, started, changes=False),
    Operation("remove_task", remove_task, two_segments, told=is_true, durable=True),
    Operation("hand-over", die, started, whole=False, durable=True),
    Operation("erase", maintain, drained, changes=False, quiet=True, settled=no_segment),
    Operation("set aside", maintain, damaged, changes=False, quiet=True, settled=kept_aside),
    Operation("compact", maintain, mostly_dead, changes=False, quiet=True, settled=small),
    Operation(
        "tidy", maintain, left_behind, changes=False, quiet=True, settled=nothing_left_behind
    ),
)
