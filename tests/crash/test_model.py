"""The model of a power cut, held against cases that can be worked out by hand."""

from __future__ import annotations

import random

from tests.crash.books import Books
from tests.crash.events import (
    DIRECTORY,
    Event,
    FailedFsync,
    Fsync,
    FsyncDirectory,
    Link,
    Rename,
    Truncate,
    Unlink,
    Write,
)
from tests.crash.model import Image, crash_points, variants_of

NO_BOOKS = Books({})


def left_of(
    *events: Event, names: dict[str, int] | None = None, contents: dict[int, bytes] | None = None
) -> set[Image]:
    """All that a power cut at the end may leave."""
    keyed = {("", name): number for name, number in (names or {}).items()}
    point = list(crash_points(events, keyed, contents or {}, NO_BOOKS))[-1]
    return {point.image(choice) for choice in point.choices(100_000, random.Random(1))}


def contents_of(images: set[Image], name: str = "f") -> set[bytes | None]:
    return {dict(image).get(name) for image in images}


def test_what_was_fsynced_is_there() -> None:
    made = (Link("", "f", 1), Write(1, 0, b"ab"), Fsync(1), FsyncDirectory(""))
    assert left_of(*made) == {(("f", b"ab"),)}


def test_a_new_name_may_be_lost_though_the_file_was_fsynced() -> None:
    assert left_of(Link("", "f", 1), Write(1, 0, b"ab"), Fsync(1)) == {(), (("f", b"ab"),)}


def test_a_name_may_be_durable_and_its_bytes_not() -> None:
    found = left_of(Link("", "f", 1), Write(1, 0, b"ab"), FsyncDirectory(""))
    assert contents_of(found) == {b"", b"a", b"ab", b"\0\0", b"a\0"}


def test_writes_are_lost_independently_of_each_other() -> None:
    found = left_of(Write(1, 1, b"b"), Write(1, 2, b"c"), names={"f": 1}, contents={1: b"a"})
    assert contents_of(found) == {b"a", b"ab", b"a\0", b"abc", b"a\0c", b"ab\0", b"a\0\0"}


def test_a_cut_may_be_at_every_byte_and_at_the_edges_of_sectors() -> None:
    short = variants_of(0, 200)
    assert {each.end for each in short if each.size == each.end} == set(range(201))
    long = variants_of(100, 3000)
    ends = {each.end for each in long if each.start == 0}
    assert {*range(256), 412, 924, 1436, 1948, 2460, 2972, *range(2991, 3001)} == ends
    assert {each.start for each in long} == {0, 412, 924, 1436, 1948, 2460, 2972}


def test_a_change_of_the_size_may_be_lost_while_a_later_write_is_there() -> None:
    found = left_of(Truncate(1, 1), Write(1, 1, b"x"), names={"f": 1}, contents={1: b"abc"})
    assert contents_of(found) == {b"abc", b"axc", b"a", b"ax", b"a\0"}


def test_a_rename_happens_at_once_or_not() -> None:
    events = (Rename("", "t", "f", 2), Unlink("", "g"))
    found = left_of(*events, names={"f": 1, "t": 2, "g": 3}, contents={1: b"1", 2: b"2", 3: b"3"})
    assert found == {
        (("f", b"1"), ("g", b"3"), ("t", b"2")),
        (("f", b"1"), ("t", b"2")),
        (("f", b"2"), ("g", b"3")),
        (("f", b"2"),),
    }


def test_what_a_failed_fsync_was_to_cover_stays_in_doubt() -> None:
    events = (Write(1, 0, b"a"), FailedFsync(1), Write(1, 1, b"b"), Fsync(1))
    assert contents_of(left_of(*events, names={"f": 1}, contents={1: b""})) == {b"\0b", b"ab"}


def test_the_names_below_a_lost_directory_are_lost() -> None:
    made = (Link("", "d", DIRECTORY), Link("d", "f", 1), FsyncDirectory("d"))
    assert left_of(*made) == {(), (("d", None), ("d/f", b""))}


def test_the_power_goes_before_each_fsync_and_at_the_end() -> None:
    events = (Write(1, 0, b"a"), Fsync(1), Fsync(1), Write(1, 1, b"b"), FsyncDirectory(""))
    points = crash_points(events, {("", "f"): 1}, {1: b""}, NO_BOOKS)
    assert [point.index for point in points] == [1, 4, 5]
