"""The dead-tasks store's lock: exclusive, fair, bounded in its wait, and never lost."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deferred_django.backends.disk import descriptors, files
from deferred_django.backends.disk.dead_tasks_lock import FairLock, FileLock
from deferred_django.exceptions import DeadTasksLockTimeout
from tests.disk.dlq import assert_at_rest, data_file, filled, lock_file, names, open_store
from tests.disk.support import Gate, in_child, running
from tests.support import start_python, wait_until


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.lock"


@contextlib.contextmanager
def held_by_another(path: Path) -> Iterator[Callable[[], None]]:
    """The lock held through a descriptor of its own, as by another process; call to let go."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    released = False

    def release() -> None:
        nonlocal released
        if not released:
            released = True
            os.close(fd)

    try:
        yield release
    finally:
        release()


def waiters() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "deferred-dead-tasks-lock"]


def is_free(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def test_threads_are_served_in_their_order() -> None:
    lock = FairLock()
    assert lock.acquire(0)
    order: list[int] = []

    def wait(number: int) -> None:
        assert lock.acquire(10)
        order.append(number)
        lock.release()

    threads = []
    for number in range(8):
        threads.append(threading.Thread(target=wait, args=(number,)))
        threads[-1].start()
        wait_until(lambda expected=number + 1: len(lock._queue) == expected)  # type: ignore[misc]
    assert not lock.acquire(0.01)  # gives up without a trace
    assert len(lock._queue) == 8
    lock.release()
    for thread in threads:
        thread.join(10)
    assert order == list(range(8))
    assert lock.acquire(0)


def test_an_interrupted_thread_leaves_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = FairLock()
    assert lock.acquire(0)

    class Interrupted:
        """A turn in whose wait the user presses Ctrl-C."""

        def __init__(self, handed_over: bool) -> None:
            self.handed_over = handed_over

        def acquire(self, timeout: float | None = None) -> bool:
            if timeout is not None:
                if self.handed_over:
                    lock.release()
                raise KeyboardInterrupt
            return True

        def release(self) -> None:
            pass

    for handed_over in (False, True):
        turns = iter([Interrupted(handed_over)])
        monkeypatch.setattr(threading, "Lock", lambda turns=turns: next(turns))
        with pytest.raises(KeyboardInterrupt):
            lock.acquire(5)
        monkeypatch.undo()
        assert not lock._queue
    assert lock.acquire(0), "the turn of the interrupted thread was lost"


def test_the_wait_is_bounded_and_changes_nothing(path: Path) -> None:
    lock = FileLock(str(path), 0o600, 0.1)
    with held_by_another(path) as release:
        begun = time.monotonic()
        with pytest.raises(DeadTasksLockTimeout, match=r"file\.lock") as caught, lock.hold():
            pytest.fail("the lock was not free")
        assert 0.1 <= time.monotonic() - begun < 2
        assert caught.value.errno == errno.ETIMEDOUT
        release()
        wait_until(lambda: not waiters(), what="the late lock is let go of")
        assert is_free(path)
    with lock.hold():
        assert not is_free(path)
    assert is_free(path)


def test_one_thread_waits_however_many_callers_give_up(path: Path) -> None:
    lock = FileLock(str(path), 0o600, 0.02)
    with held_by_another(path) as release:
        for _ in range(20):
            with pytest.raises(DeadTasksLockTimeout), lock.hold():
                pass
        assert len(waiters()) == 1
        assert len([p for p in descriptors.open_descriptors().values() if p == str(path)]) == 1
        with running(lambda: hold_briefly(lock, 10)) as results:
            release()
        assert results == [None]
    wait_until(lambda: not waiters())
    assert is_free(path)


def hold_briefly(lock: FileLock, timeout: float | None = None) -> None:
    with lock.hold(timeout):
        pass


def test_a_waiter_keeps_its_place_for_the_next_caller(path: Path) -> None:
    lock = FileLock(str(path), 0o600, 0.05)
    with held_by_another(path) as release:
        with pytest.raises(DeadTasksLockTimeout), lock.hold():
            pass
        [waiter] = waiters()
        with running(lambda: hold_briefly(lock, 10)):
            wait_until(lambda: lock._waiter is None, what="the next caller takes the waiter over")
            assert waiters() == [waiter]
            release()


def test_a_removed_lock_file_is_noticed(path: Path) -> None:
    """Whoever waited for the old file locks the new one, beside nobody."""
    lock = FileLock(str(path), 0o600, 10)
    other = FileLock(str(path), 0o600, 10)
    inside = threading.Event()
    leave = threading.Event()

    def hold() -> None:
        with lock.hold():
            inside.set()
            assert leave.wait(10)

    with held_by_another(path) as release, running(hold):
        wait_until(waiters)
        path.unlink()
        with other.hold():  # makes a new file
            release()
            assert not inside.wait(0.1)
        assert inside.wait(10)
        with pytest.raises(DeadTasksLockTimeout), other.hold(0.05):
            pass
        leave.set()
    wait_until(lambda: not waiters())


def test_a_waiter_on_a_removed_file_holds_up_nobody(path: Path) -> None:
    lock = FileLock(str(path), 0o600, 0.05)
    with held_by_another(path):
        with pytest.raises(DeadTasksLockTimeout), lock.hold():
            pass
        path.unlink()
        with lock.hold():
            pass
    wait_until(lambda: not waiters())


def test_the_lock_file_is_removed_between_open_and_lock(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = FileLock(str(path), 0o600, 10)
    hold_briefly(lock)
    gate = Gate(monkeypatch, "try_flock")
    with running(lambda: hold_briefly(lock)) as results:
        gate.wait()
        path.unlink()
        gate.open()
    assert results == [None]
    assert path.exists()
    assert str(path) not in descriptors.open_descriptors().values()


def test_polls_where_no_thread_can_be_started(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    lock = FileLock(str(path), 0o600, 5)
    with held_by_another(path) as release:
        timer = threading.Timer(0.1, release)
        timer.start()
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with lock.hold():
            assert not is_free(path)
        monkeypatch.undo()
        timer.join()
    with held_by_another(path):
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(DeadTasksLockTimeout), lock.hold(0.05):
            pass
        monkeypatch.undo()
    assert is_free(path)
    assert str(path) not in descriptors.open_descriptors().values()


@pytest.mark.parametrize(
    "call", ["open_file", "create_file", "try_flock", "wait_flock", "is_at_path"]
)
def test_a_failing_call_leaves_the_lock_free(
    path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    lock = FileLock(str(path), 0o600, 1)

    def fail(*arguments: Any, **options: Any) -> Any:
        raise OSError(errno.EIO, "Input/output error", str(path))

    with contextlib.ExitStack() as stack:
        if call == "wait_flock":
            stack.enter_context(held_by_another(path))
        monkeypatch.setattr(files, call, fail)
        with pytest.raises(OSError, match=r"file\.lock"), lock.hold():
            pass
        monkeypatch.undo()
    wait_until(lambda: not waiters())
    assert str(path) not in descriptors.open_descriptors().values()
    with lock.hold():
        assert not is_free(path)
    assert is_free(path)


def test_a_lock_file_that_is_a_link_to_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "file.lock"
    path.symlink_to(tmp_path / "missing" / "file")
    lock = FileLock(str(path), 0o600, 1)
    with pytest.raises(FileNotFoundError), lock.hold():
        pass


def test_a_failure_to_unlock_is_mended_by_the_close(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    lock = FileLock(str(path), 0o600, 1)
    monkeypatch.setattr(files, "unlock_flock", fail)
    hold_briefly(lock)
    assert is_free(path)


def test_a_child_forked_inside_the_lock_does_not_free_it(path: Path) -> None:
    lock = FileLock(str(path), 0o600, 0.2)
    with lock.hold():

        def child() -> None:
            assert str(path) not in descriptors.open_descriptors().values()
            with pytest.raises(DeadTasksLockTimeout), lock.hold():
                pass

        in_child(child, kill=False)
        assert not is_free(path)

    pid = None
    with lock.hold():
        pid = os.fork()
        # The child leaves the block too, and must neither unlock nor close what is not its own.
    if pid == 0:
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert is_free(path)


def test_a_holders_death_frees_the_lock_though_its_child_lives(tmp_path: Path) -> None:
    """C48: the fork hook closes the inherited descriptor."""
    code = """
        import os, sys, time
        from deferred_django.backends.disk.dead_tasks_lock import FileLock
        with FileLock(sys.argv[1], 0o600, 2).hold():
            if os.fork() == 0:
                print("child", os.getpid(), flush=True)
                sys.stdin.read()
                os._exit(0)
            time.sleep(60)
    """
    path = tmp_path / "file.lock"
    with start_python(code, str(path)) as process:
        assert process.stdout
        assert process.stdout.readline().startswith("child")
        assert not is_free(path)
        process.kill()
        wait_until(lambda: is_free(path), what="the lock is free while the child lives")
        process.communicate()


# -- through the store ---------------------------------------------------------------------------


def test_an_add_that_times_out_changes_nothing(tmp_path: Path) -> None:
    store = filled(tmp_path, "a")
    impatient = open_store(tmp_path, lock_timeout=0.05)
    before = data_file(tmp_path).read_bytes()
    with held_by_another(lock_file(tmp_path)):
        for change in (
            lambda: impatient.add("b", b"1"),
            lambda: impatient.remove(["a"]),
            lambda: impatient.take(["a"], lambda *_: pytest.fail("handed over"), lambda: None),
        ):
            with pytest.raises(DeadTasksLockTimeout, match="dead_tasks"):
                change()
        assert data_file(tmp_path).read_bytes() == before
        assert names(store) == ["a"], "readers wait for nobody"
    wait_until(lambda: not waiters())
    assert_at_rest(tmp_path)
    impatient.add("b", b"1")
    assert names(store) == ["b", "a"]


def test_threads_that_wait_share_one_lock_and_one_fsync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled(tmp_path, "a")
    fsyncs = itertools.count(1)
    real = files.fsync
    monkeypatch.setattr(files, "fsync", lambda fd: (next(fsyncs), real(fd))[1])
    with held_by_another(lock_file(tmp_path)) as release:
        threads = [
            threading.Thread(target=store.add, args=(f"t-{number}", b"1")) for number in range(10)
        ]
        for thread in threads:
            thread.start()
        wait_until(lambda: len(store._appender._queue) == 10)
        release()
        for thread in threads:
            thread.join(10)
    assert next(fsyncs) == 2, "one fsync for all"
    assert sorted(names(store)) == sorted(["a", *(f"t-{number}" for number in range(10))])
    assert_at_rest(tmp_path)


def test_each_thread_of_a_group_gives_up_by_its_own_time(tmp_path: Path) -> None:
    store = open_store(tmp_path, lock_timeout=0.3)
    store.add("a", b"1")
    results: list[BaseException | None] = []

    def add(number: int) -> None:
        try:
            store.add(f"t-{number}", b"1")
            results.append(None)
        except BaseException as error:
            results.append(error)

    with held_by_another(lock_file(tmp_path)):
        threads = [threading.Thread(target=add, args=(number,)) for number in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    assert [type(result) for result in results] == [DeadTasksLockTimeout] * 5
    assert not store._appender._queue
    wait_until(lambda: not waiters())
    store.add("b", b"1")
    assert names(store) == ["b", "a"]


def test_a_line_that_is_being_written_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its outcome is not known yet, so the thread that waits for it cannot give up."""
    store = open_store(tmp_path, lock_timeout=0.2)
    store.add("a", b"1")
    gate = Gate(monkeypatch, "fsync")
    with (
        held_by_another(lock_file(tmp_path)) as release,
        running(lambda: store.add("b", b"1")) as first,
        running(lambda: store.add("c", b"1")) as second,
    ):
        wait_until(lambda: len(store._appender._queue) == 2)
        release()
        gate.wait()
        time.sleep(0.3)  # longer than either would wait for the lock
        assert not first
        assert not second
        gate.open()
    assert first == second == [None]
    assert sorted(names(store)) == ["a", "b", "c"]


WRITER = """
    import sys, time
    from deferred_django.backends.disk import files
    from deferred_django.backends.disk.dead_tasks_storage import DeadTasksStorage
    real = files.fsync
    def slow(fd):
        time.sleep(0.005)
        real(fd)
    files.fsync = slow
    store = DeadTasksStorage(sys.argv[1], "d-")
    print("ready", flush=True)
    sys.stdin.readline()
    worst = 0
    for number in range(int(sys.argv[3])):
        begun = time.monotonic()
        store.add(f"{sys.argv[2]}-{number}", b"x" * 200)
        worst = max(worst, time.monotonic() - begun)
    print(worst, flush=True)
"""


def test_no_process_starves(tmp_path: Path) -> None:
    """R22: 16 processes add at once with slow fsync; none times out, each has its turn soon."""
    processes: list[subprocess.Popen[str]] = []
    with contextlib.ExitStack() as stack:
        for number in range(16):
            process = start_python(WRITER, str(tmp_path), str(number), "10")
            processes.append(stack.enter_context(process))
            stack.callback(process.kill)
        for process in processes:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin
            process.stdin.write("go\n")
            process.stdin.flush()
        outputs = [process.communicate(timeout=60) for process in processes]
    assert [errors for _, errors in outputs if errors] == []
    assert len(names(open_store(tmp_path))) == 160
    worst = max(float(output) for output, _ in outputs)
    assert worst < 1.9, "longer, and it would have timed out"
