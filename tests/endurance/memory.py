"""Whether a worker process grows with what it has run."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path

from tests.harness import Project, children_of
from tests.support import wait_until

FEW = 10_000
GROWTH = 1.10
"""RSS after all of the tasks, of that after the first 10,000."""
BACKLOG = 2_000
"""So many are pending at most: a backlog's memory is another matter."""
REPORTS = 10

SETTINGS = """
from pathlib import Path
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": Path(__file__).parent / "db.sqlite3",
        "OPTIONS": {"timeout": 20},
    }
}
LOGGING = {"version": 1, "disable_existing_loggers": False}
DEFERRED = {"PATH": Path(__file__).parent / "storage"}
"""
TASKS = """
DONE = os.open(NOTES.parent / "done", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

def done():
    os.write(DONE, b".")

@deferred
def plain(number, *, text):
    done()

@deferred
async def on_the_loop(number, *, text):
    await asyncio.sleep(0)
    done()

@deferred
def with_database(number, *, text):
    from django.db import connection
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s", [text])
        assert cursor.fetchone()[0] == text
    done()

@deferred(max_retries=1, retry_interval=lambda error, attempt: 0)
def flaky(number, *, text):
    if current_task().attempt == 1:
        raise ValueError(f"{number} {text}")
    done()

@deferred(max_retries=0)
def doomed(number, *, text):
    done()
    raise ValueError(f"{number} {text}")
"""
KINDS = ("plain",) * 14 + ("on_the_loop",) * 3 + ("with_database",) * 2 + ("flaky",)
DOOMED_EACH = 997
PRODUCER = f"""
import itertools, sys, time, pathlib, os
kinds = itertools.cycle([{", ".join(KINDS)}])
path = pathlib.Path("done")
for number in range(int({{count}})):
    if number % 200 == 0:
        while path.exists() and number - path.stat().st_size > {BACKLOG}:
            time.sleep(0.01)
    task = doomed if number % {DOOMED_EACH} == 0 else next(kinds)
    task.enqueue(number, text=f"task number {{{{number}}}}" * (1 + number % 7))
"""


def run(path: Path, count: int) -> list[str]:
    """Have one process run so many tasks; return what is violated."""
    with Project(path, settings=SETTINGS, tasks=TASKS) as project:
        worker = project.worker("--threads", "4")
        wait_until(lambda: len(children_of(worker.pid)) == 1, timeout=60)
        (pid,) = children_of(worker.pid)
        producer = project.start(PRODUCER.format(count=count))
        marks = sorted({FEW, *(count * part // REPORTS for part in range(1, REPORTS + 1))})
        sizes: dict[int, int] = {}
        began = time.monotonic()
        for mark in marks:
            _wait_for(project, mark, worker_pid=pid)
            sizes[mark] = resident_bytes(pid)
            rate = mark / (time.monotonic() - began)
            print(f"{mark:>9,} tasks  {sizes[mark] / 1e6:6.1f} MB  {rate:6.0f}/s", flush=True)
        violations = []
        if producer.wait(60) != 0:
            violations.append(f"the producer ended with {producer.returncode}")
        if children_of(worker.pid) != [pid]:
            violations.append("the process was replaced")
        ratio = sizes[marks[-1]] / sizes[FEW]
        print(f"after {marks[-1]:,} of that after {FEW:,}: {ratio:.3f} (at most {GROWTH})")
        if ratio > GROWTH:
            violations.append(f"it has grown by {ratio - 1:.1%}")
        worker.terminate()
        if worker.wait(60) != 0:
            violations.append(f"exit code {worker.returncode}")
        counts = project.status()
        expected = len(range(0, count, DOOMED_EACH))
        if (counts["pending"], counts["dead"]) != (0, expected):
            violations.append(f"{counts['pending']} pending, {counts['dead']} of {expected} dead")
    return violations


def _wait_for(project: Project, mark: int, *, worker_pid: int) -> None:
    done = project.path / "done"
    for _ in itertools.count():
        if done.exists() and done.stat().st_size >= mark:
            return
        os.kill(worker_pid, 0)  # it lives
        time.sleep(0.02)


def resident_bytes(pid: int) -> int:
    """The memory that a process has in use."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
