"""Attempts that ran into their time limit and do not end: their outcome is written all the same.

Whatever the thread does later changes nothing: the claim was taken away from it
(:meth:`~deferred_django.hold.Hold.abandon`).
"""

from __future__ import annotations

import contextvars
import functools
import logging
import threading
import time
from collections.abc import Callable

from deferred_django import deadlines, logs
from deferred_django.backends.base import ClaimedTask
from deferred_django.current import CurrentTask, running
from deferred_django.deadlines import Deadline
from deferred_django.execution import Outcome, end_failed
from deferred_django.hold import Abandoned, Hold, LimitedAttempt
from deferred_django.pool import Pool
from deferred_django.queue import Queue

logger = logging.getLogger("deferred_django")

SHORTEST_WAIT = 1.0
"""Seconds to the next attempt at least: the process that still runs this one is gone by then."""
DECISION_SECONDS = 1.0
"""How long a ``retry_interval`` is waited for: the thread may be stuck inside of it."""
RECORDING_SECONDS, RECORDING_PAUSE = 2.0, 0.1
"""How long a process that ends tries to write the outcome, and how often."""
LAST_RESORT_SECONDS = 10.0
"""How long a process that is replaced may take to end."""


def end_overdue(
    queue: Queue, claim: ClaimedTask, limited: LimitedAttempt, hold: Hold | None = None
) -> Outcome:
    """Write that the attempt failed with ``TaskTimeout``, as its retry policy says.

    ``hold`` is the calling thread's; without one, an error of the store is raised.
    """
    error = limited.limit.error()
    wait = decide(limited.current, error)
    if wait is not None:
        wait = max(wait, SHORTEST_WAIT)
    hold = hold or Hold()
    hold.claim = claim
    hold.limited = None
    hold.settling = True
    task, context, duration = limited.task, limited.context, limited.limit.elapsed()
    return end_failed(queue, claim, context, task, (error, wait), duration, hold)


class LastResort(Deadline):
    """Ends a process that is to be replaced, should it hang while it ends.

    A stuck thread may hold any lock, that of the logging too.
    """

    __slots__ = ("_end",)

    def __init__(self, end: Callable[[], object]) -> None:
        self._end = end
        self.at = time.monotonic() + LAST_RESORT_SECONDS
        deadlines.process_timer().add(self)

    def passed(self) -> None:
        """End it."""
        self._end()


def end_cut_off(
    queue: Queue, cut_off: list[Hold], put_back: Callable[[ClaimedTask], object], *, stuck: bool
) -> None:
    """Put back what was taken from the threads of a process that ends, and write the timeouts.

    ``stuck`` says that it ends because of a task that does not react.
    """
    overdue = [hold for hold in cut_off if hold.is_overdue]
    for hold in cut_off:
        if hold.taken is not None and hold not in overdue:
            put_back(hold.taken)
            logs.put_back(hold.taken.id, beside_stuck=stuck)
    # Last: this lets go of claims whose threads still run until the process is gone.
    end = time.monotonic() + RECORDING_SECONDS
    for hold in overdue:
        while not _try_to_end(queue, hold) and time.monotonic() < end:
            time.sleep(RECORDING_PAUSE)
        _log(hold, "its process is replaced" if stuck else "it is cut off")


def _try_to_end(queue: Queue, hold: Hold) -> bool:
    assert hold.taken is not None
    assert hold.limited is not None
    try:
        end_overdue(queue, hold.taken, hold.limited)
    except Exception as error:  # of the store, as a rule: what is left is written too
        logs.store_error("Recording the timeout of a task", error)
        return False
    return True


def leave_behind(queue: Queue, pool: Pool) -> None:
    """In a process that goes on: put new threads in the place of those that are stuck.

    The next attempt may begin while the old thread still hangs: nothing can end it.
    """
    pool.leave_behind(functools.partial(work_off, queue))


def work_off(queue: Queue, abandoned: Hold, hold: Hold | None = None) -> None:
    """What the new thread does first: the work on the claim that was the old one's."""
    assert abandoned.taken is not None
    assert abandoned.limited is not None
    try:
        end_overdue(queue, abandoned.taken, abandoned.limited, hold)
        _log(abandoned, "its thread is left behind")
    except Abandoned:
        pass  # a stop has taken it
    except BaseException:  # the thread has further tasks to run
        logger.exception("The timeout of task %s was not recorded.", abandoned.taken.id)


def _log(hold: Hold, what: str) -> None:
    limited = hold.limited
    if limited is not None:
        logs.task_stuck(limited.context.task, limited.current.id, limited.limit.seconds, what)


def decide(current: CurrentTask, error: BaseException) -> float | None:
    """What the retry policy says, in a bounded time."""
    answers: list[float | None] = []

    def ask() -> None:
        with running(current):
            answers.append(current.decision.wait(error))

    context = contextvars.Context()
    asking = threading.Thread(target=context.run, args=(ask,), daemon=True)
    asking.start()
    asking.join(DECISION_SECONDS)
    return answers[0] if answers else current.decision.usual()
