"""Enqueues periodic tasks when they are due: in every worker process, each tick by one of them.

What makes it once: whoever looks holds the store's schedule. Before a tick's task is enqueued, the
intention is made durable, with the next tick; then the task; then that it is done. Whoever finds an
intention knows that its process died or failed on the way, looks for the task by its id, which is
the tick's, and enqueues it if it is not there. See ``docs/decisions/005-ticks.md``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from deferred_django import connections, current, logs
from deferred_django.backends.schedule import ScheduleHold, TickRecord
from deferred_django.context import TaskContext
from deferred_django.enqueue_call import CallTarget, EnqueueCall
from deferred_django.exceptions import EnqueueStopped, UnknownTask
from deferred_django.queue import Queue
from deferred_django.schedule_plan import Due, Plan, make_plan
from deferred_django.schedule_setting import Schedule
from deferred_django.task import resolve_task

logger = logging.getLogger("deferred_django")

LOOK_SECONDS = 60.0
"""The store is looked at at least so often, though nothing is due: somebody may have changed it."""
RETRY_SECONDS = 1.0
"""After an error, and while a tick cannot be enqueued."""
HELD_SECONDS = 0.1
"""Another process has the schedule: it is enqueueing what is due, which takes milliseconds."""
CLOCK_SECONDS = 1.0
"""The longest sleep: the clock may be set meanwhile."""
FIRST_LOOK_SECONDS = 2.0
"""A worker waits so long for its first look before it begins to work."""
SETTINGS_READ_AT: Final = time.time()
"""When this process's settings were read; forked worker processes have their supervisor's."""


class Scheduler:
    """Looks after the periodic tasks of one queue. For one thread."""

    def __init__(
        self,
        queue: Queue,
        schedule: Schedule,
        *,
        clock: Callable[[], float] = time.time,
        settings_read_at: float = SETTINGS_READ_AT,
    ) -> None:
        """``clock`` gives unix seconds."""
        self._queue = queue
        self._backend = queue.backend
        self._schedule = schedule
        self._clock = clock
        self._settings_read_at = settings_read_at

    def look(self, pause: Callable[[float], bool] = lambda seconds: True) -> float:
        """Enqueue what is due; return when to look again (unix seconds).

        While what was enqueued cannot be noted down, the schedule stays held and it is tried again
        after ``pause(seconds)``, until that returns true. May raise what the store raises.
        """
        with self._backend.hold_schedule() as hold:
            now = self._clock()
            if hold is None:
                return now + HELD_SECONDS
            plan = make_plan(
                self._schedule, hold.records, now=now, settings_read_at=self._settings_read_at
            )
            for note in plan.notes:
                logger.info("%s", note)
            if plan.due:
                hold.save(plan.records.values())
                done = self._enqueue(plan.due)
                self._note_down(hold, plan.finished(done), pause)
                if len(done) < len(plan.due):
                    return now + RETRY_SECONDS
            elif plan.changed:
                hold.save(plan.records.values())
            return self._next_look(plan, now)

    def _next_look(self, plan: Plan, now: float) -> float:
        own = (plan.records[entry.name].next_at for entry in self._schedule)
        return min([now + LOOK_SECONDS, *own])

    @staticmethod
    def _note_down(
        hold: ScheduleHold, records: Sequence[TickRecord], pause: Callable[[float], bool]
    ) -> None:
        # Whoever holds it next would enqueue again what has run meanwhile.
        while True:
            try:
                hold.save(records)
            except OSError as error:
                if pause(RETRY_SECONDS):
                    raise
                logs.store_error("Noting down what was enqueued of the schedule", error)
            else:
                return

    def _enqueue(self, due: Iterable[Due]) -> list[str]:
        """Enqueue the ticks' tasks, durably; return the names of those that are done with."""
        due = list(due)
        there = self._there([tick.task_id for tick in due if tick.is_resumed])
        done: list[str] = []
        for tick in due:
            if there and tick.task_id in there:
                done.append(tick.entry.name)
                continue
            try:
                self._enqueue_one(tick)
            except EnqueueStopped as stop:
                logger.info("Periodic task %r is not enqueued: %s", tick.entry.name, stop)
            except (TypeError, ValueError):  # it will not be better the next time
                logger.exception("The tick of periodic task %r is dropped", tick.entry.name)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a full store, a refusal, also a SystemExit of the
                # project's middleware and receivers: this tick is tried again
                logs.store_error(f"Enqueueing periodic task {tick.entry.name!r}", error)
                continue
            done.append(tick.entry.name)
        self._backend.sync()
        return done

    def _enqueue_one(self, tick: Due) -> None:
        entry = tick.entry
        queue, priority = entry.queue, entry.priority
        try:
            task = resolve_task(entry.task)
        except UnknownTask as error:
            # As with any task that is not known here: it waits for a worker that knows it.
            logs.task_unknown(entry.task, error)
        else:
            queue = task.queue if queue is None else queue
            priority = task.priority if priority is None else priority
        target = CallTarget(tick.task_id, entry.task, queue or "default", priority or 0, None)
        call = EnqueueCall(target, entry.args, dict(entry.kwargs))
        call.pass_through(self._queue.features.enqueue_middleware)
        context = TaskContext.build(
            entry.task, call.args, call.kwargs, user_context=call.user_context
        )
        self._queue.enqueue(context, task_id=call.id, queue=call.queue, priority=call.priority)

    def _there(self, task_ids: Sequence[str]) -> set[str]:
        """Which of these tasks are in the store: pending, running or dead."""
        if not task_ids:
            return set()
        found = {task.id for task in self._backend.pending_tasks()} & set(task_ids)
        return found | {each for each in task_ids if self._backend.find_dead_task(each)}


class Ticker:
    """The thread of a worker process that looks when something is due."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._end = threading.Event()
        self._looked = threading.Event()
        self._thread = threading.Thread(target=self._work, name="deferred-schedule", daemon=True)

    @classmethod
    def of(cls, queue: Queue) -> Ticker | None:
        """One for the queue; ``None`` where there is no schedule, or none can be kept."""
        schedule = queue.features.schedule
        if schedule is None or not queue.backend.keeps_schedule:
            return None
        return cls(Scheduler(queue, schedule))

    def start(self) -> None:
        """Start the thread, and wait a moment for its first look: a drain runs what is due."""
        self._thread.start()
        self._looked.wait(FIRST_LOOK_SECONDS)

    def stop(self) -> None:
        """End the thread; what it is in the middle of, another process finishes if it must."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(RETRY_SECONDS)

    def _work(self) -> None:
        current.work_in_this_thread()
        while not self._end.is_set():
            began = time.time()
            try:
                with _closing_connections():
                    again = self._scheduler.look(self._end.wait)
            except BaseException as error:  # the worker goes on whatever happens here
                logs.store_error("Looking after the schedule", error)
                again = time.time() + RETRY_SECONDS
            self._looked.set()
            self._sleep(began, again)

    def _sleep(self, began: float, again: float) -> None:
        latest = began
        while (now := time.time()) < again:
            if now < latest - CLOCK_SECONDS:
                return  # the clock was set back
            latest = now
            if self._end.wait(min(again - now, CLOCK_SECONDS)):
                return


@contextmanager
def _closing_connections() -> Iterator[None]:
    """Nobody else would close the database connections that receivers of signals open here."""
    try:
        yield
    finally:
        if connections.opened_here():
            connections.close_here()
