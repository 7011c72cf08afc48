"""Where a scenario plays: a recorded directory, storages on it, and the books of what they promise.

A scenario calls the stage's methods, each of which does one thing to a storage as a process would,
and writes into the books what is right before and after it. No timer runs: what the timer does is
done by :meth:`Stage.sync`.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

from deferred_django import ids
from deferred_django.backends.base import BackendConfig, NewTask
from deferred_django.backends.disk import descriptors
from deferred_django.backends.disk.backend import DiskBackend
from deferred_django.backends.disk.dead_tasks_storage import DeadTasksStorage
from deferred_django.backends.disk.segment import Entry
from deferred_django.backends.disk.syncer import Syncer
from deferred_django.backends.disk.tasks_storage import TasksStorage
from deferred_django.queue import Queue
from tests.crash.books import Bookkeeper, Books, Pending
from tests.crash.events import Mark
from tests.crash.recorder import Recorder
from tests.disk import support

PREFIX = "t-"
STORE = "srv/store"
"""The store's directory below the recorded root; neither of the two is there in the beginning."""
BY_HAND = 3600.0
"""A period of fsyncs that no scenario lives to see."""


def _do_nothing(argument: object) -> None:
    """Cheaper than a mock, which notes each call."""


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Let no storage fsync by itself, nor keep a list of thousands of storages for a fork."""
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(Syncer, "soon", _do_nothing))
        stack.enter_context(mock.patch.object(descriptors, "on_fork", _do_nothing))
        yield


@contextlib.contextmanager
def repeatable_names(seed: int) -> Iterator[None]:
    """Let the names of segments and the nonces be the same in each run with the seed."""
    chance = random.Random(seed)

    def token(length: int = ids.TOKEN_LENGTH) -> str:
        return "".join(chance.choice(ids.ALPHABET) for _ in range(length))

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(ids, "random_token", token))
        stack.enter_context(mock.patch.object(ids, "_source", ids.IdSource()))
        yield


def expect_error(call: Callable[[], object]) -> None:
    """The call must raise ``OSError``."""
    try:
        call()
    except OSError:
        return
    raise AssertionError("no OSError was raised")


class Stage:
    """One play of one scenario."""

    def __init__(self, root: Path) -> None:
        self.recorder = Recorder(str(root))
        self.path = os.path.join(str(root), STORE)
        self.directory = Path(self.path)
        self._first_page: Books | None = None
        self.books = Bookkeeper(lambda books: self.recorder.note(Mark(books)))
        self._storages: list[TasksStorage] = []
        self._unsynced: dict[TasksStorage, dict[str, Pending | None]] = {}
        self._seen: dict[str, Pending] = {}

    @property
    def first_page(self) -> Books:
        """The books as they were when the recording began."""
        assert self._first_page is not None
        return self._first_page

    def begin(self) -> None:
        """What was prepared is durable; from here on everything is recorded."""
        self.close()
        self._first_page = self.books.page()
        self.recorder.begin()

    def promise_what_is_there(self) -> None:
        """What is in the directory now is durable, by what was prepared or by an earlier crash."""
        self.promise_the_log_as_it_is(self.log())
        there = dict(self.dead().read())
        for task_id in {*self.books.ids(), *there}:
            self.books.dead_is(task_id, there.get(task_id))

    def promise_the_log_as_it_is(self, storage: TasksStorage) -> None:
        """A worker has met all segments and has fsynced what it found."""
        there = {e.id: Pending(data, len(e.runs)) for e, _, data in storage.survey_with_payloads()}
        for task_id in {*self.books.ids(), *there}:
            self.books.log_is(task_id, there.get(task_id))

    def close(self) -> None:
        """Close the storages."""
        for storage in self._storages:
            storage.close()
        self._storages.clear()

    # -- storages ------------------------------------------------------------------------------

    def log(self, *, fsync_frequency: float = BY_HAND, rotate_bytes: int = 0) -> TasksStorage:
        """The log, as a process of its own has it."""
        storage = TasksStorage(self.path, PREFIX, fsync_frequency=fsync_frequency)
        if rotate_bytes:
            storage._writer.rotate_bytes = rotate_bytes
            storage._writer.reset()
        self._storages.append(storage)
        self._unsynced[storage] = {}
        return storage

    def queue(self) -> Queue:
        """The queue and the facade, as a process of its own has them."""
        config = BackendConfig(path=self.directory, prefix=PREFIX, fsync_frequency=BY_HAND)
        backend = DiskBackend(config)
        self._storages.append(backend.tasks)
        self._unsynced[backend.tasks] = {}
        return Queue(backend)

    def dead(self) -> DeadTasksStorage:
        """The dead tasks, as a process of its own has them."""
        return DeadTasksStorage(self.path, PREFIX)

    def let_go(self, storage: TasksStorage) -> None:
        """The process ends in order."""
        self.sync(storage)
        storage.close()
        self._storages.remove(storage)

    @contextlib.contextmanager
    def process_that_dies(self, call: int | None = None, *, tears: bool = False) -> Iterator[None]:
        """See :meth:`Recorder.process_that_dies`; its storages are gone with it."""
        before = list(self._storages)
        with self.recorder.process_that_dies(call, tears=tears):
            yield
        self._storages = before

    # -- the log -------------------------------------------------------------------------------

    def enqueue(self, storage: TasksStorage, task_id: str, payload: bytes = b"payload") -> None:
        """Add a task; the promise comes with the return where each add is fsynced."""
        state = Pending(payload)
        self.books.log_may_be(task_id, state)
        support.add(storage, payload, task_id=task_id)
        if storage._writer._sync_each:
            self.books.log_is(task_id, state)
        else:
            self._unsynced[storage][task_id] = state

    def enqueue_together(self, storage: TasksStorage, *task_ids: str) -> None:
        """Add several tasks by one write; the promise is for all of them, with the return."""
        states = {task_id: Pending(task_id.encode()) for task_id in task_ids}
        for task_id, state in states.items():
            self.books.log_may_be(task_id, state)
        storage.add_together(
            [NewTask(state.payload, support.PAST, name) for name, state in states.items()]
        )
        if storage._writer._sync_each:
            for task_id, state in states.items():
                self.books.log_is(task_id, state)
        else:
            self._unsynced[storage].update(states)

    def enqueue_in_vain(self, storage: TasksStorage, task_id: str) -> None:
        """Add a task while one fsync fails: it is refused, and nowhere."""
        self.books.log_may_be(task_id, Pending(b"refused"))
        expect_error(lambda: support.add(storage, b"refused", task_id=task_id))
        self.books.log_is(task_id, None)

    def sync(self, storage: TasksStorage) -> None:
        """What the timer does: all that this storage has changed is durable afterwards."""
        storage.sync()
        changes = self._unsynced[storage]
        for task_id, state in changes.items():
            self.books.log_is(task_id, state)
        changes.clear()

    def claim(self, storage: TasksStorage, *task_ids: str) -> list[Entry]:
        """Claim tasks, all that are due if none are named."""
        claimed = storage.claim(1000, None, (), task_ids or None)
        for entry, payload in claimed:
            self._seen[entry.id] = Pending(payload, len(entry.runs))
        return [entry for entry, _ in claimed]

    def claim_one(self, storage: TasksStorage, task_id: str) -> Entry:
        """Claim one task."""
        [entry] = self.claim(storage, task_id)
        return entry

    def _changes(self, storage: TasksStorage, task_id: str, state: Pending | None) -> None:
        self.books.log_may_be(task_id, state)
        for changes in self._unsynced.values():
            changes.pop(task_id, None)  # another's sync has nothing to say of this
        self._unsynced[storage][task_id] = state

    def start(self, storage: TasksStorage, entry: Entry) -> None:
        """Write the task's run."""
        seen = self._seen[entry.id]
        self._seen[entry.id] = seen._replace(runs=seen.runs + 1)
        self._changes(storage, entry.id, self._seen[entry.id])
        storage.start(entry)

    def complete(self, storage: TasksStorage, entry: Entry) -> None:
        """The task is done."""
        self._changes(storage, entry.id, None)
        storage.complete(entry)

    def reschedule(self, storage: TasksStorage, entry: Entry, payload: bytes) -> None:
        """The task is to be tried again."""
        self._changes(storage, entry.id, Pending(payload))
        storage.reschedule(entry, payload, support.PAST)

    def put_back(self, storage: TasksStorage, entry: Entry) -> None:
        """The task was stopped: its start does not count."""
        seen = self._seen[entry.id]
        # An end without its run takes back an earlier run. Such a one was of an earlier boot.
        self.books.log_may_be(entry.id, seen._replace(runs=max(0, seen.runs - 2)))
        self._changes(storage, entry.id, seen._replace(runs=seen.runs - 1))
        storage.release(entry, hold=False)

    def run_all(self, storage: TasksStorage) -> None:
        """Run what is due."""
        while entries := self.claim(storage):
            for entry in entries:
                self.start(storage, entry)
                self.complete(storage, entry)

    def remove_task(self, storage: TasksStorage, task_id: str) -> None:
        """Drop a pending task, durably."""
        self.books.log_may_be(task_id, None)
        assert storage.remove(task_id)
        self.books.log_is(task_id, None)

    # -- the dead tasks ------------------------------------------------------------------------

    def dead_add(self, dead: DeadTasksStorage, task_id: str, record: bytes = b'{"r":1}') -> None:
        """Add a dead task, durably."""
        self.books.dead_may_be(task_id, record)
        dead.add(task_id, record)
        self.books.dead_is(task_id, record)

    def dead_remove(self, dead: DeadTasksStorage, *task_ids: str, **options: Any) -> None:
        """Remove dead tasks, all or none, durably."""
        self.books.removed_together(*task_ids)
        for task_id in task_ids:
            self.books.dead_may_be(task_id, None)
        assert dead.remove(task_ids, **options) == len(task_ids)
        for task_id in task_ids:
            self.books.dead_is(task_id, None)
        self.books.removed_together()

    def dead_retry(
        self,
        dead: DeadTasksStorage,
        storage: TasksStorage,
        *task_ids: str,
        meanwhile: Callable[[str], None] = lambda task_id: None,
    ) -> None:
        """Take dead tasks out of the one store into the other, as a retry does."""

        def handover(task_id: str, record: bytes) -> None:
            self.enqueue(storage, task_id, b"again " + record)
            meanwhile(task_id)

        def make_durable() -> None:
            self.sync(storage)
            for task_id in task_ids:
                self.books.dead_may_be(task_id, None)

        assert dead.take(task_ids, handover, make_durable) == list(task_ids)
        for task_id in task_ids:
            self.books.dead_is(task_id, None)
