"""A store in memory that keeps a schedule, and schedulers on it with a clock of the test's."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from deferred_django.backends.base import BackendConfig, PendingTask
from deferred_django.backends.none import NoneBackend
from deferred_django.backends.schedule import ScheduleHold, TickRecord
from deferred_django.queue import Queue
from deferred_django.schedule_setting import PeriodicTask
from deferred_django.scheduler import Scheduler
from deferred_django.timing import Timing


class ScheduleMemory(NoneBackend):
    """Keeps what is enqueued, and the ticks; ``failing[method]`` is raised while it is there."""

    keeps_tasks = True
    keeps_schedule = True

    def __init__(self) -> None:
        super().__init__(BackendConfig(path=Path()))
        self.ticks: list[TickRecord] = []
        self.added: list[tuple[str, str, int, bytes]] = []
        """(id, queue, priority, context), in their order."""
        self.ran: set[str] = set()
        """The ids that are in the store no more."""
        self.held = False
        self.saves = 0
        self.failing: dict[str, list[BaseException]] = {}
        """What the next calls raise."""

    def _fail(self, method: str) -> None:
        if self.failing.get(method):
            raise self.failing[method].pop(0)

    def add_task(
        self,
        context: bytes,
        *,
        publish_at: float | None = None,
        task_id: str | None = None,
        queue: str = "default",
        priority: int = 0,
    ) -> str:
        self._fail("add_task")
        assert task_id is not None
        self.added.append((task_id, queue, priority, context))
        return task_id

    def pending_tasks(self) -> list[PendingTask]:
        left = {each[0]: each for each in self.added if each[0] not in self.ran}
        return [PendingTask(i, context, 0.0, q, p) for i, q, p, context in left.values()]

    def sync(self) -> None:
        self._fail("sync")

    def tick_records(self) -> list[TickRecord]:
        return list(self.ticks)

    @contextlib.contextmanager
    def hold_schedule(self) -> Iterator[ScheduleHold | None]:
        self._fail("hold_schedule")
        if self.held:
            yield None
            return
        self.held = True
        try:
            yield _Hold(self)
        finally:
            self.held = False

    def next_at(self, name: str) -> float:
        """When the entry is due next."""
        [found] = [tick.next_at for tick in self.ticks if tick.name == name]
        return found


class _Hold:
    def __init__(self, backend: ScheduleMemory) -> None:
        self.records: Sequence[TickRecord] = list(backend.ticks)
        self._backend = backend

    def save(self, records: Iterable[TickRecord]) -> None:
        self._backend._fail("save")
        self._backend.saves += 1
        self._backend.ticks = list(records)


class Clock:
    """Unix seconds, as a test sets them."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def scheduler(
    backend: ScheduleMemory,
    clock: Clock,
    *entries: PeriodicTask,
    settings_read_at: float = 0.0,
) -> Scheduler:
    """A worker process's, as good as new."""
    return Scheduler(Queue(backend), entries, clock=clock, settings_read_at=settings_read_at)


def entry(name: str, timing: Timing, **options: object) -> PeriodicTask:
    """A periodic task that can be imported."""
    return PeriodicTask(name, "tests.testapp.tasks.record", timing, **options)  # type: ignore[arg-type]
