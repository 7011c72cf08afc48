"""Modes, owners and mounts changed under running processes; each as a user without privileges.

The outcomes are those of the table in ``docs/operations.md``.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deferred_django.backends.base import BackendConfig
from deferred_django.backends.disk.backend import DiskBackend
from deferred_django.backends.disk.tasks_storage import TasksStorage
from tests.disk.dlq import data_file, names, open_store, record
from tests.disk.support import (
    FUTURE,
    add,
    claim,
    in_child,
    let_others_in,
    only_segment,
    open_storage,
    run_all,
)
from tests.support import wait_until

IS_ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not IS_ROOT, reason="only root can be another user, or mount")
USER = 2001
LONG = 600
LIBRARY = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def operator() -> Iterator[None]:
    """Do something as root, in a process of :data:`USER`."""
    if IS_ROOT:
        os.seteuid(0)
    yield
    if IS_ROOT:
        os.seteuid(USER)


def as_user(path: Path, function: Callable[[], None]) -> None:
    """Run it in a child that is no root and owns ``path``; :func:`operator` makes it root."""
    path.mkdir(mode=0o700)
    if IS_ROOT:
        let_others_in(path.parent)
        os.chown(path, USER, USER)

    def run() -> None:
        if IS_ROOT:
            os.setgroups([])
            os.setresgid(USER, USER, USER)
            os.setresuid(0, USER, 0)
        function()

    in_child(run, kill=False)


class Lines(logging.Handler):
    """What is logged, while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._logger = logging.getLogger("deferred_django.disk")

    def emit(self, line: logging.LogRecord) -> None:
        self.lines.append(line.getMessage())

    def __enter__(self) -> list[str]:
        self._logger.addHandler(self)
        return self.lines

    def __exit__(self, *error: object) -> None:
        self._logger.removeHandler(self)


def try_for_long(worker: TasksStorage) -> list[bytes]:
    """What a worker does in a minute, without its pauses."""
    ran: list[bytes] = []
    actions: list[Callable[[], object]] = [
        lambda: ran.extend(run_all(worker)),
        worker.maintain,
        worker._tick,
    ]
    for _ in range(60):
        for action in actions:
            with contextlib.suppress(PermissionError):
                action()
    return ran


def lock_up_segment(store: Path) -> Callable[[], None]:
    """Mode 000; the function that is returned sets it right."""
    segment = only_segment(store)
    segment.chmod(0)
    return lambda: segment.chmod(0o600)


def give_segment_away(store: Path) -> Callable[[], None]:
    segment = only_segment(store)
    with operator():
        os.chown(segment, 0, 0)

    def give_back() -> None:
        with operator():
            os.chown(segment, USER, USER)

    return give_back


def lock_up_directory(store: Path) -> Callable[[], None]:
    store.chmod(0)
    return lambda: store.chmod(0o700)


def give_directory_away(store: Path) -> Callable[[], None]:
    with operator():
        os.chown(store, 0, 0)

    def give_back() -> None:
        with operator():
            os.chown(store, USER, USER)

    return give_back


SEGMENT = [lock_up_segment, pytest.param(give_segment_away, marks=needs_root)]
DIRECTORY = [lock_up_directory, pytest.param(give_directory_away, marks=needs_root)]


@pytest.mark.parametrize("how", SEGMENT)
def test_a_segment_that_may_not_be_opened(
    tmp_path: Path, how: Callable[[Path], Callable[[], None]]
) -> None:
    """Who has it open goes on; who has not leaves its tasks alone, says so once, and goes on."""
    store = tmp_path / "store"

    def use() -> None:
        producer, worker = open_storage(store, fsync_frequency=LONG), open_storage(store)
        add(producer, b"1")
        assert claim(worker, 0) == []
        set_right = how(store)
        add(producer, b"2")
        producer.sync()
        assert run_all(worker) == [b"1", b"2"]
        add(producer, b"3")
        other = open_storage(store)
        with Lines() as logged:
            assert try_for_long(other) == []
        assert len(logged) == 1
        assert "cannot be read" in logged[0]
        assert str(store) in logged[0]
        assert any("Permission denied" in problem for problem in other.problems())
        producer.close()  # others may adopt it now, but this user cannot
        add(other, b"4")
        set_right()
        assert sorted(wait_until(lambda: run_all(other))) == [b"3", b"4"]
        assert other.problems() == []

    as_user(store, use)


