"""What happened to other systems' dead tasks, and what must happen to these."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from deferred_django import ids
from deferred_django.backends.base import BackendConfig, DeadTaskFilter
from deferred_django.backends.disk import (
    DiskBackend,
    dead_tasks_file,
    files,
    records,
    scanner,
)
from tests.disk.dlq import (
    assert_at_rest,
    data_file,
    filled,
    line,
    lock_file,
    names,
    open_store,
    record,
    removal_lock_file,
    take_all,
    temp_file,
)
from tests.disk.support import in_child, let_others_in

IS_ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not IS_ROOT, reason="only root may give files to others")


# -- unfinished writes ---------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [2, 7, 20, 47])
def test_a_cut_record_is_the_only_one_lost(tmp_path: Path, cut: int) -> None:
    """C01: the last bytes are gone; two more dead tasks are added."""
    store = filled(tmp_path, *"ab")
    store.add("cut", record("cut", 20))
    path = data_file(tmp_path)
    os.truncate(path, path.stat().st_size - cut)
    reader = open_store(tmp_path)
    assert names(reader) == ["b", "a"]
    [finding] = reader.verify()
    assert (finding.kind, finding.offset) == ("torn", len(line("a") + line("b")))
    assert reader.problems() == []
    adder = open_store(tmp_path)
    adder.add("c", record("c"))
    adder.add("d", record("d"))
    for each in (store, reader, adder):
        assert names(each) == ["d", "c", "b", "a"]
        assert each.verify() == []
    assert path.read_bytes() == b"".join(line(name) for name in "abcd")


def test_a_cut_inside_a_character(tmp_path: Path) -> None:
    """C01."""
    store = filled(tmp_path, "a")
    store.add("b", "é\u2028😀".encode())
    path = data_file(tmp_path)
    whole = path.read_bytes()
    for cut in range(1, len(whole) - len(line("a"))):
        path.write_bytes(whole[:-cut])
        assert names(open_store(tmp_path)) == (["b", "a"] if cut == 1 else ["a"])


def test_a_cut_newline_loses_nothing(tmp_path: Path) -> None:
    """C01: reader and repair agree on a record that lacks its newline alone."""
    filled(tmp_path, *"ab")
    path = data_file(tmp_path)
    os.truncate(path, path.stat().st_size - 1)
    reader = open_store(tmp_path)
    assert names(reader) == ["b", "a"]
    assert reader.find("b") == record("b")
    assert reader.verify() == []
    open_store(tmp_path).add("c", record("c"))
    assert path.read_bytes() == b"".join(line(name) for name in "abc")
    assert names(reader) == ["c", "b", "a"]
    assert reader.remove(["b"]) == 1
    assert path.read_bytes() == line("a") + line("c")


@pytest.mark.parametrize("size", [0, 300_000])
@pytest.mark.parametrize("zeros", [1, 100, 300_000])
@pytest.mark.parametrize("behind", [b"", b'sage": "a part of the next"}'])
def test_zeros_behind_a_record_without_its_newline(
    tmp_path: Path, behind: bytes, zeros: int, size: int
) -> None:
    """A power cut left the file grown, but not what was written: the record before is whole."""
    store = filled(tmp_path, "a")
    store.add("b", record("b", size))
    path = data_file(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"\0" * zeros + behind)
    reader = open_store(tmp_path)
    for each in (store, reader):
        assert names(each) == ["b", "a"]
        assert each.find("b") == record("b", size)
    open_store(tmp_path).add("c", record("c"))
    assert path.read_bytes() == whole + line("c")
    assert names(reader) == ["c", "b", "a"]
    assert reader.verify() == []


def test_a_missing_newline_is_durable_before_the_next_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power cut could join the acknowledged record to bytes that did not arrive."""
    store = filled(tmp_path, *"ab")
    path = data_file(tmp_path)
    os.truncate(path, path.stat().st_size - 1)
    calls: list[bytes | str] = []
    real_write, real_fsync = files.write, files.fsync

    def write(fd: int, data: bytes) -> int:
        calls.append(data)
        return real_write(fd, data)

    def fsync(fd: int) -> None:
        calls.append("fsync")
        real_fsync(fd)

    monkeypatch.setattr(files, "write", write)
    monkeypatch.setattr(files, "fsync", fsync)
    store.add("c", record("c"))
    assert calls == [b"\n", "fsync", line("c"), "fsync"]


