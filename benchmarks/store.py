"""``python -m benchmarks.store``: what the disk backend does per second, beside its floor.

Enqueue, claim-run-remove by one real worker process, and the dead-task add are measured beside
their floor: in slices of a few milliseconds that alternate, or with the floor before and after, so
that a noisy moment of the machine hits both. The floor of ``enqueue_many`` is one ``enqueue`` after
the other. The medians of the rates are printed, and the median
of the ratios within the pairs. Idle latency is from the call of ``enqueue`` to the task's first
line, in a worker that has nothing else to do.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.settings")
django.setup()

from django.test.utils import override_settings  # noqa: E402

from benchmarks import floors, tasks  # noqa: E402
from deferred_django import enqueue_many, get_backend  # noqa: E402

SLICE = 500
"""Tasks: some ten milliseconds, short beside what disturbs a machine."""
LATENCY_PAUSE = 0.05
TIMEOUT = 120.0


@dataclass
class Measured:
    """One kind of work: its rates per second and its floor's, in pairs measured together."""

    name: str
    wanted: float | None = None
    """The least ratio to the floor."""
    rates: list[float] = field(default_factory=list)
    floors: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """The median of the rates in floors."""
        pairs = zip(self.rates, self.floors, strict=True)
        return statistics.median(rate / floor for rate, floor in pairs)

    def row(self) -> tuple[str, ...]:
        """The cells of its line in the table."""
        if self.wanted is None:
            wanted, verdict = "", ""
        else:
            wanted, verdict = f">= {self.wanted}", "ok" if self.ratio >= self.wanted else "LOW"
        return (
            self.name,
            f"{statistics.median(self.rates):,.0f} /s",
            f"{statistics.median(self.floors):,.0f} /s",
            f"{self.ratio:.2f}",
            wanted,
            verdict,
        )


@dataclass
class Latency:
    """A percentile of the idle latency, in milliseconds."""

    name: str
    milliseconds: float
    wanted: float

    def row(self) -> tuple[str, ...]:
        """The cells of its line in the table."""
        verdict = "ok" if self.milliseconds <= self.wanted else "HIGH"
        return (
            self.name,
            f"{self.milliseconds:.2f} ms",
            "",
            "",
            f"<= {self.wanted:g} ms",
            verdict,
        )


def main() -> None:
    """Measure, print, and with ``--check`` exit 1 if anything is worse than wanted."""
    options = _parse()
    enqueue = Measured("enqueue", wanted=0.35)
    run = Measured("claim-run-remove", wanted=0.12)
    many = Measured("enqueue_many")
    dead = Measured("dead-task add")
    with tempfile.TemporaryDirectory(prefix="benchmark-", dir=options.path) as directory:
        _print_machine(directory)
        for number in range(options.rounds):
            with _store(Path(directory) / f"round-{number}") as path:
                _measure_tasks(path, options.tasks, enqueue, run)
                _measure_dead_tasks(path, options.dead_tasks, dead)
            with _store(Path(directory) / f"many-{number}"):
                _measure_many(options.tasks // 4, many)
        with _store(Path(directory) / "latency") as path:
            p50, p99 = _measure_latency(path, options.latency_tasks)
    rows = [enqueue.row(), many.row(), run.row(), dead.row(), p50.row(), p99.row()]
    _print_table(("", "median", "floor", "ratio", "wanted", ""), rows)
    if options.check and any(row[-1] not in ("", "ok") for row in rows):
        sys.exit(1)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.store", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tasks", type=int, default=20_000, help="per round")
    parser.add_argument("--dead-tasks", type=int, default=100, help="per round")
    parser.add_argument("--latency-tasks", type=int, default=200, help="50 ms apart")
    parser.add_argument("--path", help="a directory on the file system to measure (default: temp)")
    parser.add_argument("--check", action="store_true", help="exit 1 if a value is not as wanted")
    return parser.parse_args()


@contextlib.contextmanager
def _store(path: Path) -> Iterator[Path]:
    path.mkdir()
    with override_settings(DEFERRED={"PATH": path}):
        yield path
        get_backend().close()


# -- the measurements ----------------------------------------------------------------------------


