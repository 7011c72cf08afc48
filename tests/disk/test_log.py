"""The tasks log: adding, adoption, rotation, and files that are not as they were written."""

from __future__ import annotations

import logging
import os
import resource
import signal
import threading
import time
from pathlib import Path

import pytest

from deferred_django import ids
from deferred_django.backends.disk import files, verify
from deferred_django.backends.disk.names import StoreNames
from deferred_django.backends.disk.tasks_storage import TasksStorage
from tests.disk.conftest import Opener
from tests.disk.support import (
    FUTURE,
    PAST,
    PREFIX,
    add,
    claim,
    claim_one,
    fail_once,
    finish,
    in_child,
    only_segment,
    open_storage,
    run_all,
    segments,
)
from tests.support import wait_until


def leave_behind(path: Path, *payloads: bytes, prefix: str = PREFIX) -> None:
    """A producer adds and is killed: its segment is there and nobody owns it."""

    def produce() -> None:
        storage = open_storage(path, prefix)
        for payload in payloads:
            add(storage, payload)
        storage.sync()

    in_child(produce)


# -- names and modes ---------------------------------------------------------------------------


def test_the_name_of_a_segment(producer: TasksStorage, store: Path) -> None:
    add(producer)
    name = only_segment(store).name
    day = time.strftime("%Y%m%d", time.gmtime())
    assert name.startswith(f"t-0-{day}-{os.getpid()}-")
    assert name.rpartition("-")[2].isalnum()


@pytest.mark.parametrize("permissions", [0o600, 0o640, 0o660])
def test_modes_do_not_depend_on_the_umask(opener: Opener, store: Path, permissions: int) -> None:
    old = os.umask(0o077)
    try:
        add(opener(file_permissions=permissions))
    finally:
        os.umask(old)
    assert only_segment(store).stat().st_mode & 0o777 == permissions
    expected = {0o600: 0o700, 0o640: 0o750, 0o660: 0o770}[permissions]
    assert store.stat().st_mode & 0o777 == expected


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files for another user")
def test_files_that_root_makes_belong_to_the_owner_of_the_directory(
    opener: Opener, store: Path
) -> None:
    """R16: an administrator's shell enqueues one task, the worker is another user."""
    store.mkdir()
    os.chown(store, 12345, 12346)
    add(opener())
    made = only_segment(store).stat()
    assert (made.st_uid, made.st_gid) == (12345, 12346)


@pytest.mark.parametrize(
    ("directory", "prefix"),
    [("app [v2]/q s", "shop[1]-"), ("a*", "a*-"), ("ü", ""), ("x", "%s{}-")],
)
def test_names_are_compared_never_globbed(tmp_path: Path, directory: str, prefix: str) -> None:
    """C13: each project finds its own tasks, and only those."""
    path = tmp_path / directory
    leave_behind(path, b"1", b"2", b"3", prefix=prefix)
    leave_behind(path, b"other", prefix="abc-")
    storage, other = open_storage(path, prefix), open_storage(path, "abc-")
    assert sorted(run_all(storage)) == [b"1", b"2", b"3"]
    assert run_all(other) == [b"other"]
    storage.close()
    other.close()


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [("app-", "app-0-"), ("app-0-", "app-"), ("shop", "shop0-"), ("", "x-"), ("a-", "a-worker-0-")],
)
def test_a_prefix_that_begins_another_leaves_its_files_alone(
    opener: Opener, store: Path, mine: str, theirs: str
) -> None:
    """C14: never opened, adopted, run, compacted or erased."""
    leave_behind(store, b"due", prefix=theirs)
    before = {path: path.read_bytes() for path in store.iterdir()}
    storage = opener(mine)
    add(storage, b"mine")
    assert run_all(storage) == [b"mine"]
    storage.close()
    storage.maintain()
    assert {path: path.read_bytes() for path in store.iterdir()} == before
    assert run_all(opener(theirs)) == [b"due"]


