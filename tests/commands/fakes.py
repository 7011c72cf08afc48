"""A backend in memory: what the commands are tried on without a store."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from deferred_django.backends.base import (
    Backend,
    BackendConfig,
    ClaimedTask,
    DeadTaskFilter,
    DeadTaskRecord,
    Finding,
    PendingTask,
    Progress,
    Status,
)
from deferred_django.backends.schedule import TickRecord


def dead_task(id: str, **fields: Any) -> DeadTaskRecord:
    """A record that died a minute ago unless told otherwise."""
    return {
        "id": id,
        "task_class": "shop.tasks.send_receipt",
        "queue": "default",
        "attempts": 21,
        "enqueued_at": time.time() - 3600,
        "failed_at": time.time() - 60,
        "exception_class": "ValueError",
        "exception_message": "no such order",
        "backtrace": [
            "Traceback (most recent call last):",
            '  File "/srv/shop/tasks.py", line 7, in send_receipt',
            "    order = orders[order_id]",
            "ValueError: no such order",
        ],
        "context": b"not a context",
        **fields,
    }


class FakeBackend(Backend):
    """Keeps dead tasks in a list, the newest last. What a test puts into it is what it answers."""

    def __init__(self, config: BackendConfig) -> None:
        super().__init__(config)
        self.dead: list[DeadTaskRecord] = []
        self.added: list[str] = []
        self.now = Status(pending=0, delayed=0, running=0, dead=0, oldest_age=None)
        self.findings: list[Finding] = []
        self.ticks: list[TickRecord] = []
        self.before_change: Callable[[], object] = lambda: None
        """Called when records are about to be removed or taken: what others do meanwhile."""

    def add_task(
        self,
        context: bytes,
        *,
        publish_at: float | None = None,
        task_id: str | None = None,
        queue: str = "default",
        priority: int = 0,
    ) -> str:
        assert task_id is not None
        self.added.append(task_id)
        return task_id

    def remove_task(self, task_id: str) -> bool:
        return False

    def pending_tasks(self) -> list[PendingTask]:
        return []

    def claim_tasks(
        self,
        limit: int,
        *,
        queues: Collection[str] | None = None,
        exclude: Collection[str] = (),
        prefer: Sequence[str] = (),
        ids: Collection[str] | None = None,
    ) -> list[ClaimedTask]:
        return []

    def start_task(self, claim: ClaimedTask) -> None: ...

    def complete_task(self, claim: ClaimedTask) -> None: ...

    def reschedule_task(self, claim: ClaimedTask, context: bytes, *, publish_at: float) -> None: ...

    def release_task(self, claim: ClaimedTask, *, hold: bool = False) -> None: ...

    def sync(self) -> None: ...

    def status(self) -> Status:
        return self.now

    def tick_records(self) -> list[TickRecord]:
        return self.ticks

    def verify(self) -> list[Finding]:
        return self.findings

    def wait(self, timeout: float) -> None: ...

    def wake(self) -> None: ...

    def _store_dead_task(self, record: DeadTaskRecord) -> None:
        self.dead.append(record)

    def list_dead_tasks(
        self,
        *,
        limit: int | None = None,
        offset: int = 0,
        filter: DeadTaskFilter | None = None,
    ) -> list[DeadTaskRecord]:
        newest: dict[str, DeadTaskRecord] = {}
        for record in reversed(self.dead):
            newest.setdefault(record["id"], record)
        matching = (r for r in newest.values() if filter is None or filter.matches(r))
        stop = None if limit is None else offset + limit
        return list(itertools.islice(matching, offset, stop))

    def count_dead_tasks(self, *, filter: DeadTaskFilter | None = None) -> int:
        return len(self.list_dead_tasks(filter=filter))

    def find_dead_task(self, id: str) -> DeadTaskRecord | None:
        return next((r for r in self.list_dead_tasks() if r["id"] == id), None)

    def remove_dead_tasks(
        self, ids: str | Iterable[str], *, progress: Progress | None = None
    ) -> int:
        self.before_change()
        wanted = {ids} if isinstance(ids, str) else set(ids)
        there = wanted & {record["id"] for record in self.dead}
        self.dead = [record for record in self.dead if record["id"] not in wanted]
        return len(there)

    def take_dead_tasks(
        self,
        ids: Iterable[str],
        handover: Callable[[DeadTaskRecord], None],
        *,
        progress: Progress | None = None,
    ) -> list[str]:
        self.before_change()
        records = [record for id in ids if (record := self.find_dead_task(id))]
        for record in records:
            handover(record)
        taken = [record["id"] for record in records]
        self.dead = [record for record in self.dead if record["id"] not in taken]
        return taken
