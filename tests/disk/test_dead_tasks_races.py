"""Interleavings of the dead-tasks store, forced by stopping one side at a named call."""

from __future__ import annotations

import errno
import os
import signal
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from deferred_django.backends.disk import dead_tasks_removal, files
from deferred_django.backends.disk.dead_tasks_storage import DeadTasksStorage
from deferred_django.backends.disk.scanner import CHUNK_BYTES
from tests.disk.dlq import (
    assert_at_rest,
    data_file,
    filled,
    line,
    lock_file,
    names,
    open_store,
    record,
    take_all,
    temp_file,
)
from tests.disk.support import Gate, fail_once, in_child, running
from tests.support import start_python, wait_until

EIO = OSError(errno.EIO, "Input/output error", "injected")


def is_temp(path: str, *_: Any) -> bool:
    return path.endswith(".tmp")


# -- second deaths -------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["handover", "make_durable"])
def test_a_second_death_during_the_retry_stays(tmp_path: Path, moment: str) -> None:
    """R1: the retried task runs and dies again before its first record is removed."""
    store = filled(tmp_path, "a", "x", "b")
    worker = open_store(tmp_path)

    def die_again(*_: Any) -> None:
        worker.add("x", b"second")

    calls: dict[str, Callable[..., None]] = dict.fromkeys(
        ("handover", "make_durable"), lambda *_: None
    )
    calls[moment] = die_again
    assert store.take(["x"], calls["handover"], calls["make_durable"]) == ["x"]
    for reader in (store, worker, open_store(tmp_path)):
        assert names(reader) == ["x", "b", "a"]
        assert reader.find("x") == b"second"
    assert_at_rest(tmp_path)


@pytest.mark.parametrize("call", ["create_file", "write", "fsync"])
def test_a_second_death_during_a_purge_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """R21: one of the purged ids dies again behind the snapshot."""
    store = filled(tmp_path, *"abcde")
    worker = open_store(tmp_path)
    worker.add("d", b"again")  # below the snapshot: goes with the first
    gate = Gate(monkeypatch, call, when=lambda name, *_: call != "create_file" or is_temp(name))
    with running(lambda: store.remove("bcd")) as results:
        gate.wait()
        worker.add("c", b"second")
        worker.add("new", b"1")
        gate.open()
    assert results == [3]
    assert names(store) == ["new", "c", "e", "a"]
    assert store.find("c") == b"second"
    assert_at_rest(tmp_path)