def test_the_last_record_without_its_newline_is_removed(tmp_path: Path) -> None:
    store = filled(tmp_path, *"ab")
    path = data_file(tmp_path)
    os.truncate(path, path.stat().st_size - 1)
    assert take_all(store, ["b"]) == [("b", record("b"))]
    assert path.read_bytes() == line("a")


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"\n\n\n", b"no record", b"no record\n", b"\0" * 4096, b"\0" * 4096 + b"\n", b":"],
)
def test_a_file_of_foreign_bytes(tmp_path: Path, content: bytes) -> None:
    """C03, for the dead tasks: what follows is read, and what is damaged is reported and kept."""
    data_file(tmp_path).write_bytes(content)
    store = open_store(tmp_path)
    assert names(store) == []
    store.add("a", record("a"))
    store.add("b", record("b"))
    assert names(store) == ["b", "a"]
    damaged = content.endswith(b"\n") and bool(content.strip(b"\n"))
    assert bool(store.problems()) == damaged
    assert [found.kind for found in store.verify()] == (["damage"] if damaged else [])
    kept = content if damaged or not content.strip(b"\n") else b""
    assert store.remove(["a"]) == 1
    assert data_file(tmp_path).read_bytes() == kept + line("b")


@pytest.mark.parametrize(
    "damage", [b"\0" * 4096, b"\0" * 300 + b"\n", b"foreign\n", line("x").replace(b"x", b"y")]
)
def test_damage_in_the_middle(tmp_path: Path, damage: bytes) -> None:
    """C03: NUL bytes, foreign text, a flipped byte; whole records around it stay readable."""
    path = data_file(tmp_path)
    path.write_bytes(line("a") + damage + line("b") + line("c"))
    store = open_store(tmp_path)
    # Damage without a newline of its own takes the record that it runs into with it.
    there = ["c", "b", "a"] if damage.endswith(b"\n") else ["c", "a"]
    assert names(store) == there
    [finding] = store.verify()
    assert (finding.kind, finding.file, finding.offset) == ("damage", str(path), len(line("a")))
    [problem] = store.problems()
    assert str(path) in problem
    assert f"byte {len(line('a'))}" in problem
    assert store.remove(["c", "a"]) == 2
    rest = damage + line("b")
    assert path.read_bytes() == rest, "a removal destroys nothing but what it removes"


def test_records_of_another_kind_are_skipped_reported_and_kept(tmp_path: Path) -> None:
    other = records.encode(b"add:1-2-3:n:0:0:default:payload") + b"\n"
    path = data_file(tmp_path)
    path.write_bytes(line("a") + other + line("b"))
    store = open_store(tmp_path)
    assert names(store) == ["b", "a"]
    assert len(store.problems()) == 1
    [finding] = store.verify()
    assert (finding.kind, finding.offset) == ("damage", len(line("a")))
    store.remove("ab")
    assert path.read_bytes() == other


# -- modes, owners, links ------------------------------------------------------------------------


@needs_root
def test_a_removal_keeps_mode_and_owner(tmp_path: Path) -> None:
    """C07 (a), as root."""
    filled(tmp_path, *"abc")
    path = data_file(tmp_path)
    os.chown(path, 12345, 23456)
    path.chmod(0o664)
    store = open_store(tmp_path)
    assert store.remove(["b"]) == 1
    info = path.stat()
    assert (info.st_uid, info.st_gid, stat.S_IMODE(info.st_mode)) == (12345, 23456, 0o664)


@needs_root
def test_files_that_root_makes_are_the_owners_of_the_directory(tmp_path: Path) -> None:
    """R16, for the dead tasks."""
    path = tmp_path / "store"
    path.mkdir()
    os.chown(path, 12345, 23456)
    store = filled(path, *"ab")
    store.remove(["a"])
    assert {(file.stat().st_uid, file.stat().st_gid) for file in path.iterdir()} == {(12345, 23456)}


def become(user: int, groups: list[int]) -> None:
    os.setgroups(groups)
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


