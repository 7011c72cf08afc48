"""One worker process: claims due tasks and has its threads run them.

The thread that calls :meth:`Worker.run` is the fetcher. It claims as many tasks as there are idle
threads and, where tasks are short, a few in advance; a claim that no thread begins with soon is
let go, so that a slow task never keeps others waiting that another process could run.
"""

from __future__ import annotations

import enum
import functools
import threading
import time
from collections.abc import Callable, Sequence

from deferred_django import event_loop, logs
from deferred_django.backends.base import ClaimedTask
from deferred_django.execution import Outcome, execute
from deferred_django.hold import Abandoned, Hold
from deferred_django.housekeeping import Housekeeper, close_for_async
from deferred_django.pool import Bell, Pool
from deferred_django.quarantine import Quarantine
from deferred_django.queue import Queue
from deferred_django.task import resolve_task

UNSTARTED_SECONDS = 0.2
"""A claim that no thread has begun with is let go after this time."""
PREFETCH_SECONDS = 0.1
"""Claimed in advance is what the threads finish in this time."""
MAX_PREFETCH = 50
LET_GO_SECONDS = 0.3
"""How long nothing is claimed in advance after claims were let go: others look every 0.25 s."""
WAIT_SECONDS = 1.0
"""The longest wait for something to do before looking again."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds without claims after an error of the store, doubling."""
ABANDON_SECONDS = 0.5
"""How long a stop waits for calls to the store that are under way."""


# The code of a worker process does not change; a name that is not found is looked for again.
_resolve = functools.lru_cache(maxsize=4096)(resolve_task)


class Ended(enum.Enum):
    """Why a worker ended."""

    STOPPED = "stopped"
    DRAINED = "drained"
    MAX_TASKS = "max tasks"