@pytest.mark.parametrize("how", DIRECTORY)
def test_a_directory_that_may_not_be_entered(
    tmp_path: Path, how: Callable[[Path], Callable[[], None]]
) -> None:
    """Enqueues fail from the next sync on; what was accepted before runs once it may be entered."""
    store = tmp_path / "store"

    def use() -> None:
        producer = open_storage(store, fsync_frequency=LONG)
        worker = open_storage(store, fsync_frequency=LONG)
        add(producer, b"durable")
        retried = add(producer, b"retried")
        producer.sync()
        [entry] = claim(worker, 1, retried)
        worker.start(entry)
        add(producer, b"1")
        set_right = how(store)
        add(producer, b"2")
        with Lines() as logged:
            for _ in range(60):
                producer._tick()
        assert 0 < len(logged) < 10
        for _ in range(3):
            with pytest.raises(PermissionError, match="store"):
                add(producer, b"refused")
        with Lines() as logged:
            assert try_for_long(worker) == []
        assert len(logged) < 5
        set_right()
        producer.sync()
        worker.reschedule(entry, b"again", 0.0)
        add(producer, b"3")
        ran: list[bytes] = []

        def have_run() -> bool:
            ran.extend(run_all(worker))
            return len(ran) >= 5

        wait_until(have_run)
        assert sorted(ran) == [b"1", b"2", b"3", b"again", b"durable"]
        assert run_all(open_storage(store)) == []

    as_user(store, use)


@pytest.mark.parametrize("how", DIRECTORY)
def test_an_outcome_is_written_once_though_nobody_can_look_up_the_file(
    tmp_path: Path, how: Callable[[Path], Callable[[], None]]
) -> None:
    """An error behind a retry that is written would have it written, and run, again."""
    store = tmp_path / "store"

    def use() -> None:
        producer, worker = open_storage(store), open_storage(store)
        for payload in (b"succeeds", b"fails"):
            add(producer, payload)
        producer.close()
        entries = claim(worker)
        for entry in entries:
            worker.start(entry)
        set_right = how(store)
        worker.complete(entries[0])
        worker.reschedule(entries[1], b"again", 0.0)
        set_right()
        assert wait_until(lambda: run_all(open_storage(store))) == [b"again"]
        assert run_all(worker) == []

    as_user(store, use)


def test_a_directory_in_which_nothing_may_be_made_or_removed(tmp_path: Path) -> None:
    """Enqueues go on in the file that is open; what is drained stays, and that is said once."""
    store = tmp_path / "store"

    def use() -> None:
        producer, worker = open_storage(store, fsync_frequency=LONG), open_storage(store)
        add(producer, b"1")
        store.chmod(0o500)
        add(producer, b"2")
        producer.sync()
        with Lines() as logged:
            assert try_for_long(worker) == [b"1", b"2"]
            producer.close()
            assert try_for_long(worker) == []
        assert len(logged) == 1
        assert "could not be tidied" in logged[0]
        late = open_storage(store)
        add(late, b"3")  # in the segment that is there
        other = open_storage(store)
        with pytest.raises(PermissionError, match="store"):
            add(other, b"refused")
        assert run_all(worker) == [b"3"]
        late.close()
        store.chmod(0o700)
        worker.maintain()
        assert list(store.iterdir()) == []

    as_user(store, use)


