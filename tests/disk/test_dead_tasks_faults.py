"""Every call of the dead-tasks store fails or is the last of its process, one after the other."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from deferred_django.backends.disk import files
from deferred_django.backends.disk.dead_tasks_storage import DeadTasksStorage
from tests.disk.dlq import (
    assert_at_rest,
    data_file,
    filled,
    line,
    names,
    open_store,
    record,
    temp_file,
)
from tests.disk.support import in_child

# Where a kill makes a difference to what the files or the locks are.
CHANGES = {
    "create_file", "write", "fsync", "fsync_directory", "rename", "truncate", "unlink",
    "make_directory", "try_flock", "unlock_flock",
}  # fmt: skip
ERRORS = (errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EDQUOT, errno.ESTALE, errno.EINTR)


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that dies leaves the page cache as it is: the calls count, not the disk."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@dataclass
class Operation:
    """Something done to a store, and the ids that are there before and after it, newest first."""

    prepare: Callable[[Path], Any]
    run: Callable[[DeadTasksStorage], Any]
    before: list[str]
    after: list[str]


def nothing(path: Path) -> None:
    pass


def three(path: Path) -> None:
    filled(path, *"abc")


def torn(path: Path) -> None:
    filled(path, *"abc")
    with data_file(path).open("ab") as file:
        file.write(line("torn")[:-5])


def newline_missing(path: Path) -> None:
    filled(path, *"abc")
    os.truncate(data_file(path), data_file(path).stat().st_size - 1)


def stale_temp(path: Path) -> None:
    filled(path, *"abc")
    temp_file(path).write_bytes(b"of a removal that was killed")


def take_b(store: DeadTasksStorage) -> None:
    assert store.take(["b"], lambda *_: None, lambda: None) == ["b"]


def read_all(store: DeadTasksStorage) -> None:
    store.read()
    store.read(limit=2)
    store.count()
    store.find("b")


ADD = lambda store: store.add("x", record("x"))  # noqa: E731
REMOVE = lambda store: store.remove("bc")  # noqa: E731
OPERATIONS = {
    "first add": Operation(nothing, ADD, [], ["x"]),
    "add": Operation(three, ADD, list("cba"), list("xcba")),
    "add behind a torn record": Operation(torn, ADD, list("cba"), list("xcba")),
    "add behind a missing newline": Operation(newline_missing, ADD, list("cba"), list("xcba")),
    "remove": Operation(three, REMOVE, list("cba"), ["a"]),
    "remove the last, without newline": Operation(newline_missing, REMOVE, list("cba"), ["a"]),
    "remove beside a torn record": Operation(torn, REMOVE, list("cba"), ["a"]),
    "remove after a kill": Operation(stale_temp, REMOVE, list("cba"), ["a"]),
    "take": Operation(three, take_b, list("cba"), ["c", "a"]),
    "read": Operation(three, read_all, list("cba"), list("cba")),
}


class Injector:
    """Counts the calls of ``files`` and does something at one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch | None) -> None:
        self.calls: list[str] = []
        self.at: int | None = None
        self.act: Callable[[str, Callable[..., Any], tuple[Any, ...]], Any] | None = None
        for call in files.CALLS:
            real = getattr(files, call)

            def counted(
                *arguments: Any, call: str = call, real: Callable[..., Any] = real, **options: Any
            ) -> Any:
                self.calls.append(call)
                if self.at == len(self.calls) and self.act is not None:
                    return self.act(call, real, arguments)
                return real(*arguments, **options)

            if monkeypatch is None:  # in a child that dies
                setattr(files, call, counted)
            else:
                monkeypatch.setattr(files, call, counted)


def calls_of(operation: Operation, path: Path) -> list[str]:
    """The calls that the operation makes when nothing fails."""
    operation.prepare(path)
    store = open_store(path)
    with pytest.MonkeyPatch.context() as patch:
        injector = Injector(patch)
        operation.run(store)
    assert names(open_store(path)) == operation.after
    return injector.calls


def check_store_works(path: Path) -> None:
    store = open_store(path)
    there = names(store)
    store.add("next", b"1")
    assert names(store) == ["next", *there]
    assert store.remove(["next"]) == 1
    assert names(store) == there
    assert not [found for found in store.verify() if found.kind != "torn"]
    assert_at_rest(path)


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_call_fails_once(tmp_path: Path, name: str) -> None:
    operation = OPERATIONS[name]
    calls = calls_of(operation, tmp_path / "whole")
    for number, call in enumerate(calls, start=1):
        variants = ["fails"]
        if call == "write":
            variants += ["writes a part, then fails", "writes a part"]
        if call in ("close", "unlock_flock"):
            variants = ["is done, then fails"]
        for variant in variants:
            path = tmp_path / f"{number}-{variant}"
            code = ERRORS[number % len(ERRORS)]
            fail_one_call(operation, path, number, variant, code)
            shutil.rmtree(path)


