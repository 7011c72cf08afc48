"""Fixtures for the tests of the worker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from deferred_django import ids
from deferred_django.backends.base import BackendConfig, ClaimedTask
from deferred_django.backends.disk import DiskBackend
from deferred_django.context import TaskContext
from deferred_django.queue import Queue
from tests.harness import Project
from tests.worker import tasks
from tests.worker.fakes import MemoryBackend


@pytest.fixture(autouse=True)
def clean_tasks() -> Iterator[None]:
    """No notes of another test; whatever waits at a gate is let through at the end."""
    tasks.ran.clear()
    tasks.gates.clear()
    yield
    for gate in tasks.gates.values():
        gate.set()


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend()


@pytest.fixture
def queue(backend: MemoryBackend) -> Queue:
    return Queue(backend)


class Store:
    """A project's store, used from the test's own process: a producer, or another worker."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.backend = DiskBackend(BackendConfig(path=project.storage))
        self.queue = Queue(self.backend)

    def enqueue(self, task: str, *args: Any, **options: Any) -> str:
        """Enqueue a call of a task of ``app.tasks`` by its name."""
        context = TaskContext.build(f"app.tasks.{task}", args, {})
        return self.queue.enqueue(context, task_id=ids.new_id(), **options)

    def claim(self, timeout: float = 10.0) -> ClaimedTask:
        """Claim one task as an idle worker does, as soon as there is one."""
        end = time.monotonic() + timeout
        while not (claims := self.queue.claim(1)):
            assert time.monotonic() < end, "nothing could be claimed"
            self.backend.wait(0.1)
        return claims[0]

    def pending(self) -> int:
        return len(self.backend.pending_tasks())

    def dead(self) -> list[tuple[str, str]]:
        """(task, exception class without its module) of the dead tasks."""
        return sorted(
            (task["task_class"], task["exception_class"].rpartition(".")[2])
            for task in self.backend.list_dead_tasks()
        )


class MakeProject(Protocol):
    def __call__(self, **options: Any) -> Project: ...


@pytest.fixture
def make_project(tmp_path: Path) -> Iterator[MakeProject]:
    """Makes throw-away projects; their workers are ended with the test."""
    projects: list[Project] = []

    def make(**options: Any) -> Project:
        path = tmp_path / str(len(projects))
        projects.append(Project(path, **options))
        return projects[-1]

    yield make
    for project in projects:
        project.close()
