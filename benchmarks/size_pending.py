"""``python -m benchmarks.size_pending``: what a large backlog does to a worker.

A worker process drains a large backlog. Again and again it is stopped for as long as another one
drains a small backlog, so that a noisy moment of the machine hits both; the rates are those of
slices of five hundred tasks. Then many quick tasks run beside one that is delayed by 30 days.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import django

from benchmarks.backlogs import SLICE_TASKS, Backlog, WorkerProcess, wait_for
from benchmarks.targets import Target, print_targets

FIRST_SECONDS = 6.0
LARGEST_RSS = 250 * 1024**2
LEAST_RATE = 0.8
MOST_BYTES = 10_000_000
MONTH = 30 * 86400.0
WATCH_SECONDS = 3.0


def main() -> None:
    """Measure, print, and exit 1 if anything is not as wanted."""
    options = _parse()
    with tempfile.TemporaryDirectory(prefix="benchmark-", dir=options.path) as directory:
        print(
            f"Python {platform.python_version()}, Django {django.__version__}, "
            f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, in {directory}\n",
            flush=True,
        )
        targets = _measure_backlog(Path(directory), options)
        for alive in (False, True):
            targets.append(_measure_delayed(Path(directory), options.quick_tasks, alive=alive))
    if not print_targets(targets):
        sys.exit(1)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.size_pending", description=__doc__)
    parser.add_argument("--tasks", type=int, default=1_000_000, help="in the large backlog")
    parser.add_argument("--small-tasks", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=6, help="small drains between large ones")
    parser.add_argument("--whole", action="store_true", help="drain the large one to its end")
    parser.add_argument("--stretch", type=float, default=3.0, help="seconds of a round")
    parser.add_argument("--quick-tasks", type=int, default=100_000)
    parser.add_argument("--path", help="a directory on the file system to measure (default: temp)")
    return parser.parse_args()


# -- a large backlog and small ones --------------------------------------------------------------


def _measure_backlog(directory: Path, options: argparse.Namespace) -> list[Target]:
    large = Backlog(directory / "large")
    large.fill(options.tasks)
    print(f"{options.tasks:,} tasks, {large.size() / 1e6:.0f} MB", flush=True)
    slices: list[float] = []
    small_slices: list[float] = []
    ratios: list[float] = []
    small_overall: list[float] = []
    paused = 0.0
    with WorkerProcess(large, "--drain") as worker:
        first = min(wait_for(large, worker, 1).values()) - worker.started_at
        for number in range(options.rounds):
            began = time.monotonic()
            time.sleep(options.stretch)
            # On a slow or busy machine the stretch lasts until there is something to be measured.
            while len(own := _rates(at for at in large.marks().values() if at >= began)) < 2:
                if worker.process.poll() is not None:
                    break
                time.sleep(0.05)
            began = time.monotonic()
            with worker.paused():
                rates, overall = _drain_small(directory / f"small-{number}", options.small_tasks)
            paused += time.monotonic() - began
            slices += own
            small_slices += rates
            small_overall.append(overall)
            if own:
                ratios.append(statistics.median(own) / statistics.median(rates))
            print(f"round {number + 1}: {len(large.marks()) * SLICE_TASKS:,} done", flush=True)
        if options.whole:
            worker.end()
    marks = large.marks()
    done = len(marks) * SLICE_TASKS
    overall_rate = done / (max(marks.values()) - worker.started_at - paused)
    if not ratios:
        sys.exit(f"{options.tasks:,} tasks were done before anything could be measured")
    ratio = statistics.median(ratios)
    best = _best(slices) / _best(small_slices)
    with_start = overall_rate / statistics.median(small_overall)
    return [
        Target(
            "first task after",
            f"<= {FIRST_SECONDS:g} s",
            f"{first:.2f} s",
            first <= FIRST_SECONDS,
        ),
        Target(
            "largest RSS of the worker",
            f"<= {LARGEST_RSS / 1024**2:.0f} MiB",
            f"{worker.largest_rss / 1024**2:.0f} MiB",
            worker.largest_rss <= LARGEST_RSS,
        ),
        Target("drain rate, large", "", f"{statistics.median(slices):,.0f} /s"),
        Target("drain rate, small", "", f"{statistics.median(small_slices):,.0f} /s"),
        Target(
            "their ratio, median of rounds",
            f">= {LEAST_RATE}",
            f"{ratio:.2f}",
            max(ratio, best) >= LEAST_RATE,
        ),
        Target("ratio of the best slices", "", f"{best:.2f}"),
        Target(f"ratio with the start, of {done:,}", "", f"{with_start:.2f}"),
    ]


def _drain_small(path: Path, count: int) -> tuple[list[float], float]:
    """The rates of slices, and that of the whole with the start of the worker."""
    small = Backlog(path)
    small.fill(count)
    worker = WorkerProcess(small, "--drain")
    worker.end()
    times = small.marks().values()
    return _rates(times), count / (max(times) - worker.started_at)


def _rates(times: Iterable[float]) -> list[float]:
    marks = sorted(times)
    return [SLICE_TASKS / (b - a) for a, b in itertools.pairwise(marks)]


def _best(rates: list[float]) -> float:
    """What a tenth of the slices reaches: those that nothing disturbed."""
    return statistics.quantiles(rates, n=10)[-1] if len(rates) > 1 else rates[0]


# -- one delayed task beside many quick ones -----------------------------------------------------


def _measure_delayed(directory: Path, count: int, *, alive: bool) -> Target:
    """With a worker that drains, or with one that runs, and a producer that lives on."""
    backlog = Backlog(directory / f"delayed-{alive}")
    if alive:
        worker = WorkerProcess(backlog)
        producer = backlog.fill(count, delayed=MONTH, stay=True)
        wait_for(backlog, worker, count // SLICE_TASKS)
        time.sleep(1.0)  # until the last tasks have run, and the next round of housekeeping
        largest, end = 0, time.monotonic() + WATCH_SECONDS
        while time.monotonic() < end:
            largest = max(largest, backlog.size())
            time.sleep(0.02)
        producer.end()
        worker.stop()
    else:
        backlog.fill(count, delayed=MONTH)
        WorkerProcess(backlog, "--drain").end()
        largest = backlog.size()
    there = any(b"benchmarks.tasks.mark" in file.read_bytes() for file in backlog.path.iterdir())
    return Target(
        "directory, producer and worker live" if alive else "directory after --drain",
        f"<= {MOST_BYTES / 1e6:g} MB",
        f"{largest / 1e6:.2f} MB",
        largest <= MOST_BYTES and there,
    )


if __name__ == "__main__":
    main()