def fail_one_call(operation: Operation, path: Path, number: int, variant: str, code: int) -> None:
    operation.prepare(path)
    store = open_store(path)
    failed_call = ""

    def act(call: str, real: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        nonlocal failed_call
        failed_call = call
        error = OSError(code, os.strerror(code), str(path / "injected"))
        if variant == "is done, then fails":
            real(*arguments)
        elif variant.startswith("writes a part"):
            fd, data = arguments
            written = real(fd, data[: len(data) // 2])
            if variant == "writes a part":
                return written
        raise error

    raised, named = False, True
    with pytest.MonkeyPatch.context() as patch:
        injector = Injector(patch)
        injector.at, injector.act = number, act
        try:
            operation.run(store)
        except OSError as error:
            raised, named = True, bool(error.filename)
        injector.at = None
        assert named, f"{failed_call}: the error names no file"
        assert_at_rest(path, stale_temp=operation.prepare is stale_temp)
        there = names(open_store(path))
        # Readers of this very process, with its index, agree.
        assert names(store) == there
        if raised:
            assert there in (operation.before, operation.after), failed_call
        else:
            assert there == operation.after, failed_call
        # The same storage goes on when the fault ends.
        if there != operation.after:
            operation.run(store)
            assert names(store) == operation.after
    check_store_works(path)


@pytest.mark.parametrize("name", [name for name in OPERATIONS if name != "read"])
def test_every_call_is_the_last_of_its_process(tmp_path: Path, name: str) -> None:
    operation = OPERATIONS[name]
    calls = calls_of(operation, tmp_path / "whole")
    bystander: DeadTasksStorage
    for number, call in enumerate(calls, start=1):
        if call not in CHANGES:
            continue
        path = tmp_path / f"{number}-{call}"
        operation.prepare(path)
        bystander = open_store(path)
        names(bystander)

        def child(path: Path = path, number: int = number) -> None:
            store = open_store(path)
            injector = Injector(None)
            injector.at = number
            injector.act = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
            operation.run(store)
            os._exit(1)

        in_child(child)
        there = names(bystander)
        assert there in (operation.before, operation.after), call
        bystander.add("y", b"1")
        assert names(bystander) == ["y", *there]
        assert bystander.remove(["y"]) == 1
        check_store_works(path)
        shutil.rmtree(path)


def test_failing_for_long_leaks_nothing(tmp_path: Path) -> None:
    store = filled(tmp_path, *"abc")
    before = data_file(tmp_path).read_bytes()
    for call in ("write", "fsync", "rename", "fsync_directory", "open_file", "truncate"):
        with pytest.MonkeyPatch.context() as patch:

            def fail(*_: Any, call: str = call) -> None:
                raise OSError(errno.EIO, "Input/output error", call)

            patch.setattr(files, call, fail)
            for _ in range(5):
                if call not in ("rename", "fsync_directory", "truncate"):
                    with pytest.raises(OSError, match="Input/output"):
                        store.add("x", b"1")
                if call != "fsync_directory":
                    with pytest.raises(OSError, match="Input/output"):
                        store.remove(["a"])
        if call == "fsync":
            assert data_file(tmp_path).read_bytes() == before
        assert_at_rest(tmp_path)
    store.add("d", b"1")
    assert names(store) == ["d", "c", "b", "a"]


# -- a full disk ---------------------------------------------------------------------------------


def test_no_room_for_the_temp_of_a_purge(tmp_path: Path) -> None:
    """C05 (d), with a real limit: the file is byte for byte the same, and the temp is gone."""
    store = open_store(tmp_path)
    for number in range(30):
        store.add(f"t-{number}", record("x", 1000))
    before = data_file(tmp_path).read_bytes()

    def child() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, resource.RLIM_INFINITY))
        for change in (
            lambda: store.remove(["t-1"]),
            lambda: store.take(["t-1"], lambda *_: os._exit(7), lambda: None),
            lambda: store.add("new", record("x", 1000)),
        ):
            with pytest.raises(OSError, match="dead_tasks-0") as caught:
                change()
            assert caught.value.errno == errno.EFBIG
        assert data_file(tmp_path).read_bytes() == before
        assert_at_rest(tmp_path)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        store.add("after", b"1")
        assert store.remove(["t-1"]) == 1

    in_child(child, kill=False)
    assert len(names(store)) == 30
    check_store_works(tmp_path)


def test_a_limit_within_a_record_is_an_error_and_harms_nobody(tmp_path: Path) -> None:
    """C04, for the dead tasks: a real short write."""
    store = filled(tmp_path, "a")
    limit = data_file(tmp_path).stat().st_size + 100

    def child() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        with pytest.raises(OSError, match="only 100 of"):
            store.add("b", record("b", 500))
        assert data_file(tmp_path).read_bytes() == line("a")
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        store.add("after", b"1")

    in_child(child)
    store.add("c", b"1")
    assert names(store) == ["c", "after", "a"]
    check_store_works(tmp_path)


def test_a_killed_short_write_is_repaired_by_the_next_add(tmp_path: Path) -> None:
    store = filled(tmp_path, "a")
    real = files.write

    def child() -> None:
        def die(fd: int, data: bytes) -> int:
            real(fd, data[:20])
            os.kill(os.getpid(), signal.SIGKILL)
            return 0

        files.write = die
        store.add("b", record("b"))

    in_child(child)
    assert names(store) == ["a"]
    assert [found.kind for found in store.verify()] == ["torn"]
    assert store.problems() == []
    store.add("c", record("c"))
    assert data_file(tmp_path).read_bytes() == line("a") + line("c")


def test_the_tasks_are_named_that_were_handed_over_but_not_removed(tmp_path: Path) -> None:
    """The removal fails after the hand-over: an error, and the records are still there."""
    store = filled(tmp_path, *"abc")
    handed: list[str] = []
    with pytest.MonkeyPatch.context() as patch:

        def fail(source: str, target: str) -> None:
            raise OSError(errno.EIO, "Input/output error", source)

        patch.setattr(files, "rename", fail)
        with pytest.raises(OSError, match="handed over"):
            store.take(["b"], lambda name, _: handed.append(name), lambda: None)
    assert handed == ["b"]
    assert names(store) == ["c", "b", "a"]
    check_store_works(tmp_path)
