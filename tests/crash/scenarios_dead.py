"""Scenarios of the dead tasks alone."""

from __future__ import annotations

import threading

from deferred_django.backends.disk import dead_tasks_file
from tests.crash.enumeration import Playable
from tests.crash.scenario import Act, Again, Killed, Scenario
from tests.crash.stage import PREFIX, Stage, expect_error
from tests.disk import dlq
from tests.support import wait_until

RECORDS = {name: b'{"of":"%b"}' % name.encode() for name in ("a", "b", "c", "d")}
SECOND = b'{"of":"the second death"}'

# -- what is there before ----------------------------------------------------------------------


def nothing(stage: Stage) -> None:
    """Nothing is there, not even the directory."""


def filled(stage: Stage) -> None:
    """Four dead tasks."""
    dead = stage.dead()
    for name, record in RECORDS.items():
        stage.dead_add(dead, name, record)


def ending_in(tail: bytes, *, cut: int = 0) -> Act:
    """Four dead tasks, then ``cut`` bytes less at the end, and these more."""

    def prepare(stage: Stage) -> None:
        filled(stage)
        path = dlq.data_file(stage.directory, PREFIX)
        path.write_bytes(path.read_bytes()[: path.stat().st_size - cut] + tail)

    return prepare


# -- what is done ------------------------------------------------------------------------------


def add(stage: Stage) -> None:
    """One add."""
    stage.dead_add(stage.dead(), "new")


def two_adds(stage: Stage) -> None:
    """Two adds of two processes."""
    stage.dead_add(stage.dead(), "new")
    stage.dead_add(stage.dead(), "newer")


def add_long(stage: Stage) -> None:
    """Records of several sectors, one after the other in one process."""
    dead = stage.dead()
    stage.dead_add(dead, "new", b'{"of":"%b"}' % (b"n" * 1400))
    stage.dead_add(dead, "newer", b'{"of":"%b"}' % (b"m" * 700))


def two_adds_at_once(stage: Stage) -> None:
    """Two threads add, and share one fsync."""
    dead, other = stage.dead(), stage.dead()
    names = ("new", "newer")
    for name in names:
        stage.books.dead_may_be(name, b'{"r":1}')
    threads = [threading.Thread(target=dead.add, args=(name, b'{"r":1}')) for name in names]
    with other._lock.hold():
        for number, thread in enumerate(threads, start=1):
            thread.start()
            wait_until(lambda: len(dead._appender._queue) == number)  # noqa: B023 - called at once
    for thread in threads:
        thread.join()
    for name in names:
        stage.books.dead_is(name, b'{"r":1}')


def add_remove_add(stage: Stage) -> None:
    """One process adds before and after another one's removal."""
    dead = stage.dead()
    stage.dead_add(dead, "new")
    stage.dead_remove(stage.dead(), "a", "c")
    stage.dead_add(dead, "newer")


def add_on_a_failing_disk(stage: Stage) -> None:
    """The fsync of an add fails; then the same process and another one add."""
    dead = stage.dead()
    stage.books.dead_may_be("refused", b'{"r":1}')
    stage.recorder.fail_next_fsync()
    expect_error(lambda: dead.add("refused", b'{"r":1}'))
    stage.dead_add(stage.dead(), "new")
    stage.dead_add(dead, "newer")


def add_while_the_directory_fails(stage: Stage) -> None:
    """The directory's fsync at a first add fails; then the same process and another one add."""
    dead = stage.dead()
    stage.books.dead_may_be("refused", b'{"r":1}')
    stage.recorder.fail_next_directory_fsync()
    expect_error(lambda: dead.add("refused", b'{"r":1}'))
    stage.dead_add(stage.dead(), "new")
    stage.dead_add(dead, "newer")


def remove(stage: Stage) -> None:
    """A removal of two that are not neighbours."""
    stage.dead_remove(stage.dead(), "a", "c")


def remove_all(stage: Stage) -> None:
    """A removal that leaves nothing, then an add."""
    dead = stage.dead()
    stage.dead_remove(dead, *RECORDS)
    stage.dead_add(dead, "new")


