"""What a process that comes after a schedule finds in the store."""

from __future__ import annotations

import os

from deferred_django.backends.disk import files
from deferred_django.backends.disk.backend import DiskBackend
from tests.schedules import books, model, stores
from tests.schedules.controller import Run, ViolationError
from tests.schedules.model import State
from tests.schedules.operations import OPERATIONS


class Inspection:
    """One look at the end of a run."""

    def __init__(self, run: Run, store: stores.Store, directory: str, *, thorough: bool) -> None:
        """``thorough``: empty the store too, rather than only look whether all locks are free."""
        self._run = run
        self._store = store
        self._directory = directory
        self._thorough = thorough
        self._calls, self._killed = books.calls_of(run.events)

    def inspect(self) -> None:
        """Raise :class:`ViolationError` for all that is not right."""
        self._look_at_events()
        backend = stores.open_backend(self._directory, lock_seconds=1.0)
        try:
            self._look_at_verify(backend)
            self._look_at_tasks(backend)
            self._look_at_workers(backend)
            self._run.end()
            self._look_at_locks()
            if self._thorough:
                self._empty(backend)
        finally:
            backend.close()

    def _look_at_events(self) -> None:
        faulty = {
            index
            for index, name in enumerate(self._run.schedule.operations)
            if OPERATIONS[name].faulty
        }
        for event in self._run.events:
            if event.kind == "log" and event.who not in faulty and not self._store.flawed:
                raise ViolationError(f"{event.who} logged: {event.data[0]}")
        for call in self._calls:
            if call.kind in ("verify", "alive") and call.outcome == "end" and call.result:
                raise ViolationError(f"{call.who} found: {call.result}")

    def _look_at_verify(self, backend: DiskBackend) -> None:
        for finding in backend.verify():
            if finding.kind != "torn" or not self._store.flawed:
                raise ViolationError(f"found at the end: {finding}")

    def _look_at_tasks(self, backend: DiskBackend) -> None:
        listed = [(task.id, task.context.decode()) for task in backend.pending_tasks()]
        dead = [(task["id"], task["context"].decode()) for task in backend.list_dead_tasks()]
        claims = backend.claim_tasks(100)
        free = frozenset((claim.id, claim.context.decode(), claim.crashes) for claim in claims)
        for claim in claims:
            backend.release_task(claim)
        twice = {task for task in listed if listed.count(task) > 1}

        def fits(state: State) -> bool:
            held = {claim[1:] for claim in state.claims}
            due = {
                task
                for task in state.pending
                if task[:2] not in held and not task[1].endswith(model.LATER)
            }
            return (
                {task[:2] for task in state.pending} == set(listed)
                and twice <= state.copies
                and {task for task in due if task[:2] not in state.copies}
                == {task for task in free if task[:2] not in state.copies}
                and list(model.newest(state.dead).items()) == dead
            )

        before = State(frozenset(self._store.pending), self._store.dead)
        if not books.explain(before, self._calls, self._killed, fits):
            calls = "\n".join(map(str, self._calls))
            raise ViolationError(
                f"no order of these calls explains the end:\n{calls}\n"
                f"pending: {listed}\nfree: {sorted(free)}\ndead: {dead}"
            )

    def _look_at_workers(self, backend: DiskBackend) -> None:
        come = {call.who for call in self._calls if call.kind == "come"}
        gone = {call.who for call in self._calls if call.kind == "go"}
        alive = len(come - gone - self._killed.keys())
        if alive != len(backend.status().workers):
            raise ViolationError(f"{backend.status().workers} are listed, {alive} are alive")

    def _look_at_locks(self) -> None:
        for name in self._names():
            fd = os.open(os.path.join(self._directory, name), os.O_RDWR)
            try:
                if not (files.try_lock(fd, 0, 0) and files.try_flock(fd)):
                    raise ViolationError(f"{name} is still locked at the end")
            finally:
                os.close(fd)

    def _names(self) -> list[str]:
        # Who was killed early has not made it.
        return os.listdir(self._directory) if os.path.isdir(self._directory) else []

    def _empty(self, backend: DiskBackend) -> None:
        """All locks are free, and nothing is left once nothing is wanted."""
        stores.bury(backend, "z", "z")
        for task_id in sorted({task.id for task in backend.pending_tasks()}):
            if not backend.remove_task(task_id):
                raise ViolationError(f"{task_id} cannot be removed at the end")
        ids = [record["id"] for record in backend.list_dead_tasks()]
        if backend.remove_dead_tasks(ids) != len(ids) or backend.count_dead_tasks():
            raise ViolationError("the dead tasks cannot be removed at the end")
        backend.maintain()
        left = [name for name in self._names() if not self._may_stay(name)]
        if left:
            raise ViolationError(f"left at the end: {left}")

    def _may_stay(self, name: str) -> bool:
        if "-worker-0-" in name:  # an empty one may be a worker's that is about to lock it
            return os.stat(os.path.join(self._directory, name)).st_size == 0
        return "dead_tasks" in name and not name.endswith(".tmp")
