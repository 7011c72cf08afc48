"""The queues of a worker, from the lists that people write."""

from __future__ import annotations

import pytest

from deferred_django.queue_choice import ALL_QUEUES, QueueChoice


def test_a_plain_list_limits_and_prefers_nothing() -> None:
    choice = QueueChoice.of(["mail", " slow ", "mail"])
    assert choice == QueueChoice(only=("mail", "slow"))
    assert choice.listed() == ["mail", "slow"]
    assert str(choice) == "queues mail, slow"
    assert str(QueueChoice.of(["mail"])) == "queue mail"


def test_a_list_with_a_star_gives_an_order_and_limits_nothing() -> None:
    choice = QueueChoice.of(["mail", "slow", "*"])
    assert choice == QueueChoice(prefer=("mail", "slow"))
    assert choice.listed() == ["mail", "slow", "*"]
    assert str(choice) == "all queues, mail, slow first"


@pytest.mark.parametrize("queues", [None, ["*"]])
def test_all_queues(queues: list[str] | None) -> None:
    choice = QueueChoice.of(queues)
    assert choice == ALL_QUEUES
    assert choice.listed() is None
    assert str(choice) == "all queues"


def test_excluded_queues() -> None:
    choice = QueueChoice.of(["mail", "*"], ["slow", "bulk"])
    assert choice == QueueChoice(prefer=("mail",), exclude=("slow", "bulk"))
    assert choice.listed() == ["mail", "*", "!slow", "!bulk"]
    assert str(choice) == "all queues but slow, bulk, mail first"
    assert QueueChoice.of(None, ["slow"]).listed() == ["*", "!slow"]


@pytest.mark.parametrize(
    ("queues", "exclude", "why"),
    [
        ([], [], "no queue"),
        (["*", "mail"], [], "must be the last"),
        (["a", "*", "b", "*"], [], "must be the last"),
        (["a*"], [], r"is no queue name \(1 to 100 characters of \[A-Za-z0-9_.-\]\)"),
        ([""], [], "is no queue name"),
        (["mail", "slow"], ["slow"], "slow is wanted and excluded"),
        (["slow", "a", "*"], ["a", "slow"], "slow, a are wanted and excluded"),
        (None, ["*"], "in --queues only"),
        (None, ["a/b"], "is no queue name"),
    ],
)
def test_what_makes_no_sense(queues: list[str] | None, exclude: list[str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        QueueChoice.of(queues, exclude)
