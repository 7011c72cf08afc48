"""Scenarios of the log on a disk of which an fsync fails."""

from __future__ import annotations

from tests.crash.enumeration import Playable
from tests.crash.scenario import Killed, Scenario
from tests.crash.scenarios_log import two_tasks
from tests.crash.stage import Stage


def enqueue_on_a_failing_disk(stage: Stage) -> None:
    """An fsync fails: one add is refused, the next is durable."""
    log = stage.log(fsync_frequency=0)
    stage.enqueue(log, "new")
    stage.recorder.fail_next_fsync()
    stage.enqueue_in_vain(log, "refused")
    stage.enqueue(log, "newer")


def rescue(stage: Stage) -> None:
    """The timer's fsync fails: what it was for is written anew elsewhere."""
    log = stage.log()
    stage.enqueue(log, "new")
    stage.enqueue(log, "newer")
    stage.books.may_be_repeated("new", "newer")
    stage.recorder.fail_next_fsync()
    stage.sync(log)
    stage.books.may_be_repeated()
    stage.enqueue(log, "newest")
    stage.sync(log)


def run_what_does_not_become_durable(stage: Stage) -> None:
    """The same, and the producer's fsync fails: the one task has run, the other is moved."""
    producer, worker = stage.log(), stage.log()
    stage.enqueue(producer, "new")
    stage.enqueue(producer, "newer")
    entry = stage.claim_one(worker, "new")
    stage.start(worker, entry)
    stage.complete(worker, entry)
    stage.books.may_be_repeated("newer")
    stage.recorder.fail_next_fsync()
    stage.sync(producer)
    stage.books.may_be_repeated()
    stage.sync(worker)


def work_on_a_failing_disk(stage: Stage) -> None:
    """The fsync of what a worker has appended fails."""
    worker = stage.log()
    first, second = stage.claim(worker, "a", "b")
    stage.start(worker, first)
    stage.start(worker, second)
    stage.complete(worker, first)
    stage.recorder.fail_next_fsync()
    stage.sync(worker)
    stage.complete(worker, second)
    stage.sync(worker)


def retry_on_a_failing_disk(stage: Stage) -> None:
    """The fsync of a retry fails."""
    worker = stage.log()
    entry = stage.claim_one(worker, "a")
    stage.start(worker, entry)
    stage.reschedule(worker, entry, b"second attempt")
    stage.books.may_be_repeated("a")
    stage.recorder.fail_next_fsync()
    stage.sync(worker)
    stage.books.may_be_repeated()


def work_and_tidy(stage: Stage) -> None:
    """A worker runs what it finds. What a failed fsync has taken, nobody alive was told of."""
    worker = stage.log()
    stage.run_all(worker)
    stage.sync(worker)
    worker.maintain()


_FAILING = (
    Scenario("log: fsync fails, timer", two_tasks, rescue),
    Scenario("log: fsync fails, finished", two_tasks, run_what_does_not_become_durable),
    Scenario("log: fsync fails, worker", two_tasks, work_on_a_failing_disk),
    Scenario("log: fsync fails, retry", two_tasks, retry_on_a_failing_disk),
)

SCENARIOS: tuple[Playable, ...] = (
    Scenario("log: fsync fails, durable at once", two_tasks, enqueue_on_a_failing_disk),
    *_FAILING,
    *(
        Killed(f"{base.name}; killed, work", base.prepare, base.act, work_and_tidy)
        # An older attempt may come back there, when the process that knew of the failure is dead.
        for base in _FAILING
        if base.act is not retry_on_a_failing_disk
    ),
)
