"""One worker process: claims due tasks and has its threads run them.

The thread that calls :meth:`Worker.run` is the fetcher. It claims as many tasks as there are idle
threads and, where tasks are short, a few in advance; a claim that no thread begins with soon is
let go, so that a slow task never keeps others waiting that another process could run.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from deferred_django import event_loop, logs, overdue
from deferred_django.backends.base import ClaimedTask
from deferred_django.execution import Outcome, execute
from deferred_django.fetcher_waits import FetcherWaits
from deferred_django.hold import Abandoned, Hold
from deferred_django.housekeeping import Housekeeper, close_for_async, tell
from deferred_django.limits_board import BoardSlot
from deferred_django.pool import Pool
from deferred_django.prefetch import Prefetch
from deferred_django.pulse import Pulse
from deferred_django.quarantine import Quarantine
from deferred_django.queue import Queue
from deferred_django.queue_choice import ALL_QUEUES, QueueChoice
from deferred_django.recycling import Ended, Limits, format_size
from deferred_django.signals import worker_started, worker_stopped
from deferred_django.task import resolve_task

UNSTARTED_SECONDS = 0.2
"""A claim that no thread has begun with is let go after this time."""
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds without claims after an error of the store, doubling."""
ABANDON_SECONDS = 0.5
"""How long a stop waits for calls to the store that are under way."""

# The code of a worker process does not change; a name that is not found is looked for again.
_resolve = functools.lru_cache(maxsize=4096)(resolve_task)