@pytest.fixture
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of user 2001 that group 3000 may write: its directory hands the group on."""
    base = tmp_path_factory.mktemp("shared")
    let_others_in(base, 0o555)
    path = base / "store"
    path.mkdir()
    os.chown(path, 2001, 3000)
    path.chmod(0o2775)
    store = open_store(path, file_permissions=0o664)
    for name in "abc":
        store.add(name, record(name))
    return path


@needs_root
def test_a_member_of_the_group_purges_and_the_owner_goes_on(shared: Path) -> None:
    """C07 (a), as another member of the group."""

    def purge() -> None:
        become(2002, [3000])
        assert open_store(shared).remove(["b"]) == 1

    def append() -> None:
        become(2001, [3000])
        store = open_store(shared)
        assert names(store) == ["c", "a"]
        store.add("d", record("d"))
        assert store.remove(["a"]) == 1

    in_child(purge, kill=False)
    info = data_file(shared).stat()
    assert (info.st_gid, stat.S_IMODE(info.st_mode)) == (3000, 0o664)
    in_child(append, kill=False)
    assert names(open_store(shared)) == ["d", "c"]


@needs_root
def test_a_purge_that_would_lock_the_owner_out_is_refused(shared: Path) -> None:
    """C07 (a): a clear refusal before anything is touched."""
    shared.chmod(0o777)
    os.chmod(lock_file(shared), 0o666)
    os.chmod(data_file(shared), 0o664)

    def reader_only() -> None:
        become(2003, [2003])
        store = open_store(shared)
        assert names(store) == ["c", "b", "a"]
        with pytest.raises(PermissionError, match="dead_tasks-0"):
            store.remove(["a"])

    in_child(reader_only, kill=False)
    shared.chmod(0o777)  # no longer hands the group on
    os.chown(data_file(shared), 2003, 3000)
    before = data_file(shared).read_bytes()

    def owner_outside_the_group() -> None:
        become(2003, [2003])
        with pytest.raises(PermissionError, match="group could not be kept"):
            open_store(shared).remove(["a"])

    in_child(owner_outside_the_group, kill=False)
    assert data_file(shared).read_bytes() == before
    assert not temp_file(shared).exists()


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    """C07 (b): the directory and the file are symbolic links."""
    real = tmp_path / "real"
    shared_directory = tmp_path / "shared"
    shared_directory.mkdir()
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    data_file(real).symlink_to("../shared/dead")
    store = open_store(tmp_path / "link")
    for name in "abc":
        store.add(name, record(name))
    assert store.remove(["b"]) == 1
    assert take_all(store, ["a"]) == [("a", record("a"))]
    assert (tmp_path / "link").is_symlink()
    assert data_file(real).is_symlink()
    assert (shared_directory / "dead").read_bytes() == line("c")
    assert os.listdir(shared_directory) == ["dead"]
    assert sorted(os.listdir(real)) == [
        "d-dead_tasks-0",
        "d-dead_tasks-removal.lock",
        "d-dead_tasks.lock",
    ]
    assert names(open_store(real)) == ["c"]
    assert_at_rest(real)


def test_reading_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    """Readers need to read the file, and nothing else."""
    path = tmp_path / "store"
    filled(path, *"ab")
    lock_file(path).unlink()
    data_file(path).chmod(0o444)
    path.chmod(0o555)

    def read() -> None:
        if IS_ROOT:
            let_others_in(tmp_path, 0o555)
            become(2001, [2001])
        store = open_store(path)
        assert names(store) == ["b", "a"]
        assert store.find("a") == record("a")
        assert store.verify() == []
        assert store.problems() == []
        with pytest.raises(PermissionError):
            store.add("c", b"1")
        with pytest.raises(PermissionError):
            store.remove(["a"])

    try:
        in_child(read, kill=False)
        assert os.listdir(path) == ["d-dead_tasks-0"]
    finally:
        path.chmod(0o755)


# -- operators' hands ----------------------------------------------------------------------------


def test_a_directory_that_was_removed_is_made_again(tmp_path: Path) -> None:
    """C11, for the dead tasks."""
    import shutil

    path = tmp_path / "store"
    store = filled(path, *"ab")
    assert names(store) == ["b", "a"]
    shutil.rmtree(path)
    assert names(store) == []
    assert store.remove(["a"]) == 0
    store.add("c", record("c"))
    assert names(store) == ["c"]


def test_a_file_cut_by_copy_and_truncate(tmp_path: Path) -> None:
    store = filled(tmp_path, *"abc")
    assert store.count() == 3
    os.truncate(data_file(tmp_path), 0)
    assert names(store) == []
    store.add("d", record("d"))
    assert names(store) == ["d"]


@pytest.mark.parametrize("how", ["replaced", "cut", "gone"])
def test_a_file_changed_by_others_during_a_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The removal is refused rather than bring back, or lose, what others did."""
    store = filled(tmp_path, *"abc")
    path = data_file(tmp_path)
    real = files.create_file

    def create(name: str, *arguments: Any, **options: Any) -> int:
        fd = real(name, *arguments, **options)
        if name.endswith(".tmp"):
            if how == "replaced":
                (tmp_path / "other").write_bytes(line("z"))
                os.replace(tmp_path / "other", path)
            elif how == "cut":
                os.truncate(path, 0)
            else:
                path.unlink()
        return fd

    monkeypatch.setattr(files, "create_file", create)
    with pytest.raises(OSError, match="by another program"):
        store.remove(["a"])
    monkeypatch.undo()
    assert names(store) == (["z"] if how == "replaced" else [])
    store.add("d", record("d"))
    assert names(store)[0] == "d"
    assert_at_rest(tmp_path)