def test_forms_of_names(tmp_path: Path) -> None:
    names = StoreNames(str(tmp_path), "app-")
    assert names.is_segment(names.new_segment())
    for name in (
        "app-0-20261129-7-abc.tmp",
        "app-0-20261129-7-abc.damaged",
        "app-0-20261129-7-",
        "app-0-2026-7-abc",
        "app-1-20261129-7-abc",
        "app-0-0-20261129-7-abc",
        "app-dead_tasks-0",
        "xapp-0-20261129-7-abc",
        "app-0-20261129-7-abc\n",
        "app-0-20261129-\u0667-abc",
    ):
        assert not names.is_segment(name), name


# -- adoption and rotation ---------------------------------------------------------------------


def test_a_free_segment_is_adopted(store: Path, producer: TasksStorage) -> None:
    leave_behind(store, b"1")
    add(producer, b"2")
    only_segment(store)
    assert run_all(producer) == [b"1", b"2"]


def test_an_owned_segment_is_not_adopted(opener: Opener, store: Path) -> None:
    add(opener())
    add(opener())
    assert len(segments(store)) == 2


@pytest.mark.parametrize("cut", [1, 2, 7, 25])
def test_a_torn_tail_costs_its_own_record_only(
    store: Path, producer: TasksStorage, worker: TasksStorage, cut: int
) -> None:
    """C01: cut the end of a free segment, adopt it, go on."""
    leave_behind(store, b"first", "tornü".encode())
    segment = only_segment(store)
    os.truncate(segment, segment.stat().st_size - cut)
    add(producer, b"t1")
    add(producer, b"t2")
    only_segment(store)
    whole = ["tornü".encode()] if cut == 1 else []
    findings = verify.verify_segments(worker.names)
    assert [finding.kind for finding in findings] == ([] if cut == 1 else ["torn"])
    assert run_all(worker) == [b"first", *whole, b"t1", b"t2"]


def test_ids_do_not_follow_a_clock_that_was_a_day_ahead(
    monkeypatch: pytest.MonkeyPatch, store: Path, producer: TasksStorage
) -> None:
    """C16 (b)."""
    now = int(time.time())
    monkeypatch.setattr(ids, "_source", ids.IdSource())
    other = open_storage(store)
    add(other, task_id=f"{now + 1000}-1-a-1")
    add(other, task_id=f"{now + 86400}-1-a-1")
    other.close()
    add(producer)
    # The newest is over an hour ahead: a host with a broken clock is not followed.
    assert ids.seconds_of(ids.new_id()) == pytest.approx(now, abs=60)
    finish(producer, claim_one(producer, f"{now + 86400}-1-a-1"))
    assert sorted(entry.id for entry, _ in producer.survey())[-1] == f"{now + 1000}-1-a-1"


def test_ids_follow_the_newest_of_an_adopted_segment(
    monkeypatch: pytest.MonkeyPatch, store: Path
) -> None:
    monkeypatch.setattr(ids, "_source", ids.IdSource())
    ahead = int(time.time()) + 1000
    first = open_storage(store)
    add(first, task_id=f"{ahead}-1-a-1")
    first.close()
    second = open_storage(store)
    add(second)
    second.close()
    assert ids.seconds_of(ids.new_id()) == ahead


def test_ids_do_not_go_back_with_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """C16 (d)."""
    source = ids.IdSource()
    first = ids.seconds_of(source.new_id())
    monkeypatch.setattr(time, "time", lambda: PAST)
    assert ids.seconds_of(source.new_id()) == first


def test_ids_differ_between_processes_of_one_pid(monkeypatch: pytest.MonkeyPatch) -> None:
    """C16 (a): the pid and the clock are the same, the token is not."""
    monkeypatch.setattr(os, "getpid", lambda: 7)
    monkeypatch.setattr(time, "time", lambda: PAST)
    one, two = ids.IdSource(), ids.IdSource()
    made = {source.new_id() for source in (one, two) for _ in range(100)}
    assert len(made) == 200
    assert all(ids.ID_PATTERN.fullmatch(task_id) for task_id in made)