@pytest.mark.parametrize("what", ["file", "lock", "directory"])
def test_dead_tasks_that_may_not_be_opened(tmp_path: Path, what: str) -> None:
    """Each call that cannot do its work is an error that names the file; nothing is changed."""
    path = tmp_path / "store"

    def use() -> None:
        store = open_store(path)
        store.add("a", record("a"))
        target = {
            "file": data_file(path),
            "lock": path / "d-dead_tasks.lock",
            "directory": path,
        }[what]
        mode = target.stat().st_mode
        target.chmod(0)
        for _ in range(2):
            with pytest.raises(PermissionError, match="store") as raised:
                store.add("b", record("b"))
            assert str(target) in str(raised.value.filename)
            if what != "lock":
                with pytest.raises(PermissionError, match="store"):
                    store.read()
                assert "cannot be read" in store.problems()[0]
            with pytest.raises(PermissionError, match="store"):
                store.remove(["a"])
        target.chmod(mode)
        assert names(store) == ["a"]
        store.add("c", record("c"))
        assert store.remove(["a"]) == 1
        assert names(store) == ["c"]

    as_user(path, use)


def test_a_status_says_what_may_not_be_opened(tmp_path: Path) -> None:
    path = tmp_path / "store"

    def use() -> None:
        backend = DiskBackend(BackendConfig(path=path, prefix="d-"))
        backend.add_task(b"1", publish_at=FUTURE)
        backend.worker_started(threads=1)
        backend.sync()
        data_file(path).write_bytes(b"")
        data_file(path).chmod(0)
        [segment] = [p for p in path.iterdir() if p.name.startswith("d-0-")]
        segment.chmod(0)
        status = DiskBackend(BackendConfig(path=path, prefix="d-")).status()
        assert len(status.problems) == 2
        assert all("Permission denied" in problem for problem in status.problems)
        assert len(status.workers) == 1
        segment.chmod(0o600)
        backend.close()

    as_user(path, use)


# -- read-only -----------------------------------------------------------------------------------


MS_RDONLY, MS_REMOUNT, MS_BIND, MNT_DETACH = 1, 32, 4096, 2