def test_adds_between_every_two_steps_of_a_purge_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R21, and the catching up without the lock, which needs more than a block of new records."""
    monkeypatch.setattr(dead_tasks_removal, "BLOCK_BYTES", 200)
    store = filled(tmp_path, *(f"old-{number}" for number in range(20)))
    worker = open_store(tmp_path)
    added: list[str] = []
    adding = False

    def add_before(call: str) -> None:
        real = getattr(files, call)

        def stop(*arguments: Any, **options: Any) -> Any:
            nonlocal adding
            locked = not lock_is_free(tmp_path)
            if not adding and not locked and len(added) < 60:
                adding = True
                for _ in range(3):
                    worker.add(f"new-{len(added)}", record("x", 50))
                    added.append(f"new-{len(added)}")
                adding = False
            return real(*arguments, **options)

        monkeypatch.setattr(files, call, stop)

    for call in ("create_file", "read_at", "write", "fsync"):
        add_before(call)
    doomed = [f"old-{number}" for number in range(0, 20, 2)]
    assert store.remove(doomed) == 10
    monkeypatch.undo()
    assert len(added) >= 30
    kept = [f"old-{number}" for number in range(1, 20, 2)]
    assert names(store) == [*kept, *added][::-1]
    assert_at_rest(tmp_path)


def lock_is_free(path: Path) -> bool:
    import fcntl

    with lock_file(path).open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_adds_do_not_wait_for_the_copy_of_a_purge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path, *"abc")
    impatient = open_store(tmp_path, lock_timeout=0.0)
    gate = Gate(monkeypatch, "write")
    with running(lambda: store.remove(["a"])) as results:
        gate.wait()
        impatient.add("d", b"1")
        assert names(impatient) == ["d", "c", "b", "a"]
        gate.open()
    assert results == [1]
    assert names(store) == ["d", "c", "b"]


# -- two at once ---------------------------------------------------------------------------------


def test_two_who_take_the_same_task(tmp_path: Path) -> None:
    """R2: it is handed over once, and the other is told that it is gone."""
    first, second = filled(tmp_path, *"abc"), open_store(tmp_path)
    handed: list[str] = []
    results: list[list[str]] = []

    def during_the_first(name: str, data: bytes) -> None:
        handed.append(name)
        assert second._removal_lock._threads.acquire(0)  # free in this other storage
        second._removal_lock._threads.release()

    with running(lambda: results.append(first.take("ab", during_the_first, lambda: None))):
        pass
    with running(
        lambda: results.append(second.take("ab", lambda name, _: handed.append(name), lambda: None))
    ):
        pass
    assert results == [["a", "b"], []]
    assert handed == ["a", "b"]


def test_the_second_taker_waits_until_the_first_is_done(tmp_path: Path) -> None:
    """R2: the second looks the ids up only once the first has removed them."""
    import threading

    first, second = filled(tmp_path, *"abc"), open_store(tmp_path)
    inside, leave = threading.Event(), threading.Event()
    handed: list[str] = []

    def pause(name: str, data: bytes) -> None:
        handed.append(name)
        inside.set()
        assert leave.wait(10)

    with running(lambda: first.take(["a"], pause, lambda: None)) as one:
        assert inside.wait(10)
        with running(
            lambda: second.take("ab", lambda name, _: handed.append(name), lambda: None)
        ) as two:
            wait_until(
                lambda: "deferred-dead-tasks-lock" in {t.name for t in threading.enumerate()}
            )
            assert not two
            leave.set()
    assert one == [["a"]]
    assert two == [["b"]]
    assert handed == ["a", "b"]
    assert_at_rest(tmp_path)


TAKER = """
    import sys
    from deferred_django.backends.disk.dead_tasks_storage import DeadTasksStorage
    store = DeadTasksStorage(sys.argv[1], "d-")
    print("ready", flush=True)
    sys.stdin.readline()
    taken = []
    for number in range(0, 60, 3):
        ids = [f"t-{n}" for n in range(number, number + 3)]
        taken += store.take(ids, lambda *_: None, lambda: None)
    print(*taken, flush=True)
"""


def test_processes_that_take_the_same_tasks(tmp_path: Path) -> None:
    """R2, with real processes: each record goes to one."""
    filled(tmp_path, *(f"t-{number}" for number in range(60)))
    with start_python(TAKER, str(tmp_path)) as one, start_python(TAKER, str(tmp_path)) as two:
        outputs = []
        for process in (one, two):
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
        for process in (one, two):
            assert process.stdin
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in (one, two):
            output, errors = process.communicate(timeout=60)
            assert not errors
            outputs.append(output.split())
    taken = outputs[0] + outputs[1]
    assert sorted(taken) == sorted(f"t-{number}" for number in range(60))
    assert names(open_store(tmp_path)) == []


# -- names that are not durable ------------------------------------------------------------------


@contextmanager
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The durability calls, in order."""
    calls: list[str] = []
    with monkeypatch.context() as patch:
        for call in ("create_file", "write", "fsync", "fsync_directory", "rename", "truncate"):
            real = getattr(files, call)

            def note(*arguments: Any, real: Any = real, call: str = call, **options: Any) -> Any:
                calls.append(call)
                return real(*arguments, **options)

            patch.setattr(files, call, note)
        yield calls


def die_at(call: str, when: Callable[..., bool], action: Callable[[], Any]) -> None:
    """Run ``action`` in a child that is killed just before that call."""

    def child() -> None:
        real = getattr(files, call)

        def die(*arguments: Any, **options: Any) -> Any:
            if when(*arguments):
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        setattr(files, call, die)
        action()
        os._exit(1)

    in_child(child)


def test_the_first_add_makes_the_name_durable_whoever_made_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R6."""
    path = tmp_path / "store"
    die_at("fsync_directory", lambda name: name == str(path), lambda: filled(path, "a"))
    assert data_file(path).exists()
    store = open_store(path)
    with recorded(monkeypatch) as calls:
        store.add("b", b"1")
    assert "fsync_directory" in calls
    assert calls.index("fsync_directory") < calls.index("write") < calls.index("fsync")
    with recorded(monkeypatch) as calls:
        store.add("c", b"1")
    assert calls == ["write", "fsync"]


def test_a_file_made_again_has_its_name_made_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R6: the file was removed under a running process."""
    store = filled(tmp_path, "a")
    data_file(tmp_path).unlink()
    with recorded(monkeypatch) as calls:
        store.add("b", b"1")
    assert calls.index("create_file") < calls.index("fsync_directory") < calls.index("write")
    assert names(store) == ["b"]


