"""What a power cut once took away (``tests/crash`` found it): each cause by itself."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from deferred_django.backends.disk import descriptors, files
from tests.disk import dlq, support


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


def test_what_was_written_anew_is_durably_removed_from_the_failed_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its bytes may be on the disk in spite of the failed fsync, with an older attempt besides."""
    storage = support.open_storage(tmp_path)
    support.add(storage, b"first", task_id="a")
    storage.close()
    [old] = support.segments(tmp_path)
    worker = support.open_storage(tmp_path)
    entry = support.claim_one(worker, "a")
    worker.reschedule(entry, b"second", support.PAST)
    fsynced: list[tuple[str, bytes]] = []
    real = files.fsync

    def fsync(fd: int) -> None:
        path = Path(descriptors.paths[fd])
        fsynced.append((path.name, path.read_bytes()))
        real(fd)

    monkeypatch.setattr(files, "fsync", fsync)
    support.fail_once(monkeypatch, "fsync", OSError(errno.EIO, "injected"))
    worker.sync()
    last = [content for name, content in fsynced if name == old.name][-1]
    bodies = [line[9:] for line in last.split(b"\n")]
    nonces = {body.split(b":")[2] for body in bodies if body.startswith(b"add:")}
    removed = {body.split(b":")[2] for body in bodies if body.startswith(b"rem:")}
    assert len(nonces) == 2
    assert removed == nonces
    assert [data for _, _, data in worker.survey_with_payloads()] == [b"second"]
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


def test_a_newline_that_a_killed_process_wrote_is_durable_before_the_next_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the next record could arrive without it, and share a line with an acknowledged one."""

    class Killed(BaseException):
        pass

    def die(fd: int) -> None:
        raise Killed

    another = dlq.filled(tmp_path, "a", "b")
    path = dlq.data_file(tmp_path)
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(files, "fsync", die)
        dlq.open_store(tmp_path).add("refused", dlq.record("refused"))
    assert path.read_bytes().endswith(dlq.line("b"))
    fsynced: list[bytes] = []
    real = files.fsync

    def fsync(fd: int) -> None:
        fsynced.append(path.read_bytes())
        real(fd)

    monkeypatch.setattr(files, "fsync", fsync)
    another.add("c", dlq.record("c"))
    assert fsynced == [
        dlq.line("a") + dlq.line("b"),
        dlq.line("a") + dlq.line("b") + dlq.line("c"),
    ]
    assert dlq.names(another) == ["c", "b", "a"]
