"""Producers and workers killed at random under load; then the books are checked.

    python -m tests.torture.kills --seconds 60

Three producers enqueue and note each id that they were given; three workers with two threads each
run them and note each start and end. For the given time every one of them is killed by SIGKILL
again and again and started anew. Then one drain runs what is left. Lost is an acknowledged task
that never ended. A task may start twice only if it was running in a process that was killed.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from subprocess import Popen

from tests.harness import Project, children_of, kill_quietly

THREADS = 2

TASKS = """
    @deferred(max_retries=0)
    def work(number):
        note("start", current_task().id, os.getpid())
        if number % 50 == 0:
            time.sleep(0.05)
        note("end", current_task().id, os.getpid())
"""

PRODUCER = """
    acked = os.open("acked.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    number = 0
    while True:
        for _ in range(100):
            number += 1
            task_id = work.enqueue(number)
            os.write(acked, task_id.encode() + b"\\n")
        time.sleep(0.1)
"""


class Kills:
    """The processes of one run, and who of them was killed."""

    def __init__(self, project: Project, seed: int) -> None:
        self._project = project
        self._random = random.Random(seed)
        self.producers: list[Popen[str]] = []
        self.workers: list[Popen[str]] = []
        self.killed_producers = 0
        self.killed_workers: set[int] = set()

    def start(self, count: int) -> None:
        """Start that many producers and workers."""
        for _ in range(count):
            self.producers.append(self._project.start(PRODUCER))
            self.workers.append(self._worker())

    def _worker(self) -> Popen[str]:
        return self._project.worker("--processes", "1", "--threads", str(THREADS))

    def kill_one(self) -> None:
        """Kill a producer, a worker process, or a worker's supervisor with its process."""
        choice = self._random.random()
        place = self._random.randrange(len(self.workers))
        if choice < 0.4:
            self.producers[place].kill()
            self.producers[place].wait()
            self.producers[place] = self._project.start(PRODUCER)
            self.killed_producers += 1
            return
        supervisor = self.workers[place]
        children = children_of(supervisor.pid)
        if choice > 0.9:  # first the processes, so that none of them ends in good order
            for child in children:
                kill_quietly(child)
            supervisor.kill()
            supervisor.wait()
            self.workers[place] = self._worker()
        else:
            for child in children:
                kill_quietly(child)
        self.killed_workers.update(children)

    def stop(self) -> None:
        """Kill what is left."""
        for producer in self.producers:
            producer.kill()
            producer.wait()
            self.killed_producers += 1
        for supervisor in self.workers:
            children = children_of(supervisor.pid)
            supervisor.kill()
            supervisor.wait()
            for child in children:
                kill_quietly(child)
            self.killed_workers.update(children)


def books(project: Project, kills: Kills) -> int:
    """Print the figures; 0 if nothing was lost and nothing started twice without cause."""
    acked = set((project.path / "acked.txt").read_text().split())
    started: Counter[str] = Counter()
    ended: set[str] = set()
    open_in: dict[str, int] = {}
    unexplained: list[str] = []
    cut_off: set[tuple[str, str]] = set()
    for line in project.notes():
        what, task_id, pid = line.split()
        if what == "start":
            started[task_id] += 1
            before = open_in.get(task_id)
            if before is not None and before not in kills.killed_workers:
                unexplained.append(task_id)
            open_in[task_id] = int(pid)
            cut_off.add((task_id, pid))
        else:
            ended.add(task_id)
            cut_off.discard((task_id, pid))
    lost = acked - ended
    again = sum(count - 1 for count in started.values())
    running_at_kills = len(kills.killed_workers) * THREADS
    print(
        f"acknowledged {len(acked):,}, lost {len(lost)}, ran {len(ended):,}, "
        f"started again {again} ({len(cut_off)} were cut off between their first line and their "
        f"last, at most {running_at_kills} ran at a kill, {len(unexplained)} without cause), "
        f"killed: {kills.killed_producers} producers, {len(kills.killed_workers)} workers"
    )
    return 1 if lost or unexplained or again > running_at_kills else 0


def main() -> int:
    """Run, drain, check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with (
        tempfile.TemporaryDirectory() as directory,
        Project(Path(directory), tasks=TASKS) as project,
    ):
        kills = Kills(project, options.seed)
        kills.start(3)
        end = time.monotonic() + options.seconds
        time.sleep(2.0)  # let all of them begin
        while time.monotonic() < end:
            time.sleep(random.uniform(0.1, 0.6))
            kills.kill_one()
        kills.stop()
        began = time.monotonic()
        project.drain("--threads", str(THREADS), timeout=300)
        print(f"drained in {time.monotonic() - began:.1f} s")
        verified = project.manage("deferred_verify")
        print(verified.stdout.strip().splitlines()[-1] if verified.stdout else verified.stderr)
        left = project.manage("deferred_status", "--format", "json").stdout.strip()
        print(left)
        return books(project, kills)


if __name__ == "__main__":
    sys.exit(main())