def mount(source: str, target: Path, kind: str, flags: int) -> None:
    arguments = source.encode(), os.fsencode(target), kind.encode(), flags, None
    if LIBRARY.mount(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(target))


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own."""
    place = tmp_path / "mounted"
    place.mkdir()
    try:
        mount("none", place, "tmpfs", 0)
    except OSError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    yield place
    LIBRARY.umount2(os.fsencode(place), MNT_DETACH)


def set_read_only(place: Path, read_only: bool) -> None:
    mount("none", place, "tmpfs", MS_REMOUNT | (MS_RDONLY if read_only else 0))


@needs_root
def test_a_mount_with_a_running_store_does_not_become_read_only(mounted: Path) -> None:
    """The kernel refuses, and nothing happens."""
    producer = open_storage(mounted / "store")
    add(producer, b"1")
    with pytest.raises(OSError, match="busy"):
        set_read_only(mounted, True)
    worker = open_storage(mounted / "store")
    assert run_all(worker) == [b"1"]
    producer.close()
    worker.close()


@needs_root
def test_a_read_only_store(mounted: Path) -> None:
    """Nothing is accepted or run, all can be looked at; it goes on when it can be written again."""
    path = mounted / "store"
    config = BackendConfig(path=path, prefix="d-")
    before = DiskBackend(config)
    before.add_task(b"1", publish_at=1.0)
    before.dead_tasks.add("a", record("a"))
    before.close()
    set_read_only(mounted, True)
    backend = DiskBackend(config)
    with Lines() as logged:
        for _ in range(30):
            with pytest.raises(OSError, match="Read-only") as raised:
                backend.add_task(b"refused")
            assert raised.value.errno == errno.EROFS
            assert backend.claim_tasks(10) == []
            backend.maintain()
            backend.sync()
        for action in (
            lambda: backend.worker_started(threads=1),
            lambda: backend.remove_dead_tasks(["a"]),
            lambda: backend.dead_tasks.add("b", record("b")),
        ):
            with pytest.raises(OSError, match="Read-only"):
                action()
    assert len(logged) < 5
    assert [task.context for task in backend.pending_tasks()] == [b"1"]
    assert [record["id"] for record in backend.list_dead_tasks()] == ["a"]
    assert any("may not be written" in problem for problem in backend.status().problems)
    assert backend.verify() == []
    set_read_only(mounted, False)
    backend.add_task(b"2", publish_at=2.0)
    claims = wait_until(lambda: backend.claim_tasks(10))
    assert sorted(claim.context for claim in claims) == [b"1", b"2"]
    for claim_ in claims:
        backend.start_task(claim_)
        backend.complete_task(claim_)
    assert backend.remove_dead_tasks(["a"]) == 1
    backend.close()


@needs_root
def test_a_file_system_that_is_mounted_over_a_running_store(mounted: Path) -> None:
    """As a link that leads elsewhere; when it is unmounted, what waited beneath runs, once."""
    store = mounted / "store"
    producer = open_storage(store, fsync_frequency=LONG)
    worker = open_storage(store)
    add(producer, b"durable")
    producer.sync()
    add(producer, b"1")
    [entry] = claim(worker, 1)
    worker.start(entry)
    mount("none", store, "tmpfs", 0)
    add(producer, b"2")
    producer.sync()
    worker.reschedule(entry, b"again", 0.0)
    assert sorted(run_all(worker)) == [b"1", b"2", b"again"]
    producer.close()
    worker.close()
    assert LIBRARY.umount2(os.fsencode(store), 0) == 0
    late = open_storage(store)
    assert run_all(late) == []
    late.close()


@needs_root
def test_a_file_system_that_turned_read_only_by_itself(tmp_path: Path) -> None:
    """As ext4 does after an error: files that are open can be read and not written any more."""
    image, place = tmp_path / "image", tmp_path / "place"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(8_000_000)
    for command in (
        ["mkfs.ext4", "-q", str(image)],
        ["mount", "-o", "loop", str(image), str(place)],
    ):
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=30)
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no file system in a file can be mounted here: {error}")
    producer = open_storage(place / "store", fsync_frequency=LONG)
    worker = open_storage(place / "store", fsync_frequency=LONG)
    try:
        for payload in (b"1", b"2", b"3"):
            add(producer, payload)
        producer.sync()
        started, waiting = claim(worker, 2)
        worker.start(started)
        abort = ["mount", "-o", "remount,abort", str(place)]
        subprocess.run(abort, capture_output=True, timeout=30, check=False)
        with pytest.raises(OSError, match="Read-only|Input/output"):
            add(producer, b"refused")
        actions: list[Callable[[], object]] = [
            lambda: worker.start(waiting),
            lambda: worker.complete(started),
            lambda: worker.reschedule(started, b"again", 0.0),
        ]
        for action in actions:
            with pytest.raises(OSError, match="Read-only|Input/output"):
                action()
        with Lines() as logged:
            for _ in range(60):
                producer._tick()
                worker._tick()
        assert len(logged) < 20
    finally:
        for storage in (producer, worker):
            with contextlib.suppress(OSError):
                storage.close()
        LIBRARY.umount2(os.fsencode(place), MNT_DETACH)


@pytest.mark.parametrize("kind", ["link to nowhere", "file"])
def test_what_is_no_directory_is_no_empty_store(tmp_path: Path, kind: str) -> None:
    """A link whose target is not mounted: neither a look nor a worker takes it for a store."""
    place = tmp_path / "store"
    if kind == "file":
        place.touch()
    else:
        place.symlink_to("not-mounted")
    backend = DiskBackend(BackendConfig(path=place))
    message = "leads to no directory" if kind == "link to nowhere" else "Not a directory"
    calls: list[Callable[[], object]] = [
        lambda: backend.add_task(b"x"),
        backend.status,
        backend.verify,
        backend.pending_tasks,
        lambda: backend.remove_task("1-1-a-1"),
        lambda: backend.claim_tasks(1),
        backend.list_dead_tasks,
        backend.count_dead_tasks,
        lambda: backend.find_dead_task("1-1-a-1"),
        lambda: backend.remove_dead_tasks(["1-1-a-1"]),
        lambda: backend.add_dead_task("1-1-a-1", b"x", ValueError(), task_class="a", attempts=1),
    ]
    for call in calls:
        with pytest.raises(OSError, match=message) as raised:
            call()
        assert str(raised.value.filename).startswith(str(place))
    backend.close()
    assert sorted(tmp_path.iterdir()) == [place]
