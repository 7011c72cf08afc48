"""Any bytes in the dead-tasks file: never a crash, every whole record is read and kept."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deferred_django.backends.disk import dead_tasks_tail, records, scanner
from tests.disk.dlq import assert_at_rest, data_file, line, open_store

WHOLE = st.builds(
    line, st.sampled_from(["a", "b", "c", "1-2-3"]), st.sampled_from([b"", b"{}", b"x" * 400])
)
OTHER_KIND = st.just(records.encode(b"add:1:n:0:0:default:x") + b"\n")
PIECE = st.one_of(
    WHOLE,
    OTHER_KIND,
    WHOLE.map(lambda whole: b"\n" + whole),
    WHOLE.map(lambda whole: whole.replace(b"\n", b"\r\n")),
    WHOLE.flatmap(lambda whole: st.integers(0, len(whole)).map(lambda cut: whole[:cut])),
    st.binary(max_size=20),
    st.integers(1, 400).map(lambda count: b"\0" * count),
)


@st.composite
def contents(draw: st.DrawFn) -> bytes:
    data = bytearray(b"".join(draw(st.lists(PIECE, max_size=8))))
    for _ in range(draw(st.integers(0, 3))):
        if not data:
            break
        at = draw(st.integers(0, len(data) - 1))
        how = draw(st.sampled_from(["flip", "cut out", "double"]))
        end = draw(st.integers(at, min(len(data), at + 100)))
        if how == "flip":
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif how == "cut out":
            del data[at:end]
        else:
            data[at:at] = data[at:end]
    return bytes(data)


def read_plainly(content: bytes) -> list[tuple[str, bytes]]:
    """What a reader must find, newest first, by the format's description alone."""
    *lines, last = content.split(b"\n")
    found: dict[str, bytes] = {}
    for each in [*lines, last, last.rstrip(b"\0")]:
        checksum, _, body = each.partition(b":")
        kind, _, rest = body.partition(b":")
        name, colon, data = rest.partition(b":")
        if checksum == b"%08x" % crc32(body) and kind == b"dead_task" and colon:
            found.pop(name.decode(), None)
            found[name.decode()] = data
    return list(found.items())[::-1]


@pytest.mark.parametrize("chunk", [64, 256 * 1024])
def test_any_bytes(chunk: int) -> None:
    """With chunks so small that many lines are long ones, too."""

    @settings(max_examples=120, deadline=None)
    @given(contents())
    def check(content: bytes) -> None:
        with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", lambda fd: None)
            patch.setattr(scanner, "CHUNK_BYTES", chunk)
            patch.setattr(dead_tasks_tail, "BACKWARD_BYTES", chunk)
            check_file(Path(directory), content)

    check()


def check_file(directory: Path, content: bytes) -> None:
    path = data_file(directory)
    path.write_bytes(content)
    expected = read_plainly(content)
    store = open_store(directory)
    assert store.read() == expected
    assert open_store(directory).read(limit=100) == expected
    assert store.count() == len(expected)
    for name, data in expected:
        assert store.find(name) == data
    damage = [found for found in store.verify() if found.kind == "damage"]
    assert bool(damage) == bool(store.problems())
    assert path.read_bytes() == content, "reading changes nothing"
    store.add("new", b"1")
    after = [("new", b"1"), *expected]
    for reader in (store, open_store(directory)):
        assert reader.read() == after
    assert [found for found in store.verify() if found.kind == "torn"] == []
    gone = [name for name, _ in after[::2]]
    assert store.remove(gone) == len(gone)
    assert store.read() == open_store(directory).read() == after[1::2]
    assert len(store.verify()) == len(damage), "a removal keeps what is damaged"
    assert_at_rest(directory)


@pytest.mark.parametrize("filling", [b"", b"\0" * 5000])
def test_a_last_record_that_ends_with_nul_bytes_is_whole_for_all(
    tmp_path: Path, filling: bytes
) -> None:
    """It lacks its newline, and a power cut may have left more of them behind it."""
    store = open_store(tmp_path)
    store.add("a", b"{}")
    store.add("b", b"{}" if filling else b"\0\0")
    path = data_file(tmp_path)
    path.write_bytes(path.read_bytes()[:-1] + filling)
    assert [name for name, _ in store.read()] == ["b", "a"]
    assert store.remove(["b"]) == 1
    assert [name for name, _ in store.read()] == ["a"]
