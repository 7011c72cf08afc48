"""What keeps a dead-tasks file of any size quick to look at and small in memory.

The bounds from which on a file counts as large are set so low here that a few records are many.
"""

from __future__ import annotations

import os
import random
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import initialize

from deferred_django.backends.disk import dead_tasks_cold, dead_tasks_reader
from tests.disk.dlq import (
    assert_at_rest,
    data_file,
    filled,
    line,
    names,
    open_store,
    reads_of,
    record,
)
from tests.disk.support import Gate, in_child, running
from tests.disk.test_dead_tasks import StoreMachine

LARGE = (
    (dead_tasks_reader, "SOON_BYTES", -1),
    (dead_tasks_reader, "PAGE_RECORDS", 3),
    (dead_tasks_reader, "COLD_LINES", 2),
    (dead_tasks_cold, "SEARCH_BYTES", 70),
)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in LARGE:
        monkeypatch.setattr(module, name, value)


class LargeStoreMachine(StoreMachine):
    """The model's machine, where no reader has an index at once."""

    @initialize()
    def begin(self) -> None:
        self.bounds = [(module, name, getattr(module, name)) for module, name, _ in LARGE]
        for module, name, value in LARGE:
            setattr(module, name, value)
        super().begin()

    def teardown(self) -> None:
        for module, name, value in getattr(self, "bounds", ()):
            setattr(module, name, value)
        super().teardown()


LargeStoreMachine.TestCase.settings = settings(StoreMachine.TestCase.settings, max_examples=20)
TestLargeAgainstAModel = LargeStoreMachine.TestCase


def write_records(path: Path, count: int) -> int:
    """Records of 1 kB with the ids 0, 1, …; returns the file's size."""
    with data_file(path).open("wb") as file:
        file.writelines(line(str(number), b"x" * 1000) for number in range(count))
    return data_file(path).stat().st_size


# -- without an index ----------------------------------------------------------------------------


def test_pages_of_a_large_file_do_not_build_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = write_records(tmp_path, 5_000)
    store = open_store(tmp_path)
    assert reads_of(lambda: store.read(limit=25)) < 200_000
    every_other = lambda task_id, data: True  # noqa: E731
    assert reads_of(lambda: store.read(limit=25, matches=every_other)) < 200_000
    first = lambda: next(store.iterate())  # noqa: E731
    assert reads_of(first) < 200_000
    assert reads_of(lambda: store.find("4990")) < dead_tasks_cold.SEARCH_BYTES + 200_000
    monkeypatch.setattr(dead_tasks_cold, "SEARCH_BYTES", 10_000)
    assert reads_of(lambda: store.find("4990")) < 400_000
    assert reads_of(store.count) >= size, "there was no index yet"


def test_a_page_does_not_wait_for_the_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path, *"abc")
    gate = Gate(monkeypatch, "read_at")
    with running(store.count) as results:
        gate.wait()
        assert [name for name, _ in store.read(limit=2)] == ["c", "b"]
        assert store.find("a") == record("a")
        assert [name for name, _ in store.iterate()][:1] == ["c"]
        assert results == []
        gate.open()
    assert results == [3]


def test_many_searches_end_with_an_index(
    tmp_path: Path, large: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = write_records(tmp_path, 50)
    store = open_store(tmp_path)
    assert reads_of(lambda: store.find("0")) >= size
    for _ in range(dead_tasks_reader.SEARCHES):
        assert store.find("nobody") is None
    assert store.find("0") == b"x" * 1000
    monkeypatch.setattr(dead_tasks_reader, "SOON_BYTES", 0)
    assert reads_of(lambda: store.find("1")) < 5_000


@pytest.mark.parametrize("text", ["a", ":dead_task:a:", "\n00000000:dead_task:a:"])
def test_a_search_takes_nothing_for_a_record_that_is_none(
    tmp_path: Path, large: None, text: str
) -> None:
    """The id in other records, in damage, in front of the newest record, and behind it."""
    store = filled(tmp_path, "a", "b")
    noise = b":dead_task:a:" * 9
    store.add("c", noise)
    good = line("a", b"new")
    with data_file(tmp_path).open("ab") as file:
        file.write(line("ba") + good + line("d", noise) + line("a-1"))
        file.write(b"00000000:dead_task:a:damaged\n" + text.encode() + b"\n" + noise)
    reader = open_store(tmp_path)
    assert reader.find("a") == b"new"
    assert reader.find("d") == noise
    assert reader.find("x") is None
    assert reader.find("dead_task") is None
    assert reader.find("a:") is None
    assert reader.find("") is None


def test_a_search_finds_records_wherever_its_blocks_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_tasks_reader, "SOON_BYTES", -1)
    filled(tmp_path, "a", "bb", "ccc", "dddd")
    for block in range(1, 120):
        monkeypatch.setattr(dead_tasks_cold, "SEARCH_BYTES", block)
        store = open_store(tmp_path)
        assert [store.find(name) for name in ("a", "bb", "ccc", "dddd", "b")] == [
            record("a"),
            record("bb"),
            record("ccc"),
            record("dddd"),
            None,
        ]


