"""A store in a directory of its own, the backends on it, and what is in it."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from deferred_django.backends.base import BackendConfig, ClaimedTask
from deferred_django.backends.disk import descriptors
from deferred_django.backends.disk.backend import DiskBackend
from deferred_django.context import TaskContext
from deferred_django.queue import Queue

PREFIX = "f-"
PAST = 1_000_000_000.0
FUTURE = 4_000_000_000.0
NEVER = 600.0
"""Seconds: the timer does not come of itself; the operations call it."""
LOCK_SECONDS = 0.3

SHM = Path("/dev/shm")
ROOT = str(SHM) if os.access(SHM, os.W_OK) else None
"""Where an fsync costs nothing."""


@dataclass(frozen=True)
class State:
    """What is in a store, by the ids."""

    pending: dict[str, str]
    dead: dict[str, str]

    def places(self, task_id: str) -> tuple[str | None, str | None]:
        """What the pending and the dead tasks say of the task."""
        return self.pending.get(task_id), self.dead.get(task_id)


def context(name: str, attempts: int = 0, size: int = 0) -> bytes:
    """The bytes of a task that the queue can read; ``size`` more than it needs."""
    arguments = [name, "x" * size]
    return TaskContext("app.tasks.x", arguments, {}, enqueued_at=PAST, attempts=attempts).to_bytes()


def summary(data: bytes) -> str:
    """Which call it is and how often it was tried; not when."""
    found = TaskContext.from_bytes(data)
    return f"{found.args[0]}, attempts: {found.attempts}"


def open_backend(path: Path, frequency: float = NEVER) -> DiskBackend:
    backend = DiskBackend(BackendConfig(path=path, prefix=PREFIX, fsync_frequency=frequency))
    backend.tasks._syncer._period = NEVER
    backend.dead_tasks._lock.timeout = LOCK_SECONDS
    backend.dead_tasks._removal_lock.timeout = LOCK_SECONDS
    return backend


def read_state(path: Path) -> State:
    """What a process that starts now finds."""
    backend = open_backend(path)
    try:
        pending = {task.id: summary(task.context) for task in backend.pending_tasks()}
        dead = {record["id"]: summary(record["context"]) for record in backend.list_dead_tasks()}
    finally:
        backend.close()
    return State(pending, dead)


def process_descriptors() -> dict[int, str]:
    """All descriptors of this process and what they lead to."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the one of the listing itself
            continue
    return found


@dataclass
class World:
    """One store; ``subject`` is the backend whose calls fail."""

    frequency: float
    root: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="faults-", dir=ROOT)))
    claims: list[ClaimedTask] = field(default_factory=list)
    """What the subject holds."""
    opened: list[DiskBackend] = field(default_factory=list)
    notes: dict[str, object] = field(default_factory=dict)
    """What an operation keeps for its own checks."""

    def __post_init__(self) -> None:
        self.path = self.root / "store"
        self.descriptors = process_descriptors()
        self.registered = set(descriptors.open_descriptors())
        self.subject = self.backend(self.frequency)
        self.queue = Queue(self.subject)

    def backend(self, frequency: float = NEVER) -> DiskBackend:
        """Another backend on the store; closed with the world."""
        self.opened.append(open_backend(self.path, frequency))
        return self.opened[-1]

    def enqueue(self, *names: str, by: DiskBackend | None = None, size: int = 0) -> None:
        """Pending tasks of these ids, durable in a segment that nobody owns; or the producer's."""
        backend = by or self.backend()
        for name in names:
            backend.add_task(context(name, size=size), task_id=name, publish_at=PAST)
        if by is None:
            backend.close()

    def bury(self, *names: str) -> None:
        """Dead tasks of these ids."""
        backend = self.backend()
        for name in names:
            backend.add_dead_task(
                name, context(name), ValueError(name), task_class="app.tasks.x", attempts=3
            )

    def claim(self, *names: str) -> list[ClaimedTask]:
        """Have the subject claim these tasks."""
        claims = self.subject.claim_tasks(len(names), ids=names)
        assert len(claims) == len(names)
        self.claims += claims
        return claims

    def held(self) -> set[str]:
        """The ids of what the subject holds."""
        return {claim.id for claim in self.claims if claim.handle is not None}

    def let_go(self) -> None:
        """Put back all that the subject holds."""
        for claim in self.claims:
            if claim.handle is not None:
                self.subject.release_task(claim)
        self.claims.clear()

    def segments(self) -> list[str]:
        return self.subject.tasks.names.segments()

    def remove(self) -> None:
        """Close what is open and remove the directory."""
        try:
            for backend in self.opened:
                backend.close()
        finally:
            shutil.rmtree(self.root, ignore_errors=True)
