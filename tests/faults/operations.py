"""The operations of the disk store whose calls fail, one after the other.

Each is prepared without faults, is done once with one, and is done again when the fault has ended.
What must be in the store before and after it is what a run without faults finds there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from deferred_django.backends.base import RunningTask
from deferred_django.backends.disk import files, tidy
from deferred_django.backends.schedule import TickRecord
from deferred_django.context import TaskContext
from tests.faults.world import FUTURE, NEVER, PAST, World, context

Action = Callable[[World], Any]


def nothing(world: World) -> None:
    """No preparation, or nothing to be done."""


def complete(world: World, result: Any) -> bool:
    """The default: the operation is what it says, if it raised nothing."""
    return True


@dataclass(frozen=True)
class Operation:
    """Something done to a store."""

    name: str
    run: Action
    prepare: Action = nothing
    again: Action | None = None
    """When the fault has ended; ``run``, if it is not given."""
    frequency: float = NEVER
    """The subject's ``FSYNC_FREQUENCY``."""
    changes: bool = True
    """Whether the tasks in the store are others afterwards."""
    refuses: bool = False
    """An error means that nothing was done, and nothing of it ever happens."""
    durable: bool = False
    """What it did is durable when it returns: where no fsync succeeds any more it must fail."""
    late: bool = False
    """It refuses a task within itself, which may be in the store until the timer has removed it."""
    whole: bool = True
    """After an error all is as before, or all as after. Else each task is as before, as after, or
    both (a task between two stores is in both of them)."""
    quiet: bool = False
    """It tells of no error: what it could not do is done by its next call."""
    told: Callable[[World, Any], bool] = complete
    """Whether a result that came without an error is the whole truth; if not, the log must say
    what is missing."""
    settled: Callable[[World], bool] | None = None
    """What must be so in the end besides."""


# -- producing -----------------------------------------------------------------------------------


def enqueue(world: World) -> None:
    world.subject.add_task(context("new"), task_id="new", publish_at=PAST)


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


# -- working -------------------------------------------------------------------------------------


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


# -- tidying -------------------------------------------------------------------------------------


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


# -- looking -------------------------------------------------------------------------------------


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


# -- dead tasks ----------------------------------------------------------------------------------


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


# -- the schedule --------------------------------------------------------------------------------


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


# -- life cycle ----------------------------------------------------------------------------------


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


OPERATIONS = {
    operation.name: operation
    for operation in (
        *(
            Operation(
                f"{name}, {each}",
                enqueue,
                prepare,
                frequency=frequency,
                refuses=True,
                durable=not frequency,
            )
            for each, frequency in (("fsync each", 0.0), ("fsync later", NEVER))
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
        Operation("pending_tasks", pending_tasks, some_of_all, changes=False, told=all_pending),
        Operation("status", status, some_of_all, changes=False, told=all_counted),
        Operation("verify", verify, some_of_all, changes=False, told=nothing_found),
        Operation("look at dead tasks", look_at_dead, some_of_all, changes=False, told=all_dead),
        Operation("first dead task", bury, durable=True),
        Operation("dead task", bury, three_dead, durable=True),
        Operation("dead task behind a torn one", bury, torn_tail, durable=True),
        Operation("dead task behind a missing newline", bury, newline_missing),
        Operation("dead task through a link", bury, linked, settled=is_still_a_link),
        Operation("remove dead tasks", remove_dead, three_dead, told=two_gone, durable=True),
        Operation("remove beside a torn one", remove_dead, torn_tail, told=two_gone),
        Operation(
            "remove through a link", remove_dead, linked, told=two_gone, settled=is_still_a_link
        ),
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
        Operation("first ticks", save_ticks, changes=False, durable=True, settled=both_ticks),
        Operation("ticks", save_ticks, one_tick, changes=False, durable=True, settled=both_ticks),
        Operation("look at ticks", look_at_ticks, one_tick, changes=False, told=one_seen),
        Operation("worker starts", worker_started, changes=False, settled=one_worker),
        Operation(
            "worker's sign of life",
            worker_heartbeat,
            worker_is_there,
            changes=False,
            settled=runs_nothing,
        ),
        Operation(
            "worker stops", worker_stopped, worker_is_there, changes=False, settled=no_worker
        ),
        Operation("wait", wait, two_segments, changes=False, quiet=True),
        Operation("close", close, busy, changes=False),
    )
}