def test_processes_that_start_at_once_share_nothing(store: Path) -> None:
    """C09: eight processes, three free segments; each left task runs once."""
    for number in range(3):
        other = open_storage(store, PREFIX)
        add(other, b"left%d" % number)
        keep = open_storage(store, PREFIX)  # so that the next does not adopt it
        add(keep, b"kept%d" % number)
        other.close()
        keep.close()
    ready = os.pipe()
    children = []
    for _ in range(8):
        pid = os.fork()
        if pid == 0:
            os.close(ready[1])
            os.read(ready[0], 1)  # returns when the parent closes its end
            storage = open_storage(store)
            for number in range(20):
                add(storage, b"%d-%d" % (os.getpid(), number))
            os.kill(os.getpid(), signal.SIGKILL)
        children.append(pid)
    os.close(ready[0])
    os.close(ready[1])
    for pid in children:
        os.waitpid(pid, 0)
    worker = open_storage(store)
    ran = run_all(worker)
    worker.close()
    assert len(ran) == len(set(ran)) == 6 + 8 * 20


def test_rotation_lets_go_of_the_full_segment(opener: Opener, store: Path) -> None:
    producer = opener()
    producer._writer.rotate_bytes = 20_000
    producer._writer.reset()
    for number in range(100):
        add(producer, b"%d" % number + b"x" * 1000)
    producer.sync()
    assert 2 < len(segments(store)) < 8  # the limit grows while nothing is finished
    sizes = [segment.stat().st_size for segment in segments(store)]
    assert max(sizes) > 40_000
    worker = opener()
    assert len(run_all(worker)) == 100
    worker.maintain()
    assert len(segments(store)) == 1  # what the producer owns now


def test_threads_and_rotation(opener: Opener, store: Path) -> None:
    """C24: many threads, small segments, completions going on: each runs once."""
    producer, worker = opener(), opener()
    producer._writer.rotate_bytes = 64 * 1024
    producer._writer.reset()
    ran: list[bytes] = []
    done = threading.Event()

    def produce(thread: int) -> None:
        for number in range(250):
            add(producer, b"%d-%d" % (thread, number))

    def work() -> None:
        while True:
            finished = done.is_set()
            batch = run_all(worker)
            ran.extend(batch)
            worker.maintain()
            if finished and not batch:
                return

    producers = [threading.Thread(target=produce, args=(n,)) for n in range(16)]
    workers = [threading.Thread(target=work) for _ in range(2)]
    for thread in producers + workers:
        thread.start()
    for thread in producers:
        thread.join()
    done.set()
    for thread in workers:
        thread.join()
    assert len(ran) == len(set(ran)) == 16 * 250
    assert verify.verify_segments(worker.names) == []


def test_an_idle_owner_lets_go(
    monkeypatch: pytest.MonkeyPatch, opener: Opener, store: Path
) -> None:
    from deferred_django.backends.disk import writer

    monkeypatch.setattr(writer, "IDLE_SECONDS", 0.0)
    producer, worker = opener(fsync_frequency=0.02), opener()
    add(producer)
    assert run_all(worker) == [b"x"]

    def is_erased() -> bool:
        worker.maintain()
        return segments(store) == []

    wait_until(is_erased)


# -- damage ------------------------------------------------------------------------------------


