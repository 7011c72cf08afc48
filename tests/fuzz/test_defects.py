"""The fuzzing can fail: each deliberate defect is found within a few hundred inputs."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deferred_django.backends.disk import (
    dead_tasks_tail,
    files,
    records,
    scanner,
    tidy,
    verify,
)
from deferred_django.backends.disk.long_line import LongLine
from deferred_django.backends.disk.scanner import Scanner
from deferred_django.backends.disk.segment import Segment
from tests.fuzz import contexts
from tests.fuzz.levels import DeadLevel, LogLevel, quiet
from tests.fuzz.material import Material
from tests.fuzz.stores import StoreLevel

ENOUGH = 400


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    with quiet():
        yield


@pytest.fixture
def material(tmp_path: Path) -> Material:
    (tmp_path / "real").mkdir()
    return Material(tmp_path / "real")


def is_caught(attempt: Callable[[random.Random], None], inputs: int = ENOUGH) -> bool:
    for number in range(inputs):
        try:
            attempt(random.Random(number))
        except Exception:
            return True
    return False


@pytest.fixture
def log_inputs(material: Material) -> Iterator[Callable[[random.Random], None]]:
    level = LogLevel()
    yield lambda chance: level.attempt(material.segment(chance), chance)
    level.close()


def dead_inputs(material: Material, directory: Path) -> Callable[[random.Random], None]:
    level = DeadLevel(directory)
    return lambda chance: level.attempt(material.dead_tasks(chance), chance)


def test_without_a_defect_nothing_is_caught(
    tmp_path: Path, material: Material, log_inputs: Callable[[random.Random], None]
) -> None:
    (tmp_path / "dead").mkdir()
    assert not is_caught(log_inputs, 100)
    assert not is_caught(dead_inputs(material, tmp_path / "dead"), 20)
    assert not is_caught(StoreLevel(tmp_path / "store", material).check, 10)
    assert not is_caught(lambda chance: contexts.check(contexts.mutated(chance)), 100)


def stops_at_the_first_bad_line(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Scanner.read

    def read(self: Scanner, fd: int, end: int | None = None) -> Iterator[tuple[int, int, bytes]]:
        for record in real(self, fd, end):
            if self.damaged:
                return
            yield record

    monkeypatch.setattr(Scanner, "read", read)


def checks_no_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanner, "is_valid", lambda line: len(line) > records.CRC_BYTES)


def drops_records_before_nul_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanner, "before_nul", lambda line: None)
    monkeypatch.setattr(LongLine, "record_before_nul", lambda self: 0)


def forgets_what_came_before_a_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scanner, "_is_rest", lambda self, start, *, nul_first: False)


def counts_torn_as_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanner, "looks_torn", lambda line: False)


def takes_any_escape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "unescape", lambda payload: payload.replace(b"\\n", b"\n"))


@pytest.mark.parametrize(
    "defect",
    [
        stops_at_the_first_bad_line,
        checks_no_checksum,
        drops_records_before_nul_bytes,
        forgets_what_came_before_a_cut,
        counts_torn_as_damage,
        takes_any_escape,
    ],
)
def test_a_defect_of_the_log_reader_is_caught(
    defect: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    log_inputs: Callable[[random.Random], None],
) -> None:
    defect(monkeypatch)
    assert is_caught(log_inputs)


def repairs_one_byte_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    real = files.truncate

    def truncate(fd: int, length: int) -> None:
        size = os.fstat(fd).st_size
        real(fd, length - 1 if 0 < length < size else length)

    monkeypatch.setattr(files, "truncate", truncate)


def takes_every_tail_for_torn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_tasks_tail, "is_valid_at", lambda fd, start, end: False)


@pytest.mark.parametrize("defect", [repairs_one_byte_too_many, takes_every_tail_for_torn])
def test_a_defect_of_the_dead_tasks_is_caught(
    defect: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    material: Material,
    tmp_path: Path,
) -> None:
    (tmp_path / "dead").mkdir()
    defect(monkeypatch)
    assert is_caught(dead_inputs(material, tmp_path / "dead"))


def erases_what_is_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    real = files.rename

    def rename(source: str, target: str) -> None:
        if ".damaged" in target:
            files.unlink(source)
        else:
            real(source, target)

    monkeypatch.setattr(files, "rename", rename)


def verify_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    real = verify.verify_segments

    def verify_segments(names: Any) -> Any:
        found = real(names)
        if found:
            os.utime(found[0].file, (5, 5))
        return found

    monkeypatch.setattr(verify, "verify_segments", verify_segments)


def verify_makes_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    real = verify.verify_segments

    def verify_segments(names: Any) -> Any:
        Path(names.at("lock")).touch()
        return real(names)

    monkeypatch.setattr(verify, "verify_segments", verify_segments)


def compacts_what_is_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidy, "COMPACT_BYTES", 0)
    monkeypatch.setattr(Segment, "is_damaged", False)


@pytest.mark.parametrize(
    "defect",
    [erases_what_is_damaged, verify_writes, verify_makes_a_file, compacts_what_is_damaged],
)
def test_a_defect_of_the_store_is_caught(
    defect: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    material: Material,
    tmp_path: Path,
) -> None:
    defect(monkeypatch)
    assert is_caught(StoreLevel(tmp_path / "store", material).check, 60)
