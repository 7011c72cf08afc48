"""What a signal handler, a repeated record and a limit of descriptors may not do."""

from __future__ import annotations

import errno
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deferred_django.backends.disk import descriptors, files
from tests.disk.support import (
    add,
    claim_one,
    fail_once,
    in_child,
    open_storage,
    run_all,
)

EIO = OSError(errno.EIO, "Input/output error", "injected")


@pytest.mark.parametrize(("frequency", "call"), [(0, "fsync"), (0, "write"), (600, "write")])
def test_an_enqueue_in_a_signal_handler_that_interrupts_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, frequency: float, call: str
) -> None:
    """It is refused, and nothing of it is written; before, it waited for itself for ever."""
    storage = open_storage(tmp_path, fsync_frequency=frequency)
    real: Callable[..., Any] = getattr(files, call)
    refused: list[OSError] = []
    armed = [1]

    def handler(*_: object) -> None:
        with pytest.raises(OSError, match="signal handler") as caught:
            add(storage, b"of the handler")
        refused.append(caught.value)

    def interrupted(*arguments: Any) -> Any:
        if armed:
            armed.clear()
            signal.raise_signal(signal.SIGUSR1)
        return real(*arguments)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        monkeypatch.setattr(files, call, interrupted)
        add(storage, b"interrupted")
    finally:
        signal.signal(signal.SIGUSR1, before)
    [error] = refused
    assert error.errno == errno.EDEADLK
    assert error.filename == str(tmp_path)
    add(storage, b"later")
    storage.close()
    worker = open_storage(tmp_path)
    assert run_all(worker) == [b"interrupted", b"later"]
    worker.close()


def test_an_end_that_is_written_again_hides_no_crash(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    producer, first = open_storage(tmp_path), open_storage(tmp_path, fsync_frequency=600)
    task_id = add(producer)
    producer.close()
    entry = claim_one(first, task_id)
    first.start(entry)
    first.sync()
    first.release(entry, hold=False)
    in_child(lambda: (other := open_storage(tmp_path)).start(claim_one(other, task_id)))
    failed = fail_once(monkeypatch, "fsync", EIO)
    first.sync()
    assert failed
    first.close()
    worker = open_storage(tmp_path)
    found = claim_one(worker, task_id)
    assert [run.worker for run in found.runs] != []
    assert found.crashes(found.runs[0].boot_id) == 1
    worker.release(found, hold=False)
    worker.close()


def test_no_descriptor_is_left_for_the_store(tmp_path: Path) -> None:
    """EMFILE by the real limit: errors that name the file, and all works when there is room."""

    def child() -> None:
        storage = open_storage(tmp_path / "store", fsync_frequency=0)
        before = len(os.listdir("/proc/self/fd"))
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        spare = os.open(os.devnull, os.O_RDONLY)
        os.close(spare)
        resource.setrlimit(resource.RLIMIT_NOFILE, (spare, hard))
        for _ in range(5):
            with pytest.raises(OSError, match=str(tmp_path.parent)) as caught:
                add(storage)
            assert caught.value.errno == errno.EMFILE
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert len(os.listdir("/proc/self/fd")) == before
        add(storage, b"after")
        assert run_all(storage) == [b"after"]
        storage.close()
        assert not [p for p in descriptors.open_descriptors().values() if str(tmp_path) in p]

    in_child(child, kill=False)
