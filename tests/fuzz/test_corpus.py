"""The corpus that the guided fuzzers begin with: inputs that once showed something."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import contexts
from tests.fuzz.levels import DeadLevel, LogLevel, quiet
from tests.fuzz.sealed import CHANGE, SMALL, sealed, unpack

CORPUS = Path(__file__).parent / "corpus"


def inputs(kind: str) -> list[Path]:
    found = sorted((CORPUS / kind).iterdir())
    assert found
    return found


@pytest.mark.parametrize("path", inputs("log"), ids=lambda path: path.name)
def test_segments(path: Path) -> None:
    bits, cuts, content = unpack(path.read_bytes())
    level = LogLevel()
    try:
        for small in {False, bool(bits & SMALL)}:
            level.check(content, cuts, small=small)
    finally:
        level.close()


@pytest.mark.parametrize("path", inputs("dead"), ids=lambda path: path.name)
def test_dead_tasks_files(path: Path, tmp_path: Path) -> None:
    bits, _, content = unpack(path.read_bytes())
    with quiet():
        DeadLevel(tmp_path).check(content, small=bool(bits & SMALL), change=bool(bits & CHANGE))


@pytest.mark.parametrize("path", inputs("context"), ids=lambda path: path.name)
def test_contexts(path: Path) -> None:
    contexts.check(path.read_bytes())


def test_a_sealed_line_is_a_record() -> None:
    assert sealed(b"!123456789\nx") == b"cbf43926:123456789\nx", "the CRC-32 of the text is known"
