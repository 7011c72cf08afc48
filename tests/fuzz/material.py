"""Real files to begin with: written by the store itself, with every kind of record in them."""

from __future__ import annotations

import random
from pathlib import Path

from deferred_django.backends.base import BackendConfig
from deferred_django.backends.disk import DiskBackend
from tests.fuzz import mutations

SEGMENT, DEAD_TASKS = "0-20261129-7-abcdefgh", "dead_tasks-0"
FUTURE = 4_000_000_000.0


def write_store(directory: Path) -> tuple[bytes, bytes]:
    """Use a store in every way; the bytes of its segment and of its dead-tasks file."""
    backend = DiskBackend(BackendConfig(path=directory, prefix="real-"))
    contexts = [b"short", b'{"v":1,"args":["a\\\\b"]}', b"line\nline\\n\0\r", b"y" * 900, b""]
    for number, context in enumerate(contexts * 2):
        backend.add_task(context, queue="mail" if number % 3 else "default", priority=number - 5)
    backend.add_task(b"later", publish_at=FUTURE)
    first, second, third, fourth, *_ = claims = backend.claim_tasks(9)
    for claim in claims[:4]:
        backend.start_task(claim)
    backend.complete_task(first)
    backend.reschedule_task(second, b"again", publish_at=5.0)
    backend.release_task(third)
    backend.add_dead_task(fourth.id, b"x", ValueError("no\nway"), task_class="a.b", attempts=3)
    backend.complete_task(fourth)
    for claim in claims[4:7]:
        backend.add_dead_task(claim.id, b"\xff", KeyError(5), task_class="c.d", attempts=1)
    backend.remove_dead_tasks(claims[5].id)
    for claim in claims[4:]:
        backend.release_task(claim)
    backend.close()
    [segment] = directory.glob("real-0-*")
    return segment.read_bytes(), (directory / "real-dead_tasks-0").read_bytes()


class Material:
    """Contents of files, real ones and generated ones, mutated."""

    def __init__(self, directory: Path) -> None:
        self._segment, self._dead = write_store(directory)

    def segment(self, chance: random.Random) -> bytes:
        """A segment's content."""
        seed = self._segment if chance.random() < 0.2 else b""
        return mutations.mutate(seed, chance, mutations.log_record)

    def dead_tasks(self, chance: random.Random) -> bytes:
        """A dead-tasks file's content."""
        seed = self._dead if chance.random() < 0.2 else b""
        return mutations.mutate(seed, chance, mutations.dead_record)
