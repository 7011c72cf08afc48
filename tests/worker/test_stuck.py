"""Tasks that do not react to their timeout, in real worker processes."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

from deferred_django.context import TaskContext
from tests.harness import Project, children_of, is_alive
from tests.support import wait_until
from tests.worker.conftest import MakeProject, Store

GRACE = 0.5
TASKS = f"""
import socket

import deferred_django.guard

deferred_django.guard.GRACE_SECONDS = {GRACE}

def at_once(error, attempt):
    note("retry_interval", type(error).__name__)
    return 0

@deferred
def hello(n):
    note("hello", n, os.getpid())

@deferred
def slow(name):
    note("begun", name, os.getpid())
    wait_for_file(name)
    note("ended", name)

@deferred(timeout=0.2, max_retries=0)
def in_c_code():
    note("begun stuck", os.getpid())
    time.sleep(1000)

@deferred(timeout=0.2, max_retries=1, retry_interval=at_once)
def blocked_socket(port):
    note("begun stuck", os.getpid(), current_task().attempt)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.recv(1)

def later(error, attempt):
    note("later", type(error).__name__)
    return 60

@deferred(timeout=0.2, retry_interval=later)
def tried_later():
    note("begun stuck", os.getpid())
    time.sleep(1000)

@deferred(timeout=0.2, max_retries=0)
def swallows():
    note("begun stuck", os.getpid())
    while True:
        try:
            while True:
                time.sleep(0.001)
        except BaseException:
            pass

@deferred(timeout=0.2, max_retries=0)
async def refuses():
    note("begun stuck", os.getpid())
    while True:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            pass

@deferred(timeout=0.2, max_retries=0)
async def blocks_the_loop():
    note("begun stuck", os.getpid())
    time.sleep(1000)

@deferred
async def async_slow(name):
    note("begun", name, os.getpid())
    while not (NOTES.parent / name).exists():
        await asyncio.sleep(0.005)
    note("ended", name)
"""

FREEZING = f"""
import deferred_django.frozen

deferred_django.frozen.FROZEN_SECONDS = {GRACE}
deferred_django.frozen.LOOK_SECONDS = {GRACE} / 2

@deferred(timeout=0.2, max_retries=0)
def keeps_the_interpreter():
    note("begun stuck", os.getpid())
    sum(range(10**12))
