"""The stores that a schedule begins with, and what is in them."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from deferred_django.backends.base import BackendConfig
from deferred_django.backends.disk.backend import DiskBackend
from deferred_django.backends.disk.dead_tasks_storage import DeadTasksStorage
from tests.schedules.child import LOCK_SECONDS
from tests.schedules.model import LATER

PREFIX = "s-"
PAST, FUTURE = 1_000_000_000.0, 4_000_000_000.0


def open_backend(
    directory: str, *, fsync_frequency: float = 0.0, lock_seconds: float = LOCK_SECONDS
) -> DiskBackend:
    """A backend as a process of its own has it."""
    config = BackendConfig(path=Path(directory), prefix=PREFIX, fsync_frequency=fsync_frequency)
    backend = DiskBackend(config)
    backend.dead_tasks = DeadTasksStorage(directory, PREFIX, lock_timeout=lock_seconds)
    return backend


def bury(backend: DiskBackend, task_id: str, tag: str) -> None:
    """Add a dead task."""
    error = ValueError(tag)
    backend.add_dead_task(task_id, tag.encode(), error, task_class="t", attempts=1)


@dataclass(frozen=True)
class Store:
    """The files of a directory, and the tasks in them: (id, tag), the oldest first."""

    files: dict[str, bytes] | None
    """``None``: there is no directory."""
    pending: tuple[tuple[str, str, int], ...] = ()
    """With the number of runs that ended with the death of their worker."""
    dead: tuple[tuple[str, str], ...] = ()
    flawed: bool = False
    """Unfinished writes are in it, as killed processes leave them."""

    def lay_out(self, directory: str) -> None:
        """Make the directory, which is not there."""
        if self.files is None:
            return
        os.mkdir(directory, 0o700)
        for name, content in self.files.items():
            fd = os.open(os.path.join(directory, name), os.O_WRONLY | os.O_CREAT, 0o600)
            os.write(fd, content)
            os.close(fd)


def _made(fill: Callable[[DiskBackend, str], None]) -> dict[str, bytes]:
    scratch = tempfile.mkdtemp()
    try:
        directory = os.path.join(scratch, "store")
        backend = open_backend(directory)
        fill(backend, directory)
        backend.close()
        pid = f"-{os.getpid()}-"  # in the order of names between those of two processes
        return {
            name.replace(pid, "-400-"): Path(directory, name).read_bytes()
            for name in sorted(os.listdir(directory))
        }
    finally:
        shutil.rmtree(scratch)


def _fill_log(backend: DiskBackend, *live: str) -> None:
    """Tasks that are done, so that the segment is worth a compaction, around the live ones."""
    for task_id in ("f1", "f2", *live, "f3", "f4"):
        later = task_id == "d"
        tag = f"{task_id}0{LATER if later else ''}"
        backend.add_task(tag.encode(), task_id=task_id, publish_at=FUTURE if later else PAST)
    for claim in backend.claim_tasks(9, ids=["f1", "f2", "f3", "f4"]):
        backend.start_task(claim)
        backend.complete_task(claim)


def _fill_dead(backend: DiskBackend) -> None:
    for task_id, tag in (("p", "p0"), ("q", "q0"), ("p", "p1"), ("r", "r0")):
        bury(backend, task_id, tag)


_PENDING = (("x", "x0", 1), ("d", "d0" + LATER, 0), ("y", "y0", 0))
_DEAD = (("p", "p0"), ("q", "q0"), ("p", "p1"), ("r", "r0"))


def _fill_live(backend: DiskBackend, _: str) -> None:
    _fill_log(backend, "x", "d", "y")
    [claim] = backend.claim_tasks(1, ids=["x"])
    backend.start_task(claim)
    backend.tasks._claims.let_go(claim.handle)  # as the death of the worker does
    _fill_dead(backend)


def _fill_drained(backend: DiskBackend, _: str) -> None:
    _fill_log(backend)
    bury(backend, "p", "p0")


def _fill_torn(backend: DiskBackend, directory: str) -> None:
    _fill_live(backend, directory)
    backend.close()
    for name in os.listdir(directory):
        if name.endswith((".lock", ".tmp")):
            continue
        with open(os.path.join(directory, name), "r+b") as file:
            content = file.read()
            last = content.rstrip(b"\n").rpartition(b"\n")[2]
            file.write((b"" if name.endswith("dead_tasks-0") else b"\n") + last[:-3])
        with open(os.path.join(directory, name + ".tmp"), "wb") as file:
            file.write(content[:50])


def make_all() -> dict[str, Store]:
    """The stores by name."""
    return {
        "live": Store(_made(_fill_live), _PENDING, _DEAD),
        "drained": Store(_made(_fill_drained), (), (("p", "p0"),)),
        "torn": Store(_made(_fill_torn), _PENDING, _DEAD, flawed=True),
        "absent": Store(None),
    }
