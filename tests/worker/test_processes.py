"""``deferred_worker`` as people run it: real processes, real signals, the disk backend."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from deferred_django.backends.disk import log_records
from deferred_django.context import TaskContext
from tests.harness import Project, children_of, is_alive
from tests.support import wait_until
from tests.worker.conftest import MakeProject, Store

TASKS = """
@deferred
def hello(n):
    note("hello", n)

@deferred
def slow(name, seconds=60.0):
    note("begun", name, os.getpid())
    end = time.monotonic() + seconds
    while time.monotonic() < end and not (NOTES.parent / name).exists():
        time.sleep(0.005)
    note("ended", name)

LEAKED = []

@deferred
def leak(n, size):
    LEAKED.append(b"x" * size)
    note("leaked", n, os.getpid())

@deferred
async def async_slow(name):
    note("begun", name, os.getpid())
    await asyncio.sleep(60)
    note("ended", name)

@deferred
def kill_worker(how):
    note("killer", how)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit":
        os._exit(0)
    import ctypes
    ctypes.string_at(0)

@deferred(max_retries=1, retry_interval=lambda error, attempt: 0)
def fail_with(kind):
    note("attempt", kind)
    raise {"exit": SystemExit(3), "interrupt": KeyboardInterrupt(), "value": ValueError()}[kind]

@deferred(max_retries=0)
def die():
    note("dying")
    raise ValueError

@deferred
def fork():
    for end in (lambda: None, lambda: sys.exit(3)):
        pid = os.fork()
        if pid == 0:
            note("child")
            return end()
        note("child's code", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


@pytest.fixture
def project(make_project: MakeProject) -> Project:
    return make_project(tasks=TASKS)


@pytest.fixture
def store(project: Project) -> Iterator[Store]:
    store = Store(project)
    yield store
    store.backend.close()


def begun(project: Project, name: str, times: int = 1) -> bool:
    return sum(note.startswith(f"begun {name} ") for note in project.notes()) >= times


def pid_of(project: Project, name: str) -> int:
    """The process that runs the task."""
    wait_until(lambda: begun(project, name), timeout=20)
    (line,) = [note for note in project.notes() if note.startswith(f"begun {name} ")]
    return int(line.split()[2])


def workers(process: subprocess.Popen[str], number: int) -> list[int]:
    """The pids of a supervisor's worker processes, once there are so many."""
    wait_until(lambda: len(children_of(process.pid)) == number, timeout=20)
    return children_of(process.pid)


def stopped(process: subprocess.Popen[str], within: float) -> bool:
    """Whether the command ends with exit code 0 within so many seconds."""
    start = time.monotonic()
    return process.wait(20) == 0 and time.monotonic() - start < within


def assert_untouched(store: Store, task_id: str) -> None:
    """The task is due again, its attempt not used up and no crash counted."""
    claim = store.claim()
    assert claim.id == task_id
    assert claim.crashes == 0
    assert TaskContext.from_bytes(claim.context).attempts == 0
    store.queue.release(claim)
    assert store.dead() == []


# -- ordinary work -------------------------------------------------------------------------------


def test_a_drain_runs_what_is_due(project: Project, store: Store) -> None:
    for number in range(50):
        store.enqueue("hello", number)
    store.enqueue("hello", "delayed", publish_at=time.time() + 60)
    store.enqueue("hello", "elsewhere", queue="other")
    for kind in ("exit", "interrupt", "value"):
        store.enqueue("fail_with", kind, queue="mail")
    store.enqueue("fork")
    options = ("--processes", "2", "--threads", "2", "--queues", "default,mail")
    done = project.drain(*options)
    notes = Counter(project.notes())
    assert all(notes[f"hello {number}"] == 1 for number in range(50))
    assert all(notes[f"attempt {kind}"] == 2 for kind in ("exit", "interrupt", "value"))
    # A child that a task forks does not act for its parent.
    assert (notes["child"], notes["child's code 0"], notes["child's code 3"]) == (2, 1, 1)
    assert store.pending() == 2
    # C37
    assert [dead[1] for dead in store.dead()] == ["KeyboardInterrupt", "SystemExit", "ValueError"]
    assert done.stdout.count("deferred_worker: ") == 2
    assert str(project.storage) in done.stdout


def test_a_process_is_replaced_after_max_tasks_and_a_drain_goes_on(
    project: Project, store: Store
) -> None:
    for number in range(25):
        store.enqueue("slow", f"t{number}", 0)
    project.drain("--max-tasks", "10")
    runs = Counter(note.split()[2] for note in project.notes() if note.startswith("begun"))
    assert sorted(runs.values()) == [5, 10, 10]


def test_a_process_that_uses_too_much_memory_is_replaced(project: Project, store: Store) -> None:
    """What leaks is given back with its process; no task is cut off for it, and none is lost."""
    for number in range(12):
        store.enqueue("leak", number, 60_000_000)
    project.drain("--max-memory", "256M", "--threads", "1")
    runs = Counter(note.split()[2] for note in project.notes() if note.startswith("leaked"))
    assert sum(runs.values()) == 12
    assert max(runs.values()) <= 5  # the fourth is too much; one more may have been begun


# -- stopping (C40, R10) ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("signum", "task"), [(signal.SIGTERM, "slow"), (signal.SIGINT, "async_slow")]
)
def test_a_stop_puts_back_what_does_not_end_in_time(
    project: Project, store: Store, signum: int, task: str
) -> None:
    """C40: exit 0 in time, nothing new starts, and the cut-off task is due again, uncounted."""
    task_id = store.enqueue(task, "long")
    worker = project.worker("--threads", "1", "--shutdown-timeout", "0.5")
    pid_of(project, "long")
    for number in range(5):
        store.enqueue("hello", number)
    worker.send_signal(signum)
    assert stopped(worker, within=3)
    assert "Error" not in project.log()
    assert "stopping; running tasks have 0.5 s" in project.log()
    assert len(project.notes()) == 1
    assert_untouched(store, task_id)
    assert store.pending() == 6


