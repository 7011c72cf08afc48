"""What the processes do: each one operation, as the package's own processes do it."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass

from deferred_django.backends.disk import tidy
from tests.schedules.actor import DEAD_IDS, Actor
from tests.schedules.child import Channel
from tests.schedules.stores import FUTURE, open_backend

ALL = ("live", "drained", "torn", "absent")
LIVE = ("live", "torn")
SMALL = 100
"""Bytes that make a segment worth a compaction here."""


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


def _produce(actor: Actor) -> None:
    """A producer at length: full segments, and a pause in which it owns nothing."""
    for task_id in ("n", "m"):
        actor.add(task_id + actor.name)
        actor.sync()
    actor.told("close", [], actor.backend.close)
    actor.add("k" + actor.name)
    actor.sync()


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


def _loop(actor: Actor) -> None:
    """A worker at length: what it knows of a file is older than what it did to it."""
    claims = actor.claim_all("x", "y")
    for claim in claims:
        actor.start(claim)
    for claim in claims[:1]:
        actor.complete(claim)
    _maintain(actor)
    for claim in claims[1:]:
        actor.retry(claim)
    _maintain(actor)
    for claim in actor.claim_all("y", "na", "nb", "nc", "p"):
        actor.start(claim)
        actor.complete(claim)
    actor.sync()
    _maintain(actor)
    actor.told("close", [], actor.backend.close)


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


def _fork_taker(actor: Actor) -> None:
    """A fork between a dead task's look-up and its removal, under both locks of the store."""
    actor.take(["p"], child=lambda: actor.bury("p", "c" + actor.name))


def _fork_attendant(actor: Actor) -> None:
    """A worker forks; the child, which is no worker, lives on."""
    actor.told("come", [], lambda: actor.backend.worker_started(threads=actor.number))
    actor.channel.fork(actor.look_at_pending)
    actor.look_for_itself()


OPERATIONS = {
    "adopt": Operation(_enqueue, stores=ALL),
    "append": Operation(_append_and_close, prepare=_own, fsync_frequency=600.0),
    "rotate": Operation(_rotate, stores=("live", "drained"), rotate_bytes=50),
    "produce": Operation(
        _produce, stores=("live", "drained"), fsync_frequency=600.0, rotate_bytes=50
    ),
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
    "loop": Operation(_loop, prepare=_look_first),
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
    "fork-taker": Operation(_fork_taker),
    "fork-attendant": Operation(_fork_attendant),
}