# -- one after the other -------------------------------------------------------------------------


def ids_of(records: Iterator[tuple[str, bytes]]) -> list[str]:
    return [name for name, _ in records]


@pytest.mark.parametrize("taken", range(7))
def test_an_iterator_gives_one_snapshot(tmp_path: Path, large: None, taken: int) -> None:
    """Whatever is added and removed between two of its records, and where the index takes over."""
    store, other = filled(tmp_path, *"abcdef"), open_store(tmp_path)
    iterator = store.iterate()
    start = [next(iterator)[0] for _ in range(taken)]
    if taken:
        other.remove(["a", "e"])
        store.remove(["c"])
        store.add("g", record("g"))
        assert start + ids_of(iterator) == list("fedcba")
    assert ids_of(store.iterate()) == (list("gfdb") if taken else list("fedcba"))
    iterator.close()
    assert_at_rest(tmp_path)


def test_an_iterator_that_is_left_closes_its_file(tmp_path: Path) -> None:
    store = filled(tmp_path, *"abc")
    iterator = store.iterate()
    next(iterator)
    iterator.close()
    assert_at_rest(tmp_path)


def test_a_child_does_not_close_the_descriptor_of_its_parents_iterator(tmp_path: Path) -> None:
    store = filled(tmp_path, *"abc")
    iterator = store.iterate()
    next(iterator)

    def child() -> None:
        fds = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]
        iterator.close()
        for fd in fds:
            os.fstat(fd)

    in_child(child, kill=False)
    assert ids_of(iterator) == ["b", "a"]


def test_an_iterator_goes_on_behind_a_record_that_rots(tmp_path: Path) -> None:
    store = filled(tmp_path, *"abcdef")
    assert store.count() == 6
    iterator = store.iterate()
    assert next(iterator)[0] == "f"
    with data_file(tmp_path).open("r+b") as file:
        file.seek(len(line("a")) * 3 + 12)
        file.write(b"#")
    assert ids_of(iterator) == ["e", "c", "b", "a"]
    assert len(store.problems()) == 1


def test_reading_all_needs_little_memory(tmp_path: Path) -> None:
    write_records(tmp_path, 3_000)
    store = open_store(tmp_path)
    tracemalloc.start()
    try:
        assert sum(1 for _ in store.iterate()) == 3_000
        assert store.count(lambda task_id, data: data.endswith(b"x")) == 3_000
        assert tracemalloc.get_traced_memory()[1] < 1_500_000
    finally:
        tracemalloc.stop()


# -- removals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 10, 2_500])
def test_who_removes_records_builds_no_index_anew(tmp_path: Path, count: int) -> None:
    size = write_records(tmp_path, 5_000)
    store = open_store(tmp_path)
    assert store.count() == 5_000
    doomed = random.Random(count).sample(range(5_000), count)
    assert store.remove(map(str, doomed)) == count
    left = [str(number) for number in range(4_999, -1, -1) if number not in set(doomed)]
    assert reads_of(lambda: store.find(left[9])) < size / 10
    assert reads_of(store.count) < size / 100
    assert [name for name, _ in store.read()] == left
    assert store.find(str(doomed[0])) is None
    store.add(str(doomed[0]), b"again")
    assert reads_of(store.count) < size / 100
    assert store.find(str(doomed[0])) == b"again"


def test_the_place_of_damage_is_known_after_a_removal(tmp_path: Path) -> None:
    store = filled(tmp_path, *"abc")
    with data_file(tmp_path).open("ab") as file:
        file.write(b"damage\n" + line("d") + line("e"))
    assert store.count() == 5
    assert store.remove("bd") == 2
    offset = 2 * len(line("a"))
    assert store.problems() == open_store(tmp_path).problems()
    assert store.problems()[0].endswith(f"at byte {offset}")


def test_an_index_that_is_behind_its_file_is_not_carried_over_another_removal(
    tmp_path: Path,
) -> None:
    """Another process removes in between: only the last removal's file is at the path."""
    store, other = filled(tmp_path, *"abcdef"), open_store(tmp_path)
    assert store.count() == 6
    assert store.remove("b") == 1
    assert other.remove("e") == 1
    assert names(store) == list("fdca")
    assert store.remove("a") == 1
    assert store.remove("f") == 1
    assert names(store) == list("dc")


def test_a_removal_from_a_large_file_reads_it_through_without_an_index(
    tmp_path: Path, large: None
) -> None:
    size = write_records(tmp_path, 200)
    store = open_store(tmp_path)
    assert reads_of(lambda: store.remove(["5", "nobody", "7", "5"])) < 2.5 * size
    assert store.count() == 198
    assert store.remove(["nobody"]) == 0