def test_the_task_starts_elsewhere_only_when_the_process_is_gone(
    project: Project, store: Store
) -> None:
    """R10: a second signal stops at once; this process, as another worker, is idle meanwhile."""
    task_id = store.enqueue("slow", "long")
    worker = project.worker("--shutdown-timeout", "60")
    pid = pid_of(project, "long")
    worker.send_signal(signal.SIGTERM)
    wait_until(lambda: "Stopping" in project.log())
    with pytest.raises(AssertionError):
        store.claim(timeout=0.3)
    assert worker.poll() is None
    worker.send_signal(signal.SIGINT)
    claim = store.claim()
    assert not is_alive(pid)
    store.queue.release(claim)
    assert stopped(worker, within=3)
    assert_untouched(store, task_id)


def test_a_signal_to_the_whole_group_counts_once(project: Project, store: Store) -> None:
    """Ctrl-C, or a service manager that signals all processes: what runs is finished."""
    store.enqueue("slow", "long")
    worker = project.worker("--processes", "2")
    pid_of(project, "long")
    workers(worker, 2)
    os.killpg(worker.pid, signal.SIGTERM)
    wait_until(lambda: "Stopping" in project.log())
    time.sleep(0.2)
    assert worker.poll() is None
    project.touch("long")
    assert stopped(worker, within=5)
    assert project.notes()[-1] == "ended long"
    assert store.pending() == 0


def test_sigterm_under_load_loses_nothing_and_blames_nobody(project: Project, store: Store) -> None:
    """Exit 0 within the timeout, each task run once, no crash counted."""
    for number in range(4000):
        store.enqueue("hello", number)
    worker = project.worker("--processes", "2", "--shutdown-timeout", "5")
    wait_until(lambda: len(project.notes()) > 100, timeout=20)
    worker.send_signal(signal.SIGTERM)
    assert stopped(worker, within=5)
    project.drain()
    assert Counter(project.notes()) == Counter(f"hello {number}" for number in range(4000))
    assert store.dead() == []


