"""``deferred_worker --autoreload``: real processes, files that change."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.harness import Project, children_of, is_alive
from tests.support import wait_until
from tests.worker.conftest import MakeProject, Store

TASKS = """
@deferred
def version():
    from app import helper
    note("version", {number}, helper.NAME)

@deferred
def slow(name):
    note("begun", name, {number}, os.getpid())
    wait_for_file(name, 60)
    note("ended", name, {number})
"""
TIMEOUT = 30


@pytest.fixture
def project(make_project: MakeProject) -> Project:
    project = make_project(tasks=TASKS.format(number=1))
    write_helper(project, "first")
    return project


@pytest.fixture
def store(project: Project) -> Iterator[Store]:
    store = Store(project)
    yield store
    store.backend.close()


def write_helper(project: Project, name: str) -> None:
    """A module that only a running task imports. The new one has another time in any case."""
    path = project.path / "app" / "helper.py"
    path.write_text(f"NAME = {name!r}\n")


def processes(top: int) -> set[int]:
    """The process and all that descend from it."""
    found = {top}
    for pid in children_of(top):
        found |= processes(pid)
    return found


def note_of(project: Project, store: Store, task: str) -> str:
    """What the task notes when it runs next."""
    before = len(project.notes())
    store.enqueue(task)
    wait_until(lambda: len(project.notes()) > before, timeout=TIMEOUT)
    return project.notes()[-1]


def test_the_workers_begin_anew_when_the_code_changes(project: Project, store: Store) -> None:
    """Running tasks are finished or put back; a module of one task only counts; errors can be
    mended; a signal to all processes at once counts once."""
    worker = project.worker("--autoreload", "--processes", "2", "--shutdown-timeout", "0.2")
    assert note_of(project, store, "version") == "version 1 first"

    # What runs and does not end in time is put back, and runs with the new code.
    store.enqueue("slow", "long")
    wait_until(lambda: any(note.startswith("begun long 1") for note in project.notes()), TIMEOUT)
    project.write_tasks(TASKS.format(number=2))
    wait_until(lambda: any(note.startswith("begun long 2") for note in project.notes()), TIMEOUT)
    project.touch("long")
    wait_until(lambda: "ended long 2" in project.notes(), TIMEOUT)
    assert note_of(project, store, "version") == "version 2 first"

    # The helper was imported by a task, in one of the worker processes.
    write_helper(project, "second")
    wait_until(lambda: project.log().count("worker: the code has changed") == 2, TIMEOUT)
    assert note_of(project, store, "version") == "version 2 second"

    # A module that cannot be imported is watched too.
    project.write_tasks("def broken(:\n")
    wait_until(lambda: "app.tasks could not be imported" in project.log(), TIMEOUT)
    project.write_tasks(TASKS.format(number=3))
    assert note_of(project, store, "version") == "version 3 second"

    # And a project that cannot even be set up.
    settings = (project.path / "settings.py").read_text()
    (project.path / "app" / "models.py").write_text("import a_module_that_is_missing\n")
    (project.path / "settings.py").write_text(settings + "\n")
    wait_until(lambda: "waiting for a change" in project.log(), TIMEOUT)
    (project.path / "app" / "models.py").write_text("")
    assert note_of(project, store, "version") == "version 3 second"

    everything = processes(worker.pid)
    assert len(everything) == 4
    os.killpg(worker.pid, signal.SIGINT)
    assert worker.wait(20) == 0
    wait_until(lambda: not any(map(is_alive, everything)), timeout=5)
    assert store.dead() == []
    assert store.pending() == 0


def test_its_processes_end_with_it(project: Project, store: Store) -> None:
    """One in a long task too: what runs is due again, no attempt and no crash counted."""
    store.enqueue("slow", "long")
    worker = project.worker("--autoreload", "--processes", "2", "--shutdown-timeout", "0.2")
    wait_until(lambda: len(project.notes()) == 1, TIMEOUT)
    everything = processes(worker.pid)
    assert len(everything) == 4
    worker.kill()
    wait_until(lambda: not any(map(is_alive, everything)), timeout=5)
    claim = store.claim()
    assert claim.crashes == 0
    store.queue.release(claim)
