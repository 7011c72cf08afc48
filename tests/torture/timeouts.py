"""Tasks that end at the moment of their timeout: ``TaskTimeout`` reaches their function or nothing.

python -m tests.torture.timeouts --tasks 100000

Runs that many tasks, each of which ends as nearly as it can at its deadline, on a few threads, each
followed by one that must not notice, and a tenth as many ``async def`` ones. What comes of each is
held against what may: success, its own failure, or a ``TaskTimeout`` that was raised inside its
function and not too soon. Anything that is logged besides, or that ends a thread, is a violation.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deferred_django import thread_guard

THREADS = 4
SWITCH_SECONDS = 0.00002
"""How soon the interpreter changes threads: the timer is to be in time."""


class Books(logging.Handler):
    """What came of the tasks, and what should not have happened."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.violations: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Whatever is logged but a failed attempt."""
        if "failed in attempt" not in record.msg or "the worker itself" in record.msg:
            self.violations.append(f"logged: {record.getMessage()}")

    def unraisable(self, args: Any) -> None:
        """An exception in a finalizer, which may run in the middle of a task's function."""
        from tests.torture import limited

        stack = traceback.extract_stack()
        if any(frame.filename == limited.__file__ for frame in stack):
            limited.aim.in_finalizer = True
        elif stack[-2].filename == thread_guard.__file__:
            # The garbage collector came while the function's frame was on its way out, or right
            # behind that, in the guard's.
            self.counts["met in a finalizer as the function ended"] += 1
            limited.aim.in_finalizer = True
        else:
            where = [f"{frame.name}:{frame.lineno}" for frame in stack[-6:]]
            self.note(f"unraisable: {args.exc_type} in {args.object!r}, {where}")

    def note(self, what: str) -> None:
        """Take note of something that should not have happened."""
        self.violations.append(what)


@contextmanager
def watching() -> Iterator[Books]:
    """Books that notice what is logged, and what is raised where nobody catches it."""
    books = Books()
    logger = logging.getLogger("deferred_django")
    before = sys.getswitchinterval(), sys.unraisablehook, threading.excepthook, logger.propagate
    sys.setswitchinterval(SWITCH_SECONDS)
    sys.unraisablehook = books.unraisable
    threading.excepthook = lambda args: books.note(f"a thread ended: {args.exc_type}")
    logger.addHandler(books)
    logger.propagate = False
    try:
        yield books
    finally:
        logger.removeHandler(books)
        sys.setswitchinterval(before[0])
        _, sys.unraisablehook, threading.excepthook, logger.propagate = before


def run(books: Books, *, aimed: int, asynchronous: int) -> None:
    """Run so many tasks at their deadline, and as many beside them."""
    from tests.torture import limited

    def work(tasks: list[Any], beside: list[Any], number: int) -> None:
        queue = make_queue(books)
        for n in range(number):
            run_one(queue, books, tasks[n % len(tasks)])
            if beside:
                run_one(queue, books, beside[n % len(beside)])

    jobs = [(limited.AIMED, limited.BESIDE, aimed // THREADS)] * THREADS
    jobs += [(limited.ASYNC, [], asynchronous // THREADS)] * THREADS
    threads = [threading.Thread(target=work, args=job) for job in jobs if job[2]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    books.counts["threads that reached their end"] += len(threads)


def make_queue(books: Books) -> Any:
    """A queue that keeps nothing and looks at the failures; for one thread."""
    from deferred_django.backends.base import BackendConfig
    from deferred_django.backends.none import NoneBackend
    from deferred_django.queue import Queue

    class Witness(Queue):
        failure: BaseException | None = None

        def fail(
            self,
            claim: Any,
            context: Any,
            exception: BaseException,
            wait: float | None,
            **options: Any,
        ) -> None:
            self.failure = exception
            if wait != 0:
                books.note(f"the retry policy was not heard: {wait}")
            super().fail(claim, context, exception, wait, **options)

    return Witness(NoneBackend(BackendConfig(path=Path())))


def run_one(queue: Any, books: Books, task: Any) -> None:
    """Execute a call of the task, and enter what came of it."""
    from deferred_django import TaskTimeout, event_loop
    from deferred_django.backends.base import ClaimedTask
    from deferred_django.context import TaskContext
    from deferred_django.execution import execute
    from tests.torture import limited

    queue.failure = None
    limited.aim.in_finalizer = False
    began = time.monotonic()
    claim = ClaimedTask("1-1-a-1", TaskContext.build(task.name, (), {}).to_bytes(), 0.0, "a", 0)
    try:
        execute(queue, claim, loop=event_loop.process_loop(), check_connections=True)
    except BaseException as error:
        books.note(f"{task.name}: {error!r} reached the worker")
        return
    late = time.monotonic() - began
    failure = queue.failure
    limited_task = task in limited.AIMED or task in limited.ASYNC
    if limited_task and not task.is_async:
        limited.aim.missed(too_long=isinstance(failure, TaskTimeout))
    if failure is None:
        books.counts["ended in time" if limited_task else "beside them"] += 1
    elif isinstance(failure, TaskTimeout) and limited_task:
        books.counts["timed out, async" if task.is_async else "timed out"] += 1
        where = failure.__traceback__
        if type(failure) is not TaskTimeout:
            books.note(f"{task.name}: failed with a {type(failure)}")
        if not task.is_async and late < limited.SECONDS:
            books.note(f"{task.name}: timed out after {late:.6f} s")
        if not task.is_async and limited.aim.started < began:
            books.counts["timed out before the function's first line"] += 1
        elif limited.aim.in_finalizer:  # the function went on, and ended
            books.counts["timed out, met in a finalizer"] += 1
        elif failure.__cause__ is None and (
            where is None or where.tb_frame.f_code.co_filename != limited.__file__
        ):
            books.note(f"{task.name}: the exception was not raised in the function")
    elif type(failure) is ValueError and task is limited.raises:
        books.counts["raised in time"] += 1
    else:
        books.note(f"{task.name}: {failure!r}")


def main() -> int:
    """Run them; 0 if nothing happened that should not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=100_000)
    tasks = parser.parse_args().tasks
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    import django

    django.setup()
    from tests import scratch, settings
    from tests.torture import limited

    scratch.make(settings.BASE_DIR)
    limited.use_database = True
    started = time.monotonic()
    with watching() as books:
        run(books, aimed=tasks, asynchronous=tasks // 10)
    for what, number in sorted(books.counts.items()):
        print(f"{number:7,} {what}")
    for violation, number in Counter(books.violations).most_common(20):
        print(f"VIOLATION ({number} times) {violation}")
    print(
        f"{tasks:,} tasks and {tasks // 10:,} async ones at their deadline in "
        f"{time.monotonic() - started:.0f} s: {len(books.violations)} violations"
    )
    return 1 if books.violations else 0


if __name__ == "__main__":
    sys.exit(main())
