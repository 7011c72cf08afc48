"""The disk backend passes the suite that every backend passes."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from deferred_django.backends.base import BackendConfig
from deferred_django.backends.disk import DiskBackend, watch
from deferred_django.testing.contract import StoreContract


class TestDiskBackend(StoreContract):
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
