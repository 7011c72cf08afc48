"""A sample of the schedules, and the proof that the search finds what it is for."""

from __future__ import annotations

import sys
from subprocess import run

import pytest

from tests.schedules.defects import DEFECTS, Defect
from tests.schedules.schedule import DROP, KILL, TO_THE_END, Schedule
from tests.support import REPOSITORY

FIND = """
import sys
from tests.schedules.defects import DEFECTS
from tests.schedules.enumeration import run_pair
from tests.schedules.laboratory import Laboratory

for number in sys.argv[1:]:
    defect = DEFECTS[int(number)]
    laboratory = Laboratory(defect.install)
    tally = run_pair(laboratory, defect.pair, stop_after=1, first=defect.first)
    laboratory.close()
    for outcome in tally.violations:
        print(outcome.schedule, outcome.violation.splitlines()[0], sep=" | ")
"""


def python(*arguments: str) -> str:
    """What a process of its own prints: small, so that it forks fast, and without threads."""
    done = run(
        [sys.executable, *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_sample_of_the_schedules() -> None:
    """By a fixed seed: ``make schedules`` takes another each time."""
    output = python("-m", "tests.schedules", "--sample", "--seconds", "6", "--seed", "3", "--quiet")
    assert output.endswith("violations: 0\n")


@pytest.mark.parametrize(
    "schedule",
    [
        # A segment is finished and compacted between a failed fsync in it and the rescue from it.
        "live:loop+rescue-retry:0x2,1x23",
        "live:loop+rescue-retry:0x15,1x23",
    ],
)
def test_what_the_search_has_found_stays_mended(schedule: str) -> None:
    assert python("-m", "tests.schedules", "--replay", schedule).endswith("nothing is wrong\n")


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.install.__name__)
def test_a_defect_is_found(defect: Defect) -> None:
    found = python("-c", FIND, str(DEFECTS.index(defect)))
    assert found


@pytest.mark.parametrize(
    "schedule",
    [
        Schedule("live", ("complete-warm", "take"), ((0, 3), (1, 5), (0, KILL))),
        Schedule("torn", ("bury",), (), fine=True),
        Schedule("absent", ("bury", "adopt"), ((0, 2), (1, TO_THE_END))),
        Schedule("live", ("look", "look", "look"), ((2, 1), (1, DROP))),
    ],
)
def test_a_printed_schedule_can_be_repeated(schedule: Schedule) -> None:
    assert Schedule.parse(str(schedule)) == schedule
