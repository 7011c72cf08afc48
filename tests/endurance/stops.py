"""Workers under load that are told to stop at random moments, once or twice.

Each ends with exit code 0 and leaves no process; no stop is taken for a crash, uses up an attempt
or loses a task.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from deferred_django import ids
from deferred_django.backends.base import BackendConfig
from deferred_django.backends.disk import DiskBackend
from deferred_django.backends.disk.boot import boot_id
from deferred_django.context import TaskContext
from deferred_django.queue import Queue
from deferred_django.worker_process import GRACE_SECONDS
from tests.harness import Project, children_of, is_alive
from tests.support import wait_until

LANES = 2
"""Workers at the same time, on one store."""
LOAD = 400
"""Tasks that are due when a worker is stopped, at least."""
TASKS = """
@deferred
def short(n):
    note("end", current_task().id, current_task().attempt)

@deferred
def medium(n):
    time.sleep(random.uniform(0, 0.3))
    note("end", current_task().id, current_task().attempt)

@deferred
def long(n):
    time.sleep(random.uniform(0.5, 3))
    note("end", current_task().id, current_task().attempt)

@deferred
async def on_the_loop(n):
    await asyncio.sleep(random.uniform(0, 0.5))
    note("end", current_task().id, current_task().attempt)

@deferred(max_retries=1, retry_interval=lambda error, attempt: 0.1)
def flaky(n):
    if not current_task().is_retry:
        raise ValueError("as intended")
    note("end", current_task().id, current_task().attempt)

