"""What producers do, and making it durable: now, on a timer, on a disk that fails."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from deferred_django.backends.base import NewTask
from deferred_django.backends.disk import files
from tests.faults.operation import Operation, nothing
from tests.faults.operations.working import worked
from tests.faults.world import NEVER, PAST, World, context


def enqueue(world: World) -> None:
    world.subject.add_task(context("new"), task_id="new", publish_at=PAST)


def enqueue_together(world: World) -> None:
    names = ("new", "new2", "new3")
    tasks = [NewTask(context(name), publish_at=PAST, task_id=name) for name in names]
    assert world.subject.add_tasks(tasks) == list(names)


def two_in_own_segment(world: World) -> None:
    world.enqueue("a", "b", by=world.subject)


def two_in_a_free_segment(world: World) -> None:
    world.enqueue("a", "b")


def at_the_limit(world: World) -> None:
    """The next add is the last of its segment."""
    world.subject.tasks._writer.rotate_bytes = 200
    world.subject.tasks._writer.reset()
    world.enqueue("a", by=world.subject)


def over_the_limit(world: World) -> None:
    """The next add opens another segment, while the full one is not synced yet."""
    at_the_limit(world)
    world.enqueue("b", by=world.subject)
    assert world.subject.tasks._writer._current is None


def sync(world: World) -> None:
    world.subject.sync()


def tick(world: World) -> None:
    world.subject.tasks._tick()


def idle(world: World) -> None:
    two_in_own_segment(world)
    world.subject.sync()
    segment = world.subject.tasks._writer._current
    assert segment is not None
    segment.used_at -= 1000


@contextlib.contextmanager
def failing_fsync() -> Iterator[None]:
    """The first fsync fails, before the fault that is looked for."""
    real = files.fsync
    failed: list[int] = []

    def fail(fd: int) -> None:
        if not failed:
            failed.append(fd)
            raise OSError(5, os.strerror(5), files._path_of(fd))
        real(fd)

    files.fsync = fail
    try:
        yield
    finally:
        files.fsync = real


def sync_after_a_failed_fsync(world: World) -> None:
    with failing_fsync():
        world.subject.sync()


def enqueue_with_a_failed_fsync(world: World) -> None:
    with failing_fsync(), contextlib.suppress(OSError):
        enqueue(world)
        raise AssertionError("an enqueue succeeded without its fsync")


OPERATIONS = (
    *(
        Operation(
            f"{name}{together}, {each}",
            action,
            prepare,
            frequency=frequency,
            refuses=True,
            durable=not frequency,
            called_back=action is enqueue_together,
        )
        for each, frequency in (("fsync each", 0.0), ("fsync later", NEVER))
        for action, together in ((enqueue, ""), (enqueue_together, ", several"))
        for name, prepare in (
            ("first use", nothing),
            ("enqueue", two_in_own_segment),
            ("enqueue that adopts", two_in_a_free_segment),
            ("enqueue that fills a segment", at_the_limit),
            ("enqueue that opens the next", over_the_limit),
        )
    ),
    Operation("sync", sync, two_in_own_segment, changes=False, durable=True),
    Operation("sync after rotation", sync, over_the_limit, changes=False),
    Operation("sync of a worker", sync, worked, changes=False, durable=True),
    Operation("tick", tick, over_the_limit, changes=False, quiet=True),
    Operation("tick of an idle owner", tick, idle, changes=False, quiet=True),
    Operation("tick of a worker", tick, worked, changes=False, quiet=True),
    Operation(
        "sync whose first fsync fails",
        sync_after_a_failed_fsync,
        over_the_limit,
        again=sync,
        changes=False,
    ),
    *(
        Operation(
            f"sync of a worker whose first fsync fails, {each}",
            sync_after_a_failed_fsync,
            worked,
            again=sync,
            frequency=frequency,
            changes=False,
        )
        for each, frequency in (("fsync each", 0.0), ("fsync later", NEVER))
    ),
    Operation(
        "enqueue whose fsync fails",
        enqueue_with_a_failed_fsync,
        two_in_own_segment,
        again=sync,
        frequency=0.0,
        changes=False,
        late=True,
    ),
)
