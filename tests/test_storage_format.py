"""``docs/storage-format.md`` is enough to write another reader: this is one, written from it.

It imports nothing of the package, and must see what the package sees.
"""

from __future__ import annotations

import json
import random
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deferred_django.backends.base import Backend, BackendConfig
from deferred_django.backends.disk import DiskBackend

PREFIX = "app-0-"


def good_bodies(data: bytes) -> Iterator[bytes]:
    """The bodies of the good records among a file's lines."""
    for line in data.split(b"\n"):
        crc, colon, body = line[:8], line[8:9], line[9:]
        if colon == b":" and crc == b"%08x" % zlib.crc32(body):
            yield body


def unescape(payload: bytes) -> bytes:
    """A log record's payload."""
    meaning = {b"n": b"\n", b"0": b"\0", b"\\": b"\\"}
    return re.sub(rb"\\(.)", lambda match: meaning[match[1]], payload)


def read_segment(data: bytes) -> dict[str, tuple[int, int, str, bytes]]:
    """The pending tasks of a segment: publish_at in ms, priority, queue and payload by id."""
    tasks: dict[str, tuple[str, tuple[int, int, str, bytes]]] = {}
    for body in good_bodies(data):
        op, task_id, nonce, *rest = body.decode("latin-1").split(":", 6)
        if op == "add":
            publish_at, priority, queue, payload = rest
            values = (int(publish_at), int(priority), queue, unescape(payload.encode("latin-1")))
            tasks[task_id] = (nonce, values)
        elif op == "rem" and tasks.get(task_id, ("",))[0] == nonce:
            del tasks[task_id]
    return {task_id: values for task_id, (_, values) in tasks.items()}


def read_pending(directory: Path) -> dict[str, tuple[int, int, str, bytes]]:
    """The pending tasks of the store."""
    form = re.compile(re.escape(PREFIX) + r"0-[0-9]{8}-[0-9]+-[0-9a-z]+")
    found: dict[str, tuple[int, int, str, bytes]] = {}
    for path in directory.iterdir():
        if form.fullmatch(path.name):
            found.update(read_segment(path.read_bytes()))
    return found


def read_dead(directory: Path) -> dict[str, dict[str, Any]]:
    """The dead tasks of the store, by id."""
    found = {}
    for body in good_bodies((directory / f"{PREFIX}dead_tasks-0").read_bytes()):
        kind, task_id, record = body.split(b":", 2)
        assert kind == b"dead_task"
        found[task_id.decode()] = json.loads(record)
    return found


def pending_of(backend: Backend) -> dict[str, tuple[int, int, str, bytes]]:
    """What the package says is pending."""
    return {
        task.id: (round(task.publish_at * 1000), task.priority, task.queue, task.context)
        for task in backend.pending_tasks()
    }


@pytest.mark.parametrize("seed", range(3))
def test_another_reader_sees_the_same_tasks(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    alphabet = [b"\n", b"\\", b"\\n", b":", b"\r", b"\x00", "\u2028é".encode(), b"x" * 50]
    backend = DiskBackend(BackendConfig(path=tmp_path, prefix=PREFIX))
    ids = [f"task-{number}" for number in range(12)]
    for _ in range(150):
        choice = rng.random()
        if choice < 0.5:
            backend.add_task(
                b"".join(rng.choices(alphabet, k=rng.randrange(6))),
                task_id=rng.choice(ids),
                publish_at=rng.choice([0.0, 1792888200.123, 4000000000.5]),
                queue=rng.choice(["default", "mail"]),
                priority=rng.randrange(-3, 4),
            )
        elif choice < 0.55:
            backend.remove_task(rng.choice(ids))
        else:
            for claim in backend.claim_tasks(1):
                backend.start_task(claim)
                if choice < 0.7:
                    backend.complete_task(claim)
                elif choice < 0.85:
                    backend.reschedule_task(claim, claim.context + b"!", publish_at=0.0)
                else:
                    backend.release_task(claim)
    assert read_pending(tmp_path) == pending_of(backend)
    backend.close()
    for path in tmp_path.iterdir():  # what the unfinished write of a dead process looks like
        with path.open("ab") as file:
            file.write(b"\n12345678:add:torn:n1:0:0:defa")
    assert read_pending(tmp_path) == pending_of(backend)
    backend.close()


def test_another_reader_sees_the_same_dead_tasks(tmp_path: Path) -> None:
    backend = DiskBackend(BackendConfig(path=tmp_path, prefix=PREFIX))
    for number in range(20):
        context = bytes(range(256))[number:]
        error = ValueError(f"no. {number}: a\nb\\n\u2028\udcff")
        backend.add_dead_task(f"task-{number % 15}", context, error, task_class="a.b", attempts=3)
    backend.remove_dead_tasks(["task-3", "task-4"])
    backend.add_dead_task("task-4", b"again", ValueError("x"), task_class="a.b", attempts=1)
    found = {
        task_id: {**record, "context": record["context"].encode("latin-1")}
        for task_id, record in read_dead(tmp_path).items()
    }
    assert found == {record["id"]: record for record in backend.list_dead_tasks()}
    assert len(found) == 14
    backend.close()
