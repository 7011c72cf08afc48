"""Fixtures for the tests of the worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

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
