"""``python -m benchmarks.size_dead``: what a large dead-tasks store costs.

Each time stands beside its floor, measured in the same run: the same in a store of a thousand
records, reading the file and computing its checksums, or ``cp`` and ``fsync`` of the file. What is
judged is the best of several tries, so that a noisy moment of the machine is not taken for the
store's. A purge of half of the records is run in a new process, while another adds records and a
third, which begins later, waits to remove some too.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks import dead_stores
from benchmarks.dead_stores import Adder, data_file, in_process, open_store, task_id
from benchmarks.targets import Target, print_targets
from deferred_django.backends.base import Backend, DeadTaskFilter

SMALL_RECORDS = 1000
PAGE = 25
MAIL = DeadTaskFilter(queue="mail")
SLOWER_PAGES = 3.0
FIND_SECONDS = 0.005
INDEX_RATE = 100e6
INDEX_BYTES = 150
PURGE_COPIES = 4.0
ADD_SECONDS = 0.2
SECOND_REMOVAL = 10
TRIES = 30


def main() -> None:
    """Measure, print, and exit 1 if anything is not as wanted."""
    options = _parse()
    with tempfile.TemporaryDirectory(prefix="benchmark-", dir=options.path) as name:
        directory = Path(name)
        print(
            f"Python {platform.python_version()}, {os.cpu_count()} CPUs, "
            f"load {os.getloadavg()[0]:.1f}, in {directory}",
            flush=True,
        )
        small, large = directory / "small", directory / "large"
        dead_stores.build(small, SMALL_RECORDS)
        dead_stores.build(large, options.records)
        size = data_file(large).stat().st_size
        print(f"{options.records:,} dead tasks, {size / 1e6:,.0f} MB\n", flush=True)
        targets = [*_measure_pages(small, large), *_measure_commands(small, large, options)]
        targets += _measure_index(large, size, options)
        targets += _measure_finds(large, options.records)
        targets += _measure_purges(directory, large, options)
        targets += _measure_after_removal(large, options.records)
    if not print_targets(targets):
        sys.exit(1)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.size_dead", description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000, help="of 1 kB")
    parser.add_argument("--rounds", type=int, default=3, help="of index and purge")
    parser.add_argument("--command-rounds", type=int, default=3, help="of commands; may be 0")
    parser.add_argument("--baseline", type=float, default=3.0, help="seconds of adds alone")
    parser.add_argument("--path", help="a directory on the file system to measure (default: temp)")
    return parser.parse_args()


def _seconds(action: Callable[..., object], *arguments: object) -> float:
    start = time.perf_counter()
    action(*arguments)
    return time.perf_counter() - start


# -- looking -------------------------------------------------------------------------------------


def _measure_pages(small: Path, large: Path) -> list[Target]:
    warm = {path: open_store(path) for path in (small, large)}
    for backend in warm.values():
        backend.count_dead_tasks()
    targets = []
    for name, filter in (("first page", None), ("first page, filtered", MAIL)):
        times: dict[str, list[tuple[float, ...]]] = {"warm": [], "cold": []}
        for _ in range(TRIES):
            for state, taken in times.items():
                backends = warm if state == "warm" else {p: open_store(p) for p in warm}
                taken.append(tuple(_seconds(_page, backends[p], filter) for p in (small, large)))
        targets += [
            _compared(f"{name}, {state}", *zip(*taken, strict=True))
            for state, taken in times.items()
        ]
    return targets


def _page(backend: Backend, filter: DeadTaskFilter | None) -> None:
    assert backend.list_dead_tasks(limit=PAGE, filter=filter)


def _compared(name: str, small: Sequence[float], large: Sequence[float]) -> Target:
    ratio = min(large) / min(small)
    return Target(
        name,
        f"<= {SLOWER_PAGES:g} x the small",
        f"{ratio:.2f} x, {min(large) * 1e3:.2f} ms",
        ratio <= SLOWER_PAGES,
    )


def _measure_commands(small: Path, large: Path, options: argparse.Namespace) -> list[Target]:
    commands = {
        "deadtasks list": ("list",),
        "deadtasks list, filtered": ("list", "--queue", "mail"),
        "deadtasks show, newest": ("show",),
    }
    targets = []
    for name, arguments in commands.items():
        times: dict[Path, list[float]] = {small: [], large: []}
        for _ in range(options.command_rounds):
            for path, count in ((small, SMALL_RECORDS), (large, options.records)):
                newest = [task_id(count - 1)] if arguments == ("show",) else []
                times[path].append(_seconds(_run, path, *arguments, *newest))
        if options.command_rounds:
            targets.append(_compared(name, times[small], times[large]))
    return targets


def _run(path: Path, *arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "django", "deadtasks", *arguments],
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "benchmarks.settings",
            "BENCHMARK_STORE": str(path),
        },
        stdout=subprocess.DEVNULL,
        check=True,
    )


# -- the index -----------------------------------------------------------------------------------


def _measure_index(large: Path, size: int, options: argparse.Namespace) -> list[Target]:
    found = in_process(dead_stores.index, large, options.rounds)
    # It waits for nothing but the processor: what else runs on the machine is not its cost.
    rate = size / min(found["seconds"], found["cpu"])
    resident, traced, peak = (
        found[name] / options.records for name in ("rss", "traced", "traced_peak")
    )
    return [
        Target(
            "index built",
            f">= {INDEX_RATE / 1e6:g} MB/s",
            f"{rate / 1e6:.0f} MB/s",
            rate >= INDEX_RATE,
        ),
        Target(
            "  seconds, and of the processor", "", f"{found['seconds']:.2f}, {found['cpu']:.2f}"
        ),
        Target("  reading and checksums alone", "", f"{size / found['floor'] / 1e6:.0f} MB/s"),
        Target(
            "memory of the index, traced",
            f"<= {INDEX_BYTES} B a record",
            f"{traced:.0f} B",
            traced <= INDEX_BYTES,
        ),
        Target("  at most, while it is built", "", f"{peak:.0f} B"),
        Target(
            "memory of the index, RSS",
            f"<= {INDEX_BYTES} B a record",
            f"{resident:.0f} B",
            resident <= INDEX_BYTES,
        ),
    ]


def _measure_finds(large: Path, records: int) -> list[Target]:
    backend = open_store(large)
    backend.count_dead_tasks()
    chosen = random.Random(1)
    ids = [task_id(chosen.randrange(records)) for _ in range(100)]
    # The worst of a hundred tasks, of each the best of three tries.
    worst = max(min(_seconds(backend.find_dead_task, id) for _ in range(3)) for id in ids)
    newest, oldest = (
        min(_seconds(open_store(large).find_dead_task, task_id(number)) for _ in range(3))
        for number in (records - 1, 0)
    )
    return [
        Target(
            "find, warm",
            f"<= {FIND_SECONDS * 1e3:g} ms",
            f"{worst * 1e3:.2f} ms",
            worst <= FIND_SECONDS,
        ),
        Target("  cold, the newest", "", f"{newest * 1e3:.2f} ms"),
        Target("  cold, the oldest", "", f"{oldest * 1e3:.0f} ms"),
    ]


# -- removals ------------------------------------------------------------------------------------


def _copy(source: Path, target: Path) -> float:
    """Seconds of ``cp`` and ``fsync`` of the data file."""
    target.mkdir()
    start = time.perf_counter()
    subprocess.run(["cp", "-p", data_file(source), data_file(target)], check=True)
    fd = os.open(data_file(target), os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    return time.perf_counter() - start


def _measure_purges(directory: Path, large: Path, options: argparse.Namespace) -> list[Target]:
    records, rounds = options.records, []
    for number in range(options.rounds):
        store = directory / f"purge-{number}"
        copies = [_copy(large, store)]
        with Adder(store) as alone:
            time.sleep(options.baseline)
        with Adder(store) as beside, ThreadPoolExecutor() as threads:
            half = threads.submit(in_process, dead_stores.purge, store, range(0, records, 2))
            few = range(1, 2 * SECOND_REMOVAL, 2)
            dead_stores.wait_for_removal(store)
            second = threads.submit(in_process, dead_stores.purge, store, few)
            purged, others = half.result(), second.result()
        copies.append(_copy(large, directory / f"copy-{number}"))
        left = records - purged["removed"] - others["removed"]
        added = len(alone.waits) + len(beside.waits) - len(alone.errors) - len(beside.errors)
        books = open_store(store).count_dead_tasks() == left + added
        rounds.append(
            {
                "copies": purged["seconds"] / statistics.mean(copies),
                "seconds": purged["seconds"],
                "cpu": purged["cpu"],
                "copy": statistics.mean(copies),
                "worst": max(beside.waits),
                "alone": max(alone.waits),
                "adds": len(beside.waits),
                "errors": len(beside.errors),
                "books": books and purged["removed"] == len(range(0, records, 2)),
                "memory": purged["memory"] / purged["removed"],
                "second": others["seconds"],
            }
        )
        for path in (store, directory / f"copy-{number}"):
            shutil.rmtree(path)
    return _judged(rounds)


def _judged(rounds: list[dict[str, float]]) -> list[Target]:
    quickest = min(rounds, key=lambda each: each["copies"])
    calmest = min(rounds, key=lambda each: each["worst"])
    errors, adds = sum(each["errors"] for each in rounds), sum(each["adds"] for each in rounds)
    return [
        Target(
            "purge of half, cold",
            f"<= {PURGE_COPIES:g} x cp and fsync",
            f"{quickest['copies']:.2f} x, {quickest['seconds']:.2f} s",
            quickest["copies"] <= PURGE_COPIES,
        ),
        Target("  cp and fsync of the file", "", f"{quickest['copy']:.2f} s"),
        Target("  of the processor's time", "", f"{quickest['cpu']:.2f} s"),
        Target("  memory for each that is purged", "", f"{quickest['memory']:.0f} B"),
        Target("  a second removal, waiting meanwhile", "", f"{quickest['second']:.2f} s"),
        Target(
            "an add during the purge, the slowest",
            f"<= {ADD_SECONDS * 1e3:g} ms",
            f"{calmest['worst'] * 1e3:.0f} ms",
            calmest["worst"] <= ADD_SECONDS,
        ),
        Target("  of all rounds", "", f"{max(each['worst'] for each in rounds) * 1e3:.0f} ms"),
        Target("  without a purge", "", f"{max(each['alone'] for each in rounds) * 1e3:.0f} ms"),
        Target("adds that failed", "0", f"{errors:.0f} of {adds:,.0f}", errors == 0),
        Target("records after it as they should be", "yes", "", all(e["books"] for e in rounds)),
    ]


def _measure_after_removal(large: Path, records: int) -> list[Target]:
    found = in_process(dead_stores.look_after_removal, large, records // 2)
    return [
        Target("removal of one", "", f"{found['removal']:.2f} s"),
        Target("  then the first page", "", f"{found['page'] * 1e3:.2f} ms"),
        Target("  then the first count", "", f"{found['count'] * 1e3:.0f} ms"),
        Target("  then a find", "", f"{found['find'] * 1e3:.2f} ms"),
    ]


if __name__ == "__main__":
    main()
