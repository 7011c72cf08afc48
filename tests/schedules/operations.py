"""What the processes do: each one operation, as the package's own processes do it.

They are laid out to meet: all that work on a pending task want ``x``, all that take dead tasks out
want ``p`` and ``x`` and leave ``q``, and all is in one segment.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from deferred_django.backends.base import ClaimedTask, DeadTaskRecord
from deferred_django.backends.disk import tidy
from deferred_django.backends.disk.backend import DiskBackend
from tests.schedules.child import Channel
from tests.schedules.model import LATER
from tests.schedules.stores import FUTURE, PAST, bury, open_backend

T = TypeVar("T")
ALL = ("live", "drained", "torn", "absent")
LIVE = ("live", "torn")
DEAD_IDS = ["p", "x", "nobody"]
SMALL = 100
"""Bytes that make a segment worth a compaction here."""


class Actor:
    """One process at its operation: all that it does is told, for the books."""

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
        self.told("sync", [], self.backend.sync, allowed=(errno.EAGAIN,))

    # -- dead tasks ------------------------------------------------------------------------------

    def bury(self, task_id: str, tag: str) -> None:
        """Add a dead task."""
        self.told("bury", [task_id, tag], lambda: bury(self.backend, task_id, tag))

    def purge(self, ids: list[str]) -> None:
        """Remove dead tasks."""
        self.told("purge", [ids], lambda: self.backend.remove_dead_tasks(ids))

    def take(self, ids: list[str]) -> None:
        """Run dead tasks again, as the queue does."""

        def enqueue(record: DeadTaskRecord) -> None:
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


def _nothing(_: Actor) -> None:
    pass


@dataclass(frozen=True)
class Operation:
    """One of them."""

    run: Callable[[Actor], None]
    prepare: Callable[[Actor], None] = _nothing
    """Done before anybody is scheduled."""
    stores: tuple[str, ...] = ("live",)
    fsync_frequency: float = 0.0
    rotate_bytes: int | None = None
    faulty: bool = False
    """An fsync fails in it: it may log that."""

    def start(self, channel: Channel, directory: str, name: str) -> None:
        """Prepare it and do it."""
        tidy.COMPACT_BYTES = SMALL
        backend = open_backend(directory, fsync_frequency=self.fsync_frequency)
        if self.rotate_bytes is not None:
            backend.tasks._writer.rotate_bytes = self.rotate_bytes
            backend.tasks._writer.reset()
        actor = Actor(channel, backend, name)
        self.prepare(actor)
        channel.perform(lambda: self.run(actor))


# -- producers -----------------------------------------------------------------------------------


def _enqueue(actor: Actor) -> None:
    actor.add("n" + actor.name)


def _own(actor: Actor) -> None:
    actor.add("o" + actor.name)


def _append_and_close(actor: Actor) -> None:
    actor.add("n" + actor.name)
    actor.sync()
    actor.told("close", [], actor.backend.close)


def _rotate(actor: Actor) -> None:
    actor.add("n" + actor.name)
    actor.add("m" + actor.name)
    actor.sync()


def _fail_fsync(actor: Actor) -> None:
    actor.add("n" + actor.name)
    actor.channel.fail_next("fsync", "-0-", errno.EIO)
    actor.sync()
    actor.sync()


def _fail_enqueue(actor: Actor) -> None:
    actor.channel.fail_next("fsync", "-0-", errno.EIO)
    actor.add("n" + actor.name, allowed=(errno.EIO,))
    actor.add("m" + actor.name)


# -- workers -------------------------------------------------------------------------------------


def _look_first(actor: Actor) -> None:
    actor.claim("nobody")


def _complete(actor: Actor) -> None:
    if claim := actor.claim("x", "y"):
        actor.start(claim)
        actor.complete(claim)


def _complete_new(actor: Actor) -> None:
    """What the other processes enqueue."""
    for claim in actor.claim_all("na", "nb", "nc"):
        actor.start(claim)
        actor.complete(claim)


def _retry(actor: Actor) -> None:
    if claim := actor.claim("x", "y"):
        actor.start(claim)
        actor.retry(claim)


def _delay(actor: Actor) -> None:
    if claim := actor.claim("x", "y"):
        actor.start(claim)
        actor.retry(claim, FUTURE)


def _release(actor: Actor) -> None:
    if claim := actor.claim("x", "y"):
        actor.start(claim)
        actor.release(claim)


def _stop(actor: Actor) -> None:
    """A second SIGTERM: the task's thread runs on, in a process that is about to end."""
    if claim := actor.claim("x", "y"):
        actor.start(claim)
        actor.put_back(claim)
        actor.told("close", [], actor.backend.close)