def _measure_tasks(path: Path, count: int, enqueue: Measured, run: Measured) -> None:
    tasks.nothing.enqueue(-1, count - 1)  # the first one makes the segment
    segment = next(file for file in path.iterdir() if file.stat().st_size)
    record = floors.first_record(segment)
    for first in range(0, count, SLICE):
        numbers = range(first, min(first + SLICE, count))
        enqueue.floors.append(_floor(path, record, len(numbers)))
        start = time.perf_counter()
        for number in numbers:
            tasks.nothing.enqueue(number, count - 1)
        enqueue.rates.append(len(numbers) / (time.perf_counter() - start))

    get_backend().close()
    before = _floor(path, record, count)
    worker = _worker(path, "--drain")
    if worker.wait(TIMEOUT) != 0:
        sys.exit(f"the worker ended with exit code {worker.returncode}")
    times = _read_times(path)
    run.rates.append((count - 1) / ((times[count - 1] - times[0]) / 1e9))
    run.floors.append(statistics.mean((before, _floor(path, record, count))))


def _floor(path: Path, record: tuple[bytes, Any], count: int) -> float:
    return floors.records_per_second(path / "floor", record, count, fsync=False)


def _measure_many(count: int, many: Measured) -> None:
    for first in range(0, count, SLICE):
        numbers = range(first, min(first + SLICE, count))
        start = time.perf_counter()
        for number in numbers:
            tasks.nothing.enqueue(number, count)
        between = time.perf_counter()
        enqueue_many(tasks.nothing.call(number, count) for number in numbers)
        end = time.perf_counter()
        many.floors.append(len(numbers) / (between - start))
        many.rates.append(len(numbers) / (end - between))


def _measure_dead_tasks(path: Path, count: int, dead: Measured) -> None:
    backend = get_backend()
    context = b'{"args": [7], "kwargs": {}, "task": "benchmarks.tasks.fail"}'

    def add(number: int) -> None:
        try:
            tasks.fail(number)
        except ValueError as error:
            backend.add_dead_task(
                f"1700000000-1-benchmark0000-{number}",
                context,
                error,
                task_class="benchmarks.tasks.fail",
                attempts=21,
            )

    add(0)  # the first one makes the file
    file = next(file for file in path.iterdir() if b"dead_task:" in file.read_bytes()[:200])
    record = floors.first_record(file)
    dead.floors.append(floors.records_per_second(path / "floor", record, count, fsync=True))
    start = time.perf_counter()
    for number in range(1, count + 1):
        add(number)
    dead.rates.append(count / (time.perf_counter() - start))


def _measure_latency(path: Path, count: int) -> tuple[Latency, Latency]:
    worker = _worker(path)
    try:
        tasks.note_start.enqueue(-1)
        _wait_for_times(path, worker, 1)
        called: list[int] = []
        for number in range(count):
            time.sleep(LATENCY_PAUSE)
            called.append(time.monotonic_ns())
            tasks.note_start.enqueue(number)
        times = _wait_for_times(path, worker, count + 1)
    finally:
        worker.terminate()
        worker.wait(TIMEOUT)
    delays = sorted((times[number] - start) / 1e6 for number, start in enumerate(called))
    return (
        Latency("idle latency p50", statistics.median(delays), wanted=2.0),
        Latency("idle latency p99", statistics.quantiles(delays, n=100)[98], wanted=20.0),
    )


# -- the worker ----------------------------------------------------------------------------------


def _worker(path: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """A worker with one process and the default number of threads."""
    return subprocess.Popen(
        [sys.executable, "-m", "django", "deferred_worker", "--processes", "1", *arguments],
        env={
            **os.environ,
            "BENCHMARK_STORE": str(path),
            "BENCHMARK_TIMES": str(path.with_suffix(".times")),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )


def _read_times(path: Path) -> dict[int, int]:
    file = path.with_suffix(".times")
    lines = file.read_text().splitlines() if file.exists() else []
    return {int(number): int(start) for number, start in (line.split() for line in lines)}


def _wait_for_times(path: Path, worker: subprocess.Popen[bytes], count: int) -> dict[int, int]:
    deadline = time.monotonic() + TIMEOUT
    while len(times := _read_times(path)) < count:
        if worker.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"{len(times)} of {count} tasks ran (worker's exit code {worker.returncode})")
        time.sleep(0.05)
    return times


# -- printing ------------------------------------------------------------------------------------


def _print_machine(directory: str) -> None:
    print(
        f"Python {platform.python_version()}, Django {django.__version__}, "
        f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, in {directory}\n"
    )


def _print_table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    for row in [header, *rows]:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join(cells).rstrip())


if __name__ == "__main__":
    main()
