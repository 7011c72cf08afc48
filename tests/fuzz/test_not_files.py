"""What is no file, at the name of one: nothing hangs, it is reported, and the rest works."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deferred_django.backends.base import BackendConfig
from deferred_django.backends.disk import DiskBackend, descriptors
from tests.fuzz.levels import bounded, quiet

PREFIX = "n-"
SEGMENT = f"{PREFIX}0-20261129-7-zzzzzzzz"
ROLES = {
    "segment": SEGMENT,
    "compaction's copy": f"{SEGMENT}.tmp",
    "damaged segment": f"{SEGMENT}.damaged",
    "dead tasks": f"{PREFIX}dead_tasks-0",
    "removal's copy": f"{PREFIX}dead_tasks-0.tmp",
    "dead tasks' lock": f"{PREFIX}dead_tasks.lock",
    "removals' lock": f"{PREFIX}dead_tasks-removal.lock",
    "worker": f"{PREFIX}worker-0-{'w' * 13}",
}
TOO_LONG = 20


def make_socket(path: Path) -> None:
    # The name of a socket is short: it is made where the path is, not by it.
    before = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(before)


KINDS: dict[str, Callable[[Path], None]] = {
    "directory": lambda path: path.mkdir(),
    "full directory": lambda path: (path / "inner").mkdir(parents=True),
    "fifo": lambda path: os.mkfifo(path),
    "socket": make_socket,
    "link to nowhere": lambda path: path.symlink_to("nowhere"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "endless device": lambda path: path.symlink_to("/dev/zero"),
    "full device": lambda path: path.symlink_to("/dev/full"),
}


@pytest.fixture(autouse=True)
def _bounded() -> Iterator[None]:
    """Opening a FIFO may wait for ever."""
    with bounded(TOO_LONG):
        yield


def open_backend(path: Path) -> DiskBackend:
    return DiskBackend(BackendConfig(path=path, prefix=PREFIX))


def fill(path: Path) -> set[str]:
    """A store with three tasks and two dead tasks; the tasks' ids."""
    backend = open_backend(path)
    ids = {backend.add_task(b"x") for _ in range(3)}
    for name in ("1-1-d-1", "1-1-d-2"):
        backend.add_dead_task(name, b"x", ValueError(), task_class="a.b", attempts=1)
    backend.remove_dead_tasks("nobody")
    backend.close()
    return ids


@contextlib.contextmanager
def may_name(path: Path) -> Iterator[None]:
    """What cannot work says which file is why."""
    try:
        yield
    except OSError as error:
        if path.name not in str(error):
            raise


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("role", ROLES)
def test_what_is_no_file(tmp_path: Path, role: str, kind: str) -> None:
    ids = fill(tmp_path)
    odd = tmp_path / ROLES[role]
    odd.unlink(missing_ok=True)
    KINDS[kind](odd)
    listed = sorted(os.listdir(tmp_path))
    backend = open_backend(tmp_path)

    findings = [found for found in backend.verify() if found.file == str(odd)]
    # A link that leads to a file yet to be made is where the dead tasks may be kept.
    if (role, kind) != ("dead tasks", "link to nowhere"):
        assert [(found.kind, found.offset) for found in findings] == [("unreadable", None)]
        if role in ("segment", "dead tasks"):
            assert any(odd.name in problem for problem in backend.status().problems)
    with may_name(odd):
        assert {record["id"] for record in backend.list_dead_tasks()} <= {"1-1-d-1", "1-1-d-2"}
        assert len(backend.list_dead_tasks(limit=1)) <= 1
    with may_name(odd):
        backend.find_dead_task("1-1-d-1")
    assert {task.id for task in backend.pending_tasks()} == ids
    assert sorted(os.listdir(tmp_path)) == listed

    with may_name(odd):
        backend.add_dead_task("1-1-d-3", b"x", ValueError(), task_class="a.b", attempts=1)
    with may_name(odd):
        backend.remove_dead_tasks(["1-1-d-1"])
    ids.add(backend.add_task(b"new"))
    backend.worker_started()
    backend.status()
    ran = []
    while claims := backend.claim_tasks(10):
        for claim in claims:
            backend.start_task(claim)
            backend.complete_task(claim)
            ran.append(claim.id)
    assert sorted(ran) == sorted(ids)
    backend.maintain()
    backend.close()
    backend = open_backend(tmp_path)
    backend.maintain()
    backend.close()
    left = descriptors.open_descriptors().values()
    assert not [path for path in left if path.startswith(str(tmp_path) + os.sep)]


def test_a_compaction_whose_copy_is_in_the_way(tmp_path: Path) -> None:
    """The segment stays as it is, and its tasks run."""
    backend = open_backend(tmp_path)
    for _ in range(100):
        backend.add_task(b"x" * 2000)
    backend.add_task(b"later", publish_at=4e9)
    backend.close()
    [segment] = tmp_path.glob(f"{PREFIX}0-*")
    (tmp_path / f"{segment.name}.tmp").mkdir()
    backend = open_backend(tmp_path)
    with quiet():
        for claim in backend.claim_tasks(200):
            backend.start_task(claim)
            backend.complete_task(claim)
        backend.maintain()
    size = segment.stat().st_size
    assert size > 100 * 2000
    (tmp_path / f"{segment.name}.tmp").rmdir()
    backend.maintain()
    backend.close()
    assert segment.stat().st_size < size
