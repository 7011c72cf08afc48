"""A project with this app alone, and without a database, in processes of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import Project

SETTINGS = """
INSTALLED_APPS = ["deferred_django"]
DATABASES = {}
del DEFERRED, LOGGING
"""
TASKS = """
@deferred
def greet(name, *, times=1):
    note(*["hello", name] * times)

@deferred(max_retries=0)
def die():
    raise ValueError("for good")
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """The smallest project. Its task module is imported by the tasks' names, on demand."""
    with Project(tmp_path, settings=SETTINGS, tasks=TASKS) as project:
        yield project


def manage(project: Project, *arguments: str) -> str:
    """What the command printed; it must end well and complain about nothing."""
    done = project.manage(*arguments)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


def test_check_enqueue_drain_and_list(project: Project) -> None:
    """Nothing is installed but the app; there is no database and no DEFERRED setting."""
    assert "no issues" in manage(project, "check")
    assert json.loads(manage(project, "deadtasks", "list", "--format", "json")) == []
    assert not project.storage.exists()  # neither command has a reason to make it

    project.run(
        "greet.enqueue('world', times=2); die.enqueue(); greet.using(delay=600).enqueue('x')"
    )
    status = json.loads(manage(project, "deferred_status", "--format", "json"))
    assert (status["pending"], status["delayed"], status["dead"]) == (2, 1, 0)

    project.drain()
    assert project.notes() == ["hello world hello world"]
    (dead,) = json.loads(manage(project, "deadtasks", "list", "--format", "json"))
    assert dead["task_class"] == "app.tasks.die"
    assert dead["exception_class"] == "ValueError"
    assert dead["context"] == {"args": [], "kwargs": {}}
    assert "app.tasks.die" in manage(project, "deadtasks", "list")
    assert "for good" in manage(project, "deadtasks", "show", dead["id"])

    manage(project, "deadtasks", "purge", "--all", "--noinput")
    status = json.loads(manage(project, "deferred_status", "--format", "json"))
    assert (status["pending"], status["delayed"], status["dead"]) == (0, 1, 0)
    assert manage(project, "deferred_verify")
