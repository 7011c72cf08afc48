"""What workers cost that have nothing to do."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.harness import Project, children_of
from tests.support import wait_until

PROCESSES = 8
SETTLE_SECONDS = 8.0
"""After their start: connections, first looks, tidying."""
MOST = 0.01
"""Of one core, all processes together."""


def run(path: Path, seconds: float) -> list[str]:
    """Watch a supervisor with its processes on an empty queue; return what is violated."""
    with Project(path) as project:
        worker = project.worker("--processes", str(PROCESSES))
        wait_until(lambda: len(children_of(worker.pid)) == PROCESSES, timeout=60)
        time.sleep(SETTLE_SECONDS)
        pids = [worker.pid, *children_of(worker.pid)]
        before = {pid: cpu_seconds(pid) for pid in pids}
        ticked = sum(map(ticks, pids))
        began = time.monotonic()
        time.sleep(seconds)
        elapsed = time.monotonic() - began
        used = {pid: cpu_seconds(pid) - before[pid] for pid in pids}
        share = sum(used.values()) / elapsed
        ticked = sum(map(ticks, pids)) - ticked
        print(
            f"{PROCESSES} processes and their supervisor, {elapsed:.0f} s without a task: "
            f"{share:.2%} of a core (at most {MOST:.0%}), {ticked / elapsed:.2%} by /proc; "
            f"supervisor {used[worker.pid] / elapsed:.3%}, a worker "
            f"{max(used[pid] for pid in pids[1:]) / elapsed:.3%} at most"
        )
        worker.terminate()
        if worker.wait(30) != 0:
            return [f"exit code {worker.returncode}"]
    return [f"{share:.2%} of a core"] if share > MOST else []


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process with all its threads, by its clock."""
    return time.clock_gettime((~pid << 3) | 2)


def ticks(pid: int) -> float:
    """The same as ``/proc/PID/stat`` has it, in hundredths of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
