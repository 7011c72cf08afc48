"""What a power cut once took away (``tests/crash`` found it): each cause by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from deferred_django.backends.disk import files
from tests.disk import support


@pytest.fixture
def fsynced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The directories that were fsynced."""
    found: list[str] = []
    real = files.fsync_directory

    def fsync_directory(path: str) -> None:
        real(path)
        found.append(path)

    monkeypatch.setattr(files, "fsync_directory", fsync_directory)
    return found


def test_the_way_to_a_directory_is_durable_whoever_made_it(
    tmp_path: Path, fsynced: list[str]
) -> None:
    """A process made ``a`` and was killed before its fsync; this one makes what is below."""
    (tmp_path / "a").mkdir()
    files.make_directory(str(tmp_path / "a" / "b" / "c"), 0o600)
    assert fsynced == [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")]


def test_a_worker_makes_the_name_of_a_segment_durable(tmp_path: Path, fsynced: list[str]) -> None:
    """A compaction may have been killed before its fsync of the directory.

    What a worker finishes in the new file would come back with the old one.
    """
    producer = support.open_storage(tmp_path)
    support.add(producer, task_id="a")
    support.add(producer, task_id="b")
    producer.close()
    fsynced.clear()
    worker = support.open_storage(tmp_path)
    support.finish(worker, support.claim_one(worker, "a"))
    worker.sync()
    assert fsynced == [str(tmp_path)]
    support.finish(worker, support.claim_one(worker, "b"))
    worker.sync()
    assert fsynced == [str(tmp_path)]
    worker.close()


def test_a_task_is_removed_from_a_file_that_keeps_its_name(
    tmp_path: Path, fsynced: list[str]
) -> None:
    producer = support.open_storage(tmp_path)
    support.add(producer, task_id="a")
    producer.close()
    fsynced.clear()
    other = support.open_storage(tmp_path)
    assert other.remove("a")
    assert fsynced == [str(tmp_path)]
    other.close()
