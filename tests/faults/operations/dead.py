"""What is done to dead tasks."""

from __future__ import annotations

import os
from typing import Any

from tests.faults.operation import Operation
from tests.faults.world import NEVER, World, context


def bury(world: World) -> None:
    world.subject.add_dead_task(
        "new", context("new"), ValueError("x"), task_class="app.tasks.x", attempts=3
    )


def three_dead(world: World) -> None:
    world.bury("x", "y", "z")


def _dead_file(world: World) -> str:
    return world.subject.dead_tasks._file.path


def torn_tail(world: World) -> None:
    three_dead(world)
    with open(_dead_file(world), "ab") as file:
        file.write(b"01234567:dead_task:torn:{")


def newline_missing(world: World) -> None:
    three_dead(world)
    os.truncate(_dead_file(world), os.path.getsize(_dead_file(world)) - 1)


def linked(world: World) -> None:
    three_dead(world)
    shared = world.root / "shared"
    shared.mkdir()
    os.rename(_dead_file(world), shared / "dead")
    os.symlink(shared / "dead", _dead_file(world))


def is_still_a_link(world: World) -> bool:
    return os.path.islink(_dead_file(world))


def remove_dead(world: World) -> int:
    return world.subject.remove_dead_tasks(["x", "z", "none"])


def remove_unknown(world: World) -> int:
    return world.subject.remove_dead_tasks(["none"])


def two_gone(world: World, result: Any) -> bool:
    return bool(result == 2)


def retry_dead(world: World) -> list[str]:
    return world.queue.retry_dead_tasks(["x", "z"])


OPERATIONS = (
    Operation("first dead task", bury, durable=True),
    Operation("dead task", bury, three_dead, durable=True),
    Operation("dead task behind a torn one", bury, torn_tail, durable=True),
    Operation("dead task behind a missing newline", bury, newline_missing),
    Operation("dead task through a link", bury, linked, settled=is_still_a_link),
    Operation("remove dead tasks", remove_dead, three_dead, told=two_gone, durable=True),
    Operation("remove beside a torn one", remove_dead, torn_tail, told=two_gone),
    Operation("remove through a link", remove_dead, linked, told=two_gone, settled=is_still_a_link),
    Operation("remove what is not there", remove_unknown, three_dead, changes=False),
    *(
        Operation(
            f"retry dead tasks, {each}",
            retry_dead,
            three_dead,
            frequency=frequency,
            whole=False,
        )
        for each, frequency in (("fsync each", 0.0), ("fsync later", NEVER))
    ),
)