def test_a_second_signal_does_not_kill_what_is_about_to_end(
    make_project: MakeProject,
) -> None:
    """It comes when the work is over, and the interpreter still has things to do."""
    slow_exit = """
    import atexit, pathlib, time
    started_in = os.getpid()
    def at_exit():
        if os.getpid() != started_in:
            return
        pathlib.Path("exiting").touch()
        end = time.monotonic() + 20
        while not pathlib.Path("go").exists() and time.monotonic() < end:
            time.sleep(0.005)
    if os.environ.get("SLOW_EXIT") == str(os.getppid()):
        atexit.register(at_exit)
    """
    project = make_project(tasks=slow_exit, env={"SLOW_EXIT": str(os.getpid())})
    worker = project.worker("--shutdown-timeout", "5")
    workers(worker, 1)
    worker.send_signal(signal.SIGTERM)
    wait_until((project.path / "exiting").exists, timeout=20)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        worker.send_signal(signum)
    project.touch("go")
    assert worker.wait(20) == 0
    assert "Traceback" not in project.log()


def test_a_locked_dead_tasks_store_does_not_hold_up_a_stop(project: Project, store: Store) -> None:
    """C40: SIGTERM while a worker waits for the lock. The task is due again, not dead."""
    task_id = store.enqueue("die")
    with open(project.storage / "deferred-dead_tasks.lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        worker = project.worker("--shutdown-timeout", "0.5")
        wait_until(lambda: project.notes() == ["dying"], timeout=20)
        time.sleep(0.2)
        worker.send_signal(signal.SIGTERM)
        assert stopped(worker, within=3)
    assert_untouched(store, task_id)


# -- deaths ----------------------------------------------------------------------------------------


def test_a_task_that_kills_its_worker_dies_after_the_third_time(
    project: Project, store: Store
) -> None:
    """C39, R9: by SIGKILL, os._exit(0) and a segfault. Its neighbours run; none is blamed."""
    kinds = ("kill", "exit", "segfault")
    store.enqueue("slow", "neighbour", 0.3)
    for number in range(50):
        store.enqueue("hello", number)
        if number in (10, 20, 30):
            store.enqueue("kill_worker", kinds[number // 10 - 1])
    project.drain("--processes", "3")
    notes = Counter(project.notes())
    assert all(notes[f"killer {kind}"] == 3 for kind in kinds)
    assert all(notes[f"hello {number}"] >= 1 for number in range(50))
    assert notes["ended neighbour"] == 1
    assert store.dead() == [("app.tasks.kill_worker", "WorkerLost")] * 3
    assert store.pending() == 0


def test_a_drain_leaves_nothing_behind_that_it_let_go_of(project: Project, store: Store) -> None:
    """After a death the tasks run one by one; the others are let go meanwhile, and still due."""
    store.enqueue("kill_worker", "kill")
    for number in range(20):
        store.enqueue("hello", number)
    project.drain()
    assert {f"hello {number}" for number in range(20)} <= set(project.notes())
    assert store.dead() == [("app.tasks.kill_worker", "WorkerLost")]
    assert store.pending() == 0


def test_a_drain_compacts_what_has_grown_too_large_to_be_claimed_from(
    project: Project, store: Store
) -> None:
    """Many retries of few tasks: the file is mostly dead, and so are not the tasks."""
    project.storage.mkdir(mode=0o700)
    context = TaskContext.build("app.tasks.hello", ("x" * 10_000,), {}).to_bytes()
    with open(project.storage / "deferred-0-20261129-1-abc", "wb") as file:
        for attempt in range(90):
            for number in range(10):
                nonce = f"n{attempt}x{number}"
                file.write(log_records.add(f"1-1-a-{number}", nonce, 0, 0, "default", context))
    project.drain()
    assert len(project.notes()) == 10
    assert store.pending() == 0


def test_graceful_stops_do_not_count_as_crashes(project: Project, store: Store) -> None:
    """C39, second run: a stop, a kill, a stop; the task still runs to its end."""
    store.enqueue("slow", "good")
    first = project.worker("--shutdown-timeout", "0")
    pid_of(project, "good")
    first.terminate()
    assert stopped(first, within=3)
    second = project.worker("--shutdown-timeout", "0")
    wait_until(lambda: begun(project, "good", times=2), timeout=20)
    (pid,) = workers(second, 1)
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: begun(project, "good", times=3))
    second.terminate()
    assert stopped(second, within=3)
    claim = store.claim()
    assert claim.crashes == 1
    store.queue.release(claim)
    project.touch("good")
    project.drain()
    assert project.notes()[-1] == "ended good"
    assert store.dead() == []


def test_a_dead_process_is_replaced(project: Project, store: Store) -> None:
    worker = project.worker("--processes", "2")
    first, second = workers(worker, 2)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: first not in children_of(worker.pid))
    third = (set(workers(worker, 2)) - {second}).pop()
    assert "SIGKILL" in project.log()
    # One that is told to stop on its own ends well, and is replaced as well.
    wait_until(lambda: len(store.backend.status().workers) == 2)
    os.kill(third, signal.SIGTERM)
    wait_until(lambda: third not in children_of(worker.pid))
    assert second in workers(worker, 2)
    store.enqueue("hello", 1)
    wait_until(lambda: project.notes() == ["hello 1"])
    assert project.log().count("another one takes its place") == 1


def test_the_children_of_a_dead_supervisor_stop(project: Project, store: Store) -> None:
    """What runs is put back at once, uncounted."""
    task_id = store.enqueue("slow", "long")
    worker = project.worker("--processes", "2", "--shutdown-timeout", "60")
    pid_of(project, "long")
    children = workers(worker, 2)
    worker.kill()
    wait_until(lambda: not any(is_alive(pid) for pid in children), timeout=5)
    assert_untouched(store, task_id)


def test_a_killed_workers_task_is_free_at_once(project: Project, store: Store) -> None:
    """This process, as another worker, is idle; it gets the task within a second."""
    task_id = store.enqueue("slow", "long")
    worker = project.worker()
    pid = pid_of(project, "long")
    store.queue.claim(1)
    os.kill(worker.pid, signal.SIGSTOP)  # no replacement
    start = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    claim = store.claim()
    assert time.monotonic() - start < 1
    assert (claim.id, claim.crashes) == (task_id, 1)


# -- unknown tasks (C41) -------------------------------------------------------------------------


def test_a_task_whose_code_is_gone_waits_for_it(make_project: MakeProject) -> None:
    soon = "import deferred_django.queue\ndeferred_django.queue.UNKNOWN_FIRST_DELAY = 1.0\n"
    project = make_project(tasks=soon + "@deferred\ndef renamed(n): note(n)\n")
    store = Store(project)
    store.enqueue("hello", 7)
    done = project.drain()
    assert done.stderr.count("app.tasks.hello") == 1
    assert store.pending() == 1
    assert store.dead() == []
    project.write_tasks(TASKS)
    worker = project.worker()
    wait_until(lambda: project.notes() == ["hello 7"], timeout=20)
    worker.terminate()
    assert stopped(worker, within=5)
    store.backend.close()


def test_several_processes_from_a_thread_of_another_program(project: Project, store: Store) -> None:
    """It has no signal handlers there, and its children have theirs."""
    for number in range(20):
        store.enqueue("hello", number)
    done = project.run(
        """
        import signal, threading
        from django.core.management import call_command
        before = signal.getsignal(signal.SIGTERM)
        thread = threading.Thread(
            target=lambda: call_command("deferred_worker", drain=True, processes=2)
        )
        thread.start()
        thread.join(50)
        assert not thread.is_alive()
        assert signal.getsignal(signal.SIGTERM) is before
        """
    )
    assert "stopped" in done.stdout
    assert len(project.notes()) == 20
    assert store.pending() == 0
