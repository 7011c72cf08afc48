"""Opens an image of the disk with the real code and looks whether all is as promised.

A store that a power cut has left must show what the books say and what an independent reading of
the bytes finds; the next add and the next removal must work; what is there must run to its end, and
the directory must be empty then.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from deferred_django.backends.disk import verify
from deferred_django.backends.disk.dead_tasks_storage import DeadTasksStorage
from deferred_django.backends.disk.names import StoreNames
from deferred_django.backends.disk.tasks_storage import TasksStorage
from tests.crash.books import Books, Pending
from tests.crash.model import Image
from tests.crash.scenario import write_image
from tests.crash.stage import PREFIX, STORE
from tests.disk import support
from tests.fuzz import reference

NEXT = "next"
NEXT_PAYLOAD = b"what comes after the crash"
NEXT_RECORD = b'{"next":1}'
_SEGMENT = re.compile(r"0-\d{8}-\d+-[0-9a-z]+")
_ASIDE = re.compile(r"0-\d{8}-\d+-[0-9a-z]+\.damaged")
DEAD_TASKS = "dead_tasks-0"

Log = dict[str, list[Pending]]
Dead = dict[str, bytes]


class BrokenPromiseError(AssertionError):
    """The store is not as it was promised."""


def expect(condition: object, message: str) -> None:
    """Raise :class:`BrokenPromiseError` with the message unless it holds."""
    if not condition:
        raise BrokenPromiseError(message)


@dataclass
class _Said:
    log: Log = field(default_factory=dict)
    dead: Dead = field(default_factory=dict)
    asides: int = 0
    """How many damaged segments there are once all are drained."""


@dataclass
class Found:
    """What a store shows, and whether it works."""

    log: Log = field(default_factory=dict)
    dead: Dead = field(default_factory=dict)
    complaint: str | None = None

    def breaks(self, books: Books) -> str | None:
        """What is wrong, by these books or by any; ``None`` if nothing is."""
        return next(iter(books.complaints(self.log, self.dead)), self.complaint)


def _read_plainly(image: Image) -> _Said:
    """What is there by the rules of the format, read by none of the store's code."""
    said = _Said()
    for path, data in image:
        directory, _, name = path.rpartition("/")
        name = name.removeprefix(PREFIX)
        if directory != STORE or data is None:
            continue
        if _SEGMENT.fullmatch(name):
            reading = reference.read_log(data)
            for task_id, task in reading.tasks.items():
                assert task.payload is not None
                state = Pending(task.payload, len(task.runs))
                said.log.setdefault(task_id, []).append(state)
            said.asides += bool(reading.damage)
        elif _ASIDE.fullmatch(name):
            said.asides += 1
        elif name == DEAD_TASKS:
            said.dead = reference.read_dead(data).dead
    return said


def _sorted(log: Log) -> Log:
    return {task_id: sorted(states) for task_id, states in log.items()}


