"""Keeps a number of worker processes running, replaces those that die, and stops them.

The supervisor forks its workers, runs no task, opens no store and has no threads. All processes
stay in its session and process group.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from deferred_django import connections
from deferred_django.frozen import FrozenProcesses
from deferred_django.heartbeat_file import HeartbeatFile
from deferred_django.housekeeping import tell
from deferred_django.signals import worker_lost
from deferred_django.stop_orders import StopOrders
from deferred_django.worker import Worker
from deferred_django.worker_process import (
    EXIT_ENDED,
    EXIT_RECYCLED,
    GRACE_SECONDS,
    STOP,
    STOP_NOW,
    STOP_SIGNALS,
    MakeWorker,
    leave,
    run_child,
)

logger = logging.getLogger("deferred_django")

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 30.0
"""Seconds before a worker process that died at once is replaced again, doubling. The first
replacement comes at once."""
LIVED_SECONDS = 5.0
"""A worker process that lived so long did not die at once."""


@dataclass(slots=True)
class _Child:
    """The place of one worker process."""

    number: int = 0
    pid: int | None = None
    control: int = -1
    started_at: float = 0.0
    start_at: float = 0.0
    """When (monotonic) the next process of this place starts."""
    deaths: int = 0
    """How many in a row died at once."""
    done: bool = False


class Supervisor:
    """Runs workers in processes of their own until they are drained or a signal comes."""

    def __init__(
        self,
        make_worker: MakeWorker,
        *,
        processes: int,
        drain: bool = False,
        shutdown_timeout: float = 30.0,
        heartbeat: HeartbeatFile | None = None,
        on_stop: Callable[[], None] | None = None,
        ends_process: bool = False,
        control: int | None = None,
        watch_code: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        """``make_worker`` is called in each child; ``shutdown_timeout`` (seconds) is that of the
        workers. With ``drain`` a process that ends by itself is not replaced. ``heartbeat``, of
        as many processes, is written while they are at work, and removed at the end. ``on_stop``
        is called once the workers have been told of the first signal.

        With ``ends_process`` nothing follows but the end of this process, and stop signals that
        come then are ignored. ``control`` is the reading end of a pipe from a process that passes
        on signals, which then mean nothing here; its end stops at once. ``watch_code`` is called
        in each worker process with what to call when the code has changed: then all stop."""
        self._make_worker = make_worker
        self._drain = drain
        self._shutdown_timeout = shutdown_timeout
        self._heartbeat = heartbeat
        self._on_stop = on_stop
        self._orders = StopOrders(control, to_the_end=ends_process)
        self._watch_code = watch_code
        self._children = [_Child(number) for number in range(processes)]
        self._frozen = FrozenProcesses(processes)
        self._told = 0
        self._kill_at: float | None = None

    @property
    def code_changed(self) -> bool:
        """After :meth:`run`: whether it ended because the code has changed."""
        return self._orders.code_changed

    def run(self) -> None:
        """Supervise until every process is done.

        In the main thread SIGTERM, SIGINT and SIGHUP stop the workers, a second one at once.
        """
        try:
            with self._orders.received():
                while not all(child.done for child in self._children):
                    self._pass_on_signals()
                    self._start_due()
                    self._wait()
                    self._reap()
                    self._frozen.look(self._children)
                    self._update_heartbeat()
        finally:
            for child in self._children:  # an end of the pipe stops a worker at once
                self._forget(child)
            if self._heartbeat is not None:
                self._heartbeat.remove()

    # -- signals ---------------------------------------------------------------------------------

    def _pass_on_signals(self) -> None:
        now = time.monotonic()
        if self._orders.count > 0 and self._told == 0:
            logger.info("Stopping the worker processes.")
            self._tell(STOP)
            self._told = 1
            self._kill_at = now + self._shutdown_timeout + GRACE_SECONDS
            if self._orders.count == 1 and self._on_stop is not None:
                self._on_stop()
        if self._orders.count > 1 and self._told == 1:
            self._tell(STOP_NOW)
            self._told = 2
            self._kill_at = now + GRACE_SECONDS
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            for child in self._children:
                if child.pid is not None:
                    logger.error("Worker process %d does not stop; it is killed.", child.pid)
                    with contextlib.suppress(ProcessLookupError):  # waited for by somebody else
                        os.kill(child.pid, signal.SIGKILL)

    def _tell(self, order: bytes) -> None:
        for child in self._children:
            if child.pid is None:
                child.done = True
            else:
                with contextlib.suppress(BrokenPipeError):  # it has just died
                    os.write(child.control, order)

    # -- processes -------------------------------------------------------------------------------

    def _start_due(self) -> None:
        now = time.monotonic()
        for child in self._children:
            if self._orders.count:
                return
            if child.pid is None and not child.done and now >= child.start_at:
                self._start(child)

    def _start(self, child: _Child) -> None:
        connections.close_before_fork()
        for stream in (sys.stdout, sys.stderr):  # a child must not print it again
            with contextlib.suppress(OSError, AttributeError):  # nobody reads it; it is closed
                stream.flush()
        child.started_at = time.monotonic()
        self._frozen.board.clear(child.number)
        control = pid = -1
        # A signal to all processes must not meet a child that still has this one's handlers.
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            control, child.control = os.pipe()
            pid = os.fork()
        except OSError as error:  # too many processes or files, no memory
            logger.error("A worker process could not be started: %s", error)
            if control != -1:
                os.close(control)
            self._forget(child)
            self._pause(child)
            return
        finally:
            if pid != 0:
                signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        if pid == 0:
            try:
                self._become_child()
                heartbeat = self._heartbeat
                beater = None if heartbeat is None else heartbeat.beater(child.number)
                limits_slot = functools.partial(self._frozen.board.slot, child.number)
                run_child(self._make_worker, control, beater, limits_slot, unblocked)
            finally:
                leave(1)
        os.close(control)
        child.pid = pid

    def _become_child(self) -> None:
        for other in self._children:  # held here, the end of a pipe would never come
            if other.control != -1:
                os.close(other.control)
        self._orders.leave(can_tell=self._watch_code is not None)
        if self._watch_code is not None:
            self._watch_code(self._orders.tell_that_code_changed)

    def _reap(self) -> None:
        for child in self._children:
            if child.pid is None:
                continue
            try:
                pid, status = os.waitpid(child.pid, os.WNOHANG)
            except ChildProcessError:  # somebody else waited for it
                pid, status = child.pid, 1 << 8
            if pid:
                self._ended(child, os.waitstatus_to_exitcode(status))

    def _ended(self, child: _Child, code: int) -> None:
        pid = child.pid
        self._forget(child)
        child.pid = None
        lost = code not in (EXIT_ENDED, EXIT_RECYCLED) and pid not in self._frozen.killed
        self._frozen.killed.discard(pid or 0)
        if self._told or (self._drain and code == EXIT_ENDED):
            child.done = True
        elif lost:
            self._pause(child)
        else:
            child.start_at = 0.0
        if lost:
            tell(Worker, worker_lost, pid=pid, exit_code=code, replaced=not child.done)
        else:
            child.deaths = 0

    def _pause(self, child: _Child) -> None:
        now = time.monotonic()
        if now - child.started_at >= LIVED_SECONDS:
            child.deaths = 0
        pause = 0.0
        if child.deaths:
            pause = min(FIRST_PAUSE * 2.0 ** min(child.deaths - 1, 20), LONGEST_PAUSE)
        child.deaths += 1
        child.start_at = now + pause

    def _forget(self, child: _Child) -> None:
        if child.control != -1:
            os.close(child.control)
            child.control = -1

    def _wait(self) -> None:
        seconds = min(self._orders.longest_wait, self._frozen.seconds_to_next(self._children))
        now = time.monotonic()
        moments = [child.start_at for child in self._children if not child.pid and not child.done]
        if self._kill_at is not None:
            moments.append(self._kill_at)
        if self._heartbeat is not None:
            seconds = min(seconds, self._heartbeat.seconds_to_next())
        timeout = min([seconds, *(max(moment - now, 0.0) for moment in moments)])
        self._orders.wait(timeout)

    def _update_heartbeat(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.update(child.number for child in self._children if not child.done)
