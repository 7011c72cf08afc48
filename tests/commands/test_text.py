"""Text, times and tables: what the commands print with."""

# ruff: noqa: RUF001 - scripts that look alike are what is tested

from __future__ import annotations

import pytest
from django.core.management.base import OutputWrapper
from django.core.management.color import no_style
from django.test import override_settings
from hypothesis import given
from hypothesis import strategies as st

from deferred_django.console import times
from deferred_django.console.output import Output
from deferred_django.console.table import Column, write_table
from deferred_django.console.text import cut, escape, first_line, width
from tests.commands.conftest import Terminal

NASTY = "a\x00b\x1b[31mc\x7fd\x9be\u202ef\u2066g\u200eh\u2028i\ufeffj\udcffk\U000e0041l\nm\rn\to"


def test_what_a_terminal_would_obey_is_escaped() -> None:
    assert escape(NASTY) == (
        "a\\x00b\\x1b[31mc\\x7fd\\x9be\\u202ef\\u2066g\\u200eh\\u2028i\\ufeffj\\udcffk\\U000e0041l"
        "\\nm\\rn\\to"
    )


def test_readable_text_of_any_script_stays() -> None:
    text = "żółć 漢字 нет می\u200cخواهم 👩\u200d🚀 a\u0301 C:\\new"
    assert escape(text) == text


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8"])
@given(st.text(st.characters(codec=None, exclude_categories=[])))
def test_escaped_text_can_be_written_and_is_one_line(encoding: str, text: str) -> None:
    escaped = escape(text, encoding)
    escaped.encode(encoding)
    assert len(escaped.splitlines()) <= 1
    assert "\x1b" not in escaped


@pytest.mark.parametrize(
    ("text", "columns"), [("abc", 3), ("漢字", 4), ("a\u0301", 1), ("한", 2), ("Ａ", 2), ("é", 1)]
)
def test_width_is_what_a_terminal_takes(text: str, columns: int) -> None:
    assert width(text) == columns


@given(st.text(), st.integers(0, 30), st.booleans())
def test_cut_text_fits(text: str, columns: int, keep_end: bool) -> None:
    text = escape(text)
    short = cut(text, columns, keep_end=keep_end)
    assert width(short) <= columns
    assert short == text or width(text) > columns


def test_the_end_or_the_beginning_stays() -> None:
    assert cut("shop.tasks.send", 9, keep_end=True) == "…sks.send"
    assert cut("no such order", 9, ellipsis="...") == "no suc..."
    assert first_line("\n  \n second \nthird") == "second"
    assert first_line("") == ""
    assert len(first_line("x" * 1_000_000)) == 300


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("45s", 45), ("90m", 5400), ("12h", 43200), ("30d", 2_592_000), ("2w", 1_209_600), ("0d", 0)],
)
def test_ages(text: str, seconds: int) -> None:
    assert times.parse_moment(text, now=5_000_000.0) == 5_000_000.0 - seconds


@override_settings(TIME_ZONE="Europe/Paris")
@pytest.mark.parametrize("use_tz", [True, False])
@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-10-25T02:30+02:00", 1792888200),
        ("2026-10-25T02:30+01:00", 1792891800),
        ("2026-10-25T00:30Z", 1792888200),
        ("2026-10-25 02:30", 1792888200),  # twice that night: the first
        ("2026-10-25", 1792879200),
        ("2026-03-29T02:30", 1774747800),  # not on the clock that night
    ],
)
def test_dates_are_read_in_djangos_zone(text: str, seconds: int, use_tz: bool) -> None:
    """C45"""
    with override_settings(USE_TZ=use_tz):
        assert times.parse_moment(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-3d", "3 years", "30", "d", "٣d", "2026-13-01"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time"):
        times.parse_moment(text)


@override_settings(TIME_ZONE="Europe/Paris")
def test_times_are_shown_with_their_zone() -> None:
    """C45"""
    assert times.local(1792888200) == "2026-10-25 02:30 CEST"
    assert times.local(1792891800, seconds=True) == "2026-10-25 02:30:00 CET"
    assert times.local_with_age(1792891800, now=1792891980) == "2026-10-25 02:30 CET, 3 min ago"


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e20, -1e20])
def test_a_number_that_is_no_time_is_shown(number: float) -> None:
    assert times.local_with_age(number) == str(number)


def test_ages_are_shown_in_one_unit() -> None:
    shown = [times.ago(0, now=now) for now in (0.5, 5, 65, 7300, 90000, -600)]
    assert shown == ["just now", "5 s ago", "1 min ago", "2 h ago", "1 d ago", "in 10 min"]


NAME = Column(key="name", title="NAME")
COUNT = Column(key="count", title="N", right=True)
TEXT = Column(key="text", title="TEXT", least=8)
ONE_LINE, TWO_LINES = ((NAME, COUNT, TEXT),), ((NAME, COUNT), (TEXT,))


def table(columns: int, monkeypatch: pytest.MonkeyPatch, encoding: str = "utf-8") -> list[str]:
    terminal = Terminal(encoding)
    monkeypatch.setenv("COLUMNS", str(columns))
    out = Output(OutputWrapper(terminal), no_style())
    rows = [
        {"name": "first", "count": "1", "text": "漢字漢字漢字漢字"},
        {"name": "二つ", "count": "12", "text": "plain"},
    ]
    write_table(out, rows, [ONE_LINE, TWO_LINES])
    return terminal.text.splitlines()


def test_columns_are_aligned_by_what_characters_take(monkeypatch: pytest.MonkeyPatch) -> None:
    assert table(80, monkeypatch) == [
        "NAME    N  TEXT",
        "first   1  漢字漢字漢字漢字",
        "二つ   12  plain",
    ]


def test_the_last_resort_is_cut_and_never_the_id(monkeypatch: pytest.MonkeyPatch) -> None:
    assert table(20, monkeypatch) == [
        "NAME    N  TEXT",
        "first   1  漢字漢字…",
        "二つ   12  plain",
    ]
    assert table(12, monkeypatch) == [
        "NAME    N",
        "first   1",
        "  漢字漢字…",
        "二つ   12",
        "  plain",
    ]
    assert table(3, monkeypatch)[:2] == ["NAME    N", "first   1"]


def test_an_ascii_terminal_gets_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = table(30, monkeypatch, "ascii")
    assert lines[1].endswith("...")
    assert all(len(line) <= 30 for line in lines)