def test_a_removal_killed_before_the_fsync_of_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R6: the new file's name is not durable, and the next add of any process makes it so."""
    store = filled(tmp_path, *"abc")
    purger = open_store(tmp_path)
    die_at("fsync_directory", lambda name: True, lambda: purger.remove(["a"]))
    assert names(store) == ["c", "b"]
    with recorded(monkeypatch) as calls:
        store.add("d", b"1")
    assert calls.index("fsync_directory") < calls.index("write")
    with recorded(monkeypatch) as calls:
        store.add("e", b"1")
    assert calls == ["write", "fsync"]
    assert names(store) == ["e", "d", "c", "b"]


@pytest.mark.parametrize("call", ["create_file", "fsync", "rename"])
def test_a_killed_removal_changed_nothing(tmp_path: Path, call: str) -> None:
    store = filled(tmp_path, *"abc")
    before = data_file(tmp_path).read_bytes()
    purger = open_store(tmp_path)
    die_at(call, lambda *_: True, lambda: purger.remove(["a"]))
    assert data_file(tmp_path).read_bytes() == before
    if call != "create_file":
        assert temp_file(tmp_path).exists()
    store.add("d", b"1")
    assert names(store) == ["d", "c", "b", "a"], "a temp file is never read"
    assert store.remove(["a"]) == 1
    assert names(store) == ["d", "c", "b"]
    assert_at_rest(tmp_path)


# -- readers and their index ---------------------------------------------------------------------


def test_an_index_notices_another_file_of_the_same_inode(tmp_path: Path) -> None:
    """R18: the last record is looked at, not the inode alone."""
    store = filled(tmp_path, *"abcd")
    assert store.count() == 4
    path = data_file(tmp_path)
    inode = path.stat().st_ino
    for content in ("abd", "dcba", "bbbb", "wxyzabcd", ""):
        path.write_bytes(b"".join(line(name) for name in content))
        assert path.stat().st_ino == inode
        expected = list(dict.fromkeys(content[::-1]))
        assert [name for name, _ in store.read()] == expected
        assert store.count() == len(expected)
        assert [store.find(name) is not None for name in "abcd"] == [
            name in expected for name in "abcd"
        ]


def test_an_index_notices_replacements_that_look_alike(tmp_path: Path) -> None:
    """R18: inode numbers come round again, and the last record is back at its place."""
    reader = filled(tmp_path, *"abc")
    writer = open_store(tmp_path)
    inode = data_file(tmp_path).stat().st_ino
    come_round = 0
    for number in range(12):
        first = reader.read()[-1][0]
        assert reader.count() == 3
        # The file's length and its last line stay the same; the line before it is another's.
        writer.remove([first, "c"])
        writer.add("xyzw"[number % 4], record("a"))
        writer.add("c", record("c"))
        expected = [name for name, _ in open_store(tmp_path).read()]
        assert [name for name, _ in reader.read()] == expected
        assert all(reader.find(name) is not None for name in expected)
        assert reader.find(first) is None
        come_round += data_file(tmp_path).stat().st_ino == inode
    assert len(expected) == 3


def test_a_record_that_rots_under_the_index_is_skipped_and_reported(tmp_path: Path) -> None:
    store = filled(tmp_path, *"abc")
    assert store.count() == 3
    path = data_file(tmp_path)
    with path.open("r+b") as file:
        file.seek(len(line("a")) + 12)
        file.write(b"#")
    assert [name for name, _ in store.read()] == ["c", "a"]
    assert store.find("b") is None
    assert store.problems() == [
        f"{path}: 1 damaged line is skipped, the first at byte {len(line('a'))}"
    ]
    assert take_all(store, "ab") == [("a", record("a"))]
    assert path.read_bytes().count(b"#") == 1, "a removal destroys nothing but what it removes"


TORN = line("torn", record("torn", 30))[:-20]


def actions(store: DeadTasksStorage) -> dict[str, Callable[[], Any]]:
    return {
        "verify": lambda: [found for found in store.verify() if found.kind != "torn"],
        "problems": store.problems,
        "read": lambda: [name for name, _ in store.read() if name not in ("a", "b", "c")],
        "page": lambda: [name for name, _ in store.read(limit=9) if name not in ("a", "b", "c")],
    }


