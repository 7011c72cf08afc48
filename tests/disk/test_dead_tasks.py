"""The dead-tasks store: what goes in comes out, in order, once, until it is removed."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from deferred_django.backends.disk import dead_tasks_rows, files
from tests.disk.dlq import (
    assert_at_rest,
    data_file,
    filled,
    line,
    lock_file,
    names,
    open_store,
    reads_of,
    record,
    take_all,
)
from tests.disk.support import in_child


def test_the_newest_come_first_and_pages_follow_each_other(tmp_path: Path) -> None:
    store = filled(tmp_path, *"abcdefg")
    for reader in (store, open_store(tmp_path)):
        assert reader.read(limit=3) == [(name, record(name)) for name in "gfe"]
        assert reader.read(limit=3, offset=3) == [(name, record(name)) for name in "dcb"]
        assert [name for name, _ in reader.read(limit=3, offset=6)] == ["a"]
        assert reader.read(limit=3, offset=7) == []
        assert reader.read(limit=0) == []
        assert [name for name, _ in reader.read(offset=5)] == ["b", "a"]
        assert reader.count() == 7
    assert_at_rest(tmp_path)


def test_the_newest_record_of_an_id_counts(tmp_path: Path) -> None:
    """C60: a crash at the hand-over can write an id twice."""
    store = filled(tmp_path, "a", "b", "c")
    store.add("a", b"newer")
    assert names(store) == ["a", "c", "b"]
    assert store.find("a") == b"newer"
    assert store.read(limit=1) == [("a", b"newer")]
    assert [name for name, _ in store.read(limit=2, offset=1)] == ["c", "b"]
    assert store.remove(["a"]) == 1
    assert names(store) == ["c", "b"]
    assert store.find("a") is None


def test_records_are_chosen_by_their_bytes(tmp_path: Path) -> None:
    store = filled(tmp_path, *"abcdef")
    store.add("a", b"newer")
    vowels: Callable[[str, bytes], bool] = lambda task_id, data: any(  # noqa: E731
        data == record(name) for name in "ae"
    )
    assert store.read(matches=vowels) == [("e", record("e"))]
    assert store.count(vowels) == 1
    later: Callable[[str, bytes], bool] = lambda task_id, data: data > record("b")  # noqa: E731
    assert [name for name, _ in store.read(limit=2, offset=1, matches=later)] == ["e", "d"]
    assert store.count(later) == 4


def test_only_exact_ids_are_removed(tmp_path: Path) -> None:
    """C60."""
    store = filled(tmp_path, "1-7-a-1", "1-7-a-11", "1-7-a-1.", "21-7-a-1")
    assert store.remove(["1-7-a-1", "1-7-a-1", "nope"]) == 1
    assert names(store) == ["21-7-a-1", "1-7-a-1.", "1-7-a-11"]
    assert store.remove(["nope"]) == 0
    assert store.remove([]) == 0
    assert store.remove(["1-7-a-11", "21-7-a-1", "1-7-a-1."]) == 3
    assert names(store) == []
    assert data_file(tmp_path).read_bytes() == b""
    store.add("again", b"1")
    assert names(store) == ["again"]
    assert_at_rest(tmp_path)


def test_a_removal_that_finds_nothing_leaves_the_file_alone(tmp_path: Path) -> None:
    store = filled(tmp_path, "a")
    before = os.stat(data_file(tmp_path))
    assert store.remove(["b"]) == 0
    assert take_all(store, ["b"]) == []
    after = os.stat(data_file(tmp_path))
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)


def test_take_gives_the_newest_in_the_order_asked_for(tmp_path: Path) -> None:
    store = filled(tmp_path, *"abcd")
    store.add("b", b"newer")
    calls: list[Any] = []
    progress: list[tuple[int, int]] = []
    taken = store.take(
        ["c", "x", "b", "c"],
        lambda name, data: calls.append((name, data)),
        lambda: calls.append("durable"),
        progress=lambda done, total: progress.append((done, total)),
    )
    assert taken == ["c", "b"]
    assert calls == [("c", record("c")), ("b", b"newer"), "durable"]
    assert progress == [(1, 2), (2, 2)]
    assert names(store) == ["d", "a"]
    assert store.take([], lambda *_: None, lambda: None) == []


@pytest.mark.parametrize("failing", ["handover", "make_durable", "progress"])
def test_nothing_is_removed_if_the_hand_over_fails(tmp_path: Path, failing: str) -> None:
    store = filled(tmp_path, *"abc")
    before = data_file(tmp_path).read_bytes()

    def fail(*_: Any) -> None:
        raise RuntimeError("no")

    calls: dict[str, Callable[..., None]] = dict.fromkeys(
        ("handover", "make_durable", "progress"), lambda *_: None
    )
    calls[failing] = fail
    with pytest.raises(RuntimeError):
        store.take(["a"], calls["handover"], calls["make_durable"], progress=calls["progress"])
    assert data_file(tmp_path).read_bytes() == before
    assert_at_rest(tmp_path)
    assert store.remove(["a"]) == 1


def test_progress_of_a_removal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deferred_django.backends.disk.dead_tasks_removal.BLOCK_BYTES", 100)
    store = filled(tmp_path, *"abcdefgh")
    told: list[tuple[int, int]] = []
    assert store.remove("bdf", progress=lambda done, total: told.append((done, total))) == 3
    assert told == sorted(told)
    assert told[-1] == (3, 3)
    assert len(told) > 2
    assert names(store) == list("hgeca")


def test_what_cannot_be_stored_is_refused(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    for name in ("", "a:b", "a b", "ä", "a\n", "x" * 201):
        with pytest.raises(ValueError, match="id"):
            store.add(name, b"")
    with pytest.raises(ValueError, match="newline"):
        store.add("a", b"1\n2")
    assert not (tmp_path / "store").exists()
    assert store.find("a:b") is None
    assert store.find("\udcff") is None


@pytest.mark.parametrize("size", [0, 1, 65_536, 262_144 - 30, 262_144, 600_000, 3_000_000])
def test_records_of_any_length_come_back(tmp_path: Path, size: int) -> None:
    store = filled(tmp_path, "before")
    store.add("long", record("long", size))
    store.add("after", b"1")
    for reader in (store, open_store(tmp_path)):
        assert reader.read(limit=2)[1] == ("long", record("long", size))
        assert reader.find("long") == record("long", size)
    assert names(store) == ["after", "long", "before"]
    assert store.verify() == []
    assert store.remove(["long"]) == 1
    assert data_file(tmp_path).read_bytes() == line("before") + line("after", b"1")


def test_bytes_are_data(tmp_path: Path) -> None:
    """C26, C28: only a newline ends a record; every other byte comes back."""
    store = open_store(tmp_path)
    odd = "a\u2028b\x85c\x0bd\x1ce\rf:g:h,i\t%s\\n\udcff\0".encode("utf-8", "surrogatepass")
    everything = bytes(byte for byte in range(256) if byte != 10)
    store.add("odd", odd)
    store.add("every", everything)
    for reader in (store, open_store(tmp_path)):
        assert reader.read(limit=5) == [("every", everything), ("odd", odd)]
        assert reader.find("odd") == odd


def test_a_file_with_windows_newlines_is_reported_the_same_every_time(tmp_path: Path) -> None:
    """C26."""
    store = filled(tmp_path, *"abc")
    path = data_file(tmp_path)
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    for reader in (store, open_store(tmp_path), store):
        assert names(reader) == []
        assert reader.problems() == [f"{path}: 3 damaged lines are skipped, the first at byte 0"]
        assert [(found.kind, found.offset) for found in reader.verify()] == [
            ("damage", 0),
            ("damage", len(line("a")) + 1),
            ("damage", 2 * (len(line("a")) + 1)),
        ]
    store.add("d", record("d"))
    assert names(store) == ["d"]


# -- first use and reading only ------------------------------------------------------------------


def test_reading_makes_no_file(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    assert store.read() == store.read(limit=5) == []
    assert store.count() == 0
    assert store.find("a") is None
    assert store.remove(["a"]) == 0
    assert take_all(store, ["a"]) == []
    assert store.problems() == []
    assert store.verify() == []
    store.close()
    assert not (tmp_path / "store").exists()


def test_reading_takes_no_lock_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path, *"abc")
    before = {entry.name: entry.stat().st_mtime_ns for entry in os.scandir(tmp_path)}
    for call in (
        "create_file", "write", "fsync", "fsync_directory", "rename", "truncate", "unlink",
        "make_directory", "try_flock", "wait_flock",
    ):  # fmt: skip
        monkeypatch.setattr(files, call, None)
    real = files.open_file

    def only_to_read(path: str, flags: int) -> int:
        assert flags == os.O_RDONLY
        return real(path, flags)

    monkeypatch.setattr(files, "open_file", only_to_read)
    store = open_store(tmp_path)
    assert names(store) == ["c", "b", "a"]
    assert store.find("b") == record("b")
    assert store.count(lambda task_id, data: True) == 3
    assert store.problems() == []
    assert store.verify() == []
    assert {entry.name: entry.stat().st_mtime_ns for entry in os.scandir(tmp_path)} == before


def test_the_first_add_makes_directory_and_files(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    filled(path, "x")
    assert sorted(os.listdir(path)) == ["d-dead_tasks-0", "d-dead_tasks.lock"]
    for file in (data_file(path), lock_file(path)):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.mark.parametrize("umask", [0, 0o077])
def test_permissions_do_not_depend_on_the_umask(tmp_path: Path, umask: int) -> None:
    old = os.umask(umask)
    try:
        store = open_store(tmp_path / "store", file_permissions=0o664)
        store.add("a", b"1")
        store.add("b", b"1")
        store.remove(["a"])
    finally:
        os.umask(old)
    modes = {stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "store").iterdir()}
    assert modes == {0o664}


@pytest.mark.parametrize("kind", ["directory", "fifo", "unreadable"])
def test_a_file_that_cannot_be_opened_is_an_error_that_names_it(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = data_file(tmp_path)
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        filled(tmp_path, "a")
        real = files.open_file

        def refuse(name: str, flags: int) -> int:
            if name == str(path):
                raise PermissionError(13, "Permission denied", name)
            return real(name, flags)

        monkeypatch.setattr(files, "open_file", refuse)
    store = open_store(tmp_path)
    actions: list[Callable[[], Any]] = [
        store.read,
        store.count,
        lambda: store.read(limit=1),
        lambda: store.find("a"),
        lambda: store.add("a", b""),
        lambda: store.remove(["a"]),
    ]
    for action in actions:
        with pytest.raises(OSError, match="dead_tasks-0"):
            action()
    [finding] = store.verify()
    assert (finding.file, finding.kind) == (str(path), "unreadable")
    assert str(path) in store.problems()[0]
    assert_at_rest(tmp_path)


def test_a_forked_child_uses_the_store(tmp_path: Path) -> None:
    store = filled(tmp_path, "a", "b")
    names(store)

    def child() -> None:
        assert names(store) == ["b", "a"]
        store.add("child", b"1")
        assert store.remove(["a"]) == 1

    in_child(child, kill=False)
    assert names(store) == ["child", "b"]
    assert_at_rest(tmp_path)


def test_threads_share_the_store(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    errors: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for number in range(20):
                store.add(f"{thread}-{number}", b"1")
                assert store.find(f"{thread}-{number}") == b"1"
                if number % 4 == 3:
                    assert store.remove([f"{thread}-{number - 1}"]) == 1
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not errors
    assert len(names(store)) == 6 * 15
    assert store.verify() == []
    assert_at_rest(tmp_path)


def test_the_store_can_be_used_after_close(tmp_path: Path) -> None:
    store = filled(tmp_path, *"abc")
    assert store.count() == 3
    store.close()
    store.close()
    assert names(store) == ["c", "b", "a"]


# -- size ----------------------------------------------------------------------------------------


def write_records(path: Path, count: int, size: int = 1000) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("ab") as file:
        for number in range(count):
            file.write(line(f"1764430000-123-abcdefghijklm-{number}", b"x" * size))


def test_the_index_is_small_and_follows_what_is_appended(tmp_path: Path) -> None:
    write_records(data_file(tmp_path), 20_000, 50)
    store = open_store(tmp_path)
    tracemalloc.start()
    try:
        assert store.count() == 20_000
        assert tracemalloc.get_traced_memory()[0] < 20_000 * 150 + 100_000
    finally:
        tracemalloc.stop()
    read = reads_of(lambda: store.count())
    assert read < 10_000
    store.add("new", b"1")
    assert reads_of(lambda: store.count()) < 10_000
    assert store.count() == 20_001


def test_a_cold_page_is_read_from_the_end(tmp_path: Path) -> None:
    write_records(data_file(tmp_path), 5_000)
    store = open_store(tmp_path)
    read = reads_of(lambda: store.read(limit=25))
    assert read < 200_000
    assert [name[-4:] for name, _ in store.read(limit=2)] == ["4999", "4998"]


def test_hashes_that_meet_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_tasks_rows, "_HASH_MASK", 7)
    store = filled(tmp_path, *"abcdef")
    store.add("c", b"newer")
    assert names(store) == list("cfedba")
    assert [store.find(name) for name in "abcdef"] == [
        b"newer" if name == "c" else record(name) for name in "abcdef"
    ]
    assert store.find("x") is None
    assert store.remove(["c", "x"]) == 1
    assert names(store) == list("fedba")


# -- against a model -----------------------------------------------------------------------------

IDS = st.sampled_from(["a", "b", "a-1", "a-11", "long"])
DATA = st.binary(max_size=12).map(lambda data: data.replace(b"\n", b"")) | st.just(b"y" * 300)


class StoreMachine(RuleBasedStateMachine):
    """Any order of operations does to the store what it does to a dict."""

    @initialize()
    def begin(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="dlq-"))
        self.real = files.fsync
        files.fsync = lambda fd: None
        self.store = open_store(self.path)
        self.other = open_store(self.path)
        self.model: dict[str, bytes] = {}

    def teardown(self) -> None:
        if hasattr(self, "path"):
            files.fsync = self.real
            assert_at_rest(self.path)
            shutil.rmtree(self.path)

    @rule(name=IDS, data=DATA, by_other=st.booleans())
    def add(self, name: str, data: bytes, by_other: bool) -> None:
        (self.other if by_other else self.store).add(name, data)
        self.model.pop(name, None)
        self.model[name] = data

    @rule(ids=st.lists(IDS, max_size=4), by_other=st.booleans())
    def remove(self, ids: list[str], by_other: bool) -> None:
        there = set(ids) & set(self.model)
        assert (self.other if by_other else self.store).remove(ids) == len(there)
        for name in there:
            del self.model[name]

    @rule(ids=st.lists(IDS, max_size=4))
    def take(self, ids: list[str]) -> None:
        expected = [(name, self.model[name]) for name in dict.fromkeys(ids) if name in self.model]
        assert take_all(self.store, ids) == expected
        for name, _ in expected:
            del self.model[name]

    @rule(name=IDS, data=DATA)
    def add_during_take(self, name: str, data: bytes) -> None:
        """A second death while the first is handed over."""
        expected = [name] if name in self.model else []
        add = lambda: self.other.add(name, data)  # noqa: E731
        assert self.store.take([name], lambda *_: None, add) == expected
        if expected:
            self.model.pop(name)
            self.model[name] = data

    @rule(cut=st.integers(1, 30))
    def die_in_a_write(self, cut: int) -> None:
        path = data_file(self.path)
        # Every writer repairs the end of the file before it writes.
        if not path.exists() or path.read_bytes()[-1:] in (b"", b"\n"):
            with path.open("ab") as file:
                file.write(line("torn", b"z" * 30)[:cut])

    @rule()
    def lose_the_last_newline(self) -> None:
        path = data_file(self.path)
        if path.exists() and path.read_bytes().endswith(b"\n"):
            os.truncate(path, path.stat().st_size - 1)

    @rule()
    def reopen(self) -> None:
        self.store = open_store(self.path)

    @rule(name=IDS)
    def find(self, name: str) -> None:
        assert self.store.find(name) == self.model.get(name)

    @rule(limit=st.none() | st.integers(0, 6), offset=st.integers(0, 6))
    def page(self, limit: int | None, offset: int) -> None:
        newest_first = list(self.model.items())[::-1]
        end = None if limit is None else offset + limit
        assert self.store.read(limit=limit, offset=offset) == newest_first[offset:end]

    @invariant()
    def same(self) -> None:
        if hasattr(self, "store"):
            assert dict(self.store.read()) == self.model
            assert self.store.problems() == []
            assert not [found for found in self.store.verify() if found.kind != "torn"]


StoreMachine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestAgainstAModel = StoreMachine.TestCase