def test_damaged_segments_give_what_is_good_and_are_kept(
    store: Path, worker: TasksStorage, caplog: pytest.LogCaptureFixture
) -> None:
    """C03: a NUL block, a flipped byte, a foreign line."""
    contents: dict[str, bytes] = {}
    for number, harm in enumerate(("nul", "flip")):
        leave_behind(store, *(b"%d%d" % (number, line) for line in range(3)))
        [segment] = [path for path in segments(store) if path.name not in contents]
        lines = segment.read_bytes().split(b"\n\n")
        if harm == "nul":
            content = lines[0] + b"\n" + bytes(4096) + b"\n" + b"\n\n".join(lines[1:])
        else:
            content = b"\n\n".join([lines[0], lines[1].replace(b":0:", b":1:", 1), lines[2]])
        segment.unlink()
        contents[f"t-0-20260101-{number}-harmed"] = content
    for name, content in contents.items():
        (store / name).write_bytes(content)
    (store / "t-0-20260101-8-empty").write_bytes(b"")
    (store / "t-0-20260101-9-blank").write_bytes(b"\n")
    findings = verify.verify_segments(worker.names)
    assert {(Path(finding.file).name, finding.kind) for finding in findings} == {
        (name, "damage") for name in contents
    }
    assert all(finding.offset is not None for finding in findings)
    with caplog.at_level(logging.ERROR):
        assert sorted(run_all(worker)) == [b"00", b"01", b"02", b"10", b"12"]
    assert all(name in caplog.text for name in contents)
    worker.maintain()
    kept = {
        path.name: path.read_bytes()[: len(contents[path.name[:-8]])] for path in store.iterdir()
    }
    assert kept == {name + ".damaged": content for name, content in contents.items()}
    assert any("kept" in problem for problem in worker.problems())


def test_foreign_line_ends_are_reported_every_time(store: Path, opener: Opener) -> None:
    """C26."""
    leave_behind(store, b"1", b"2")
    segment = only_segment(store)
    segment.write_bytes(segment.read_bytes().replace(b"\n", b"\r\n"))
    found = [[f.kind for f in verify.verify_segments(opener().names)] for _ in range(2)]
    assert found[0] == found[1]
    assert "damage" in found[0]
    worker = opener()
    assert run_all(worker) == []
    worker.maintain()
    assert [path.suffix for path in segments(store)] == [".damaged"]


@pytest.mark.parametrize("kind", ["directory", "fifo", "dangling link"])
def test_something_else_under_the_name_of_a_segment(
    store: Path, producer: TasksStorage, worker: TasksStorage, kind: str
) -> None:
    store.mkdir()
    odd = store / "t-0-20260101-1-odd"
    if kind == "directory":
        odd.mkdir()
    elif kind == "fifo":
        os.mkfifo(odd)
    else:
        odd.symlink_to(store / "nowhere")
    add(producer)
    assert run_all(worker) == [b"x"]
    worker.maintain()
    assert os.path.lexists(odd)
    if kind != "dangling link":
        assert any("odd" in problem for problem in worker.problems())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read(store: Path, worker: TasksStorage) -> None:
    leave_behind(store, b"1")
    os.chmod(only_segment(store), 0)
    assert run_all(worker) == []
    assert worker.problems()


# -- the disk is full --------------------------------------------------------------------------


def test_a_full_disk_fails_the_enqueue_and_harms_nothing_else(store: Path) -> None:
    """C04: a real size limit, in a process of its own; then its disk has room again."""

    def fill() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        storage = open_storage(store)
        unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (64 * 1024, unlimited[1]))
        number = 0
        while True:
            try:
                add(storage, b"%04d" % number + b"x" * 1020)
            except OSError as error:
                failed = str(number) if str(store) in str(error) else f"no path in {error}"
                break
            number += 1
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        (store.parent / "failed").write_text(failed)
        add(storage, b"after")

    in_child(fill)
    leave_behind(store, b"other")
    failed = int((store.parent / "failed").read_text())
    assert failed > 30
    worker = open_storage(store)
    ran = run_all(worker)
    worker.close()
    assert [payload[:4] for payload in ran[:-2]] == [b"%04d" % number for number in range(failed)]
    assert ran[-2:] == [b"after", b"other"]


