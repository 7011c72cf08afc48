"""Worker processes that C code has frozen: it keeps the interpreter, so that no thread goes on.

Such a process cannot end itself, nor say what it ran. Its supervisor notices that a deadline passed
long ago and nothing came of it, and forks a child that kills the process and writes what became of
its tasks: those that were overdue have failed with ``TaskTimeout``, the others are put back.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Sequence
from typing import Protocol

from deferred_django import guard, logs, registry
from deferred_django.backends.base import ClaimedTask
from deferred_django.context import TaskContext
from deferred_django.current import CurrentTask
from deferred_django.exceptions import TaskTimeout
from deferred_django.execution import end_failed
from deferred_django.hold import Hold
from deferred_django.limits_board import LimitsBoard
from deferred_django.overdue import decide
from deferred_django.queue import Queue
from deferred_django.retry import RetryDecision
from deferred_django.task import resolve_task

logger = logging.getLogger("deferred_django")

FROZEN_SECONDS = guard.GRACE_SECONDS + 1.0
"""How long a process has to do something about an overdue task itself, from when it was first seen
so. It may have been stopped for long, alone or with all others, and only now meet its deadlines:
then it needs the whole grace of its tasks."""
LOOK_SECONDS = 1.0
"""How often processes that run tasks with limits are looked at."""
IDLE_LOOKS = 5
"""So many times more seldom where no task has a limit."""
SETTLE_SECONDS = 15.0
"""How long the child may take."""
_CLAIM_SECONDS, _CLAIM_PAUSE = 3.0, 0.001


class Place(Protocol):
    """The place of a worker process, as the supervisor keeps it."""

    number: int
    pid: int | None


class FrozenProcesses:
    """Finds them and has them killed. For the one thread of a supervisor."""

    def __init__(self, processes: int) -> None:
        """Make it before the processes fork."""
        self.board = LimitsBoard(processes)
        self.killed: set[int] = set()
        """The pids of those that were ended for it and that nobody has waited for yet."""
        self._seen: dict[int, dict[str, float]] = {}
        """By pid: what is overdue, and since when that is known."""
        self._settling: dict[int, tuple[int, float]] = {}  # by the pid of the child
        self._look_at = 0.0

    def seconds_to_next(self, places: Sequence[Place]) -> float:
        """When to call :meth:`look` again: seldom while no attempt has had a limit yet."""
        wait = max(self._look_at - time.monotonic(), 0.0)
        if not self._settling and not any(self.board.in_use(place.number) for place in places):
            wait += IDLE_LOOKS * LOOK_SECONDS
        return wait

    def look(self, places: Sequence[Place]) -> None:
        """Look at the processes, if it is time to, and at the children that settle."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        self._reap(now)
        seen, self._seen = self._seen, {}
        for place in places:
            if place.pid is None or place.pid in self.killed or not self.board.in_use(place.number):
                continue
            overdue = self.board.overdue(place.number, now - guard.GRACE_SECONDS)
            if not overdue or _is_stopped(place.pid):
                continue
            before = seen.get(place.pid, {})
            since = {task_id: before.get(task_id, now) for task_id in overdue}
            self._seen[place.pid] = since
            if now - min(since.values()) >= FROZEN_SECONDS:
                self._settle(place.pid, overdue, now)

    def _settle(self, pid: int, overdue: dict[str, float], now: float) -> None:
        logger.error(
            "Worker process %d is frozen by C code, past the timeout of %s; it is killed.",
            pid,
            ", ".join(overdue),
        )
        self.killed.add(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)  # what it runs is looked at: it must not go on
        try:
            child = os.fork()
        except OSError:  # then it counts as a crash
            _kill(pid)
            return
        if child == 0:
            try:
                settle(registry.get_queue(), pid, overdue)
            except BaseException:
                logger.critical("What ran in process %d could not be recorded.", pid, exc_info=True)
            finally:
                _kill(pid)
                os._exit(0)
        self._settling[child] = pid, now + SETTLE_SECONDS

    def _reap(self, now: float) -> None:
        for child, (pid, end) in list(self._settling.items()):
            with contextlib.suppress(ChildProcessError):
                if os.waitpid(child, os.WNOHANG)[0] == 0:
                    if now >= end:
                        _kill(child)
                        _kill(pid)
                    continue
            del self._settling[child]


def settle(queue: Queue, pid: int, overdue: dict[str, float]) -> None:
    """Kill the process and write what became of the tasks that it ran.

    ``overdue``: the ids of those that had passed their deadlines, and when (monotonic). What it had
    begun with less than a second before it was frozen is not known here, and counts as crashed.
    """
    backend = queue.backend
    running = {
        task.id
        for worker in backend.status().workers
        if worker.pid == pid and worker.host in ("", os.uname().nodename)
        for task in worker.running
    }
    wanted = running | set(overdue)
    queue.claim(len(wanted), ids=wanted)  # all is read: what is claimed next is had at once
    _kill(pid)
    end = time.monotonic() + _CLAIM_SECONDS
    while wanted and time.monotonic() < end:
        claims = queue.claim(len(wanted), ids=wanted)
        for claim in claims:
            wanted.discard(claim.id)
            if claim.id in overdue:
                _end(queue, claim, overdue[claim.id])
            else:
                backend.forgive_crash(claim)
                logs.put_back(claim.id, beside_stuck=True)
        if not claims:
            time.sleep(_CLAIM_PAUSE)
    backend.sync()


def _end(queue: Queue, claim: ClaimedTask, deadline: float) -> None:
    context = TaskContext.from_bytes(claim.context)
    task = resolve_task(context.task)
    attempt = context.attempts + 1
    decision = RetryDecision(task.retry_policy, attempt)
    current = CurrentTask(claim.id, context.task, attempt, decision, claim.queue)
    seconds = task.timeout or 0.0
    error = TaskTimeout(f"the task ran longer than its timeout of {seconds:g} s")
    error.add_note("It kept its whole process from going on, in C code: where is not known.")
    duration = time.monotonic() - deadline + seconds
    hold = Hold()
    hold.claim = claim
    end_failed(queue, claim, context, task, (error, decide(current, error)), duration, hold)


def _is_stopped(pid: int) -> bool:
    """Whether the process is stopped by a signal or a debugger: no fault of what it runs."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except OSError:
        return False


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
