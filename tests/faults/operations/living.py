"""A worker's life."""

from __future__ import annotations

from deferred_django.backends.base import RunningTask
from tests.faults.operation import Operation
from tests.faults.operations.working import one_known, two_segments, worked
from tests.faults.world import PAST, World


def worker_started(world: World) -> None:
    world.subject.worker_started(threads=2, queues=["default"])


def one_worker(world: World) -> bool:
    return len(world.subject.status().workers) == 1


def worker_is_there(world: World) -> None:
    worker_started(world)
    world.enqueue("a")


def worker_heartbeat(world: World) -> None:
    """It says what it runs, and then that this is over."""
    world.subject.worker_heartbeat([RunningTask("1-1-a-1", "app.tasks.long", PAST)])
    world.subject.worker_heartbeat()


def runs_nothing(world: World) -> bool:
    """One worker, and nothing that it was said to run."""
    return [list(worker.running) for worker in world.subject.status().workers] == [[]]


def worker_stopped(world: World) -> None:
    world.subject.worker_stopped()


def no_worker(world: World) -> bool:
    return not world.subject.status().workers


def wait(world: World) -> None:
    one_known(world)
    world.subject.wait(0.0)
    world.subject.wait(0.0)
    one_known(world)


def busy(world: World) -> None:
    """Adds and removals that are not synced, a watch, and a worker's file."""
    worked(world)
    world.enqueue("e", by=world.subject)
    world.subject.wait(0.0)
    worker_started(world)
    world.let_go()


def close(world: World) -> None:
    world.subject.close()


OPERATIONS = (
    Operation("worker starts", worker_started, changes=False, settled=one_worker),
    Operation(
        "worker's sign of life",
        worker_heartbeat,
        worker_is_there,
        changes=False,
        settled=runs_nothing,
    ),
    Operation("worker stops", worker_stopped, worker_is_there, changes=False, settled=no_worker),
    Operation("wait", wait, two_segments, changes=False, quiet=True),
    Operation("close", close, busy, changes=False),
)
