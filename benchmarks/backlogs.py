"""Stores that are filled, worker processes on them, and what those have done and take."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import django

SLICE_TASKS = 500
"""Each of these leaves a mark; a slice of a drain is from one mark to the next."""
CONTEXT_BYTES = 200
TIMEOUT = 1800.0


@dataclass
class Backlog:
    """A store, and the file that its tasks leave their marks in."""

    path: Path

    def __post_init__(self) -> None:
        self.path.mkdir()
        self.times = self.path.with_suffix(".times")
        self.environment = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "benchmarks.settings",
            "BENCHMARK_STORE": str(self.path),
            "BENCHMARK_TIMES": str(self.times),
        }

    def fill(self, count: int, *, delayed: float | None = None, stay: bool = False) -> Producer:
        """Have a process of its own enqueue tasks, and one that is ``delayed`` by seconds.

        With ``stay`` it lives on until :meth:`Producer.end`.
        """
        arguments = [str(count), str(delayed or 0.0)]
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.backlogs", *arguments],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        producer = Producer(process)
        producer.wait()
        if not stay:
            producer.end()
        return producer

    def marks(self) -> dict[int, float]:
        """When the tasks that leave a mark started, in monotonic seconds, by their numbers."""
        lines = self.times.read_text().splitlines() if self.times.exists() else []
        pairs = (line.split() for line in lines)
        return {int(pair[0]): int(pair[1]) / 1e9 for pair in pairs if len(pair) == 2}

    def size(self) -> int:
        """The bytes in the directory."""
        total = 0
        for entry in os.scandir(self.path):
            with contextlib.suppress(FileNotFoundError):
                total += entry.stat().st_size
        return total


@dataclass
class Producer:
    """A process that enqueues."""

    process: subprocess.Popen[bytes]

    def wait(self) -> None:
        """Return when all is enqueued."""
        assert self.process.stdout is not None
        if self.process.stdout.readline() != b"done\n":
            sys.exit("the producer failed")

    def end(self) -> None:
        """Let the process end."""
        self.process.communicate(timeout=TIMEOUT)


class WorkerProcess:
    """A ``deferred_worker`` with one process and the default number of threads."""

    def __init__(self, backlog: Backlog, *arguments: str) -> None:
        self.started_at = time.monotonic()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "django", "deferred_worker", "--processes", "1", *arguments],
            env=backlog.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.largest_rss = 0
        """Of the worker process: the most bytes that it ever had in memory."""
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while self.process.poll() is None:
            for pid in self._pids():
                with contextlib.suppress(OSError, IndexError):
                    status = Path(f"/proc/{pid}/status").read_text()
                    kilobytes = int(status.split("VmHWM:")[1].split()[0])
                    self.largest_rss = max(self.largest_rss, kilobytes * 1024)
            time.sleep(0.2)

    def _pids(self) -> list[int]:
        pid = self.process.pid
        with contextlib.suppress(OSError):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            return [pid, *map(int, children)]
        return [pid]

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Stopped (SIGSTOP) as a whole for as long as the block takes."""
        os.killpg(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):  # it had ended before
                os.killpg(self.process.pid, signal.SIGCONT)

    def end(self) -> None:
        """Wait for a drain."""
        if self.process.wait(TIMEOUT) != 0:
            sys.exit(f"the worker ended with exit code {self.process.returncode}")
        self._thread.join()

    def stop(self) -> None:
        """Stop it by a signal."""
        self.process.terminate()
        self.end()

    def __enter__(self) -> WorkerProcess:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:  # something went wrong, or not all is to be drained
            self.stop()


def wait_for(backlog: Backlog, worker: WorkerProcess, count: int) -> dict[int, float]:
    """Wait until ``count`` marks are there."""
    deadline = time.monotonic() + TIMEOUT
    while len(marks := backlog.marks()) < count:
        if worker.process.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"only {len(marks)} of {count} marks were left")
        time.sleep(0.05)
    return marks


def _fill() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("count", type=int)
    parser.add_argument("delayed", type=float)
    options = parser.parse_args()
    django.setup()
    from benchmarks import tasks
    from deferred_django import get_backend
    from deferred_django.context import TaskContext

    if options.delayed:
        tasks.mark.using(delay=options.delayed).enqueue(-1, SLICE_TASKS, "")
    backend = get_backend()
    for number in range(options.count):
        arguments = (number, SLICE_TASKS, "")
        empty = TaskContext.build("benchmarks.tasks.mark", arguments, {}).to_bytes()
        padding = b"x" * (CONTEXT_BYTES - len(empty))
        backend.add_task(empty.replace(b'""', b'"%b"' % padding))
    print("done", flush=True)
    sys.stdin.read()
    backend.close()


if __name__ == "__main__":
    _fill()
