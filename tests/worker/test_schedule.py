"""Periodic tasks as projects have them: real workers, real kills, the disk backend."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter

from deferred_django.backends.base import BackendConfig
from deferred_django.backends.disk import DiskBackend
from tests.harness import Project, children_of
from tests.support import wait_until
from tests.worker.conftest import MakeProject

TASKS = """
from deferred_django.signals import task_enqueued

def note_enqueued(task_id, **kwargs):
    note("enqueued", task_id)

task_enqueued.connect(note_enqueued)

@deferred(queue="ticks")
def tick(name):
    note("tick", name, current_task().id)
"""
SCHEDULE = """
DEFERRED["SCHEDULE"] = {
    "often": {"task": "app.tasks.tick", "every": 0.2, "args": ["often"]},
    "slow one": {"task": "app.tasks.tick", "every": 1, "kwargs": {"name": "slow"}},
    "nightly": {"task": "app.tasks.tick", "cron": "0 3 * * *", "args": ["nightly"]},
}
"""


def ticks(project: Project, name: str) -> list[str]:
    return [note.split()[2] for note in project.notes() if note.startswith(f"tick {name} ")]


def time_of(task_id: str) -> float:
    seconds, _, rest = task_id.partition("-")
    return int(seconds) + int(rest.rpartition("-")[2]) / 1000


def test_many_workers_one_of_them_killed_again_and_again(make_project: MakeProject) -> None:
    """Each tick is enqueued once; only around a death may the next ones be late, or be missed."""
    project = make_project(tasks=TASKS, settings=SCHEDULE)
    workers = [project.worker("--processes", "2") for _ in range(3)]

    def wait_for_ticks(number: int) -> None:
        wait_until(lambda: len(ticks(project, "often")) >= number, timeout=30)

    wait_for_ticks(5)
    kills = 0
    for number in range(6):
        before = len(ticks(project, "often"))
        victim = children_of(workers[number % 3].pid)
        if victim:
            os.kill(victim[0], signal.SIGKILL)
            kills += 1
        wait_for_ticks(before + 4)
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
    for worker in workers:
        assert worker.wait(20) == 0
    assert kills >= 4
    project.drain()
    enqueued = Counter(note.split()[1] for note in project.notes() if note.startswith("enq"))
    ran = Counter(ticks(project, "often") + ticks(project, "slow"))
    assert set(enqueued.values()) == {1}
    assert enqueued.keys() <= ran.keys()
    # A killed worker's task runs again; and who was killed right behind an enqueue told nobody.
    assert sum(ran.values()) - len(ran) <= kills
    assert len(ran.keys() - enqueued.keys()) <= kills
    assert ticks(project, "nightly") == []
    times = sorted(set(map(time_of, ticks(project, "often"))))
    multiples = [(at - times[0]) / 0.2 for at in times]
    assert all(abs(each - round(each)) < 0.02 for each in multiples)  # no drift, whoever it was
    backend = DiskBackend(BackendConfig(path=project.storage))
    records = {record.name: record for record in backend.tick_records()}
    assert (backend.verify(), backend.pending_tasks()) == ([], [])
    backend.close()
    assert records.keys() == {"often", "slow one", "nightly"}
    assert all(record.unfinished_at is None for record in records.values())
    last = records["often"].last_at
    assert last is not None
    assert abs(last - times[-1]) < 0.01


def test_a_drain_enqueues_what_is_due_and_runs_it(make_project: MakeProject) -> None:
    schedule = (
        'DEFERRED["SCHEDULE"] = {"a": {"task": "app.tasks.tick", "every": 0.5, "args": ["a"]}}'
    )
    project = make_project(tasks=TASKS, settings=schedule)
    project.drain()
    assert ticks(project, "a") == []
    backend = DiskBackend(BackendConfig(path=project.storage))
    [record] = backend.tick_records()
    backend.close()
    wait_until(lambda: time.time() > record.next_at + 0.6)  # one is due, another was missed
    project.drain("--queues", "ticks")
    assert [abs(time_of(each) - record.next_at) < 0.01 for each in ticks(project, "a")][:1] == [
        True
    ]
    status = project.status()
    assert [entry["name"] for entry in status["schedule"]] == ["a"]


def test_a_worker_without_the_key_takes_no_part(make_project: MakeProject) -> None:
    project = make_project(tasks=TASKS)
    project.drain()
    assert not [name for name in os.listdir(project.storage) if "schedule" in name]