import random
"""
WEIGHTS = {"short": 70, "medium": 14, "long": 2, "on_the_loop": 8, "flaky": 6}


@dataclass(slots=True)
class Books:
    """What was asked for and what was seen."""

    enqueued: dict[str, str] = field(default_factory=dict)
    """The kinds of tasks by id."""
    violations: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    longest: float = 0.0
    """Seconds that a stop took beyond the shutdown timeout."""


def run(path: Path, rounds: int, seed: int) -> list[str]:
    """Stop workers so many times; return what is violated."""
    print(f"{rounds} stops, seed {seed}", flush=True)
    books = Books()
    with Project(path, tasks=TASKS) as project:
        backend = DiskBackend(BackendConfig(path=project.storage))
        end = threading.Event()
        producer = threading.Thread(target=_produce, args=(backend, books, end, seed))
        producer.start()
        left = iter(range(rounds))
        lock = threading.Lock()

        def lane(number: int) -> None:
            chance = random.Random(seed * 10 + number)
            while True:
                with lock:
                    if next(left, None) is None:
                        return
                try:
                    _stop_one(project, backend, books, chance)
                except Exception as error:  # the other lane goes on, and the proof fails
                    books.violations.append(repr(error))

        lanes = [threading.Thread(target=lane, args=(number,)) for number in range(LANES)]
        for thread in lanes:
            thread.start()
        for thread in lanes:
            thread.join()
        end.set()
        producer.join()
        project.drain("--threads", "16", timeout=600)
        wait_until(lambda: _retries_done(project, backend), timeout=120)
        _close(project, backend, books)
        backend.close()
    return books.violations


def _produce(backend: DiskBackend, books: Books, end: threading.Event, seed: int) -> None:
    chance, queue = random.Random(seed), Queue(backend)
    kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
    while not end.wait(0.1):
        status = backend.status()
        for _ in range(max(0, LOAD - status.pending)):
            kind = chance.choices(kinds, weights)[0]
            context = TaskContext.build(f"app.tasks.{kind}", (1,), {})
            task_id = ids.new_id()
            queue.enqueue(context, task_id=task_id)
            books.enqueued[task_id] = kind


def _stop_one(project: Project, backend: DiskBackend, books: Books, chance: random.Random) -> None:
    timeout = chance.choice([0.0, 0.2, 1.0, 5.0])
    processes = chance.choice([1, 2, 3])
    worker = project.worker(
        "--processes", str(processes), "--threads", str(chance.choice([1, 4])),
        "--shutdown-timeout", str(timeout),
    )  # fmt: skip
    wait_until(lambda: children_of(worker.pid), timeout=60)  # from here on it handles signals
    time.sleep(chance.uniform(0, 1.5) if chance.random() < 0.8 else 0.0)
    family = descendants(worker.pid)
    began = time.monotonic()
    _signal(worker, chance, books)
    double = chance.random() < 0.5
    if double:
        time.sleep(chance.choice([0.0, 0.01, chance.uniform(0, 0.5)]))
        family |= descendants(worker.pid)
        if worker.poll() is None:
            books.counts["second signals"] += 1
            _signal(worker, chance, books)
    books.counts["double" if double else "single"] += 1
    # A second signal of the group's reaches a process that is just ending.
    code = worker.wait(timeout + GRACE_SECONDS + 30)
    books.longest = max(books.longest, time.monotonic() - began - timeout)
    if code != 0:
        books.violations.append(f"exit code {code}")
    try:
        wait_until(lambda: not any(map(is_alive, family)), timeout=5)
    except AssertionError:
        books.violations.append(f"processes are left: {list(filter(is_alive, family))}")
    _look_for_crashes(backend, books)


def _signal(worker: subprocess.Popen[str], chance: random.Random, books: Books) -> None:
    signum = chance.choice([signal.SIGTERM, signal.SIGINT])
    if chance.random() < 0.3:  # as Ctrl-C and some service managers do
        books.counts[f"{signum.name} to the group"] += 1
        os.killpg(worker.pid, signum)
    else:
        books.counts[signum.name] += 1
        worker.send_signal(signum)


def descendants(pid: int) -> set[int]:
    """The process and all that descend from it now."""
    found = {pid}
    for child in children_of(pid):
        found |= descendants(child)
    return found


def _look_for_crashes(backend: DiskBackend, books: Books) -> None:
    """Runs that nobody is at, without an end: what a crash looks like."""
    suspects = _open_runs(backend)
    for _ in range(5):  # one that ended between the two looks of a survey has gone by the next
        if not suspects:
            return
        time.sleep(0.1)
        suspects &= _open_runs(backend)
    books.violations.append(f"counted as crashes: {len(suspects)}")


def _open_runs(backend: DiskBackend) -> set[tuple[str, str]]:
    boot = boot_id()
    return {
        (entry.id, entry.nonce)
        for entry, claimed in backend.tasks.survey()
        if not claimed and entry.crashes(boot)
    }


def _retries_done(project: Project, backend: DiskBackend) -> bool:
    if backend.status().pending or backend.status().delayed:
        project.drain("--threads", "16", timeout=600)
        return False
    return True


def _close(project: Project, backend: DiskBackend, books: Books) -> None:
    ends: Counter[str] = Counter()
    attempts: dict[str, set[int]] = {}
    for line in project.notes():
        _, task_id, attempt = line.split()
        ends[task_id] += 1
        attempts.setdefault(task_id, set()).add(int(attempt))
    lost = books.enqueued.keys() - ends.keys()
    if lost:
        books.violations.append(f"{len(lost)} tasks never ran to their end")
    used = [
        task_id
        for task_id, kind in books.enqueued.items()
        if attempts.get(task_id, set()) - {2 if kind == "flaky" else 1}
    ]
    if used:
        books.violations.append(f"{len(used)} tasks have lost attempts to a stop")
    dead = backend.list_dead_tasks()
    if dead:
        classes = Counter(task["exception_class"] for task in dead)
        books.violations.append(f"dead tasks: {dict(classes)}")
    log = project.log()
    tracebacks = log.count("Traceback (most recent call last)")
    if tracebacks != log.count("\nValueError: as intended\n"):
        books.violations.append("there are other tracebacks in the log than of flaky tasks")
    for word in ("is killed", "CRITICAL", "was killed", "exited with"):
        if word in log:
            books.violations.append(f"{word!r} is in the log")
    repeated = sum(count > 1 for count in ends.values())
    print(
        f"{len(books.enqueued):,} tasks, {sum(ends.values()):,} ends; "
        f"{repeated} were put back after their last line and ran again; "
        f"the longest stop took {books.longest:.1f} s beyond its timeout"
    )
    print(", ".join(f"{what}: {number}" for what, number in sorted(books.counts.items())))