def test_a_write_that_is_short_by_its_newline_is_a_success(
    monkeypatch: pytest.MonkeyPatch, producer: TasksStorage, worker: TasksStorage
) -> None:
    """R17."""
    real = files.write
    shortened: list[int] = []

    def short(fd: int, data: bytes) -> int:
        if b"short" in data and not shortened:
            shortened.append(1)
            return real(fd, data[:-1])
        return real(fd, data)

    monkeypatch.setattr(files, "write", short)
    add(producer, b"short")
    add(producer, b"next")
    assert shortened
    assert verify.verify_segments(worker.names) == []
    assert run_all(worker) == [b"short", b"next"]


@pytest.mark.parametrize("taken", [0, 1, 20])
def test_any_other_short_write_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, producer: TasksStorage, worker: TasksStorage, taken: int
) -> None:
    """C04: neither completed nor truncated; the caller is told; the task never runs."""
    real = files.write
    shortened: list[int] = []

    def short(fd: int, data: bytes) -> int:
        if b"short" in data and not shortened:
            shortened.append(1)
            return real(fd, data[:taken])
        return real(fd, data)

    add(producer, b"before")
    monkeypatch.setattr(files, "write", short)
    with pytest.raises(OSError, match="disk full"):
        add(producer, b"short")
    add(producer, b"after")
    assert run_all(worker) == [b"before", b"after"]


def test_rotation_without_room_fails_that_enqueue_only(
    monkeypatch: pytest.MonkeyPatch, opener: Opener
) -> None:
    """C05 (e): the next segment cannot be made."""
    producer, worker = opener(), opener()
    producer._writer.rotate_bytes = 2000
    producer._writer.reset()
    add(producer, b"1" * 3000)
    fail_once(monkeypatch, "create_file", OSError(28, "No space left on device", "x"))
    with pytest.raises(OSError, match="No space"):
        add(producer, b"2")
    add(producer, b"3")
    assert sorted(run_all(worker)) == [b"1" * 3000, b"3"]


# -- operators' hands --------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["segment", "directory"])
def test_success_into_an_erased_file_ends_with_the_next_sync(
    opener: Opener, store: Path, what: str
) -> None:
    """C11 (a), (b): what was added and not yet durable is written anew."""
    producer = opener(fsync_frequency=0.05)
    add(producer, b"old", publish_at=FUTURE)
    producer.sync()
    only_segment(store).unlink()
    if what == "directory":
        store.rmdir()
    add(producer, b"t1")
    worker = opener()
    assert wait_until(lambda: run_all(worker)) == [b"t1"]


def test_each_synced_enqueue_notices_an_erased_file(opener: Opener, store: Path) -> None:
    producer, worker = opener(fsync_frequency=0), opener()
    add(producer, b"old", publish_at=FUTURE)
    only_segment(store).unlink()
    with pytest.raises(FileNotFoundError, match="removed"):
        add(producer, b"t1")
    add(producer, b"t2")
    assert run_all(worker) == [b"t2"]


def test_a_segment_that_goes_before_it_is_erased(
    monkeypatch: pytest.MonkeyPatch, store: Path, worker: TasksStorage
) -> None:
    """C11 (c)."""
    leave_behind(store, b"1")
    assert run_all(worker) == [b"1"]
    real = files.unlink

    def gone_already(path: str) -> None:
        real(path)
        real(path)

    monkeypatch.setattr(files, "unlink", gone_already)
    worker.maintain()
    assert segments(store) == []


def test_a_file_cut_off_by_an_operator_gives_what_is_left(
    store: Path, producer: TasksStorage, worker: TasksStorage
) -> None:
    add(producer, b"1")
    assert len(worker.survey()) == 1
    os.truncate(only_segment(store), 0)
    add(producer, b"2")
    assert run_all(worker) == [b"2"]


def test_tasks_that_are_asked_for_by_id_are_claimed_wherever_they_are(
    producer: TasksStorage, worker: TasksStorage
) -> None:
    """Also in what is read after the first slice of a backlog."""
    names = [add(producer, bytes(100_000), task_id=f"t{n}") for n in range(20)]
    asked = names[::3]
    assert {entry.id for entry in claim(worker, len(asked), *asked)} == set(asked)
