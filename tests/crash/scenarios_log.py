"""Scenarios of the log alone."""

from __future__ import annotations

import os
from unittest import mock

from deferred_django.backends.disk import tidy
from tests.crash.enumeration import Playable
from tests.crash.scenario import Act, Again, Killed, Scenario
from tests.crash.stage import Stage
from tests.disk import support

# -- what is there before ----------------------------------------------------------------------


def nothing(stage: Stage) -> None:
    """Nothing is there, not even the directory."""


def two_tasks(stage: Stage) -> None:
    """Two tasks wait in a segment that nobody owns."""
    log = stage.log()
    stage.enqueue(log, "a")
    stage.enqueue(log, "b", b"two\nlines")
    stage.let_go(log)


def ending_in(tail: bytes, *, cut: int = 0) -> Act:
    """The same, with ``cut`` bytes less at the end, and these more."""

    def prepare(stage: Stage) -> None:
        two_tasks(stage)
        path = support.only_segment(stage.directory)
        os.truncate(path, path.stat().st_size - cut)
        with path.open("ab") as file:
            file.write(tail)

    return prepare


def mostly_dead(stage: Stage) -> None:
    """Three of six tasks wait; one was tried before, and one killed its worker twice."""
    log = stage.log()
    for task_id in "abcdef":
        stage.enqueue(log, task_id, task_id.encode() * 20)
    stage.let_go(log)
    for _ in range(2):
        with stage.process_that_dies():
            worker = stage.log()
            stage.start(worker, stage.claim_one(worker, "a"))
    worker = stage.log()
    for task_id in "cef":
        entry = stage.claim_one(worker, task_id)
        stage.start(worker, entry)
        stage.complete(worker, entry)
    for attempt in range(6):
        entry = stage.claim_one(worker, "d")
        stage.start(worker, entry)
        stage.reschedule(worker, entry, b"attempt %d" % attempt)
    stage.let_go(worker)
    stage.promise_what_is_there()


# -- what is done ------------------------------------------------------------------------------


def enqueue_durably(stage: Stage) -> None:
    """Two adds, each durable when it returns."""
    log = stage.log(fsync_frequency=0)
    stage.enqueue(log, "new")
    stage.enqueue(log, "newer")


def enqueue_one(stage: Stage) -> None:
    """One add, durable when it returns, and the process ends."""
    log = stage.log(fsync_frequency=0)
    stage.enqueue(log, "last")
    stage.let_go(log)


def enqueue(stage: Stage) -> None:
    """Adds, and the timer."""
    log = stage.log()
    stage.enqueue(log, "new")
    stage.sync(log)
    stage.enqueue(log, "newer")
    stage.enqueue(log, "newest", b"with\nnewlines\\n")
    stage.sync(log)


def enqueue_together(stage: Stage) -> None:
    """Several adds by one write, durable when it returns, and one behind them."""
    log = stage.log(fsync_frequency=0)
    stage.enqueue_together(log, "new", "newer", "newest")
    stage.enqueue(log, "last")


def enqueue_together_and_rotate(stage: Stage) -> None:
    """Several adds by one write, more than a segment takes, and the timer."""
    log = stage.log(rotate_bytes=200)
    stage.enqueue_together(log, "new", "newer", "newest")
    stage.enqueue_together(log, "second", "third")
    stage.sync(log)


def enqueue_long(stage: Stage) -> None:
    """Records of several sectors."""
    log = stage.log()
    stage.enqueue(log, "new", b"n" * 1500)
    stage.enqueue(log, "newer", b"\n" * 700)
    stage.sync(log)


def rotate(stage: Stage) -> None:
    """More adds than one segment takes, and the timer."""
    log = stage.log(rotate_bytes=200)
    for number in range(5):
        stage.enqueue(log, f"new{number}")
        if number == 3:
            stage.sync(log)
    stage.sync(log)


def rotate_durably(stage: Stage) -> None:
    """More adds than one segment takes, each durable when it returns."""
    log = stage.log(fsync_frequency=0, rotate_bytes=100)
    for number in range(4):
        stage.enqueue(log, f"new{number}")


def work(stage: Stage) -> None:
    """A worker runs everything."""
    worker = stage.log()
    stage.run_all(worker)
    stage.sync(worker)


