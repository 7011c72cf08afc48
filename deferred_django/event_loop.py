"""The event loop of a process that runs ``async def`` tasks: one, on a thread of its own.

The thread that runs a task hands the coroutine over and waits, so that a process never runs more
async tasks than it has threads. Whatever a coroutine or its children raise, the loop goes on.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

from deferred_django import forks

logger = logging.getLogger("deferred_django")

MakeCoroutine = Callable[[], Coroutine[Any, Any, Any]]


class EventLoop:
    """An event loop on a daemon thread. Thread-safe; starts at the first :meth:`run`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def started(self) -> bool:
        """Whether any coroutine was ever run."""
        return self._loop is not None

    def run(
        self, make: MakeCoroutine, context: contextvars.Context | None = None
    ) -> BaseException | None:
        """Run the coroutine that ``make`` returns to its end; return what it raised.

        Both the call of ``make`` and the coroutine run in ``context``. A cancelled coroutine
        counts as one that raised ``CancelledError``. Nothing is raised here.
        """
        done: Future[BaseException | None] = Future()

        async def guarded() -> None:
            try:
                await make()
            except BaseException as error:  # an async task may raise anything, SystemExit too
                done.set_result(error)
            else:
                done.set_result(None)

        def begin() -> None:
            # The loop keeps only weak references to its tasks.
            task = loop.create_task(guarded(), context=context)
            running.add(task)
            task.add_done_callback(finish)

        def finish(task: asyncio.Task[None]) -> None:
            running.discard(task)
            if not done.done():  # cancelled before its first step
                done.set_result(asyncio.CancelledError())

        running: set[asyncio.Task[None]] = set()
        loop = self._started_loop()
        loop.call_soon_threadsafe(begin)
        return done.result()

    def _started_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            with self._lock:
                if self._loop is None:
                    loop = asyncio.new_event_loop()
                    threading.Thread(
                        target=_run_forever, args=(loop,), name="deferred-loop", daemon=True
                    ).start()
                    self._loop = loop
        return self._loop


def _run_forever(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    while True:
        try:
            loop.run_forever()
        except BaseException:  # asyncio lets SystemExit of a task's own child tasks through
            logger.exception("The event loop was interrupted; it goes on.")


_process_loop = EventLoop()


def _renew() -> None:
    global _process_loop
    _process_loop = EventLoop()  # the parent's loop and its thread are not in the child


forks.after_in_child(_renew)


def process_loop() -> EventLoop:
    """This process's loop; a forked child has its own."""
    return _process_loop
