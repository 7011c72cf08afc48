"""``deferred_worker`` as a process that is certain to be gone in the end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from django.core.management.base import CommandError

from deferred_django import get_backend

STOP_SECONDS = 40.0
"""A little more than the worker's own ``--shutdown-timeout``."""


class WorkerProcess:
    """A worker with its own processes, started and stopped; a context manager.

    What it prints goes to ``log``.
    """

    def __init__(self, processes: int, environment: dict[str, str], log: Path) -> None:
        self._arguments = ["deferred_worker", "--processes", str(processes)]
        self._environment = environment
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> WorkerProcess:
        """Start it."""
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "django", *self._arguments],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop it if :meth:`stop` has not, the hard way if need be."""
        if self._process is not None and self._process.poll() is None:
            pids = [worker.pid for worker in get_backend().status().workers]
            for seconds in (2.0, 5.0):  # the second signal: do not wait for what runs
                self._process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(seconds)
                    return
            self._process.kill()
            self._process.wait()
            alive = {worker.pid for worker in get_backend().status().workers}
            for pid in alive.intersection(pids):
                os.kill(pid, signal.SIGKILL)

    def check(self) -> None:
        """``CommandError`` with the end of its log if it is not running any more."""
        assert self._process is not None
        code = self._process.poll()
        if code is not None:
            raise self._failed(f"the worker ended by itself (exit code {code})")

    def stop(self) -> None:
        """Ask it to stop (SIGTERM) and wait; ``CommandError`` unless its exit code is 0."""
        assert self._process is not None
        self._process.terminate()
        try:
            code = self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise self._failed(f"the worker did not stop within {STOP_SECONDS:g} s") from None
        if code != 0:
            raise self._failed(f"the worker stopped with exit code {code}")

    def _failed(self, what: str) -> CommandError:
        lines = self._log.read_text(errors="replace").splitlines()[-20:]
        return CommandError("\n".join([what + "; its last lines:", *lines]))
