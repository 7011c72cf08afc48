"""What operators do to the dead tasks' files while processes use them.

Removing and cutting between two operations is in ``test_dead_tasks_cases.py``; here it happens
within one. The outcomes are those of the table in ``docs/operations.md``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deferred_django.backends.disk import files
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
from tests.disk.support import Gate, in_child, running


def remove_file(path: Path) -> None:
    data_file(path).unlink()


def remove_directory(path: Path) -> None:
    shutil.rmtree(path)


def move_directory(path: Path) -> None:
    path.rename(path.with_name("moved"))


def cut(path: Path) -> None:
    os.truncate(data_file(path), 0)


def cut_and_refill(path: Path) -> None:
    """Longer than before, so that its size does not tell."""
    data_file(path).write_bytes(line("other", record("other", size=5000)))


def save_by_editor(path: Path) -> None:
    (path / "new").write_bytes(line("a"))
    os.replace(path / "new", data_file(path))


def remove_lock_and_purge(path: Path) -> None:
    """Whoever comes next locks another file, at the same time."""
    lock_file(path).unlink()
    in_child(lambda: open_store(path).remove(["a"]), kill=False)


def remove_lock(path: Path) -> None:
    lock_file(path).unlink()


HANDS = [
    remove_file,
    remove_directory,
    move_directory,
    cut,
    cut_and_refill,
    save_by_editor,
    remove_lock,
    remove_lock_and_purge,
]


def when(
    monkeypatch: pytest.MonkeyPatch, call: str, action: Callable[[], None], *, after: bool = False
) -> None:
    """Do something once, before (or after) the next call of a function of ``files``."""
    real = getattr(files, call)
    done: list[int] = []

    def wrapped(*arguments: Any, **options: Any) -> Any:
        first = not done
        done.append(1)
        if first and not after:
            action()
        answer = real(*arguments, **options)
        if first and after:
            action()
        return answer

    monkeypatch.setattr(files, call, wrapped)


@pytest.mark.parametrize("moment", ["write", "fsync"])
@pytest.mark.parametrize("hands", HANDS)
def test_an_add_is_there_whatever_is_done_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hands: Callable[[Path], None], moment: str
) -> None:
    path = tmp_path / "store"
    store = filled(path, *"ab")
    when(monkeypatch, moment, lambda: hands(path), after=moment == "fsync")
    store.add("c", record("c"))
    monkeypatch.undo()
    assert store.find("c") == record("c")
    assert "c" in names(store)
    assert store.verify() == []
    store.add("d", record("d"))
    assert names(store)[:2] == ["d", "c"]
    assert_at_rest(path)


def test_an_add_that_is_disturbed_each_time_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path, "a")
    real = files.fsync

    def fsync(fd: int) -> None:
        real(fd)
        data_file(tmp_path).unlink(missing_ok=True)

    monkeypatch.setattr(files, "fsync", fsync)
    with pytest.raises(OSError, match="removed or cut in use"):
        store.add("b", record("b"))
    monkeypatch.undo()
    store.add("c", record("c"))
    assert names(store) == ["c"]
    assert_at_rest(tmp_path)


def test_a_failed_add_takes_back_nothing_of_others_once_its_lock_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process locks another file by then, and has appended behind it."""
    store = filled(tmp_path, "a")
    real = files.write

    def write(fd: int, data: bytes) -> int:
        monkeypatch.undo()
        real(fd, data[:10])
        lock_file(tmp_path).unlink()
        in_child(lambda: open_store(tmp_path).add("c", record("c")), kill=False)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write", write)
    with pytest.raises(OSError, match="No space"):
        store.add("b", record("b"))
    assert names(store) == ["c", "a"]


# -- locks of removals ---------------------------------------------------------------------------


def test_the_removal_locks_file_removed_during_a_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second one must not put its half-written copy in the file's place, nor the first's."""
    first, second = filled(tmp_path, *"abc"), open_store(tmp_path)
    gate = Gate(monkeypatch, "rename")
    with running(lambda: first.remove(["a"])) as removed:
        gate.wait()
        removal_lock_file(tmp_path).unlink()
        lock_file(tmp_path).unlink()
        with pytest.raises(OSError, match="another removal is at work"):
            second.remove(["b"])
        gate.open()
    assert removed == [1]
    assert names(second) == ["c", "b"]
    assert second.remove(["b"]) == 1
    assert names(first) == ["c"]
    assert_at_rest(tmp_path)


def test_the_temp_of_a_killed_removal_is_nobodys(tmp_path: Path) -> None:
    store = filled(tmp_path, *"ab")
    temp_file(tmp_path).write_bytes(b"half of a copy")
    assert store.remove(["a"]) == 1
    assert names(store) == ["b"]


def test_a_temp_that_goes_before_it_is_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else took it for that of a killed removal, and has put his own there."""
    store = filled(tmp_path, *"ab")
    real = files.create_file

    def create(name: str, *arguments: Any, **options: Any) -> int:
        fd = real(name, *arguments, **options)
        if name.endswith(".tmp"):
            os.unlink(name)
            Path(name).write_bytes(b"another's")
        return fd

    monkeypatch.setattr(files, "create_file", create)
    with pytest.raises(OSError, match="another removal is at work"):
        store.remove(["a"])
    assert temp_file(tmp_path).read_bytes() == b"another's"
    monkeypatch.undo()
    assert store.remove(["a"]) == 1
    assert_at_rest(tmp_path)