# -- names and ids -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("app-", "app-0-"),
        ("app-", "app-dead_tasks-"),
        ("shop", "shop0-"),
        ("", "app-"),
        ("shop[1]-", "shop1-"),
        ("a*-", "abc-"),
    ],
)
def test_stores_side_by_side(tmp_path: Path, one: str, two: str) -> None:
    """C13, C14: no store touches a file of another, whatever its prefix."""
    path = tmp_path / "app [v2]" / "q s"
    first, second = open_store(path, one), open_store(path, two)
    for store in (first, second):
        for name in "abc":
            store.add(name, record(name))
        store.remove(["a"])
    files_of_two = {
        name: os.stat(name).st_mtime_ns
        for name in (data_file(path, two), lock_file(path, two), removal_lock_file(path, two))
    }
    assert first.remove("bc") == 2
    first.add("x", b"1")
    assert take_all(first, ["x"]) == [("x", b"1")]
    assert first.verify() == []
    assert names(first) == []
    assert names(second) == ["c", "b"]
    assert {name: os.stat(name).st_mtime_ns for name in files_of_two} == files_of_two
    assert len(os.listdir(path)) == 6


def test_ids_of_two_processes_with_one_pid_at_one_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C16 (a): completing or purging one never touches the other."""
    monkeypatch.setattr(os, "getpid", lambda: 7)
    monkeypatch.setattr(time, "time", lambda: 1_764_430_000.0)
    one, two = ids.IdSource().new_id(), ids.IdSource().new_id()
    assert one != two
    store = filled(tmp_path, one, two)
    assert store.remove([one]) == 1
    assert names(store) == [two]


def test_a_dead_task_added_while_all_are_purged_stays(tmp_path: Path) -> None:
    """C60: what was listed goes; what came meanwhile was not seen and stays."""
    store, other = filled(tmp_path, *"abc"), open_store(tmp_path)
    listed = [name for name, _ in store.read()]
    other.add("unseen", b"1")
    assert store.remove(listed) == 3
    assert names(store) == ["unseen"]


# -- through the backend -------------------------------------------------------------------------


class Broken(Exception):  # noqa: N818 - named for what it is
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


class Number(Exception):  # noqa: N818
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


def looping() -> Exception:
    one, two = ValueError("one"), KeyError("two")
    one.__cause__, two.__cause__ = two, one
    return one


@pytest.mark.parametrize(
    ("exception", "name", "message"),
    [
        (Broken(), "Broken", "<exception str() failed>"),
        (Number(), "Number", "<exception str() failed>"),
        (looping(), "ValueError", "one"),
        (ValueError("\udcff\0"), "ValueError", "\udcff\0"),
        (ValueError("a\u2028b\x85c\x0bd\x1ce\rf\ng:h,i\t%s"), "ValueError", None),
        (ValueError("x" * (8 * 1024 * 1024)), "ValueError", "x" * 1000),
        (SystemExit(3), "SystemExit", "3"),
    ],
)
def test_any_exception_makes_a_dead_task(
    tmp_path: Path, exception: BaseException, name: str, message: str | None
) -> None:
    """C26, C28, C33: stored, listed and found, by this and by another process's backend."""
    backend = DiskBackend(BackendConfig(path=tmp_path / "store"))
    context = bytes(range(256))
    backend.add_dead_task("1-2-3", context, exception, task_class="shop.tasks.old", attempts=3)
    for reader in (backend, DiskBackend(BackendConfig(path=tmp_path / "store"))):
        [dead] = reader.list_dead_tasks(limit=5)
        assert dead == reader.find_dead_task("1-2-3")
        assert dead["context"] == context
        assert dead["exception_class"].endswith(name)
        expected = str(exception) if message is None else message
        assert dead["exception_message"].startswith(expected)
        assert len(dead["exception_message"].encode("utf-8", "surrogatepass")) <= 16_000
        assert reader.count_dead_tasks(filter=DeadTaskFilter(exception=name)) == 1
    [stored] = data_file(tmp_path / "store", "deferred-").read_bytes().splitlines()
    checksum, kind, task_id, data = stored.split(b":", 3)
    assert (len(checksum), kind, task_id) == (8, b"dead_task", b"1-2-3")
    assert json.loads(data)["task_class"] == "shop.tasks.old"
    backend.close()


def test_the_largest_context_fits_a_dead_task(tmp_path: Path) -> None:
    """A task that could be enqueued can die: quotes and control bytes grow sixfold in JSON."""
    from deferred_django.backends import base

    assert dead_tasks_file.MAX_DEAD_RECORD_BYTES > 6 * base.MAX_RECORD_BYTES
    assert scanner.MAX_LONG_LINE_BYTES > dead_tasks_file.MAX_DEAD_RECORD_BYTES
    backend = DiskBackend(BackendConfig(path=tmp_path))
    context = b"\0" * (1024 * 1024)
    backend.add_dead_task("1-2-3", context, ValueError("x"), task_class="a.b", attempts=1)
    [dead] = backend.list_dead_tasks(limit=1)
    assert dead["context"] == context
    backend.close()
