"""The framing: what is a record, what is torn, what is damage."""

from __future__ import annotations

import os
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deferred_django.backends.disk import files, log_records, records
from deferred_django.backends.disk.scanner import Scanner


def payload_of(line: bytes) -> bytes:
    return records.unescape(log_records.named_payload(line)[2])


def framed(payload: bytes, task_id: str = "1-1-a-1") -> bytes:
    return log_records.add(task_id, "n1", 5, 0, "default", payload)


def scan(path: Path, content: bytes) -> tuple[list[bytes], Scanner]:
    path.write_bytes(content)
    fd = files.open_file(str(path), os.O_RDONLY)
    scanner = Scanner()
    bodies = [body for _, _, body in scanner.read(fd)]
    files.close(fd)
    return bodies, scanner


@given(st.binary())
def test_escaping_is_undone_and_leaves_no_newline(payload: bytes) -> None:
    assert b"\n" not in records.escape(payload)
    assert records.unescape(records.escape(payload)) == payload


def test_a_foreign_escape_is_an_error() -> None:
    with pytest.raises(ValueError, match="escape"):
        records.unescape(b"\\x")


def test_a_record_is_as_documented() -> None:
    record = framed(b"a\nb:c\\")
    assert record == b"\n017a9c9e:add:1-1-a-1:n1:5:0:default:a\\nb:c\\\\\n"
    assert payload_of(record.strip(b"\n")) == b"a\nb:c\\"


def test_separators_of_text_are_data(tmp_path: Path) -> None:
    """C26: only a newline ends a record."""
    payload = "a\u2028b\x85c\x0bd\x1ce\rf\ng:h,i\t%s".encode()
    bodies, scanner = scan(tmp_path / "f", framed(payload) * 2)
    assert [payload_of(b"00000000:" + body) for body in bodies] == [payload] * 2
    assert (scanner.torn_in_all, scanner.damaged) == (0, 0)


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_torn_record_harms_itself_only(tmp_path: Path, cut: int) -> None:
    """C01: every cut of the last record, with another appended behind it."""
    first, torn, last = framed(b"1"), framed("tornü".encode()), framed(b"3")
    bodies, scanner = scan(tmp_path / "f", first + torn[:-cut] + last)
    payloads = [payload_of(b"00000000:" + body) for body in bodies]
    if cut == 1:  # only the newline is missing: the checksum is good
        assert payloads == [b"1", "tornü".encode(), b"3"]
        assert scanner.torn_in_all == 0
    else:
        assert payloads == [b"1", b"3"]
        assert (scanner.torn_in_all, scanner.damaged) == (1, 0)


def test_a_tail_is_left_for_its_writer_to_finish(tmp_path: Path) -> None:
    path = tmp_path / "f"
    record = framed(b"whole")
    path.write_bytes(record[:20])
    fd = files.open_file(str(path), os.O_RDONLY)
    scanner = Scanner()
    assert list(scanner.read(fd)) == []
    assert scanner.torn_in_all == 1
    path.write_bytes(record)
    assert [body for _, _, body in scanner.read(fd)] == [record[10:-1]]
    assert scanner.torn_in_all == 0
    files.close(fd)


@pytest.mark.parametrize(
    ("content", "good", "offset"),
    [
        (framed(b"1") + bytes(4096) + framed(b"2"), 2, len(framed(b"1"))),
        (framed(b"1") + framed(b"2").replace(b"default", b"dEfault") + framed(b"3"), 2, None),
        (framed(b"1") + b"hello\n" + framed(b"2"), 2, len(framed(b"1"))),
        (framed(b"1")[:-1] + b"X" + framed(b"2"), 1, 1),  # the newline behind a record is gone
    ],
    ids=["nul block", "flipped byte", "foreign line", "overwritten newline"],
)
def test_damage_is_reported_with_its_offset(
    tmp_path: Path, content: bytes, good: int, offset: int | None
) -> None:
    """C03: bytes that no write left are not taken for an unfinished write."""
    bodies, scanner = scan(tmp_path / "f", content)
    assert len(bodies) == good
    assert (scanner.torn_in_all, scanner.damaged) == (0, 1)
    if offset is not None:
        assert scanner.damage[0].offset == offset


def test_a_file_with_other_line_ends_is_damaged_the_same_way_every_time(tmp_path: Path) -> None:
    """C26: an editor's CRLF."""
    content = (framed(b"1") + framed(b"2")).replace(b"\n", b"\r\n")
    results = [scan(tmp_path / "f", content) for _ in range(2)]
    for bodies, scanner in results:
        scanner.at_end()
        assert bodies == []
        assert scanner.damaged >= 2
    assert results[0][1].damage == results[1][1].damage


def test_a_line_of_a_gigabyte_takes_bounded_memory(tmp_path: Path) -> None:
    """R24: it is reported, and what follows is read."""
    path = tmp_path / "f"
    path.write_bytes(framed(b"1"))
    os.truncate(path, 1_000_000_000)  # sparse: reads as NUL
    with path.open("ab") as end:
        end.write(framed(b"2"))
    fd = files.open_file(str(path), os.O_RDONLY)
    scanner = Scanner()
    tracemalloc.start()
    try:
        bodies = [body for _, _, body in scanner.read(fd)]
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        files.close(fd)
    assert len(bodies) == 2
    assert scanner.damaged == 1
    assert scanner.damage[0].length > 990_000_000
    assert peak < 8_000_000


@given(st.lists(st.binary(max_size=40), max_size=6), st.data())
def test_any_bytes_are_read_without_a_crash(payloads: list[bytes], data: st.DataObject) -> None:
    content = bytearray(b"".join(framed(payload) for payload in payloads))
    for _ in range(data.draw(st.integers(0, 3))):
        if content:
            at = data.draw(st.integers(0, len(content) - 1))
            content[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    with tempfile.TemporaryDirectory() as directory:
        whole, _ = scan(Path(directory) / "f", bytes(content))
        # Reading in two steps gives the same as reading in one.
        path = Path(directory) / "g"
        path.write_bytes(bytes(content))
        fd = files.open_file(str(path), os.O_RDONLY)
        scanner = Scanner()
        cut = data.draw(st.integers(0, len(content)))
        bodies = [body for _, _, body in scanner.read(fd, end=cut)]
        bodies += [body for _, _, body in scanner.read(fd)]
        files.close(fd)
        assert bodies == whole


def test_zeros_where_an_append_was_lost_spare_the_record_before_them(tmp_path: Path) -> None:
    """Its newline was the one byte that a full disk did not take; then the power went."""
    cut_off = framed(b"1")[:-1] + bytes(700)
    bodies, scanner = scan(tmp_path / "f", cut_off)
    assert len(bodies) == 1
    bodies, scanner = scan(tmp_path / "g", cut_off + framed(b"2"))
    assert [payload_of(b"00000000:" + body) for body in bodies] == [b"1", b"2"]
    assert scanner.damaged == 0
