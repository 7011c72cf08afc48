"""Storages on one directory, and ways to stop one of them at a named call."""

from __future__ import annotations

import codecs
import os
import signal
import stat
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from deferred_django import ids
from deferred_django.backends.disk import files
from deferred_django.backends.disk.segment import Entry
from deferred_django.backends.disk.tasks_storage import TasksStorage

PREFIX = "t-"
PAST = 1_000_000_000.0
FUTURE = 4_000_000_000.0
BOUND = 10.0
"""Seconds that a wait may take before the test fails."""


def open_storage(path: Path, prefix: str = PREFIX, **options: Any) -> TasksStorage:
    return TasksStorage(str(path), prefix, **options)


def add(
    storage: TasksStorage,
    payload: bytes = b"x",
    *,
    task_id: str | None = None,
    publish_at: float = PAST,
    queue: str = "default",
    priority: int = 0,
) -> str:
    task_id = task_id or ids.new_id()
    storage.add(task_id, payload, publish_at=publish_at, queue=queue, priority=priority)
    return task_id


def claim(storage: TasksStorage, limit: int = 1000, *task_ids: str) -> list[Entry]:
    return [entry for entry, _ in storage.claim(limit, None, (), task_ids or None)]


def claim_one(storage: TasksStorage, task_id: str) -> Entry:
    [entry] = claim(storage, 1, task_id)
    return entry


def finish(storage: TasksStorage, entry: Entry) -> None:
    storage.start(entry)
    storage.complete(entry)


def run_all(storage: TasksStorage) -> list[bytes]:
    """Run everything that is due, by the payloads."""
    ran: list[bytes] = []
    while claimed := storage.claim(100, None, (), None):
        for entry, payload in claimed:
            ran.append(payload)
            finish(storage, entry)
    return ran


def segments(path: Path, prefix: str = PREFIX) -> list[Path]:
    return sorted(p for p in path.glob("*") if p.name.startswith(prefix + "0-"))


def only_segment(path: Path) -> Path:
    [segment] = [p for p in segments(path) if p.suffix == ""]
    return segment


def in_child(function: Callable[[], Any], *, kill: bool = True) -> None:
    """Run ``function`` in a forked process that then dies by SIGKILL (or leaves by os._exit)."""
    pid = os.fork()
    if pid == 0:
        try:
            function()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        if kill:
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    expected = -signal.SIGKILL if kill else 0
    assert os.waitstatus_to_exitcode(status) == expected


def let_others_in(directory: Path, permissions: int = 0o111) -> None:
    """Let other users pass through a test's directory, and those that pytest keeps it in.

    Of those there is one more where tests run side by side. What another user needs of a library
    that it may not read is loaded.
    """
    for name in ("latin-1", "ascii"):
        codecs.lookup(name)
    levels = 2 + ("PYTEST_XDIST_WORKER" in os.environ)
    for each in (directory, *directory.parents[:levels]):
        each.chmod(stat.S_IMODE(each.stat().st_mode) | permissions)


class Gate:
    """Stops the threads that call one function of ``files`` until the test lets them go on."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, call: str, when: Callable[..., bool] | None = None
    ) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()
        real = getattr(files, call)

        def stop(*arguments: Any, **options: Any) -> Any:
            stops = not self._open.is_set() and (when is None or when(*arguments))
            if stops and threading.current_thread() is not threading.main_thread():
                self.reached.set()
                assert self._open.wait(BOUND), f"nobody opened the gate at {call}"
            return real(*arguments, **options)

        monkeypatch.setattr(files, call, stop)

    def wait(self) -> None:
        assert self.reached.wait(BOUND), "nobody came to the gate"

    def open(self) -> None:
        self._open.set()


@contextmanager
def running(function: Callable[[], Any]) -> Iterator[list[Any]]:
    """``function`` in a thread that is joined at the end; its result or error is in the list."""
    results: list[Any] = []

    def call() -> None:
        try:
            results.append(function())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    try:
        yield results
    finally:
        thread.join(BOUND)
        assert not thread.is_alive()


def fail_once(
    monkeypatch: pytest.MonkeyPatch,
    call: str,
    error: OSError,
    when: Callable[..., bool] | None = None,
) -> list[int]:
    """Let the next call of a function of ``files`` fail; the list tells that it did."""
    failed: list[int] = []
    real = getattr(files, call)

    def fail(*arguments: Any, **options: Any) -> Any:
        if not failed and (when is None or when(*arguments)):
            failed.append(1)
            raise OSError(error.errno, error.strerror, error.filename)
        return real(*arguments, **options)

    monkeypatch.setattr(files, call, fail)
    return failed
