"""One process at its operation: all that it does is told, for the books.

Operations are laid out to meet: all that work on a pending task want ``x``, all that take dead
tasks out want ``p`` and ``x`` and leave ``q``, and all is in one segment.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from deferred_django.backends.base import ClaimedTask, DeadTaskRecord
from deferred_django.backends.disk.backend import DiskBackend
from tests.schedules.child import Channel
from tests.schedules.model import LATER
from tests.schedules.stores import PAST, bury

T = TypeVar("T")
DEAD_IDS = ["p", "x", "nobody"]


class Actor:
    """A backend and the calls that are made of it."""

    def __init__(self, channel: Channel, backend: DiskBackend, name: str) -> None:
        self.channel = channel
        self.backend = backend
        self.name = name
        self.number = ord(name)

    def told(
        self,
        kind: str,
        arguments: list[Any],
        call: Callable[[], T],
        result: Callable[[T], Any] = lambda value: value,
        allowed: tuple[int, ...] = (),
    ) -> T | None:
        """Make a call; its beginning and its end are events. ``allowed`` are numbers of errors."""
        self.channel.tell("event", "begin", kind, arguments)
        try:
            value = call()
        except OSError as error:
            if error.errno not in allowed:
                raise
            self.channel.tell("event", "failed", error.errno)
            return None
        self.channel.tell("event", "end", result(value))
        return value

    # -- the log ---------------------------------------------------------------------------------

    def add(self, task_id: str, source: str | None = None, allowed: tuple[int, ...] = ()) -> None:
        """Enqueue; ``source`` is the tag of the dead task that is run again."""
        tag = task_id + self.name
        self.told(
            "add",
            [task_id, tag, source],
            lambda: self.backend.add_task(tag.encode(), task_id=task_id, publish_at=PAST),
            allowed=allowed,
        )

    def claim(self, *ids: str) -> ClaimedTask | None:
        """Claim the first of these that is free."""
        for task_id in ids:
            found = self.told(
                "claim",
                [[task_id]],
                partial(self.backend.claim_tasks, 1, ids=[task_id]),
                _claimed,
            )
            if found:
                return found[0]
        return None

    def claim_all(self, *ids: str) -> list[ClaimedTask]:
        """Claim all of these that are free."""
        call = partial(self.backend.claim_tasks, 9, ids=ids)
        return self.told("claim", [ids], call, _claimed) or []

    def _ending(self, kind: str, claim: ClaimedTask, call: Callable[[], None], *more: Any) -> None:
        self.told(kind, [claim.id, claim.context.decode(), *more], call, lambda _: None)

    def start(self, claim: ClaimedTask) -> None:
        """Write its ``run``."""
        self._ending("start", claim, lambda: self.backend.start_task(claim))

    def complete(self, claim: ClaimedTask) -> None:
        """It is done."""
        self._ending("complete", claim, lambda: self.backend.complete_task(claim))

    def retry(self, claim: ClaimedTask, publish_at: float = PAST) -> None:
        """It failed, and is due again."""
        tag = claim.context.decode() + self.name + (LATER if publish_at > PAST else "")
        self._ending(
            "retry",
            claim,
            lambda: self.backend.reschedule_task(claim, tag.encode(), publish_at=publish_at),
            tag,
        )

    def release(self, claim: ClaimedTask) -> None:
        """It is put back."""
        self._ending("release", claim, lambda: self.backend.release_task(claim))

    def put_back(self, claim: ClaimedTask) -> None:
        """The worker stops: nobody else gets it before this process is gone."""
        self._ending("put back", claim, lambda: self.backend.release_task(claim, hold=True))

    def remove(self, task_id: str) -> None:
        """Drop a pending task."""
        self.told("remove", [task_id], lambda: self.backend.remove_task(task_id))

    def sync(self) -> None:
        """What the timer does; a task that runs elsewhere can keep a rescue waiting."""
        # The error is that of the fsync that was made to fail, if it is this sync's.
        self.told("sync", [], self.backend.sync, allowed=(errno.EAGAIN, errno.EIO))

    # -- dead tasks ------------------------------------------------------------------------------

    def bury(self, task_id: str, tag: str) -> None:
        """Add a dead task."""
        self.told("bury", [task_id, tag], lambda: bury(self.backend, task_id, tag))

    def purge(self, ids: list[str]) -> None:
        """Remove dead tasks."""
        self.told("purge", [ids], lambda: self.backend.remove_dead_tasks(ids))

    def take(self, ids: list[str], *, child: Callable[[], None] | None = None) -> None:
        """Run dead tasks again, as the queue does; fork one that does ``child`` meanwhile."""

        def enqueue(record: DeadTaskRecord) -> None:
            if child is not None:
                self.channel.fork(child)
            self.add(record["id"], record["context"].decode())

        self.told("take", [ids], lambda: self.backend.take_dead_tasks(ids, enqueue))

    # -- looks -----------------------------------------------------------------------------------

    def look_at_pending(self) -> None:
        """List what is pending."""
        self.told(
            "pending",
            [],
            self.backend.pending_tasks,
            lambda tasks: [[task.id, task.context.decode()] for task in tasks],
        )

    def look_at_dead(self) -> None:
        """List and find dead tasks; the second look uses the index."""
        for limit in (9, None):
            self.told(
                "dead",
                [],
                partial(self.backend.list_dead_tasks, limit=limit),
                lambda found: [[record["id"], record["context"].decode()] for record in found],
            )
        self.told("count", [], self.backend.count_dead_tasks)
        self.told(
            "find",
            ["p"],
            lambda: self.backend.find_dead_task("p"),
            lambda record: record and record["context"].decode(),
        )

    def look_for_itself(self) -> None:
        """A worker that lives is on the list, once, with what it says of itself."""
        self.told(
            "alive",
            [],
            lambda: [worker.threads for worker in self.backend.status().workers],
            lambda found: [] if found.count(self.number) == 1 else found,
        )

    def verify(self) -> None:
        """Look for damage."""
        self.told(
            "verify",
            [],
            lambda: [*self.backend.verify(), *self.backend.status().problems],
            lambda found: [str(finding) for finding in found],
        )


def _claimed(claims: list[ClaimedTask]) -> list[list[Any]]:
    return [[claim.id, claim.context.decode(), claim.crashes] for claim in claims]
