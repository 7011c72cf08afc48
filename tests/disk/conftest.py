"""Fixtures for the disk store's tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deferred_django.backends.disk import descriptors
from deferred_django.backends.disk.tasks_storage import TasksStorage
from tests.disk import support

Opener = Callable[..., TasksStorage]


@pytest.fixture
def opener(tmp_path: Path) -> Iterator[Opener]:
    """Opens storages on one directory; at the end all are closed and no descriptor is left."""
    before = set(descriptors.open_descriptors())
    opened: list[TasksStorage] = []

    def make(prefix: str = support.PREFIX, **options: Any) -> TasksStorage:
        opened.append(support.open_storage(tmp_path / "store", prefix, **options))
        return opened[-1]

    yield make
    for storage in opened:
        storage.close()
    left = {fd: path for fd, path in descriptors.open_descriptors().items() if fd not in before}
    # Claims that a test leaves behind keep their descriptors until the process ends.
    assert all("0-" in path for path in left.values()), left


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The directory of ``opener``'s storages."""
    return tmp_path / "store"


@pytest.fixture
def producer(opener: Opener) -> TasksStorage:
    """A storage as a web process has it."""
    return opener()


@pytest.fixture
def worker(opener: Opener) -> TasksStorage:
    """A storage as a worker process has it."""
    return opener()
