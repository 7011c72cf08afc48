"""Dead-tasks stores for tests, and looks at their files."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from deferred_django.backends.disk import dead_tasks_file, descriptors, files
from deferred_django.backends.disk.dead_tasks_storage import DeadTasksStorage
from tests.support import wait_until

PREFIX = "d-"


def open_store(path: Path, prefix: str = PREFIX, **options: Any) -> DeadTasksStorage:
    return DeadTasksStorage(str(path), prefix, **options)


def filled(path: Path, *names: str) -> DeadTasksStorage:
    """A store with one record for each name, whose record says the name."""
    store = open_store(path)
    for name in names:
        store.add(name, record(name))
    return store


def record(name: str, size: int = 0) -> bytes:
    return b'{"says": "%b"}' % name.encode() + b" " * size


def line(name: str, data: bytes | None = None) -> bytes:
    """The line of a record, with its newline."""
    return dead_tasks_file.encode(name, record(name) if data is None else data)


def data_file(path: Path, prefix: str = PREFIX) -> Path:
    return path / f"{prefix}dead_tasks-0"


def lock_file(path: Path, prefix: str = PREFIX) -> Path:
    return path / f"{prefix}dead_tasks.lock"


def removal_lock_file(path: Path, prefix: str = PREFIX) -> Path:
    return path / f"{prefix}dead_tasks-removal.lock"


def temp_file(path: Path, prefix: str = PREFIX) -> Path:
    return path / f"{prefix}dead_tasks-0.tmp"


def names(store: DeadTasksStorage) -> list[str]:
    """The ids, newest first; whatever way they are read, they are the same."""
    by_index = [name for name, _ in store.read()]
    fresh = _again(store)
    from_end = [name for name, _ in fresh.read(limit=1000)]
    assert from_end == by_index
    assert [name for name, _ in fresh.read()] == by_index
    assert store.count() == fresh.count() == len(by_index)
    return by_index


def _again(store: DeadTasksStorage) -> DeadTasksStorage:
    file = store._file
    return DeadTasksStorage(file.directory, os.path.basename(file.path)[: -len("dead_tasks-0")])


def take_all(store: DeadTasksStorage, ids: Iterable[str]) -> list[tuple[str, bytes]]:
    """Take records out of the store, as a retry does."""
    taken: list[tuple[str, bytes]] = []
    done = store.take(ids, lambda name, data: taken.append((name, data)), lambda: None)
    assert [name for name, _ in taken] == done
    return taken


def assert_at_rest(path: Path, *, stale_temp: bool = False) -> None:
    """No descriptor is open, both locks are free, and no temp file is left (but a stale one)."""
    inside = str(path) + os.sep

    def nothing_is_open() -> bool:
        return not any(name.startswith(inside) for name in descriptors.open_descriptors().values())

    wait_until(nothing_is_open)  # a thread that waited for a lock may just be letting go
    temps = [name for name in path.glob("*") if name.suffix == ".tmp"]
    assert stale_temp or not temps
    for lock in (lock_file(path), removal_lock_file(path)):
        if lock.exists():
            with lock.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def reads_of(action: Callable[[], Any]) -> int:
    """Bytes of files that an action reads."""
    real, total = files.read_at, 0

    def counting(fd: int, size: int, offset: int) -> bytes:
        nonlocal total
        data = real(fd, size, offset)
        total += len(data)
        return data

    files.read_at = counting
    try:
        action()
    finally:
        files.read_at = real
    return total
