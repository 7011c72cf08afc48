"""Every fault at every call of every operation: a sample, and those that once did harm."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator

import pytest

from tests.faults.cases import plan
from tests.faults.checks import Checker
from tests.faults.injector import Fault, Level, Mode
from tests.faults.neighbour import Neighbour
from tests.faults.operations import OPERATIONS

PARTS, SAMPLE = 2, 100
"""Tests that can run side by side, and the cases of each."""

ONCE, LASTING, BEFORE, AFTER = Mode.ONCE, Mode.LASTING, Mode.INTERRUPT, Mode.INTERRUPT_AFTER
FILES, OS = Level.FILES, Level.OS


@pytest.fixture(scope="module")
def checker() -> Iterator[Checker]:
    with Neighbour() as neighbour:
        checker = Checker(neighbour)
        yield checker
        checker.close()


@pytest.mark.parametrize("part", range(PARTS))
def test_a_sample(checker: Checker, part: int) -> None:
    """Another one each time; `python -m tests.faults` does them all."""
    seed = random.randrange(part, 1_000_000, PARTS)
    cases = random.Random(seed).sample(
        list(plan(checker.expect, OPERATIONS.values(), Level)), SAMPLE
    )
    failed = []
    for planned in cases:
        case = checker.run(*planned)
        if case.violations:
            failed.append(f"{case}: {case.violations}")
    assert failed == [], f"seed {seed}"


@pytest.mark.parametrize(
    ("name", "level", "call", "nth", "mode"),
    [
        # An endless loop where no directory could be looked at.
        ("first use, fsync each", OS, "stat", 0, LASTING),
        # The error named no file.
        ("enqueue, fsync each", OS, "fstat", 0, ONCE),
        ("first use, fsync each", OS, "close", 0, ONCE),
        ("wait", OS, "pipe", 0, ONCE),
        # The error came after the task was durable.
        ("enqueue, fsync each", OS, "fstat", 1, ONCE),
        # What was interrupted left claims, segments, locks and descriptors held.
        ("first use, fsync each", FILES, "try_lock", 0, BEFORE),
        ("first use, fsync each", FILES, "fsync_directory", -1, BEFORE),
        ("tick", FILES, "unlock", 0, BEFORE),
        ("claim", FILES, "try_lock", 1, BEFORE),
        ("claim", FILES, "try_lock", 0, AFTER),
        ("claim", FILES, "is_at_path", 0, BEFORE),
        ("claim by id", FILES, "read_at", -1, BEFORE),
        ("release", FILES, "unlock", 0, BEFORE),
        ("dead task", FILES, "unlock_flock", 0, BEFORE),
        ("remove dead tasks", FILES, "unlock_flock", -1, BEFORE),
        ("wait", OS, "add_watch", 0, BEFORE),
        # A task was in two segments, and would have run twice.
        ("sync whose first fsync fails", FILES, "write", 0, AFTER),
        ("sync whose first fsync fails", FILES, "write", 1, BEFORE),
        ("sync whose first fsync fails", FILES, "write", 2, BEFORE),
        # A refused task stayed for good.
        ("enqueue whose fsync fails", FILES, "write", 1, ONCE),
        ("enqueue whose fsync fails", FILES, "read_at", 0, ONCE),
        # A claim stayed held.
        ("claim", OS, "fcntl", -1, LASTING),
        ("release", FILES, "unlock", 0, ONCE),
        ("sync whose first fsync fails", FILES, "try_lock", 0, AFTER),
        # A compacted segment stayed locked, or a descriptor open.
        ("compact", FILES, "unlock", 0, ONCE),
        ("compact", OS, "fcntl", -1, ONCE),
        ("remove dead tasks", OS, "fstat", 9, ONCE),
        # "There is no such task" was said of a file that could not be read.
        ("remove_task", FILES, "open_file", 0, ONCE),
        ("remove_task", FILES, "is_at_path", 0, ONCE),
        # Something was missing without a word.
        ("status", FILES, "open_file", 0, ONCE),
        ("status", FILES, "open_file", -1, ONCE),
        # The link was replaced by a file.
        ("remove through a link", OS, "realpath", -1, ONCE),
    ],
)
def test_a_fault_that_once_did_harm(
    checker: Checker, name: str, level: Level, call: str, nth: int, mode: Mode
) -> None:
    operation = OPERATIONS[name]
    calls = checker.expect(operation, level).calls
    at = [number for number, each in enumerate(calls) if each == call][nth]
    case = checker.run(operation, level, Fault(at, mode, errno.EIO))
    assert case.violations == [], case