def retry(stage: Stage) -> None:
    """Runs that fail and are tried again, and one that is stopped."""
    worker = stage.log()
    first, second = stage.claim(worker, "a", "b")
    stage.start(worker, first)
    stage.start(worker, second)
    stage.reschedule(worker, first, b"second attempt")
    stage.put_back(worker, second)
    stage.sync(worker)
    again = stage.claim_one(worker, "a")
    stage.start(worker, again)
    stage.reschedule(worker, again, b"third attempt")
    again = stage.claim_one(worker, "a")
    stage.start(worker, again)
    stage.complete(worker, again)
    stage.sync(worker)


def remove_task(stage: Stage) -> None:
    """One task is dropped."""
    stage.remove_task(stage.log(), "a")


def compact(stage: Stage) -> None:
    """A worker compacts what is mostly dead, however small."""
    with mock.patch.object(tidy, "COMPACT_BYTES", 100):
        stage.log().maintain()


def tidy_up(stage: Stage) -> None:
    """The same; then it runs what is left."""
    worker = stage.log()
    stage.claim(worker, "nothing")
    with mock.patch.object(tidy, "COMPACT_BYTES", 100):
        worker.maintain()
    entry = stage.claim_one(worker, "b")
    stage.start(worker, entry)
    stage.complete(worker, entry)
    stage.sync(worker)


def work_and_erase(stage: Stage) -> None:
    """A worker runs everything and erases the segment before any timer; then there is more."""
    worker = stage.log()
    stage.run_all(worker)
    worker.maintain()
    stage.sync(worker)
    enqueue_durably(stage)


def run_what_is_not_durable(stage: Stage) -> None:
    """A worker is faster than the producer's timer."""
    producer, worker = stage.log(), stage.log()
    stage.enqueue(producer, "new")
    stage.enqueue(producer, "newer")
    entry = stage.claim_one(worker, "new")
    stage.start(worker, entry)
    stage.complete(worker, entry)
    entry = stage.claim_one(worker, "newer")
    stage.start(worker, entry)
    stage.sync(worker)
    stage.sync(producer)
    stage.reschedule(worker, entry, b"second attempt")
    stage.sync(worker)


# -- what another process does after a death ----------------------------------------------------


def another_works(stage: Stage) -> None:
    """A worker meets what is there, and has it durable; then it runs it and tidies."""
    worker = stage.log()
    stage.claim(worker, "nothing")
    worker.sync()
    stage.promise_the_log_as_it_is(worker)
    stage.run_all(worker)
    stage.sync(worker)
    worker.maintain()


def another_enqueues(stage: Stage) -> None:
    """A producer adds a task."""
    stage.enqueue(stage.log(fsync_frequency=0), "another")


_BASE = (
    Scenario("log: first use, durable at once", nothing, enqueue_durably),
    Scenario("log: first use, timer", nothing, enqueue),
    Scenario("log: adopt, durable at once", two_tasks, enqueue_durably),
    Scenario("log: several at once, durable", two_tasks, enqueue_together),
    Scenario("log: several at once, rotate, timer", nothing, enqueue_together_and_rotate),
    Scenario("log: run and complete", two_tasks, work),
    Scenario("log: retry", two_tasks, retry),
    Scenario("log: rotate", nothing, rotate),
    Scenario("log: compact", mostly_dead, tidy_up),
    Scenario("log: erase", two_tasks, work_and_erase),
    Scenario("log: remove a task", two_tasks, remove_task),
)

_TORN = b"\n0badc0de:add:torn:"

SCENARIOS: tuple[Playable, ...] = (
    *_BASE,
    Scenario("log: long records", two_tasks, enqueue_long),
    Scenario("log: rotate, durable at once", nothing, rotate_durably),
    Scenario("log: compact, nothing else", mostly_dead, compact),
    Scenario("log: adopt behind a torn record", ending_in(_TORN), enqueue_durably),
    Scenario("log: adopt behind zeros", ending_in(bytes(40)), enqueue_durably),
    Scenario("log: adopt behind a missing newline", ending_in(b"", cut=1), enqueue),
    Scenario("log: work and set aside", ending_in(b"\nforeign\n\n"), work_and_erase),
    Scenario("log: run what is not durable yet", two_tasks, run_what_is_not_durable),
    *(
        Killed(f"{base.name}; killed, {then.__name__}", base.prepare, base.act, then)
        for base in _BASE
        for then in (another_works, another_enqueues)
    ),
    *(
        Again(f"{base.name}; again, {act.__name__}", base, act)
        for base in _BASE
        for act in (another_works, enqueue_one)
    ),
)