class Worker:
    """Runs the due tasks of a queue until it is stopped, drained, or has reached a limit."""

    def __init__(
        self,
        queue: Queue,
        *,
        threads: int = 4,
        choice: QueueChoice = ALL_QUEUES,
        drain: bool = False,
        max_tasks: int | None = None,
        max_memory: int | None = None,
        shutdown_timeout: float = 30.0,
    ) -> None:
        """``max_memory`` is in bytes, ``shutdown_timeout`` in seconds."""
        self._queue = queue
        self._backend = queue.backend
        self._threads = threads
        self._choice = choice
        self._drain = drain
        self._shutdown_timeout = shutdown_timeout
        self._waits = FetcherWaits(
            self._backend, ends_with_last=drain or max_tasks is not None or max_memory is not None
        )
        self._stop_now = False
        self._stopping = threading.Event()
        self._pool = self._waits.pool = Pool(
            threads,
            self._work_on,
            stopping=self._stopping,
            on_finish=self._waits.task_ended,
            on_stuck=self._on_stuck,
        )
        self._quarantine = Quarantine(queue, self._pool, choice)
        self._prefetch = Prefetch(self._pool)
        self._limits = Limits(self._pool, max_tasks=max_tasks, max_memory=max_memory)
        self._pause = 0.0
        self._resume_at = 0.0
        self.pulse = Pulse(self._backend, self._pool)
        self._stuck = False
        self.end_process: Callable[[], NoReturn] | None = None
        """Ends the process whatever its threads do; ``None`` where no other takes its place."""
        self.left_running = 0
        """After :meth:`run`: how many tasks were cut off and still run on daemon threads."""

    def show_limits(self, slot_of: Callable[[int], BoardSlot | None]) -> None:
        """Have a supervisor see the time limits of what runs; before :meth:`run`."""
        self._pool.show_limits(slot_of)

    def request_stop(self, *, now: bool = False) -> None:
        """Stop: begin nothing more, finish what runs, within the shutdown timeout.

        With ``now`` nothing is waited for. Sets flags only: safe in threads and signal handlers.
        """
        self._stop_now = self._stop_now or now
        self._waits.stopped = True
        self._waits.wake()

    def run(self) -> Ended:
        """Work until the end; call it once. Nothing is claimed afterwards, except tasks that a
        stop cut off: those are due again, and their claims are kept until this process is gone.
        """
        started, threads, queues = (
            self._backend.worker_started,
            self._threads,
            self._choice.listed(),
        )
        self._guarded("Listing this worker", lambda: started(threads=threads, queues=queues))
        tell(Worker, worker_started, threads=threads, queues=queues)
        housekeeper = Housekeeper(
            self._queue,
            is_idle=lambda: self._pool.outstanding == 0,
            heartbeat=self.pulse.tell,
        )
        ended = Ended.STOPPED
        try:
            self._pool.start()
            housekeeper.start()
            # A store is watched from the first wait on.
            self._guarded("Watching the store", lambda: self._backend.wait(0))
            while not self._waits.stopped:
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
            self._shut_down(patient=ended is not Ended.STUCK)
            housekeeper.stop()
            self._say_goodbye()
            tell(Worker, worker_stopped, reason=ended.value, attempts=self._pool.finished)
        return ended

    # -- the fetcher -----------------------------------------------------------------------------

    def _step(self) -> Ended | None:
        if self._stuck:
            self._stuck = False
            if self.end_process is not None:
                overdue.LastResort(self.end_process)
                return Ended.STUCK
            overdue.leave_behind(self._queue, self._pool)
        now = time.monotonic()
        self.pulse.beat(now)
        pool = self._pool
        pool.spread(now)
        oldest = pool.oldest()
        if oldest is not None and now - oldest >= UNSTARTED_SECONDS:
            self._release(pool.take_back(now - UNSTARTED_SECONDS))
            self._prefetch.stop_for_a_while(now)
        if now < self._resume_at:
            self._waits.for_finish(self._resume_at - now)
            return None
        wait = self._quarantine.step(now)
        if wait is not None:
            self._waits.for_finish(wait)
            return None
        self._prefetch.measure(now)
        busy = pool.outstanding
        limit = self._threads + self._prefetch.number - busy
        if self._limits.any:
            limit = self._limits.room(limit)
            if limit <= 0 and busy == 0:
                if self._limits.reached is not None:
                    logs.too_much_memory(format_size(self._limits.memory))
                return self._limits.reached or Ended.MAX_TASKS
            if self._limits.reached is not None:
                self._release(pool.take_back())  # claimed in advance, and not begun
        if limit <= 0 or pool.waiting > pool.low_mark:
            self._waits.for_finish(self._waits.until_unstarted(now, UNSTARTED_SECONDS))
            return None
        asked = limit + self._quarantine.refused
        claims = self._queue.claim(asked, self._choice)
        if not claims:
            self._pause = 0.0
            if busy == 0 and self._drain and not self._backend.claim_was_cut_short():
                # From a file that has grown too large nothing is claimed until it is compacted.
                self._guarded("Tidying the store", self._backend.maintain)
                claims = self._queue.claim(asked, self._choice)
                if not claims and not self._backend.claim_was_cut_short():
                    return Ended.STOPPED if self._waits.stopped else Ended.DRAINED
        more = len(claims) == asked
        claims = self._quarantine.sort(claims, now) if claims else claims
        pool.add(claims)
        if self._quarantine.refused and not claims:  # they are claimed again at once
            self._waits.for_store(UNSTARTED_SECONDS)
        elif pool.waiting:
            self._waits.for_finish(pool.look_again)
        elif not more:
            self._waits.for_store(self._waits.until_unstarted(now, UNSTARTED_SECONDS))
        return None

    def _back_off(self) -> None:
        if time.monotonic() < self._resume_at:
            return  # the same condition, met by another thread
        self._pause = min(max(self._pause * 2, FIRST_PAUSE), LONGEST_PAUSE)
        self._resume_at = time.monotonic() + self._pause

    def _release(self, claims: list[ClaimedTask]) -> None:
        for claim in claims:
            self._queue.release(claim)

    # -- the threads of the pool -----------------------------------------------------------------

    def _on_stuck(self) -> None:
        self._stuck = True
        self._waits.wake()

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
        if self._limits.any and self._limits.task_ended():
            self._waits.wake()
        if outcome is Outcome.NOT_STARTED:
            self._back_off()
        elif self._pause:
            self._pause = 0.0

    # -- the end ---------------------------------------------------------------------------------

    def _shut_down(self, *, patient: bool) -> None:
        end = time.monotonic() + self._shutdown_timeout
        self._stopping.set()
        for claim in self._pool.close():
            self._put_back(claim, hold=False)
        self._guarded("Letting go of tasks", self._quarantine.release_held)
        while patient and self._is_waited_for():
            now = time.monotonic()
            self.pulse.beat(now)
            left = end - now
            if left <= 0:
                break
            self._waits.for_last_tasks(left, self._is_waited_for)
        cut_off = self._pool.abandon(ABANDON_SECONDS)
        put_back = functools.partial(self._put_back, hold=True)
        overdue.end_cut_off(self._queue, cut_off, put_back, stuck=not patient)
        self.left_running = self._pool.outstanding + self._pool.left_behind

    def _is_waited_for(self) -> bool:
        return self._pool.outstanding > self._pool.stuck and not self._stop_now

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
