"""The tasks log against a dictionary: any order of calls of two workers gives the same tasks."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deferred_django import ids
from deferred_django.backends.disk import claims, row_heap, segment, tasks_storage, tidy
from deferred_django.backends.disk.segment import Entry
from deferred_django.backends.disk.tasks_storage import TasksStorage
from tests.disk.support import PAST, open_storage

QUEUES = ("a", "b", "c")
NUMBER = st.integers(0, 1_000)
OPERATION = st.one_of(
    st.tuples(st.just("add"), NUMBER, NUMBER),
    st.tuples(st.just("add many"), NUMBER, NUMBER),
    st.tuples(st.just("claim"), NUMBER, NUMBER),
    st.tuples(st.just("claim some queues"), NUMBER, NUMBER),
    st.tuples(st.just("claim by id"), NUMBER, NUMBER),
    st.tuples(st.just("complete"), NUMBER, NUMBER),
    st.tuples(st.just("reschedule"), NUMBER, NUMBER),
    st.tuples(st.just("release"), NUMBER, NUMBER),
    st.tuples(st.just("remove"), NUMBER, NUMBER),
    st.tuples(st.just("pass time"), NUMBER, NUMBER),
    st.tuples(st.just("maintain"), NUMBER, NUMBER),
    st.tuples(st.just("restart"), NUMBER, NUMBER),
)


@dataclass
class Task:
    """What the store is to know of a pending task."""

    payload: bytes
    publish_at: float
    queue: str
    priority: int
    runs: int = 0
    claimed: bool = False

    @property
    def key(self) -> tuple[int, float]:
        return -self.priority, self.publish_at


class Model:
    """Two workers and a producer on one store, and the dictionary."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tasks: dict[str, Task] = {}
        self.now = PAST
        self.workers = [self._open(), self._open()]
        self.producer = self._open()
        self.held: list[tuple[TasksStorage, Entry]] = []

    def _open(self) -> TasksStorage:
        return open_storage(self.path, fsync_frequency=600)

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def close(self) -> None:
        for storage, entry in self.held:
            storage.release(entry, hold=False)
        for storage in (*self.workers, self.producer):
            storage.close()

    def do(self, operation: str, a: int, b: int) -> None:
        getattr(self, "_" + operation.replace(" ", "_"))(a, b)

    def _add(self, a: int, b: int, *, task_id: str | None = None) -> None:
        task_id = task_id or ids.new_id()
        task = Task(b"%d" % a, self.now + a % 7 - 3, QUEUES[b % 3], (0, 0, 0, 5, -5)[a % 5])
        self.producer.add(
            task_id,
            task.payload,
            publish_at=task.publish_at,
            queue=task.queue,
            priority=task.priority,
        )
        self.tasks[task_id] = task

    def _add_many(self, a: int, b: int) -> None:
        for number in range(a % 20):
            self._add(a + number, b + number // 5)

    def _claim(self, a: int, b: int, queues: tuple[str, ...] = QUEUES) -> None:
        worker, limit = self.workers[a % 2], 1 + b % 9
        due = {
            task_id: task
            for task_id, task in self.tasks.items()
            if not task.claimed and task.publish_at <= self.now and task.queue in queues
        }
        claimed = worker.claim(limit, queues, (), None)
        assert [(-e.priority, e.publish_ms / 1000) for e, _ in claimed] == sorted(
            task.key for task in due.values()
        )[:limit]
        self._took(worker, claimed, due)

    def _claim_some_queues(self, a: int, b: int) -> None:
        self._claim(a, b, (QUEUES[a % 3], QUEUES[b % 3]))

    def _claim_by_id(self, a: int, b: int) -> None:
        names = list(self.tasks)[a % 5 :: 5]
        due = {
            name: task
            for name in names
            if not (task := self.tasks[name]).claimed and task.publish_at <= self.now
        }
        worker = self.workers[b % 2]
        claimed = worker.claim(1000, None, (), names)
        assert {entry.id for entry, _ in claimed} == due.keys()
        self._took(worker, claimed, due)

    def _took(
        self, worker: TasksStorage, claimed: list[tuple[Entry, bytes]], due: dict[str, Task]
    ) -> None:
        for entry, payload in claimed:
            task = due[entry.id]
            assert (entry.queue, payload, len(entry.runs)) == (task.queue, task.payload, task.runs)
            task.claimed = True
            self.held.append((worker, entry))

    def _one(self, a: int) -> tuple[TasksStorage, Entry] | None:
        return self.held.pop(a % len(self.held)) if self.held else None

    def _complete(self, a: int, b: int) -> None:
        if one := self._one(a):
            worker, entry = one
            worker.start(entry)
            worker.complete(entry)
            del self.tasks[entry.id]

    def _reschedule(self, a: int, b: int) -> None:
        if one := self._one(a):
            worker, entry = one
            worker.start(entry)
            at = self.now + b % 5 - 1
            worker.reschedule(entry, b"again %d" % b, at)
            old = self.tasks[entry.id]
            self.tasks[entry.id] = Task(b"again %d" % b, at, old.queue, old.priority)

    def _release(self, a: int, b: int) -> None:
        if one := self._one(a):
            worker, entry = one
            if b % 2:
                worker.start(entry)
            worker.release(entry, hold=False)
            self.tasks[entry.id].claimed = False

    def _remove(self, a: int, b: int) -> None:
        names = [*self.tasks, "1-1-none-1"]
        name = names[a % len(names)]
        free = name in self.tasks and not self.tasks[name].claimed
        storage = (*self.workers, self.producer)[b % 3]
        assert storage.remove(name) is free
        if free:
            del self.tasks[name]

    def _pass_time(self, a: int, b: int) -> None:
        self.now += a % 4

    def _maintain(self, a: int, b: int) -> None:
        self.workers[a % 2].maintain()

    def _restart(self, a: int, b: int) -> None:
        if a % 2:
            self.producer.close()
            self.producer = self._open()
        else:
            index = b % 2
            old = self.workers[index]
            mine = [one for one in self.held if one[0] is old]
            for one in mine:
                self.held.remove(one)
                old.release(one[1], hold=False)
                self.tasks[one[1].id].claimed = False
            old.close()
            self.workers[index] = self._open()

    def check(self) -> None:
        for storage in (self.workers[0], self.producer):
            found = {
                entry.id: (entry.publish_ms / 1000, entry.queue, entry.priority, payload, claimed)
                for entry, claimed, payload in storage.survey_with_payloads()
            }
            assert found == {
                name: (task.publish_at, task.queue, task.priority, task.payload, task.claimed)
                for name, task in self.tasks.items()
            }
        counts, problems = self.workers[1].overview()
        assert problems == []
        due = [t.publish_at for t in self.tasks.values() if not t.claimed]
        assert counts.running == len(self.held)
        assert counts.due + counts.delayed == len(due)


@contextmanager
def small(*, block_rows: int, collide: bool) -> Iterator[None]:
    with (
        mock.patch.object(row_heap, "BLOCK_ROWS", block_rows),
        mock.patch.object(row_heap, "PACK_AT", 4),
        mock.patch.object(tidy, "COMPACT_BYTES", 300),
        mock.patch.object(claims, "HELD_RETRY_SECONDS", -1.0),
        mock.patch.object(tasks_storage, "SLICE_BYTES", 1),
        mock.patch.object(segment, "hash_of", (lambda name: len(name)) if collide else hash),
    ):
        yield


@pytest.mark.parametrize("collide", [False, True], ids=["hashes", "equal hashes"])
@given(operations=st.lists(OPERATION, max_size=60), block_rows=st.sampled_from([2, 4, 1000]))
@settings(max_examples=40, deadline=None)
def test_the_log_does_what_a_dictionary_does(
    operations: list[tuple[str, int, int]], block_rows: int, collide: bool
) -> None:
    with tempfile.TemporaryDirectory() as directory, small(block_rows=block_rows, collide=collide):
        model = Model(Path(directory) / "store")
        with mock.patch.object(tasks_storage, "_now_ms", model.now_ms):
            try:
                for operation in operations:
                    model.do(*operation)
                model.check()
            finally:
                model.close()
