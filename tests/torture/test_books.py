"""The books of the torture notice what they are there for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support import REPOSITORY, environment
from tests.torture.books import Books, Disturbance
from tests.torture.ledger import Line

WORKER, OTHER = "7", "8"


def line(at: float, what: str, *words: str) -> Line:
    return Line(at, what, words)


def start(at: float, attempt: int = 1, pid: str = WORKER) -> Line:
    return line(at, "start", "x", str(attempt), pid)


def end(at: float, outcome: str, attempt: int = 1, pid: str = WORKER) -> Line:
    return line(at, "end", "x", str(attempt), pid, outcome)


def signal(at: float, action: str = "kill", pid: str = WORKER) -> Disturbance:
    return Disturbance(at, int(pid), "worker process", action, at + 0.01)


def books(
    *runs: Line,
    acks: tuple[Line, ...] = (),
    hands: tuple[Line, ...] = (),
    signals: tuple[Disturbance, ...] = (),
    dead: str = "",
) -> Books:
    """Of one task ``x`` that was acknowledged at 0."""
    return Books(
        acks=[line(0.0, "ack", "x"), *acks],
        runs=runs,
        hands=hands,
        disturbances=signals,
        dead={"x": dead} if dead else {},
    )


RETRYING = line(5.0, "retrying", "x")
ONCE = (start(1), end(2, "ok"))
DIED = (start(1), end(2, "die"))


@pytest.mark.parametrize(
    ("made", "cause"),
    [
        (books(*ONCE), "enqueued"),
        (books(start(1), end(2, "fail"), start(3, 2), end(4, "ok", 2)), "retried"),
        (books(start(1), start(4, pid=OTHER), end(5, "ok", pid=OTHER), signals=(signal(3),)),
         "killed"),
        (books(*ONCE, start(3), end(4, "ok"), signals=(signal(2.1),)), "killed"),
        (books(*ONCE, start(30), end(31, "ok"),
               signals=(signal(2.1, "stop"), signal(25, "kill"))), "killed"),
        (books(start(1), start(4), end(5, "ok"), signals=(signal(3, "orphan"),)), "killed"),
        (books(start(3.005), start(4), end(5, "ok"), signals=(signal(3),)), "killed"),
        (books(start(3.1), start(4), end(5, "ok"), signals=(signal(3, "orphan"),)), "killed"),
        (books(*DIED, start(6), end(7, "ok"), hands=(RETRYING,)), "revived"),
    ],
)  # fmt: skip
def test_what_adds_up(made: Books, cause: str) -> None:
    assert made.wrong == []
    assert made.tasks["x"].runs[-1].cause == cause
    assert made.figures["done"] == 1
    assert len(made.lines()) == 5


def test_what_is_neither_done_nor_lost() -> None:
    for made, fate in (
        (books(*DIED, dead="IntendedError"), "dead"),
        (books(*DIED, hands=(line(3, "purging", "x"),)), "purged"),
        (books(acks=(line(1, "removing", "x"), line(2, "removed", "x"))), "removed"),
        (books(acks=(line(1, "removing", "x"),)), "removed"),
    ):
        assert made.wrong == []
        assert made.figures[fate] == 1


@pytest.mark.parametrize(
    ("made", "complaint"),
    [
        (books(), "lost"),
        (books(*DIED), "lost"),
        (books(start(1), signals=(signal(2),)), "lost"),
        (books(acks=(line(1, "removing", "x"), line(2, "refused", "x"))), "lost"),
        (books(*ONCE, start(3), end(4, "ok")), "no cause"),
        (books(*ONCE, start(13), end(14, "ok"), signals=(signal(12),)), "no cause"),
        (books(*ONCE, start(3), end(4, "ok"), signals=(signal(2.1, "stop"),)), "no cause"),
        (books(*ONCE, start(3), end(4, "ok"), signals=(signal(0.5),)), "no cause"),
        (books(*ONCE, start(3), end(4, "ok"), signals=(signal(2.1, pid=OTHER),)), "no cause"),
        (books(start(1), start(2, pid=OTHER), end(3, "ok"), signals=(signal(2.5),)), "no cause"),
        (books(*ONCE, start(3), start(4), end(5, "ok"), signals=(signal(2.1),)), "no cause"),
        (books(*DIED, start(6), end(7, "die"), start(8), end(9, "ok"), hands=(RETRYING,)),
         "no cause"),
        (books(start(1), end(2, "fail"), start(3, 3), end(4, "ok", 3)), "no cause"),
        (books(*ONCE, acks=(line(0.1, "removing", "x"), line(0.5, "removed", "x"))), "came back"),
        (books(*DIED, dead="IntendedError",
               hands=(line(3, "purging", "x"), line(4, "purged", "x"))), "came back"),
        (books(*DIED, dead="IntendedError", hands=(RETRYING, line(6, "retried", "x"))),
         "did not run"),
        (books(start(1), dead="deferred_django.exceptions.WorkerLost", signals=(signal(2),)),
         "WorkerLost after 1"),
        (books(end(1, "ok")), "without a first one"),
    ],
)  # fmt: skip
def test_what_does_not_add_up(made: Books, complaint: str) -> None:
    assert any(complaint in sentence for sentence in made.wrong)


def test_what_is_done_to_a_store_on_purpose_is_noticed_and_nothing_else() -> None:
    """A short torture, and one task lost, one run twice, one brought back, and bytes spoiled."""
    done = subprocess.run(
        [
            *[sys.executable, "-m", "tests.torture.kills", "--seconds", "2", "--rate", "12"],
            *["--sabotage", "lose,repeat,return,damage"],
        ],
        cwd=REPOSITORY,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    complaints = [line for line in done.stdout.splitlines() if line.startswith("WRONG")]
    expected = ["lost", "no cause", "came back", "kind='damage'", "damaged line"]
    for complaint, word in zip(complaints, expected, strict=True):
        assert word in complaint, done.stdout