@pytest.mark.parametrize("action", ["verify", "problems", "read", "page"])
@pytest.mark.parametrize("sizes", [(), (5,), (100, 0, 0), (0, 0, 0, 0)])
def test_a_tail_repaired_under_a_reader_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str, sizes: tuple[int, ...]
) -> None:
    """R19: the reader has looked at the file's size, then an add repairs the tail."""
    filled(tmp_path, "a", "b")
    path = data_file(tmp_path)
    with path.open("ab") as file:
        file.write(TORN)
    reader, writer = open_store(tmp_path), open_store(tmp_path)
    gate = Gate(monkeypatch, "read_at")
    with running(actions(reader)[action]) as results:
        gate.wait()
        for size in sizes:
            writer.add("c", record("c", size))
        gate.open()
    assert results == [[]]
    assert reader.problems() == []
    assert reader.find("c") == (record("c", sizes[-1]) if sizes else None)
    assert reader.count() == (3 if sizes else 2)


@pytest.mark.parametrize("action", ["verify", "problems", "read"])
@pytest.mark.parametrize("keep", [1, 9, 20, 40])
def test_a_read_that_saw_half_of_a_repair_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str, keep: int
) -> None:
    """R19: one read returns the beginning of the torn record and the rest of the new one."""
    filled(tmp_path, "a", "b")
    path = data_file(tmp_path)
    end = path.stat().st_size
    with path.open("ab") as file:
        file.write(TORN)
    reader, writer = open_store(tmp_path), open_store(tmp_path)
    real = files.read_at
    mixed = False

    def read_at(fd: int, size: int, offset: int) -> bytes:
        nonlocal mixed
        if mixed or size < 100:
            return real(fd, size, offset)
        mixed = True
        before = real(fd, size, offset)
        writer.add("c", record("c"))
        writer.add("b", record("c", 100))
        after = real(fd, size, offset)
        cut = end - offset + keep
        return before[:cut] + after[cut:]

    monkeypatch.setattr(files, "read_at", read_at)
    assert actions(reader)[action]() == []
    assert mixed
    monkeypatch.undo()
    assert names(reader) == ["b", "c", "a"]
    assert reader.problems() == []


def test_a_reader_keeps_its_snapshot_while_the_file_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = filled(tmp_path, *"abcdef"), open_store(tmp_path)
    gate = Gate(monkeypatch, "read_at")
    with running(reader.read) as results:
        gate.wait()
        for name in "abcdef":
            writer.remove([name])
        gate.open()
    assert [name for name, _ in results[0]] == list("fedcba")
    assert reader.read() == []


# -- failed writes and fsyncs --------------------------------------------------------------------


def test_the_add_after_a_failed_fsync_begins_with_a_newline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R20: whatever the disk holds of the first, the second is a line of its own."""
    store = filled(tmp_path, "a")
    failed = fail_once(monkeypatch, "fsync", EIO)
    with pytest.raises(OSError, match="Input/output"):
        store.add("b", record("b"))
    assert failed
    assert names(store) == ["a"], "what was not made durable is taken back"
    store.add("c", record("c"))
    assert data_file(tmp_path).read_bytes() == line("a") + b"\n" + line("c")
    assert names(store) == ["c", "a"]
    store.add("d", record("d"))
    assert data_file(tmp_path).read_bytes().endswith(line("c") + line("d"))


def test_the_second_record_is_whole_though_the_first_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R20: even what could not be taken back harms nobody, whatever it looks like on the disk."""
    store = filled(tmp_path, "a")
    fail_once(monkeypatch, "fsync", EIO)
    monkeypatch.setattr(files, "truncate", lambda fd, length: (_ for _ in ()).throw(EIO))
    with pytest.raises(OSError, match="Input/output"):
        store.add("b", record("b"))
    monkeypatch.undo()
    store.add("c", record("c"))
    path = data_file(tmp_path)
    assert path.read_bytes() == line("a") + line("b") + b"\n" + line("c")
    for lost in (b"\0" * len(line("b")), b"#" * len(line("b")), line("b")[:-9] + b"\0" * 9):
        path.write_bytes(line("a") + lost + b"\n" + line("c"))
        reader = open_store(tmp_path)
        assert [name for name, _ in reader.read()] == ["c", "a"]
        assert [name for name, _ in reader.read(limit=9)] == ["c", "a"]
        assert reader.verify() != []


