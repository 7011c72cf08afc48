"""Any bytes in the files of a store, chosen by Hypothesis: see :mod:`tests.fuzz.levels`."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import mutations
from tests.fuzz.levels import DeadLevel, LogLevel, quiet
from tests.fuzz.material import Material
from tests.fuzz.stores import StoreLevel

CHANCE = st.randoms(use_true_random=False)


@pytest.fixture(autouse=True)
def no_log() -> Iterator[None]:
    with quiet():
        yield


@pytest.fixture
def log_level() -> Iterator[LogLevel]:
    level = LogLevel()
    yield level
    level.close()


def test_any_bytes_in_a_segment(log_level: LogLevel) -> None:
    @settings(max_examples=150)
    @given(CHANCE)
    def check(chance: random.Random) -> None:
        content = mutations.mutate(b"", chance, mutations.log_record)
        log_level.attempt(content, chance)

    check()


@settings(max_examples=150)
@given(st.binary(max_size=200), st.booleans())
def test_bytes_of_no_form_at_all(content: bytes, small: bool) -> None:
    level = LogLevel()
    try:
        level.check(content, small=small)
    finally:
        level.close()


def test_any_bytes_in_the_dead_tasks_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    level = DeadLevel(tmp_path)

    @settings(max_examples=50)
    @given(CHANCE)
    def check(chance: random.Random) -> None:
        content = mutations.mutate(b"", chance, mutations.dead_record)
        level.attempt(content, chance)

    check()


def test_a_store_of_any_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    (tmp_path / "real").mkdir()
    level = StoreLevel(tmp_path / "store", Material(tmp_path / "real"))

    @settings(max_examples=25)
    @given(st.integers(0, 2**32))
    def check(seed: int) -> None:
        level.check(random.Random(seed))

    check()
