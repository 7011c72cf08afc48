"""A real worker whose calls to the store fail lastingly: what must be true then and afterwards.

``python -m tests.faults.workers``, or ``make faults``: each error at each place, and at all records
at once. Prints what was injected and what was violated; exit code 1 if anything was.
"""

from __future__ import annotations

import argparse
import errno
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from deferred_django import ids
from deferred_django.backends.base import BackendConfig
from deferred_django.backends.disk.backend import DiskBackend
from deferred_django.context import TaskContext
from tests.faults import switched
from tests.faults.switched import PLACES, Switch
from tests.harness import Project, children_of, is_alive
from tests.support import wait_until

ERRORS = (errno.EIO, errno.EMFILE, errno.ESTALE, errno.EDQUOT)
MOST_LINES, LINES_A_SECOND = 10, 1
"""So many lines of warning are logged at most when a fault begins and ends, and while it lasts."""
MOST_SEGMENTS = 8
SOON = 30.0

TASKS = """
@deferred(max_retries=0)
def work(name):
    note(name)

@deferred(max_retries=0)
def ends(name):
    note(name)
    wait_for_file("go")

@deferred(max_retries=1, retry_interval=lambda error, attempt: 0)
def is_tried_again(name):
    note(name)
    wait_for_file("go")
    if current_task().attempt == 1:
        raise ValueError("once")

@deferred(max_retries=0)
def dies(name):
    note(name)
    wait_for_file("go")
    raise ValueError("for good")
"""
RUNNING = ("ends", "is_tried_again", "dies")
"""What has started when the faults begin, and has not ended."""
IN_THE_END = Counter(
    {"ends": 1, "is_tried_again": 2, "dies": 1, "here 1": 1, "here 2": 1, "elsewhere": 1}
)
"""How often each task has been run by then."""


@dataclass
class Trial:
    """Faults at these places, and what came of them."""

    faults: Mapping[str, int]
    seconds: float
    injected: dict[str, int] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    """What the worker logged as a warning or an error."""
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        faults = ", ".join(f"{errno.errorcode[code]} at {at}" for at, code in self.faults.items())
        return f"{faults}: {sum(self.injected.values())} injected, {len(self.lines)} lines logged"

    def check(self, so: bool, what: str) -> None:
        """Note a violation unless ``so``."""
        if not so:
            self.violations.append(what)

    def run(self, directory: Path) -> None:
        """Do it in an empty directory; afterwards there may be violations."""
        with Project(directory, settings=switched.SETTINGS, tasks=TASKS) as project:
            here, there = open_store(project), open_store(project)
            try:
                self._run(project, here, there)
            finally:
                here.close()
                there.close()

    def _run(self, project: Project, here: DiskBackend, there: DiskBackend) -> None:
        switch = Switch(project)
        worker = project.worker("--threads", "4")
        tasks = {name: enqueue(here, name, name) for name in RUNNING}
        wait_until(lambda: sorted(project.notes()) == sorted(RUNNING), SOON)
        processes = children_of(worker.pid)

        switch.set(self.faults)
        project.touch("go")
        tasks |= {name: enqueue(here, "work", name) for name in ("here 1", "here 2")}
        tasks |= {"elsewhere": enqueue(there, "work", "elsewhere")}
        wait_until(lambda: self.faults.keys() <= met(switch), SOON, f"a fault at {self.faults}")
        end = time.monotonic() + self.seconds
        wait_until(lambda: self._watch(project, here, tasks) or time.monotonic() > end, SOON)
        self.check(children_of(worker.pid) == processes, "the worker process was replaced")
        self.injected = switch.injected()

        switch.set({})
        try:
            wait_until(lambda: here.pending_tasks() == [], SOON)
        except AssertionError as error:
            self.violations.append(f"work does not go on: {error}")
        ran = Counter(project.notes())
        self.check(ran == IN_THE_END, f"in the end there were these runs: {ran}")
        dead = [record["id"] for record in here.list_dead_tasks()]
        self.check(dead == [tasks["dies"]], f"in the end these are dead: {dead}")
        self.check(children_of(worker.pid) == processes, "the worker process was replaced")
        self.check(all(map(is_alive, processes)), "the worker process does not live")
        worker.terminate()
        self.check(worker.wait(SOON) == 0, f"exit code {worker.returncode}")
        found = [str(each) for each in here.verify() if each.kind != "torn"]
        self.check(not found, f"in the end verify finds {found}")
        self.lines = re.findall("^(?:WARNING|ERROR|CRITICAL) .*", project.log(), re.MULTILINE)
        most = MOST_LINES + LINES_A_SECOND * self.seconds
        self.check(len(self.lines) <= most, f"{len(self.lines)} lines were logged: {self.lines}")

    def _watch(self, project: Project, store: DiskBackend, tasks: dict[str, str]) -> bool:
        """Whether anything is wrong already."""
        pending = {task.id for task in store.pending_tasks()}
        dead = {record["id"] for record in store.list_dead_tasks()}
        ran = Counter(project.notes())
        lost = [name for name, at in tasks.items() if at not in pending | dead and not ran[name]]
        self.check(not lost, f"lost: {lost}")
        self.check(ran <= IN_THE_END, f"run too often: {ran}")
        self.check(tasks["dies"] in pending | dead, "the dead task is nowhere")
        segments = store.tasks.names.segments()
        self.check(len(segments) <= MOST_SEGMENTS, f"there are {len(segments)} segments")
        for place, name, runs in (("run", "here 1", 0), ("retry", "is_tried_again", 1)):
            self.check(place not in self.faults or ran[name] <= runs, f"{name} ran after all")
        return bool(self.violations)