class Worker:
    """Runs the due tasks of a queue until it is stopped, drained, or has run ``max_tasks``."""

    def __init__(
        self,
        queue: Queue,
        *,
        threads: int = 4,
        queues: Sequence[str] | None = None,
        drain: bool = False,
        max_tasks: int | None = None,
        shutdown_timeout: float = 30.0,
    ) -> None:
        """``queues`` limits the work to these; ``shutdown_timeout`` is in seconds."""
        self._queue = queue
        self._backend = queue.backend
        self._threads = threads
        self._queues = queues
        self._drain = drain
        self._max_tasks = max_tasks
        self._shutdown_timeout = shutdown_timeout
        self._bell = Bell()
        self._stop = False
        self._stop_now = False
        self._stopping = threading.Event()
        self._wants_finish = False
        self._wakes_store = False
        self._pool = Pool(
            threads, self._work_on, stopping=self._stopping, on_finish=self._on_finish
        )
        self._quarantine = Quarantine(queue, self._pool, queues)
        self._prefetch = 0
        self._prefetch_from = 0.0
        self._sampled_at = 0.0
        self._sampled = 0
        self._pause = 0.0
        self._resume_at = 0.0
        self.left_running = 0
        """After :meth:`run`: how many tasks were cut off and still run on daemon threads."""

    def request_stop(self, *, now: bool = False) -> None:
        """Stop: begin nothing more, finish what runs, within the shutdown timeout.

        With ``now`` nothing is waited for. Sets flags only: safe in threads and signal handlers.
        """
        self._stop_now = self._stop_now or now
        self._stop = True
        self._bell.ring()
        self._backend.wake()

    def run(self) -> Ended:
        """Work until the end; call it once. Afterwards nothing is claimed any more, except tasks
        that were cut off by a stop: those are due again, and their claims are kept until this
        process is gone.
        """
        started, threads, queues = self._backend.worker_started, self._threads, self._queues
        self._guarded("Listing this worker", lambda: started(threads=threads, queues=queues))
        housekeeper = Housekeeper(self._backend, is_idle=lambda: self._pool.outstanding == 0)
        ended = Ended.STOPPED
        try:
            self._pool.start()
            housekeeper.start()
            # A store is watched from the first wait on.
            self._guarded("Watching the store", lambda: self._backend.wait(0))
            while not self._stop:
                try:
                    reached = self._step()
                except OSError as error:
                    logs.store_error("Claiming tasks", error)
                    self._back_off()
                else:
                    if reached is not None:
                        ended = reached
                        break
        finally:
            self._shut_down()
            housekeeper.stop()
            self._say_goodbye()
        return ended

    # -- the fetcher -----------------------------------------------------------------------------

    def _step(self) -> Ended | None:
        now = time.monotonic()
        pool = self._pool
        pool.spread(now)
        oldest = pool.oldest()
        if oldest is not None and now - oldest >= UNSTARTED_SECONDS:
            self._release(pool.take_back(now - UNSTARTED_SECONDS))
            self._prefetch, self._prefetch_from = 0, now + LET_GO_SECONDS
        if now < self._resume_at:
            self._await_finish(self._resume_at - now)
            return None
        wait = self._quarantine.step(now)
        if wait is not None:
            self._await_finish(wait)
            return None
        self._measure(now)
        busy = pool.outstanding
        limit = self._threads + self._prefetch - busy
        if self._max_tasks is not None:
            limit = min(limit, self._max_tasks - pool.started - pool.waiting)
            if limit <= 0 and busy == 0:
                return Ended.MAX_TASKS
        if limit <= 0 or pool.waiting > pool.low_mark:
            self._await_finish(self._until_oldest(now))
            return None
        asked = limit + self._quarantine.refused
        claims = self._queue.claim(asked, self._queues)
        if not claims:
            self._pause = 0.0
            if busy == 0 and self._drain and not self._backend.claim_was_cut_short():
                # From a file that has grown too large nothing is claimed until it is compacted.
                self._guarded("Tidying the store", self._backend.maintain)
                claims = self._queue.claim(asked, self._queues)
                if not claims and not self._backend.claim_was_cut_short():
                    return Ended.DRAINED
        more = len(claims) == asked
        claims = self._quarantine.sort(claims, now) if claims else claims
        pool.add(claims)
        if self._quarantine.refused and not claims:  # they are claimed again at once
            self._await_store(UNSTARTED_SECONDS)
        elif pool.waiting:
            self._await_finish(pool.look_again)
        elif not more:
            self._await_store(self._until_oldest(now))
        return None

    def _measure(self, now: float) -> None:
        elapsed = now - self._sampled_at
        if elapsed >= PREFETCH_SECONDS:
            finished = self._pool.finished
            rate = (finished - self._sampled) / elapsed
            if now >= self._prefetch_from:
                self._prefetch = min(int(rate * PREFETCH_SECONDS), MAX_PREFETCH)
            # Where the threads take the interpreter from each other, so would this one.
            self._pool.low_mark = 0 if self._pool.crowded else self._prefetch // 2
            self._sampled, self._sampled_at = finished, now

    def _until_oldest(self, now: float) -> float:
        oldest = self._pool.oldest()
        if oldest is None:
            return WAIT_SECONDS
        return min(max(oldest + UNSTARTED_SECONDS - now, 0.001), WAIT_SECONDS)

    def _await_finish(self, timeout: float) -> None:
        """Wait until a task has ended that leaves few waiting, a stop, or the time is up."""
        if self._pool.waiting:
            timeout = min(timeout, self._pool.look_again)
        finished = self._pool.finished
        self._wants_finish = True
        # One that ended before the flag was seen rang nothing.
        if not self._stop and self._pool.finished == finished:
            self._bell.wait(min(timeout, WAIT_SECONDS))
        self._wants_finish = False

    def _await_store(self, timeout: float) -> None:
        """Wait until there may be something to claim."""
        busy = self._pool.outstanding
        # A drain, or a process that has run its tasks, ends with the last task.
        self._wakes_store = busy > 0 and (self._drain or self._max_tasks is not None)
        if not self._stop and (not self._wakes_store or self._pool.outstanding == busy):
            self._backend.wait(timeout)
        self._wakes_store = False

    def _back_off(self) -> None:
        if time.monotonic() < self._resume_at:
            return  # the same condition, met by another thread
        self._pause = min(max(self._pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
        self._resume_at = time.monotonic() + self._pause

    def _release(self, claims: list[ClaimedTask]) -> None:
        for claim in claims:
            self._queue.release(claim)

    # -- the threads of the pool -----------------------------------------------------------------

    def _on_finish(self) -> None:
        # One signal for each wait: those behind it would only cost time.
        if self._wants_finish:
            self._wants_finish = False
            self._bell.ring()
        elif self._wakes_store:
            self._wakes_store = False
            self._backend.wake()

    def _work_on(self, claim: ClaimedTask, hold: Hold) -> None:
        try:
            outcome = execute(
                self._queue,
                claim,
                hold=hold,
                loop=event_loop.process_loop(),
                check_connections=True,
                resolve=_resolve,
            )
        except Abandoned:
            if hold.taken is not claim:  # a stop came between two calls on the claim
                self._put_back(claim, hold=False)
            raise
        except BaseException:
            if hold.claim is claim:  # nothing is known about its outcome
                self._put_back(claim, hold=False)
                hold.claim = None
            self._back_off()
            raise
        if outcome is Outcome.NOT_STARTED:
            self._back_off()
        elif self._pause:
            self._pause = 0.0

    # -- the end ---------------------------------------------------------------------------------

    def _shut_down(self) -> None:
        end = time.monotonic() + self._shutdown_timeout
        self._stopping.set()
        for claim in self._pool.close():
            self._put_back(claim, hold=False)
        self._guarded("Letting go of tasks", self._quarantine.release_held)
        while self._pool.outstanding and not self._stop_now:
            left = end - time.monotonic()
            if left <= 0:
                break
            self._wants_finish = True
            if self._pool.outstanding and not self._stop_now:
                self._bell.wait(min(left, WAIT_SECONDS))
        cut_off = self._pool.abandon(ABANDON_SECONDS)
        for claim in cut_off:
            logs.put_back(claim.id)
            self._put_back(claim, hold=True)
        self.left_running = self._pool.outstanding

    def _put_back(self, claim: ClaimedTask, *, hold: bool) -> None:
        self._guarded("Putting a task back", lambda: self._queue.release(claim, hold=hold))

    def _say_goodbye(self) -> None:
        self._guarded("Syncing the store", self._backend.sync)
        self._guarded("Ending the work on the store", self._backend.worker_stopped)
        if not self.left_running:
            self._pool.join(1.0)
            self._guarded("Closing database connections", close_for_async)

    @staticmethod
    def _guarded(doing: str, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:  # a stop goes on to its end whatever the store does
            logs.store_error(doing, error)
