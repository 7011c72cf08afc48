"""Scenarios in which a task goes from the log to the dead tasks, or back: never is it nowhere."""

from __future__ import annotations

from deferred_django.backends.base import ClaimedTask
from deferred_django.backends.disk.backend import DiskBackend
from deferred_django.context import TaskContext
from deferred_django.queue import Queue
from tests.crash.books import ANYTHING, Outcome, Pending
from tests.crash.enumeration import Playable
from tests.crash.scenario import Again, Killed, Scenario
from tests.crash.scenarios_dead import another_removes, filled
from tests.crash.scenarios_log import another_works
from tests.crash.stage import Stage

CONTEXT = TaskContext("app.tasks.fail", [], {}, enqueued_at=1_000_000_000.0)
DATA = CONTEXT.to_bytes()
DEAD = Outcome(None, ANYTHING)
AGAIN = Pending(ANYTHING)


def disk_of(queue: Queue) -> DiskBackend:
    """The facade behind the queue."""
    backend = queue.backend
    assert isinstance(backend, DiskBackend)
    return backend


# -- what is there before ----------------------------------------------------------------------


def pending(stage: Stage) -> None:
    """Dead tasks, and two that wait."""
    filled(stage)
    log = stage.log()
    stage.enqueue(log, "x", DATA)
    stage.enqueue(log, "y", DATA)
    stage.let_go(log)


def dead(stage: Stage) -> None:
    """The same; one of the two has died."""
    pending(stage)
    hand_over(stage)


# -- what is done ------------------------------------------------------------------------------


def bury(stage: Stage, queue: Queue, claim: ClaimedTask) -> None:
    """The task fails for the last time."""
    known = stage.books.of(claim.id)
    seen = Pending(claim.context, claim.crashes)
    started = seen._replace(runs=seen.runs + 1)
    stage.books.may_be(claim.id, *(outcome._replace(log=started) for outcome in known))
    queue.start(claim)
    both = (Outcome(seen, ANYTHING), Outcome(started, ANYTHING))
    stage.books.may_be(claim.id, *both, DEAD)
    queue.fail(claim, CONTEXT, ValueError("no"), None)
    stage.books.is_one_of(claim.id, *both, DEAD)


def hand_over(stage: Stage) -> None:
    """A task gives up: the dead task is durable before the log lets go of it."""
    queue = stage.queue()
    [claim] = queue.claim(1, ids=["x"])
    bury(stage, queue, claim)
    queue.backend.sync()
    stage.books.is_one_of("x", DEAD)


def retry(stage: Stage) -> None:
    """A dead task is run again: it is durably pending before the dead tasks let go of it."""
    queue = stage.queue()
    stage.books.may_be("x", Outcome(AGAIN, ANYTHING), Outcome(AGAIN))
    assert queue.retry_dead_tasks(["x"]) == ["x"]
    stage.books.is_one_of("x", Outcome(AGAIN))


def retry_and_die_again(stage: Stage) -> None:
    """It is run again, and dies again at once."""
    retry(stage)
    queue = stage.queue()
    [claim] = queue.claim(1, ids=["x"])
    bury(stage, queue, claim)
    queue.backend.sync()
    stage.books.is_one_of("x", DEAD)


def die_while_it_is_retried(stage: Stage) -> None:
    """Its second death comes before the retry has removed the first."""
    worker = stage.queue()
    retrying = disk_of(stage.queue())
    store = retrying.dead_tasks
    both = Outcome(AGAIN, ANYTHING)
    stage.books.may_be("x", both)

    def hand_over_again() -> None:
        retrying.tasks.sync()
        stage.books.is_one_of("x", both)
        [claim] = worker.claim(1, ids=["x"])
        bury(stage, worker, claim)
        worker.backend.sync()
        stage.books.is_one_of("x", DEAD)

    taken = store.take(
        ["x"],
        lambda task_id, record: stage.enqueue(retrying.tasks, task_id, DATA),
        hand_over_again,
    )
    assert taken == ["x"]


def purge(stage: Stage) -> None:
    """What has died is removed for good."""
    queue = stage.queue()
    stage.books.may_be("x", Outcome())
    assert queue.backend.remove_dead_tasks("x") == 1
    stage.books.is_one_of("x", Outcome())


# -- what another process does after a death ----------------------------------------------------


def another_fails(stage: Stage) -> None:
    """A worker meets what is there, and all of it fails for good."""
    queue = stage.queue()
    backend = disk_of(queue)
    claims = queue.claim(10)
    backend.sync()
    stage.promise_the_log_as_it_is(backend.tasks)
    for claim in claims:
        bury(stage, queue, claim)
    backend.sync()
    for claim in claims:
        stage.books.is_one_of(claim.id, DEAD)


_BASE = (
    Scenario("both: hand over", pending, hand_over),
    Scenario("both: retry", dead, retry),
    Scenario("both: retry and die again", dead, retry_and_die_again),
    Scenario("both: die while it is retried", dead, die_while_it_is_retried),
)

SCENARIOS: tuple[Playable, ...] = (
    *_BASE,
    Scenario("both: purge", dead, purge),
    *(
        Killed(f"{base.name}; killed, {then.__name__}", base.prepare, base.act, then)
        for base in _BASE
        for then in (another_works, another_fails, another_removes)
    ),
    *(
        Again(f"{base.name}; again, {act.__name__}", base, act)
        for base in _BASE
        for act in (another_works, another_fails)
    ),
)