class Checker:
    """Checks images one after the other in a scratch directory that nobody else uses."""

    def __init__(self, scratch: str) -> None:
        self._root = os.path.join(scratch, "image")
        self._path = os.path.join(self._root, STORE)
        self._open: list[TasksStorage] = []

    def examine(self, image: Image, *, thoroughly: bool = True) -> Found:
        """What is on the disk; with what is wrong with it, whatever was promised.

        ``thoroughly``: by working on it too.
        """
        found = Found()
        try:
            _clear(self._root)
            write_image(image, self._root)
            found.log, found.dead = self._look_at_log(), self._look_at_dead()
            said = self._check(image, found.log, found.dead)
            if thoroughly:
                self._go_on(image, found.log, found.dead, said)
        except BrokenPromiseError as error:
            found.complaint = str(error)
        except Exception as error:
            found.complaint = f"{type(error).__name__}: {error}"
        finally:
            for storage in self._open:
                with contextlib.suppress(OSError):
                    storage.close()
            self._open.clear()
        return found

    @staticmethod
    def _check(image: Image, log: Log, dead: Dead) -> _Said:
        said = _read_plainly(image)
        expect(_sorted(log) == _sorted(said.log), f"the log shows {log}, not {said.log}")
        expect(dead == said.dead, f"the dead tasks shown are {dead}, not {said.dead}")
        return said

    def _go_on(self, image: Image, log: Log, dead: Dead, said: _Said) -> None:
        verify.verify_segments(StoreNames(self._path, PREFIX))
        DeadTasksStorage(self._path, PREFIX).verify()
        self._expect_unchanged(image)
        # A half of the store that nobody has touched yet is another scenario's to begin.
        if any("dead_tasks" in path for path, _ in image):
            self._add_and_remove_dead_task(dead)
        if any(_SEGMENT.search(path) for path, _ in image) or not dead:
            self._add_and_remove_task(log)
            self._drain(log, said.asides)

    # -- looking -------------------------------------------------------------------------------

    def _log(self) -> TasksStorage:
        self._open.append(TasksStorage(self._path, PREFIX, fsync_frequency=0))
        return self._open[-1]

    @contextlib.contextmanager
    def _process(self) -> Iterator[TasksStorage]:
        storage = self._log()
        yield storage
        storage.close()
        self._open.remove(storage)

    def _look_at_log(self) -> Log:
        """What a process that starts now sees."""
        log: Log = {}
        with self._process() as storage:
            for entry, claimed, payload in storage.survey_with_payloads():
                expect(not claimed, f"{entry.id} is claimed by nobody living")
                log.setdefault(entry.id, []).append(Pending(payload, len(entry.runs)))
        return log

    def _look_at_dead(self) -> Dead:
        """The same, whatever way it looks."""
        fresh = DeadTasksStorage(self._path, PREFIX)
        from_the_end = fresh.read(limit=1000)
        listed = fresh.read()
        expect(from_the_end == listed, f"read from the end: {from_the_end}, by index: {listed}")
        expect(fresh.count() == len(listed), f"counted {fresh.count()} of {len(listed)}")
        for task_id, record in listed:
            expect(fresh.find(task_id) == record, f"{task_id} is listed and not found")
        return dict(listed)

    def _expect_unchanged(self, image: Image) -> None:
        for path, data in image:
            if data is not None:
                with open(os.path.join(self._root, path), "rb") as file:
                    expect(file.read() == data, f"looking has changed {path}")
        there = sum(len(names) + len(files) for _, names, files in os.walk(self._root))
        expect(there == len(image), f"looking has made or removed files: {there}, {len(image)}")

    # -- going on ------------------------------------------------------------------------------

    def _add_and_remove_task(self, log: Log) -> None:
        with self._process() as storage:
            support.add(storage, NEXT_PAYLOAD, task_id=NEXT)
        with self._process() as storage:
            found = {entry.id: payload for entry, _, payload in storage.survey_with_payloads()}
            expect(found.get(NEXT) == NEXT_PAYLOAD, "the next task is not there")
            expect(found.keys() == {*log, NEXT}, f"with the next task there are {list(found)}")
            expect(storage.remove(NEXT), "the next task could not be removed")

    def _add_and_remove_dead_task(self, dead: Dead) -> None:
        storage = DeadTasksStorage(self._path, PREFIX)
        storage.add(NEXT, NEXT_RECORD)
        there = self._dead()
        expect(there.pop(NEXT, None) == NEXT_RECORD, "the next dead task is not there")
        expect(there == dead, f"after an add the dead tasks are {there}, before: {dead}")
        expect(storage.remove([NEXT]) == 1, "the next dead task could not be removed")
        there = self._dead()
        expect(there == dead, f"after a removal the dead tasks are {there}, before: {dead}")
        removed = storage.remove(dead)
        expect(removed == len(dead), f"{removed} of {len(dead)} dead tasks were removed")
        there = self._dead()
        expect(not there, f"after all was removed there is {there}")

    def _dead(self) -> Dead:
        return dict(DeadTasksStorage(self._path, PREFIX).read(limit=1000))

    def _drain(self, log: Log, asides: int) -> None:
        ran: Log = {}
        with self._process() as storage:
            while claimed := storage.claim(1000, None, (), None):
                for entry, payload in claimed:
                    ran.setdefault(entry.id, []).append(Pending(payload, len(entry.runs)))
                    storage.start(entry)
                    storage.complete(entry)
            expect(_sorted(ran) == _sorted(log), f"ran {ran}, pending were {log}")
            storage.sync()
            storage.maintain()
            expect(not storage.survey(), "after the drain there are tasks")
        own = [n.removeprefix(PREFIX) for n in os.listdir(self._path) if n.startswith(PREFIX)]
        aside = [n for n in own if _ASIDE.fullmatch(n)]
        left = [n for n in own if n.startswith("0-") and n not in aside]
        expect(not left, f"after the drain there is {left}")
        expect(len(aside) == asides, f"set aside are {aside}, not {asides}")


def _clear(directory: str) -> None:
    """Leave the directory empty; make it if it is missing."""
    try:
        entries = list(os.scandir(directory))
    except FileNotFoundError:
        os.mkdir(directory)
        return
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            _clear(entry.path)
            os.rmdir(entry.path)
        else:
            os.unlink(entry.path)