def open_store(project: Project) -> DiskBackend:
    return DiskBackend(BackendConfig(path=project.storage))


def enqueue(store: DiskBackend, task: str, name: str) -> str:
    data = TaskContext.build(f"app.tasks.{task}", (name,), {}).to_bytes()
    return store.add_task(data, task_id=ids.new_id())


def met(switch: Switch) -> set[str]:
    return {place for place, times in switch.injected().items() if times}


def sample(seconds: float) -> list[Trial]:
    """Few that have every place and every error."""
    some = [dict(zip(switched.RECORDS, ERRORS, strict=True))]
    some += [{"fsync": errno.EIO}, {"open": errno.EMFILE}, {"lock": errno.ESTALE}]
    return [Trial(faults, seconds) for faults in some]


def every(seconds: float) -> list[Trial]:
    """All of them."""
    single = [Trial({place: code}, seconds) for place in PLACES for code in ERRORS]
    records = [Trial(dict.fromkeys(switched.RECORDS, code), seconds) for code in ERRORS]
    return single + records


def attempt(trial: Trial) -> Trial:
    """Do it in a directory of its own; an error is a violation."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            trial.run(Path(directory))
        except Exception as error:
            trial.violations.append(f"{type(error).__name__}: {error}")
    return trial


def main() -> int:
    """Run what the options say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each fault lasts")
    parser.add_argument("--jobs", type=int, default=4, help="trials beside each other")
    options = parser.parse_args()

    done = []
    with ThreadPoolExecutor(options.jobs) as threads:
        for trial in threads.map(attempt, every(options.seconds)):
            done.append(trial)
            print(trial, flush=True)
            for violation in trial.violations:
                print(f"    VIOLATION {violation}", flush=True)
    violated = sum(bool(trial.violations) for trial in done)
    faults = sum(sum(trial.injected.values()) for trial in done)
    most = max(len(trial.lines) for trial in done)
    print(
        f"{len(done)} workers, {faults:,} faults of {options.seconds:g} s in all, "
        f"at most {most} lines logged by one, {violated} violations"
    )
    return 1 if violated else 0


if __name__ == "__main__":
    sys.exit(main())
