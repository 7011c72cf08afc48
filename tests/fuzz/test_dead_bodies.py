"""Dead tasks' lines with a good checksum over a body that is no record of a dead task."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deferred_django.backends.base import BackendConfig, DeadTaskFilter
from deferred_django.backends.disk import DiskBackend
from tests.disk.dlq import line
from tests.fuzz import mutations

PREFIX = "d-"
TEXTS = ("id", "task_class", "queue", "exception_class", "exception_message")
ODD: list[Any] = [
    *(
        None,
        True,
        -1,
        5,
        10**30,
        1.5,
        1e308,
        "",
        "a b",
        "\ud800\u202e\n\x1b[31m",
        [],
        [1],
        [[]],
        {},
    ),
    {"a": {"b": []}},
]
NAMES = (*TEXTS, "attempts", "enqueued_at", "failed_at", "backtrace", "context")


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[DiskBackend]:
    backend = DiskBackend(BackendConfig(path=tmp_path, prefix=PREFIX))
    yield backend
    backend.close()


def write(path: Path, *bodies: bytes) -> list[str]:
    """A record of each body, between two that are whole; their ids, newest first."""
    ids = [f"1700000000-1-a-{number}" for number in range(len(bodies))]
    lines = [line(name, body) for name, body in zip(ids, bodies, strict=True)]
    (path / f"{PREFIX}dead_tasks-0").write_bytes(b"".join(lines))
    return ids[::-1]


def check_form(record: dict[str, Any]) -> None:
    assert all(isinstance(record[name], str) for name in TEXTS)
    assert type(record["attempts"]) is int
    assert all(abs(record[name]) <= 1e15 for name in ("enqueued_at", "failed_at"))
    assert all(isinstance(each, str) for each in record["backtrace"])
    assert isinstance(record["context"], bytes)


def test_every_field_may_hold_anything(tmp_path: Path, backend: DiskBackend) -> None:
    bodies = [json.dumps({name: value}).encode() for name in NAMES for value in ODD]
    ids = write(tmp_path, *bodies, *mutations.BODIES, b"[" * 100_000)
    records = backend.list_dead_tasks()
    assert [record["id"] for record in records] == ids
    assert backend.count_dead_tasks() == len(ids)
    for record in records:
        check_form(record)
        assert backend.find_dead_task(record["id"]) == record
    for filter in (
        DeadTaskFilter(since=1.0, until=2e9),
        DeadTaskFilter(until=1_600_000_000.0),  # what a purge by age would take
        DeadTaskFilter(task="x", exception="y"),
        DeadTaskFilter(search="z", queue="default"),
    ):
        found = backend.list_dead_tasks(filter=filter)
        assert found == [record for record in records if filter.matches(record)]
        assert backend.count_dead_tasks(filter=filter) == len(found)
    assert backend.remove_dead_tasks(ids) == len(ids)
    assert backend.list_dead_tasks() == []


def test_the_id_in_the_line_counts(tmp_path: Path, backend: DiskBackend) -> None:
    """What is listed can be found, run again and purged, whatever the record says it is."""
    [name] = write(tmp_path, b'{"id":"another","queue":"a b","context":"x"}')
    [record] = backend.list_dead_tasks()
    assert record["id"] == name
    taken: list[dict[str, Any]] = []
    assert backend.take_dead_tasks([name], taken.append) == [name]
    assert taken == [record]
    assert taken[0]["queue"] == "default", "no task could be added to a queue of another name"
