"""The backend of ``DEFERRED = {"BACKEND": None}``: it keeps nothing.

Every method does nothing and gives the empty answer. The queue runs what is enqueued on a thread
of the same process instead; nothing of it survives that process. No Django is imported here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence

from deferred_django import ids as task_ids
from deferred_django.backends.base import (
    Backend,
    BackendConfig,
    ClaimedTask,
    DeadTaskFilter,
    DeadTaskRecord,
    PendingTask,
    Progress,
    Status,
)


class NoneBackend(Backend):
    """Keeps no task: see the module."""

    keeps_tasks = False

    def __init__(self, config: BackendConfig) -> None:
        super().__init__(config)
        self._woken = threading.Event()

    def add_task(
        self,
        context: bytes,
        *,
        publish_at: float | None = None,
        task_id: str | None = None,
        queue: str = "default",
        priority: int = 0,
    ) -> str:
        """Keep nothing; the id is as it would be."""
        return task_id or task_ids.new_id()

    def remove_task(self, task_id: str) -> bool:
        """There is none."""
        return False

    def pending_count(self, *, max_age: float = 1.0) -> int:
        """There are none."""
        return 0

    def pending_tasks(self) -> list[PendingTask]:
        """There are none."""
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
        """There are none."""
        return []

    def start_task(self, claim: ClaimedTask) -> None:
        """Nothing to record."""

    def complete_task(self, claim: ClaimedTask) -> None:
        """Nothing to record."""

    def reschedule_task(self, claim: ClaimedTask, context: bytes, *, publish_at: float) -> None:
        """Nothing to record."""

    def release_task(self, claim: ClaimedTask, *, hold: bool = False) -> None:
        """Nothing to record."""

    def sync(self) -> None:
        """Nothing to make durable."""

    def status(self) -> Status:
        """No tasks, no workers."""
        return Status(pending=0, delayed=0, running=0, dead=0, oldest_age=None)

    def wait(self, timeout: float) -> None:
        """Wait for :meth:`wake` or until time is up: nothing else ever happens here."""
        self._woken.wait(timeout)
        self._woken.clear()

    def wake(self) -> None:
        """End the running or the next :meth:`wait`."""
        self._woken.set()

    def _store_dead_task(self, record: DeadTaskRecord) -> None:
        """Keep nothing."""

    def list_dead_tasks(
        self,
        *,
        limit: int | None = None,
        offset: int = 0,
        filter: DeadTaskFilter | None = None,
    ) -> list[DeadTaskRecord]:
        """There are none."""
        return []

    def count_dead_tasks(self, *, filter: DeadTaskFilter | None = None) -> int:
        """There are none."""
        return 0

    def find_dead_task(self, id: str) -> DeadTaskRecord | None:
        """There is none."""
        return None

    def remove_dead_tasks(
        self, ids: str | Iterable[str], *, progress: Progress | None = None
    ) -> int:
        """There are none."""
        return 0

    def take_dead_tasks(
        self,
        ids: Iterable[str],
        handover: Callable[[DeadTaskRecord], None],
        *,
        progress: Progress | None = None,
    ) -> list[str]:
        """There are none."""
        return []