def remove_nothing(stage: Stage) -> None:
    """Removals of what is not there."""
    dead = stage.dead()
    assert dead.remove(["nobody"]) == 0
    assert dead.remove([]) == 0
    stage.dead_add(dead, "new")


def remove_while_others_add(stage: Stage) -> None:
    """Adds after the removal's snapshot: a new task, and the second death of a removed one."""
    other = stage.dead()
    added: list[str] = []

    def meanwhile(passed: int, total: int) -> None:
        if added:
            return
        added.append("new")
        stage.dead_add(other, "new")
        stage.books.dead_may_be("a", SECOND)
        other.add("a", SECOND)
        stage.books.dead_is("a", SECOND)

    stage.books.dead_may_be("c", None)
    assert stage.dead().remove(["a", "c"], progress=meanwhile) == 2
    assert added
    stage.books.dead_is("c", None)


def remove_on_a_failing_disk(stage: Stage) -> None:
    """The copy's fsync fails: nothing was removed. The next one succeeds."""
    dead = stage.dead()
    stage.recorder.fail_next_fsync()
    expect_error(lambda: dead.remove(["a", "c"]))
    stage.dead_remove(stage.dead(), "b")
    stage.dead_remove(dead, "a", "c")


def remove_while_the_directory_fails(stage: Stage) -> None:
    """The fsync of the directory after the rename fails; the next add is durable all the same."""
    other = stage.dead()
    stage.dead_add(other, "before")
    for name in ("a", "c"):
        stage.books.dead_may_be(name, None)
    stage.books.removed_together("a", "c")
    stage.recorder.fail_next_directory_fsync()
    expect_error(lambda: stage.dead().remove(["a", "c"]))
    stage.dead_add(other, "new")


# -- what another process does after a death ----------------------------------------------------


def another_adds(stage: Stage) -> None:
    """A dead task comes."""
    stage.dead_add(stage.dead(), "another")


def another_removes(stage: Stage) -> None:
    """What is there of two ids is removed."""
    dead = stage.dead()
    there = [name for name in ("b", "c") if dead.find(name) is not None]
    if there:
        stage.dead_remove(dead, *there)
    for name in ("b", "c"):
        stage.books.dead_is(name, None)


_TORN = dead_tasks_file.encode("torn", b'{"of":"nobody"}')

_BASE = (
    Scenario("dead: first use", nothing, add),
    Scenario("dead: add", filled, add),
    Scenario("dead: add behind a torn line", ending_in(_TORN[:30]), add),
    Scenario("dead: add behind a missing newline", ending_in(b"", cut=1), add),
    Scenario("dead: remove", filled, remove),
    Scenario("dead: remove while others add", filled, remove_while_others_add),
    Scenario("dead: add, remove, add", filled, add_remove_add),
)

SCENARIOS: tuple[Playable, ...] = (
    *_BASE,
    Scenario("dead: first use, two processes", nothing, two_adds),
    Scenario("dead: long records", filled, add_long),
    Scenario("dead: two adds at once", filled, two_adds_at_once),
    Scenario("dead: add behind zeros", ending_in(bytes(40)), add),
    Scenario("dead: add behind a record and zeros", ending_in(bytes(40), cut=1), add),
    Scenario("dead: add behind a line that lacks two bytes", ending_in(_TORN[:-2]), two_adds),
    Scenario("dead: remove all", filled, remove_all),
    Scenario("dead: remove nothing", filled, remove_nothing),
    Scenario("dead: remove before a torn line", ending_in(_TORN[:30]), remove),
    Scenario("dead: remove before a missing newline", ending_in(b"", cut=1), remove),
    Scenario("dead: fsync fails, add", filled, add_on_a_failing_disk),
    Scenario("dead: fsync fails, remove", filled, remove_on_a_failing_disk),
    Scenario("dead: directory's fsync fails, first use", nothing, add_while_the_directory_fails),
    Scenario("dead: directory's fsync fails, remove", filled, remove_while_the_directory_fails),
    *(
        Killed(f"{base.name}; killed, {then.__name__}", base.prepare, base.act, then)
        for base in _BASE
        for then in (another_adds, another_removes)
    ),
    *(
        Again(f"{base.name}; again, {act.__name__}", base, act)
        for base in _BASE
        for act in (another_adds, another_removes)
    ),
)