"""

STUCK = ["swallows", "refuses", "blocks_the_loop"]


@pytest.fixture
def project(make_project: MakeProject) -> Project:
    return make_project(tasks=TASKS)


@pytest.fixture
def store(project: Project) -> Iterator[Store]:
    store = Store(project)
    yield store
    store.backend.close()


def note_of(project: Project, beginning: str) -> str:
    """The first note that begins so, once it is there."""
    return wait_until(
        lambda: next((note for note in project.notes() if note.startswith(beginning)), ""),
        timeout=20,
        what=beginning,
    )


def stopped(process: subprocess.Popen[str], within: float) -> bool:
    start = time.monotonic()
    return process.wait(20) == 0 and time.monotonic() - start < within


@pytest.mark.parametrize("task", STUCK)
def test_a_stuck_task_dies_and_its_neighbours_run_elsewhere(
    project: Project, store: Store, task: str
) -> None:
    """Its process is replaced; nothing counts as a crash, and no neighbour loses an attempt."""
    beside = "async_slow" if task == "refuses" else "slow"
    store.enqueue(beside, "neighbour")
    worker = project.worker()
    first = int(note_of(project, "begun neighbour").split()[2])
    store.enqueue(task)
    assert int(note_of(project, "begun stuck").split()[2]) == first
    wait_until(lambda: len(project.notes()) >= 3, timeout=20)  # the neighbour, again
    assert not is_alive(first)
    begun = [note for note in project.notes() if note.startswith("begun neighbour")]
    assert len({note.split()[2] for note in begun}) == 2
    assert store.dead() == [(f"app.tasks.{task}", "TaskTimeout")]
    (dead,) = store.backend.list_dead_tasks()
    assert dead["attempts"] == 1
    text = "\n".join(dead["backtrace"])
    assert "app/tasks.py" in text
    assert f"in {task}" in text
    assert "_guard.py" not in text
    project.touch("neighbour")
    note_of(project, "ended neighbour")
    assert project.log().count("does not react to its timeout of 0.2 s") == 1
    assert "TaskTimeout" in project.log()
    assert "another one takes its place" not in project.log()
    assert "frozen" not in project.log()
    worker.terminate()
    assert stopped(worker, within=5)
    assert store.pending() == 0


def test_a_neighbour_is_put_back_uncounted(project: Project, store: Store) -> None:
    neighbour = store.enqueue("slow", "neighbour")
    worker = project.worker()
    note_of(project, "begun neighbour")
    store.enqueue("in_c_code")
    note_of(project, "begun stuck")
    os.kill(worker.pid, signal.SIGSTOP)  # no replacement: this process gets it
    claim = store.claim()
    assert store.dead() == [("app.tasks.in_c_code", "TaskTimeout")]
    assert (claim.id, claim.crashes) == (neighbour, 0)
    assert TaskContext.from_bytes(claim.context).attempts == 0
    store.queue.release(claim)


def test_a_drain_that_meets_stuck_tasks_ends(project: Project, store: Store) -> None:
    """Without a growing pause; what is to be tried again waits for the next one."""
    for _ in range(2):
        store.enqueue("tried_later")
    for number in range(20):
        store.enqueue("hello", number)
    project.drain("--threads", "1", timeout=40)
    notes = project.notes()
    assert len([note for note in notes if note.startswith("begun stuck")]) == 2
    assert notes.count("later TaskTimeout") == 2
    assert len({note.split()[1] for note in notes if note.startswith("hello")}) == 20
    assert store.pending() == 2
    assert store.dead() == []


def test_a_retry_starts_when_the_old_process_is_gone(project: Project, store: Store) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        store.enqueue("blocked_socket", server.getsockname()[1])
        project.worker("--processes", "2")
        first = int(note_of(project, "begun stuck").split()[2])
        wait_until(lambda: sum("begun" in note for note in project.notes()) == 2, timeout=20)
        assert not is_alive(first)
        wait_until(store.dead, timeout=20)
    assert store.dead() == [("app.tasks.blocked_socket", "TaskTimeout")]
    (dead,) = store.backend.list_dead_tasks()
    assert dead["attempts"] == 2


def test_a_task_that_freezes_its_process(project: Project, store: Store) -> None:
    """Its process can do nothing about it; the supervisor has it killed, and nobody is blamed."""
    project.write_tasks(TASKS + FREEZING)
    neighbour = store.enqueue("slow", "neighbour")
    worker = project.worker("--processes", "1")
    first = int(note_of(project, "begun neighbour").split()[2])
    wait_until(
        lambda: (
            [task.id for w in store.backend.status().workers for task in w.running] == [neighbour]
        ),
        timeout=20,
    )
    store.enqueue("keeps_the_interpreter")
    note_of(project, "begun stuck")
    wait_until(store.dead, timeout=20)
    assert store.dead() == [("app.tasks.keeps_the_interpreter", "TaskTimeout")]
    wait_until(lambda: not is_alive(first), timeout=20)
    wait_until(lambda: len(project.notes()) == 3, timeout=20)
    wait_until(lambda: len(children_of(worker.pid)) == 1)
    (second,) = children_of(worker.pid)
    assert project.notes()[2] == f"begun neighbour {second}"
    os.kill(second, signal.SIGKILL)  # the first that counts
    os.kill(worker.pid, signal.SIGSTOP)
    claim = store.claim()
    assert (claim.id, claim.crashes) == (neighbour, 1)
    store.queue.release(claim)
    assert "is frozen by C code" in project.log()
    assert "another one takes its place" not in project.log()


@pytest.mark.parametrize("signals", [1, 2])
def test_a_stop_while_a_task_is_stuck(project: Project, store: Store, signals: int) -> None:
    """It is not waited for; its attempt has failed all the same, and the exit code is 0."""
    neighbour = store.enqueue("slow", "neighbour")
    worker = project.worker("--shutdown-timeout", "60")
    note_of(project, "begun neighbour")
    store.enqueue("in_c_code")
    note_of(project, "begun stuck")
    wait_until(lambda: children_of(worker.pid))
    worker.terminate()
    if signals == 2:
        wait_until(lambda: "Stopping" in project.log())
        time.sleep(0.3)  # past the timeout, not past the grace
        worker.terminate()
    else:
        time.sleep(0.2 + GRACE)
        assert worker.poll() is None  # the neighbour has its time
        project.touch("neighbour")
    assert stopped(worker, within=3)
    assert store.dead() == [("app.tasks.in_c_code", "TaskTimeout")]
    if signals == 2:
        claim = store.claim()
        assert (claim.id, claim.crashes) == (neighbour, 0)
        store.queue.release(claim)
    else:
        assert store.pending() == 0


def test_without_a_supervisor_the_thread_is_left_behind(project: Project, store: Store) -> None:
    """Under ``call_command`` nothing can be replaced: the work goes on beside it."""
    for task in ("in_c_code", "swallows"):
        store.enqueue(task)
    store.enqueue("hello", 1)
    project.run(
        """
        import threading
        from django.core.management import call_command

        call_command("deferred_worker", "--threads", "1", "--drain")
        note("alive", threading.active_count() > 1)
        os._exit(0)
        """
    )
    assert len([note for note in project.notes() if note.startswith("begun stuck")]) == 2
    assert any(note.startswith("hello 1") for note in project.notes())
    assert "alive True" in project.notes()
    assert store.dead() == [
        ("app.tasks.in_c_code", "TaskTimeout"),
        ("app.tasks.swallows", "TaskTimeout"),
    ]
    assert store.pending() == 0
