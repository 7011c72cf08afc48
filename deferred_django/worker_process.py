"""A worker as a process: under a supervisor, or in the process that was asked to work.

A supervisor talks to its worker processes through a pipe, not by signals: a signal that reaches
the whole process group (Ctrl-C, a service manager's stop) must count once, and the pipe's end
tells that the supervisor is dead.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any, NoReturn

from deferred_django import registry
from deferred_django.heartbeat_file import HeartbeatFile
from deferred_django.limits_board import BoardSlot
from deferred_django.recycling import RECYCLED
from deferred_django.worker import Worker

logger = logging.getLogger("deferred_django")

EXIT_ENDED, EXIT_RECYCLED = 90, 91
"""How a worker process tells its supervisor that it was drained or stopped, or that another one is
to go on in its place. Not 0: a task can end the process with that."""
STOP, STOP_NOW = b"s", b"n"
"""What a supervisor writes to the pipe; its end means the same as ``STOP_NOW``."""

GRACE_SECONDS = 5.0
"""How much longer than its shutdown timeout a worker process may take before it is killed."""

STOP_SIGNALS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
EXIT_SECONDS = 10.0
"""What a project has registered with :mod:`atexit` has so long in a worker process."""

MakeWorker = Callable[[], Worker]


def run_child(
    make_worker: MakeWorker,
    control: int,
    on_beat: Callable[[float], None] | None = None,
    limits_slot: Callable[[int], BoardSlot | None] | None = None,
    signal_mask: Iterable[int] | None = None,
) -> NoReturn:
    """Be a worker process: called in a forked child, never returns.

    ``control`` is the reading end of the supervisor's pipe, ``on_beat`` is called at each round
    of the worker's fetcher, ``limits_slot`` tells where a thread shows its time limits.
    ``signal_mask`` is set once there are handlers for the signals that
    the supervisor has blocked.
    """
    code = 1
    worker = None
    try:
        random.seed()
        if "numpy" in sys.modules:  # its generator would be the same in every child
            sys.modules["numpy"].random.seed()
        worker = make_worker()
        worker.pulse.on_beat = on_beat
        if limits_slot is not None:
            worker.show_limits(limits_slot)
        worker.end_process = functools.partial(os._exit, EXIT_RECYCLED)
        _set_child_signals(worker)
        if signal_mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, signal_mask)
        threading.Thread(
            target=_watch, args=(control, worker), name="deferred-control", daemon=True
        ).start()
        code = EXIT_RECYCLED if worker.run() in RECYCLED else EXIT_ENDED
    except BaseException:
        logger.critical("The worker process %d failed.", os.getpid(), exc_info=True)
    finally:
        if worker is None or not worker.left_running:
            # As at an ordinary exit; a thread that still runs a task could hang it.
            with contextlib.suppress(BaseException):
                _leave_in_any_case(code)
                registry.reset()
                atexit._run_exitfuncs()
        leave(code)


def _leave_in_any_case(code: int) -> None:
    # Something that hangs at the exit would keep its place from the process that follows.
    timer = threading.Timer(EXIT_SECONDS, leave, (code,))
    timer.daemon = True
    timer.start()


def leave(code: int) -> NoReturn:
    """End the process at once, whatever its threads do, with what was printed and logged."""
    for handler in [ref() for ref in logging._handlerList]:  # type: ignore[attr-defined]
        with contextlib.suppress(Exception):
            if handler is not None:
                handler.flush()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def run_here(make_worker: MakeWorker, heartbeat: HeartbeatFile | None = None) -> Worker:
    """Work in this process until the end; nothing forks. Returns the last worker.

    In the main thread SIGTERM and SIGINT stop it, a second one at once. A worker that has run
    its number of tasks is followed by another, as under a supervisor.
    """
    with contextlib.ExitStack() as stack:
        current: list[Worker] = []
        signals = 0

        def stop(signum: int, frame: FrameType | None) -> None:
            nonlocal signals
            signals += 1
            for worker in current:
                worker.request_stop(now=signals > 1)

        if threading.current_thread() is threading.main_thread():
            stack.enter_context(handled_signals({signal.SIGTERM: stop, signal.SIGINT: stop}))
        on_beat = None
        if heartbeat is not None:
            on_beat = heartbeat.beater(0)
            stack.enter_context(heartbeat.written_by_a_thread())
        while True:
            worker = make_worker()
            worker.pulse.on_beat = on_beat
            current[:] = [worker]
            if signals:  # it came between two workers
                worker.request_stop(now=signals > 1)
            if worker.run() not in RECYCLED:
                return worker


@contextlib.contextmanager
def handled_signals(handlers: dict[int, Any], *, to_the_end: bool = False) -> Iterator[None]:
    """Handle signals in this way for a while. For the main thread.

    With ``to_the_end`` the process ends afterwards, and what tells it to stop is ignored then: a
    second signal must not kill a process that is about to end well.
    """
    before = {signum: signal.signal(signum, handler) for signum, handler in handlers.items()}
    try:
        yield
    finally:
        for signum, handler in before.items():
            if to_the_end and signum in STOP_SIGNALS:
                # Not a handler: the end of the interpreter would put back the default.
                handler = signal.SIG_IGN
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)


def _set_child_signals(worker: Worker) -> None:
    def stop(signum: int, frame: FrameType | None) -> None:
        worker.request_stop()

    def ignore(signum: int, frame: FrameType | None) -> None:
        # Not SIG_IGN, which the processes that tasks start would inherit.
        return

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, ignore)
    signal.signal(signal.SIGHUP, ignore)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _watch(control: int, worker: Worker) -> None:
    while True:
        try:
            order = os.read(control, 1)
        except OSError:
            order = b""
        worker.request_stop(now=order != STOP)
        if not order:
            return
