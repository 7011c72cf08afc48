"""Odd bytes all the way: a worker runs tasks with any context, people look at odd dead tasks."""

from __future__ import annotations

import io
import json
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import override_settings

from deferred_django import deferred
from deferred_django.backends.disk import DiskBackend, locks
from deferred_django.execution import Outcome, execute
from deferred_django.registry import get_backend, get_queue
from tests.disk.dlq import line
from tests.fuzz import contexts, mutations
from tests.fuzz.levels import bounded
from tests.fuzz.test_dead_bodies import NAMES, ODD

TOO_LONG = 60
CALL = b'{"v":1,"task":"a.b","at":5.0,"args":[%b],"kwargs":{}}'
MORE: tuple[bytes, ...] = (
    b"",
    b"null",
    b"\xff\n\\\0",
    b"[" * 100_000,
    CALL % b"1e999",  # could be read, and never be written again
    CALL % (b"[" * 300 + b"]" * 300),
    CALL % (b"[" * 400 + b"]" * 400),
)


@deferred(max_retries=1, retry_interval=lambda error, attempt: 0)
def take(*args: Any, **kwargs: Any) -> object:
    if len(args) != 2:
        raise ValueError(repr(args)[:100])
    return None


@pytest.fixture(autouse=True)
def _bounded() -> Iterator[None]:
    """An outcome that cannot be written is tried again for ever."""
    with bounded(TOO_LONG):
        yield


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[DiskBackend]:
    with override_settings(DEFERRED={"PATH": tmp_path, "PREFIX": "e-"}):
        made = get_backend()
        assert isinstance(made, DiskBackend)
        yield made
        made.close()


def run_all() -> Counter[Outcome]:
    outcomes: Counter[Outcome] = Counter()
    queue = get_queue()
    while claims := queue.claim(10):
        for claim in claims:
            outcomes[execute(queue, claim, resolve=lambda name: take)] += 1
    return outcomes


@pytest.mark.parametrize("seed", range(2))
def test_a_worker_meets_any_contexts(backend: DiskBackend, seed: int) -> None:
    """Each task ends, by success or as a dead task that keeps its bytes, and can be run again."""
    data = {}
    for number in range(60):
        made = contexts.mutated(random.Random(f"{seed} {number}"))
        data[backend.add_task(made, priority=number - 5)] = made
    for made in MORE:
        data[backend.add_task(made)] = made
    with contexts.nothing_runs(imports=True):
        outcomes = run_all()
    assert outcomes[Outcome.SUCCEEDED] + outcomes[Outcome.DIED] == len(data)
    assert backend.pending_tasks() == []
    dead = {record["id"]: record for record in backend.list_dead_tasks()}
    assert len(dead) == outcomes[Outcome.DIED]
    for name, record in dead.items():
        if record["task_class"] == "(unreadable)":
            assert record["context"] == data[name]
    assert sorted(get_queue().retry_dead_tasks(dead)) == sorted(dead)
    again = run_all()
    assert again[Outcome.SUCCEEDED] == 0
    assert {record["id"] for record in backend.list_dead_tasks()} == set(dead)


def command(*arguments: str) -> str:
    out, err = io.StringIO(), io.StringIO()
    call_command("deadtasks", *arguments, stdout=out, stderr=err)
    return out.getvalue()


def test_people_look_at_any_dead_tasks(backend: DiskBackend, tmp_path: Path) -> None:
    bodies = [json.dumps({name: value}).encode() for name in NAMES for value in ODD]
    bodies += [*mutations.BODIES, *MORE[:2], b"[" * 100_000, b'{"a":' * 300 + b"1" + b"}" * 300]
    bodies += [json.dumps({"context": context.decode("latin-1")}).encode() for context in MORE]
    ids = [f"1700000000-1-a-{number}" for number in range(len(bodies))]
    content = b"".join(line(name, body) for name, body in zip(ids, bodies, strict=True))
    (tmp_path / "e-dead_tasks-0").write_bytes(content)
    assert [record["id"] for record in json.loads(command("list", "--format", "json"))] == ids[::-1]
    assert ids[-1] in command("list", "--limit", "500")
    for name in ids:
        assert name in command("show", name)
        assert json.loads(command("show", name, "--format", "json"))["id"] == name
    command("list", "--since", "2020-01-01", "--search", "x", "--task", "x")
    command("retry", "--all", "--noinput")
    assert {task.id for task in backend.pending_tasks()} == set(ids)
    assert run_all()[Outcome.DIED] == len(ids)
    command("purge", "--older-than", "30d", "--noinput")
    command("purge", "--all", "--noinput")
    assert command("list").strip() == "No dead tasks."


WORKERS: tuple[bytes, ...] = (
    b"",
    b"null",
    b"[]",
    b"\xff",
    b"[" * 60_000,
    b'{"pid":1e999,"host":"h","started_at":5}',
    b'{"pid":1,"host":"h","started_at":NaN}',
    b'{"pid":1,"host":"h","started_at":1e300,"threads":-1,"queues":[[1],{}]}',
    b'{"pid":-1,"host":"\\u001b[31m","started_at":5,"queues":5}',
    b'{"pid":%b,"host":[],"started_at":-1}' % (b"9" * 400),
    b'{"pid":1,"host":"%b","started_at":5}' % (b"x" * 70_000),
)


def test_people_look_at_any_workers(backend: DiskBackend, tmp_path: Path) -> None:
    """Of files that somebody locks, as only a living worker does."""
    held = []
    try:
        for number, content in enumerate(WORKERS):
            path = tmp_path / f"e-worker-0-{number:013}"
            path.write_bytes(content)
            fd = os.open(path, os.O_RDWR)
            held.append(fd)
            assert locks.try_whole(fd)
        for format in ("table", "json"):
            out = io.StringIO()
            call_command("deferred_status", "--format", format, stdout=out)
            assert "\x1b" not in out.getvalue()
        assert len(json.loads(out.getvalue())["workers"]) == 2, "the others say no time or no pid"
        backend.maintain()
        assert len(list(tmp_path.glob("e-worker-*"))) == len(WORKERS)
    finally:
        for fd in held:
            os.close(fd)
