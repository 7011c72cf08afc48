"""What the tortured processes do, each until it is told to stop or is killed."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable

from django.core.management import CommandError, call_command

from deferred_django import get_backend, get_queue
from deferred_django.execution import execute
from deferred_django.hold import Hold
from tests.torture import ledger, tasks

STOP = "stop"
"""The file whose presence tells all to stop."""


def is_told_to_stop() -> bool:
    """Whether the time is up."""
    return (ledger.directory() / STOP).exists()


def _blob() -> bytes:
    chance = random.random()
    if chance < 0.02:
        size = random.randrange(100_000, 700_000)
    elif chance < 0.1:
        size = random.randrange(2_000, 50_000)
    else:
        size = random.randrange(300)
    return random.randbytes(size)


def _seconds() -> float:
    chance = random.random()
    return random.uniform(0.3, 1.5) if chance < 0.01 else 0.02 if chance < 0.1 else 0.0


def _enqueue() -> str:
    kind = random.choices(["fine", "fine_async", "flaky", "doomed", "mortal"], [70, 8, 14, 3, 5])[0]
    task = getattr(tasks, kind)
    if random.random() < 0.15:
        task = task.using(delay=random.uniform(0.0, 3.0))
    elif random.random() < 0.1:
        task = task.using(priority=random.randrange(-2, 3))
    failures = [random.randrange(1, 4)] if kind == "flaky" else []
    task_id: str = task.enqueue(_seconds(), _blob(), *failures)
    ledger.write(ledger.ACKS, "ack", task_id)
    return task_id


def producer() -> None:
    """Enqueue, and write down each id after it was returned; take some tasks back."""
    recent: deque[str] = deque(maxlen=100)
    while not is_told_to_stop():
        for _ in range(random.randrange(1, 40)):
            recent.append(_enqueue())
        if random.random() < 0.5:
            task_id = random.choice(recent)
            recent.remove(task_id)
            ledger.write(ledger.ACKS, "removing", task_id)
            removed = get_backend().remove_task(task_id)
            ledger.write(ledger.ACKS, "removed" if removed else "refused", task_id)
        time.sleep(random.uniform(0.02, 0.25))


def store_worker() -> None:
    """Claim a few and run them, one after the other, on the store itself."""
    backend, queue = get_backend(), get_queue()
    hold = Hold(threading.Event())
    while not is_told_to_stop():
        claims = backend.claim_tasks(random.randrange(1, 6))
        for claim in claims:
            execute(queue, claim, hold=hold)
        if not claims:
            backend.wait(0.1)
        if random.random() < 0.1:
            backend.maintain()


def _some_dead() -> list[str]:
    records = get_backend().list_dead_tasks(limit=random.choice([5, 50]))
    some = random.sample(records, min(len(records), random.randrange(1, 8)))
    return [record["id"] for record in some]


def _patiently(action: Callable[[], None]) -> None:
    # Somebody who was stopped holds the lock: the caller is told so and may try again.
    try:
        action()
    except CommandError as error:
        if isinstance(error.__cause__, CommandError):  # an id was gone
            return
        _expect(error.__cause__)
    except OSError as error:
        _expect(error)


def _expect(error: BaseException | None) -> None:
    # Of a retry that has handed its tasks over before, a timeout is no DeadTasksLockTimeout.
    if not isinstance(error, OSError):
        raise TypeError("what a command failed with is no error of the store") from error
    if error.errno == errno.ETIMEDOUT:
        ledger.write(ledger.HANDS, "timeout")
    elif error.errno in (errno.EBUSY, errno.ESTALE) or str(error.filename).endswith(".tmp"):
        ledger.write(ledger.HANDS, "disturbed")  # by an operator
    else:
        raise error


def _command(*words: str) -> None:
    call_command("deadtasks", *words, "--noinput", stdout=io.StringIO(), stderr=io.StringIO())


def purger() -> None:
    """Remove dead tasks, through the backend or the command."""

    def purge() -> None:
        ids = _some_dead()
        if not ids:
            return
        ledger.write(ledger.HANDS, "purging", *ids)
        if random.random() < 0.3:
            _command("purge", *ids)
        elif get_backend().remove_dead_tasks(ids) == len(ids):
            ledger.write(ledger.HANDS, "purged", *ids)

    while not is_told_to_stop():
        _patiently(purge)
        time.sleep(random.uniform(0.05, 0.5))


def retrier() -> None:
    """Run dead tasks again, through the queue or the command."""

    def retry() -> None:
        ids = _some_dead()
        if not ids:
            return
        for task_id in ids:
            tasks.reprieve(task_id).touch()
        ledger.write(ledger.HANDS, "retrying", *ids)
        if random.random() < 0.3:
            _command("retry", *ids)
        else:
            retried = get_queue().retry_dead_tasks(ids)
            ledger.write(ledger.HANDS, "retried", *retried)

    while not is_told_to_stop():
        _patiently(retry)
        time.sleep(random.uniform(0.05, 0.3))


def operator() -> None:
    """Remove what the documentation says may be removed: locks, temps, the files of workers."""
    backend = get_backend()
    directory, prefix = str(backend.config.path), backend.config.prefix
    while not is_told_to_stop():
        name = random.choice(os.listdir(directory) or ["none"])
        if name.startswith(f"{prefix}worker-") or name.endswith((".lock", ".tmp")):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(directory, name))
                ledger.write(ledger.HANDS, "deleted")
        time.sleep(random.uniform(0.05, 0.4))


ROLES: dict[str, Callable[[], None]] = {
    "producer": producer,
    "store worker": store_worker,
    "purge": purger,
    "retry": retrier,
    "operator": operator,
}
