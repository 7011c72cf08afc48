"""The disk backend passes the suite that every backend passes."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from deferred_django.backends.base import BackendConfig, DeadTaskFilter
from deferred_django.backends.disk import DiskBackend, dead_tasks_file, watch
from deferred_django.testing.contract import StoreContract
from deferred_django.testing.contract_schedule import ScheduleContract


class TestDiskBackend(StoreContract):
    def open_backend(self, directory: Path) -> DiskBackend:
        return DiskBackend(BackendConfig(path=directory))


class TestSchedule(ScheduleContract):
    def open_backend(self, directory: Path) -> DiskBackend:
        return DiskBackend(BackendConfig(path=directory))


class TestSyncingEachEnqueue(StoreContract):
    def open_backend(self, directory: Path) -> DiskBackend:
        return DiskBackend(BackendConfig(path=directory, fsync_frequency=0))


class TestPolling(StoreContract):
    """Where a directory cannot be watched (macOS, or a limit was reached)."""

    @pytest.fixture(autouse=True)
    def no_inotify(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse() -> int:
            raise OSError(errno.ENOSYS, "no inotify here")

        monkeypatch.setattr(watch.calls, "init", refuse)

    def open_backend(self, directory: Path) -> DiskBackend:
        return DiskBackend(BackendConfig(path=directory, prefix="a*[1]-"))


def test_a_status_names_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """What can be read is counted all the same."""
    backend = DiskBackend(BackendConfig(path=tmp_path))
    backend.add_task(b"x")
    path = tmp_path / "deferred-dead_tasks-0"
    path.mkdir()
    status = backend.status()
    backend.close()
    assert (status.pending, status.dead) == (1, 0)
    (problem,) = status.problems
    assert str(path) in problem


@pytest.mark.parametrize(
    "record",
    [
        b"not JSON",
        b"[1]",
        b"{}",
        b'{"id":5,"failed_at":"x","backtrace":null,"context":7}',
        b'{"context":"\\u20ac"}',
        b"[" * 100_000,
    ],
)
def test_a_record_of_another_form_hides_no_other_dead_task(tmp_path: Path, record: bytes) -> None:
    """Its checksum is good: another version, or a foreign hand, has written it."""
    backend = DiskBackend(BackendConfig(path=tmp_path))
    backend.add_dead_task("1-1-a-1", b"x", ValueError(), task_class="a.b", attempts=1)
    with open(tmp_path / "deferred-dead_tasks-0", "ab") as file:
        file.write(dead_tasks_file.encode("1700000000-1-a-2", record))
    odd, good = backend.list_dead_tasks()
    assert (good["id"], odd["id"]) == ("1-1-a-1", "1700000000-1-a-2")
    assert odd == backend.find_dead_task("1700000000-1-a-2")
    assert odd["context"] == record
    assert (odd["task_class"], odd["failed_at"]) == ("(unreadable)", 1_700_000_000)
    assert {name: type(value) for name, value in odd.items()} == {
        name: type(value) for name, value in good.items()
    }
    assert backend.count_dead_tasks(filter=DeadTaskFilter(task="b")) == 1
    assert backend.remove_dead_tasks(["1700000000-1-a-2"]) == 1
    assert backend.list_dead_tasks() == [good]
    backend.close()


def test_what_a_newer_version_adds_to_a_record_stays_in_it(tmp_path: Path) -> None:
    backend = DiskBackend(BackendConfig(path=tmp_path))
    record = b'{"id":"n","task_class":"a.b","failed_at":5,"context":"c","mood":[1]}'
    (tmp_path / "deferred-dead_tasks-0").write_bytes(dead_tasks_file.encode("n", record))
    [found] = backend.list_dead_tasks()
    backend.close()
    assert (found["task_class"], found["failed_at"], found["context"]) == ("a.b", 5, b"c")
    assert found["mood"] == [1]
