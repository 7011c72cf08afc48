"""A removal gives the blocks of the file that it replaced back in steps, if nobody reads it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from deferred_django.backends.disk import dead_tasks_freeing, files, ofd
from tests.disk.dlq import assert_at_rest, data_file, filled, line, names, open_store, record
from tests.disk.support import fail_once
from tests.support import start_python

NAMES = "abcdefghijklmnopqrst"
STEP = len(line("a")) * 4

linux = pytest.mark.skipif(sys.platform != "linux", reason="leases are Linux's")


@pytest.fixture
def cuts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes that files without a name are cut to."""
    monkeypatch.setattr(dead_tasks_freeing, "STEP_BYTES", STEP)
    sizes: list[int] = []
    real = files.truncate

    def note(fd: int, length: int) -> None:
        if os.fstat(fd).st_nlink == 0:
            sizes.append(length)
        real(fd, length)

    monkeypatch.setattr(files, "truncate", note)
    return sizes


@linux
def test_the_old_file_is_freed_in_steps(tmp_path: Path, cuts: list[int]) -> None:
    store = filled(tmp_path, *NAMES)
    assert store.remove("ab") == 2
    assert cuts == [4 * STEP, 3 * STEP, 2 * STEP, STEP]
    assert names(store) == list(NAMES[:1:-1])
    assert_at_rest(tmp_path)


def test_a_small_file_is_freed_at_once(tmp_path: Path, cuts: list[int]) -> None:
    store = filled(tmp_path, *NAMES[:8])
    assert store.remove("ab") == 2
    assert cuts == []


def test_a_file_that_is_read_is_left_whole(tmp_path: Path, cuts: list[int]) -> None:
    """In this process, by another thread or an iterator."""
    store = filled(tmp_path, *NAMES)
    iterator = open_store(tmp_path).iterate()
    assert next(iterator)[0] == "t"
    assert store.remove(NAMES[:-1]) == len(NAMES) - 1
    assert cuts == []
    assert [name for name, _ in iterator] == list(NAMES[-2::-1])
    assert_at_rest(tmp_path)


READER = """
    import sys
    from deferred_django.backends.disk.dead_tasks_storage import DeadTasksStorage
    iterator = DeadTasksStorage(sys.argv[1], "d-").iterate()
    print(next(iterator)[0], flush=True)
    sys.stdin.readline()
    print(*[name for name, _ in iterator], sep="")
"""


def test_a_file_that_another_process_reads_is_left_whole(tmp_path: Path, cuts: list[int]) -> None:
    store = filled(tmp_path, *NAMES)
    with start_python(READER, str(tmp_path)) as reader:
        assert reader.stdout
        assert reader.stdout.readline() == "t\n"
        assert store.remove("ab") == 2
        output, errors = reader.communicate("go\n", timeout=30)
    assert (output, errors) == (NAMES[-2::-1] + "\n", "")
    assert cuts == []


def test_a_hard_link_is_left_whole(tmp_path: Path, cuts: list[int]) -> None:
    """An operator's copy of the file from before the purge."""
    store = filled(tmp_path, *NAMES)
    os.link(data_file(tmp_path), tmp_path / "copy")
    before = data_file(tmp_path).read_bytes()
    assert store.remove("ab") == 2
    assert (tmp_path / "copy").read_bytes() == before
    assert cuts == []


@linux
@pytest.mark.parametrize("read", ["find", "page", "list", "count"])
def test_who_opens_a_file_in_the_moment_it_is_replaced_opens_the_new_one(
    tmp_path: Path, cuts: list[int], monkeypatch: pytest.MonkeyPatch, read: str
) -> None:
    """The path was looked up before the rename, and the file opened after the look for readers."""
    reader, store = open_store(tmp_path), filled(tmp_path, *NAMES)
    real = files.open_file
    opened = False

    def open_late(path: str, flags: int) -> int:
        nonlocal opened
        fd = real(path, flags)
        if path == str(data_file(tmp_path)) and not opened:
            opened = True
            with monkeypatch.context() as patch:
                patch.setattr(ofd, "is_open_elsewhere", lambda fd: False)
                assert store.remove("ab") == 2
            assert os.fstat(fd).st_size < 2 * STEP
        return fd

    monkeypatch.setattr(files, "open_file", open_late)
    reads: dict[str, Callable[[], object]] = {
        "find": lambda: reader.find("t"),
        "page": lambda: [name for name, _ in reader.read(limit=20)],
        "list": lambda: [name for name, _ in reader.read()],
        "count": reader.count,
    }
    left = list(NAMES[:1:-1])
    expected = {"find": record("t"), "page": left, "list": left, "count": len(left)}
    assert reads[read]() == expected[read]
    assert cuts


def test_a_file_that_cannot_be_cut_is_freed_at_its_close(
    tmp_path: Path, cuts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path, *NAMES)
    error = OSError(5, "Input/output error", "injected")
    fail_once(monkeypatch, "truncate", error, when=lambda fd, size: os.fstat(fd).st_nlink == 0)
    assert store.remove("ab") == 2
    assert names(store) == list(NAMES[:1:-1])
    assert_at_rest(tmp_path)


@linux
def test_only_who_has_a_file_to_itself_is_told_so(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with path.open("r+b") as one:
        assert not ofd.is_open_elsewhere(one.fileno())
        for mode in ("rb", "r+b"):
            with path.open(mode):
                assert ofd.is_open_elsewhere(one.fileno())
        assert not ofd.is_open_elsewhere(one.fileno())
        with path.open("rb"):  # the look has left nothing that an open would wait for
            pass