def test_another_process_appends_where_the_disk_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R20: its record does not stand behind bytes that never reached the disk."""
    store, other = filled(tmp_path, "a"), open_store(tmp_path)
    other.add("b", record("b"))
    fail_once(monkeypatch, "fsync", EIO)
    with pytest.raises(OSError, match="Input/output"):
        store.add("lost", record("lost"))
    other.add("c", record("c"))
    assert data_file(tmp_path).read_bytes() == line("a") + line("b") + line("c")
    assert names(store) == ["c", "b", "a"]


def test_an_index_that_saw_a_failed_add_forgets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R20: a reader saw the record between its write and its fsync, which failed."""
    store, reader = filled(tmp_path, "a"), open_store(tmp_path)
    assert reader.count() == 1
    gate = Gate(monkeypatch, "fsync")
    with running(lambda: store.add("b", record("b"))) as results:
        gate.wait()
        assert reader.count() == 2
        fail_once(monkeypatch, "truncate", EIO, when=lambda fd, length: False)
        monkeypatch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(EIO))
        gate.open()
    monkeypatch.undo()
    assert isinstance(results[0], OSError)
    assert reader.find("b") is None
    assert names(reader) == ["a"]
    store.add("c", record("c"))
    assert names(reader) == ["c", "a"]


def test_a_short_write_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = filled(tmp_path, "a")
    real = files.write
    for taken in (0, 1, 9, len(line("b")) - 2):
        monkeypatch.setattr(files, "write", lambda fd, data, n=taken: real(fd, data[:n]))
        with pytest.raises(OSError, match="only") as caught:
            store.add("b", record("b"))
        assert caught.value.errno == errno.ENOSPC
        monkeypatch.undo()
        assert data_file(tmp_path).read_bytes() == line("a")
    store.add("c", record("c"))
    assert data_file(tmp_path).read_bytes() == line("a") + b"\n" + line("c")


def test_a_write_short_by_its_newline_is_a_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R17, for the dead tasks: the record is whole, and the next add brings the newline."""
    store = filled(tmp_path, "a")
    real = files.write
    monkeypatch.setattr(files, "write", lambda fd, data: real(fd, data[:-1]))
    store.add("b", record("b"))
    monkeypatch.undo()
    assert data_file(tmp_path).read_bytes() == (line("a") + line("b"))[:-1]
    assert names(store) == ["b", "a"]
    assert store.verify() == []
    assert names(store) == ["b", "a"]
    store.add("c", record("c"))
    assert data_file(tmp_path).read_bytes() == line("a") + line("b") + line("c")


def test_each_of_a_group_has_its_own_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path, "a")
    real = files.write

    def write(fd: int, data: bytes) -> int:
        if b"big" in data:
            real(fd, data[:5])
            raise OSError(errno.ENOSPC, "No space left on device", str(data_file(tmp_path)))
        return real(fd, data)

    monkeypatch.setattr(files, "write", write)
    lines = [line("b"), line("big"), line("c")]
    with store._lock.hold() as lock_fd:
        outcome = store._file.append(lines, lock_fd)
    assert [error and error.errno for error in outcome] == [None, errno.ENOSPC, None]
    assert data_file(tmp_path).read_bytes() == line("a") + line("b") + b"\n" + line("c")
    assert names(store) == ["c", "b", "a"]


# -- long lines ----------------------------------------------------------------------------------


@pytest.mark.parametrize("ended", [True, False])
def test_a_line_of_a_gigabyte(tmp_path: Path, ended: bool) -> None:
    """R24: bounded memory; reported; what stands around it is read."""
    filled(tmp_path, "a")
    path = data_file(tmp_path)
    start = path.stat().st_size
    os.truncate(path, start + (2**30 if ended else 2**27))
    if ended:
        with path.open("ab") as file:
            file.write(b"\n" + line("b"))
    expected = ["b", "a"] if ended else ["a"]
    tracemalloc.start()
    try:
        store = open_store(tmp_path)
        assert [name for name, _ in store.read(limit=5)] == expected
        assert store.count() == len(expected)
        if ended:
            assert store.problems() == [
                f"{path}: 1 damaged line is skipped, the first at byte {start:,}"
            ]
        else:
            assert store.problems() == []
            [finding] = store.verify()
            assert (finding.kind, finding.offset) == ("torn", start)
            store.add("b", record("b"))
            assert path.read_bytes() == line("a") + line("b")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * CHUNK_BYTES
