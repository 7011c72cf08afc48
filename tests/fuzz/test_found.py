"""What fuzzing has found in the readers of the log, each by the smallest input that showed it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from deferred_django.backends.disk import log_records, records
from tests.fuzz.levels import LogLevel
from tests.fuzz.mutations import framed
from tests.fuzz.reference import read_log

ADD = framed(b"add:1-1-a-1:n1:5:0:default:x")
LONG = framed(b"add:1-1-a-2:n2:5:0:default:" + b"y" * 1000)
OTHER = framed(b"add:1-1-a-3:n3:5:0:default:z")


@pytest.fixture
def level() -> Iterator[LogLevel]:
    level = LogLevel()
    yield level
    level.close()


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("record", [ADD, LONG], ids=["short", "long"])
@pytest.mark.parametrize("zeros", [1, 2, 300, 5000])
@pytest.mark.parametrize(
    "behind", [b"", b"\n", OTHER, OTHER[:-9], OTHER[:20] + OTHER, OTHER[15:], LONG[40:] + OTHER]
)
def test_a_record_with_zeros_behind_it(
    level: LogLevel, record: bytes, zeros: int, behind: bytes, small: bool
) -> None:
    """It counts, whenever and in how many steps it is read, and the zeros are no damage.

    Nor is what arrived behind them of records whose beginnings did not: it ends the same line.
    """
    content = OTHER[:15] + record[:-1] + bytes(zeros) + behind
    assert read_log(content).damage == []
    begin = len(OTHER[:15] + record) - 1
    for cuts in ([], [begin], [begin + 1], [begin, begin + zeros], [begin + zeros]):
        level.check(content, cuts, small=small)


@pytest.mark.parametrize("small", [False, True])
def test_two_unfinished_writes_at_the_end(level: LogLevel, small: bool) -> None:
    """The second was appended behind the first: neither is damage."""
    content = ADD + LONG[:-30] + OTHER[:-3]
    assert (read_log(content).torn, read_log(content).damage) == (2, [])
    level.check(content, [len(ADD + LONG) - 35], small=small)


@pytest.mark.parametrize("small", [False, True])
def test_a_byte_in_the_place_of_a_newline(level: LogLevel, small: bool) -> None:
    """However long the record is: it is damage, since the record was whole."""
    content = ADD + LONG[:-1] + b"X" + OTHER
    assert read_log(content).damage == [len(ADD) + 1]
    level.check(content, small=small)


def test_a_line_over_the_limit_is_no_record_whatever_its_checksum(level: LogLevel) -> None:
    content = ADD + framed(b"add:1-1-a-2:n2:5:0:default:" + b"y" * 3000) + OTHER
    level.check(content, small=True)
    level.check(content)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"add",
        b"add:1:n:%b:0:default:x" % (b"9" * 400),  # no float is as large
        b"add:1:n:-%b:0:default:x" % (b"9" * 400),  # due, but not to be divided by 1000
        b"add:1:n:%b:0:default:x" % (b"9" * 5000),
        b"add:1:n:1_0:0:default:x",
        b"add:1:n: 5:0:default:x",
        b"add:1:n:5:32768:default:x",
        b"add:1:n:5:0::x",
        b"add:1:n:5:0:a b:x",
        b"add::n:5:0:default:x",
        b"add:a b:n:5:0:default:x",  # no dead task could have this id
        b"add:%b:n:5:0:default:x" % (b"i" * 201),
        b"add:1:%b:5:0:default:x" % (b"n" * 101),
        b"add:\xff:n:5:0:default:x",
        b"add:1:n:5:0:default",
        b"run:1-1-a-1:n1:w:b:%b" % (b"9" * 400),
        b"run:1-1-a-1:n1:w:b",
        b"run:1-1-a-1:n1:w:b:5:more",
        b"run:nobody:n:w:b:x",
        b"rem:1-1-a-1:n1:more",
        b"rem:1-1-a-1",
        b"end:1-1-a-1:n1:",
        b"del:1-1-a-1:n1",
        b"dead_task:1-1-a-1:{}",
    ],
)
def test_a_good_checksum_over_fields_that_nobody_writes(level: LogLevel, body: bytes) -> None:
    """Counted with its place, and nothing of it is taken for a task or a change of one."""
    content = ADD + framed(body) + OTHER
    reading = read_log(content)
    assert reading.damage == [len(ADD) + 1]
    assert list(reading.tasks) == ["1-1-a-1", "1-1-a-3"]
    level.check(content)
    level.check(content, [len(ADD) + 12, len(content) - 2], small=True)


@pytest.mark.parametrize("seconds", [math.inf, -math.inf, math.nan, 1e300, -1e300, 1e15])
def test_a_time_that_no_reader_takes_is_not_written(seconds: float) -> None:
    with pytest.raises(ValueError, match="not a time"):
        log_records.milliseconds(seconds)


def test_an_escape_that_is_cut_off_is_foreign() -> None:
    with pytest.raises(ValueError, match="escape"):
        records.unescape(b"a\\")
