"""Bytes in great number: the work and the memory that they cost are bounded."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from deferred_django.backends.base import BackendConfig
from deferred_django.backends.disk import DiskBackend, dead_tasks_file, files, log_records, scanner
from tests.fuzz.levels import quiet
from tests.fuzz.material import DEAD_TASKS, SEGMENT

PREFIX = "b-"
MIB = 1024 * 1024
TASKS = 300


@pytest.fixture(autouse=True)
def no_log() -> Iterator[None]:
    with quiet():
        yield


def add(number: int) -> bytes:
    return log_records.add(f"1-1-a-{number}", f"n{number}", 5, 0, "default", b"x")


def segment_with(directory: Path, foreign: Callable[[int], bytes], chunks: int) -> Path:
    """A segment of tasks with foreign bytes behind the first half of them."""
    path = directory / f"{PREFIX}{SEGMENT}"
    with path.open("wb") as file:
        for number in range(TASKS // 2):
            file.write(add(number))
        for number in range(chunks):
            file.write(foreign(number))
        for number in range(TASKS // 2, TASKS):
            file.write(add(number))
    return path


def use(directory: Path) -> int:
    """Look at the store in every way and drain it; how many tasks ran."""
    # No timer: a segment that it syncs in this moment is tidied another time.
    config = BackendConfig(path=directory, prefix=PREFIX, fsync_frequency=600)
    backend = DiskBackend(config)
    try:
        backend.verify()
        backend.status()
        backend.list_dead_tasks(limit=20)
        backend.count_dead_tasks()
        ran = 0
        while claims := backend.claim_tasks(10):
            for claim in claims:
                backend.start_task(claim)
                backend.complete_task(claim)
                ran += 1
        backend.maintain()
        return ran
    finally:
        backend.close()


def peak_of(directory: Path) -> int:
    tracemalloc.start()
    try:
        assert use(directory) == TASKS
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


FOREIGN: dict[str, tuple[Callable[[int], bytes], int]] = {
    "one line": (lambda number: b"x" * MIB, 24),
    "zeros": (lambda number: bytes(MIB), 10),
    "newlines": (lambda number: b"\n" * 10_000, 1),
    "log lines": (lambda number: b"Nov 29 18:00:01 web systemd[1]: Started.\n" * 1000, 3),
    "records of another kind": (lambda number: b"352441c2:abc\n" * 1000, 3),
}
"""What is in a chunk, and how many there are."""


@pytest.mark.parametrize("kind", FOREIGN)
def test_megabytes_of_foreign_bytes(tmp_path: Path, kind: str) -> None:
    """In a segment and in the dead-tasks file: all tasks run, and the segment is kept."""
    foreign, chunks = FOREIGN[kind]
    segment = segment_with(tmp_path, foreign, chunks)
    with (tmp_path / f"{PREFIX}{DEAD_TASKS}").open("wb") as file:
        for number in range(chunks):
            file.write(dead_tasks_file.encode(f"1-1-b-{number}", b"{}"))
            file.write(foreign(number))
    assert peak_of(tmp_path) < 8 * MIB
    assert segment.with_name(segment.name + ".damaged").exists() == (kind != "newlines")


def test_a_line_that_is_held_as_a_whole_would_be_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment_with(tmp_path, *FOREIGN["one line"])
    monkeypatch.setattr(scanner, "CHUNK_BYTES", 64 * MIB)
    assert peak_of(tmp_path) > 24 * MIB


def test_a_long_unended_line_is_not_read_at_each_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zeros that a power cut left, or a foreign file: they may be as long as they like."""
    path = segment_with(tmp_path, lambda number: b"", 0)
    os.truncate(path, 16 * MIB)
    read = 0
    real = files.read_at

    def count(fd: int, size: int, offset: int) -> bytes:
        nonlocal read
        data = real(fd, size, offset)
        read += len(data)
        return data

    monkeypatch.setattr(files, "read_at", count)
    assert use(tmp_path) == TASKS
    # Some looks for verify and status, and one for each time that records came behind it.
    assert read < 16 * 16 * MIB