def _close_first(actor: Actor) -> None:
    if claim := actor.claim("x", "y"):
        actor.start(claim)
        actor.told("close", [], actor.backend.close)
        actor.complete(claim)


def _die_again(actor: Actor) -> None:
    """What a retry of dead tasks enqueues, and what dies at once."""
    for claim in actor.claim_all("p", "x"):
        actor.start(claim)
        actor.bury(claim.id, claim.context.decode() + actor.name)
        actor.complete(claim)


def _attend(actor: Actor) -> None:
    """A worker comes, and goes."""
    actor.told("come", [], lambda: actor.backend.worker_started(threads=actor.number))
    actor.look_for_itself()
    actor.told("go", [], actor.backend.worker_stopped)


def _give_up(actor: Actor) -> None:
    if claim := actor.claim("x", "y"):
        actor.start(claim)
        actor.bury(claim.id, claim.context.decode())
        actor.complete(claim)


def _fail_retry_fsync(actor: Actor) -> None:
    if claim := actor.claim("x", "y"):
        actor.start(claim)
        actor.retry(claim)
        actor.channel.fail_next("fsync", "-0-", errno.EIO)
        actor.sync()
        actor.sync()


def _maintain(actor: Actor) -> None:
    actor.told("maintain", [], actor.backend.maintain)


def _remove(actor: Actor) -> None:
    actor.remove("x")


# -- dead tasks ----------------------------------------------------------------------------------


def _bury(actor: Actor) -> None:
    actor.bury("p", "p" + actor.name)
    actor.bury("q", "q" + actor.name)


def _purge(actor: Actor) -> None:
    actor.purge(DEAD_IDS)


def _take(actor: Actor) -> None:
    actor.take(DEAD_IDS)


# -- looks, forks --------------------------------------------------------------------------------


def _look(actor: Actor) -> None:
    actor.look_at_pending()
    actor.look_at_dead()


def _verify(actor: Actor) -> None:
    actor.verify()


def _fork_owner(actor: Actor) -> None:
    """A web server forks while it owns a segment; the child enqueues too."""
    actor.channel.fork(lambda: actor.add("c" + actor.name))
    actor.add("n" + actor.name)


def _fork_worker(actor: Actor) -> None:
    """A task forks while it runs; the child looks around and lives on."""
    if claim := actor.claim("x", "y"):
        actor.start(claim)
        actor.channel.fork(actor.look_at_pending)
        actor.complete(claim)


def _fork_burier(actor: Actor) -> None:
    actor.bury("q", "q" + actor.name)
    actor.channel.fork(lambda: actor.bury("p", "c" + actor.name))
    actor.bury("p", "p" + actor.name)


OPERATIONS = {
    "adopt": Operation(_enqueue, stores=ALL),
    "append": Operation(_append_and_close, prepare=_own, fsync_frequency=600.0),
    "rotate": Operation(_rotate, stores=("live", "drained"), rotate_bytes=50),
    "rescue": Operation(_fail_fsync, fsync_frequency=600.0, faulty=True),
    "withdraw": Operation(_fail_enqueue, faulty=True),
    "complete": Operation(_complete, stores=LIVE),
    "complete-warm": Operation(_complete, prepare=_look_first),
    "complete-new": Operation(_complete_new, prepare=_look_first, stores=("live", "drained")),
    "retry": Operation(_retry),
    "delay": Operation(_delay, prepare=_look_first),
    "release": Operation(_release),
    "give-up": Operation(_give_up),
    "stop": Operation(_stop),
    "close-first": Operation(_close_first, fsync_frequency=600.0),
    "die-again": Operation(_die_again, prepare=_look_first),
    "attend": Operation(_attend, stores=("live", "absent")),
    "rescue-retry": Operation(_fail_retry_fsync, faulty=True),
    "maintain": Operation(_maintain, stores=ALL),
    "maintain-warm": Operation(_maintain, prepare=_look_first, stores=("live", "drained")),
    "remove": Operation(_remove),
    "bury": Operation(_bury, stores=ALL),
    "purge": Operation(_purge, stores=LIVE),
    "take": Operation(_take, stores=LIVE),
    "look": Operation(_look, stores=ALL),
    "look-warm": Operation(_look, prepare=_look),
    "purge-warm": Operation(_purge, prepare=_look, stores=("live", "torn")),
    "verify": Operation(_verify),
    "fork-owner": Operation(_fork_owner, prepare=_own),
    "fork-worker": Operation(_fork_worker),
    "fork-burier": Operation(_fork_burier),
}