@pytest.mark.parametrize("moment", ["before the rename", "after the rename"])
@pytest.mark.parametrize("kind", ["remove", "take"])
def test_adds_beside_a_removal_whose_lock_file_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, kind: str
) -> None:
    """Both believe that they have the lock: what is acknowledged is in the file afterwards."""
    first, second = filled(tmp_path, *"abc"), open_store(tmp_path)

    def add() -> None:
        lock_file(tmp_path).unlink()
        second.add("d", record("d"))

    when(monkeypatch, "rename", add, after=moment == "after the rename")
    if kind == "remove":
        assert first.remove(["a"]) == 1
    else:
        assert take_all(first, ["a"]) == [("a", record("a"))]
    monkeypatch.undo()
    assert names(first) == ["d", "c", "b"]
    assert first.verify() == []
    assert_at_rest(tmp_path)


def test_an_add_between_its_write_and_a_rename_under_another_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It began before the rename, in the file that goes, and is carried over or done again."""
    first, second = filled(tmp_path, *"abc"), open_store(tmp_path)

    def purge() -> None:
        lock_file(tmp_path).unlink()
        assert second.remove(["a"]) == 1

    when(monkeypatch, "write", purge, after=True)
    first.add("d", record("d"))
    monkeypatch.undo()
    assert sorted(names(first)) == ["b", "c", "d"]
    assert first.verify() == []


@pytest.mark.parametrize("kind", ["remove", "take"])
def test_a_temp_that_is_removed_before_it_is_put_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    store = filled(tmp_path, *"ab")
    when(monkeypatch, "rename", temp_file(tmp_path).unlink)
    with pytest.raises(OSError, match="dead_tasks-0.tmp|were handed over"):
        store.remove(["a"]) if kind == "remove" else take_all(store, ["a"])
    monkeypatch.undo()
    assert names(store) == ["b", "a"]
    assert store.remove(["a"]) == 1
    assert_at_rest(tmp_path)


@pytest.mark.parametrize("kind", ["remove", "take"])
def test_anothers_copy_is_not_put_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """An operator removed the copy and the removal's lock file: another removal has begun."""
    store = filled(tmp_path, *"ab")
    temp = temp_file(tmp_path)

    def begin_another() -> None:
        temp.unlink()
        temp.write_bytes(line("b")[:10])

    when(monkeypatch, "fsync", begin_another)
    with pytest.raises(OSError, match="the copy was removed by another program"):
        store.remove(["a"]) if kind == "remove" else take_all(store, ["a"])
    monkeypatch.undo()
    assert names(store) == ["b", "a"]
    assert temp.read_bytes() == line("b")[:10]
    assert store.remove(["a"]) == 1
    assert_at_rest(tmp_path)


def test_an_index_notices_a_lock_file_that_was_made_anew(tmp_path: Path) -> None:
    """Its size counts from the beginning again, and the file's inode may come round too."""
    store = filled(tmp_path, *"ab")
    first = store._file.generation()
    lock_file(tmp_path).unlink()
    assert store.remove(["a"]) == 1
    lock_file(tmp_path).unlink()
    store.add("c", record("c"))
    assert store.remove(["b"]) == 1
    assert store._file.generation() != first
    assert names(store) == ["c"]


# -- links, moves, backups -----------------------------------------------------------------------


def test_a_link_that_leads_elsewhere(tmp_path: Path) -> None:
    """Each operation follows the link anew; what is at the old place is there when it is back."""
    path = tmp_path / "store"
    path.mkdir()
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
    data_file(path).symlink_to("../one/dead")
    store = filled(path, *"ab")
    assert names(store) == ["b", "a"]
    (path / "new").symlink_to("../two/dead")
    os.replace(path / "new", data_file(path))
    assert names(store) == []
    store.add("c", record("c"))
    assert store.remove(["c"]) == 1
    store.add("d", record("d"))
    (path / "new").symlink_to("../one/dead")
    os.replace(path / "new", data_file(path))
    assert names(store) == ["b", "a"]
    assert (tmp_path / "two" / "dead").read_bytes() == line("d")


def test_a_link_that_leads_elsewhere_during_a_removal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    path.mkdir()
    data_file(path).symlink_to("one")
    store = filled(path, *"ab")
    assert store.remove(["none"]) == 0
    removal_lock_file(path).touch()  # the first file that the removal makes is its copy

    def lead_elsewhere() -> None:
        data_file(path).unlink()
        (path / "two").write_bytes(line("z"))
        data_file(path).symlink_to("two")

    when(monkeypatch, "create_file", lead_elsewhere, after=True)
    with pytest.raises(OSError, match="by another program"):
        store.remove(["a"])
    monkeypatch.undo()
    assert names(store) == ["z"]
    assert (path / "one").read_bytes() == line("a") + line("b")
    assert not (path / "one.tmp").exists()


def test_files_put_back_from_a_backup(tmp_path: Path) -> None:
    """What was purged since is there again; nothing that was added since, and no false index."""
    path, backup = tmp_path / "store", tmp_path / "backup"
    store = filled(path, *"ab")
    shutil.copytree(path, backup)
    assert names(store) == ["b", "a"]
    assert store.remove(["a"]) == 1
    store.add("c", record("c"))
    assert names(store) == ["c", "b"]
    shutil.copytree(backup, path, dirs_exist_ok=True)
    assert names(store) == ["b", "a"]
    store.add("d", record("d"))
    assert names(store) == ["d", "b", "a"]
    shutil.rmtree(path)
    shutil.copytree(backup, path)
    assert names(store) == ["b", "a"]
    assert store.remove(["a", "b"]) == 2
    assert names(store) == []
    assert_at_rest(path)


def test_a_store_moved_away_and_back(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = filled(path, *"ab")
    assert names(store) == ["b", "a"]
    move_directory(path)
    assert names(store) == []
    assert store.remove(["a"]) == 0
    path.with_name("moved").rename(path)
    assert names(store) == ["b", "a"]
    assert store.remove(["a"]) == 1
    assert_at_rest(path)
