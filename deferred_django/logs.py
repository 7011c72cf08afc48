"""What the package logs about conditions of the work, at bounded rates.

What becomes of tasks and workers is told by signals, and logged in
:mod:`deferred_django.event_log`. Arguments of tasks never appear in a log line.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import traceback
from typing import Any

from deferred_django.backends import failures


class _Careful(logging.LoggerAdapter[logging.Logger]):
    """Lets nothing through that a handler raises: the work would lose the outcome of a task."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        try:
            super().log(level, msg, *args, **kwargs)
        except Exception:
            with contextlib.suppress(Exception):  # as logging does for handlers that let it
                traceback.print_exc()


logger = _Careful(logging.getLogger("deferred_django"), {})

REPEAT_SECONDS = 10.0
"""A condition that lasts (a full disk) is logged once in so many seconds."""
MAX_NAMES = 10_000
MESSAGE_CHARS = 200
"""So much of an exception's message stands in a line."""


class Bounded:
    """Lets each key through once in ``seconds``, or once altogether (``None``). Thread-safe."""

    def __init__(self, seconds: float | None = REPEAT_SECONDS) -> None:
        self._seconds = seconds
        self._last: dict[str, float] = {}
        self._lock = threading.Lock()

    def allows(self, key: str) -> bool:
        """Whether the key may be logged now; that counts as its being logged."""
        now = time.monotonic()
        with self._lock:
            last = self._last.get(key)
            if last is not None and (self._seconds is None or now - last < self._seconds):
                return False
            if len(self._last) >= MAX_NAMES:  # bounded memory; a key may then be logged again
                self._last.clear()
            self._last[key] = now
            return True


_errors = Bounded()
_unknown_names = Bounded(None)
_not_carried = Bounded(None)


def kind(error: BaseException) -> str:
    """The name of the exception's class."""
    return type(error).__qualname__


def described(error: BaseException) -> str:
    """The exception in one line: its kind and the beginning of its message."""
    first_line = next(iter(failures.safe_str(error).splitlines()), "")
    if len(first_line) > MESSAGE_CHARS:
        first_line = f"{first_line[:MESSAGE_CHARS]}…"
    return f"{kind(error)}: {first_line}" if first_line else kind(error)


def tasks_module_failed(module: str, error: BaseException) -> None:
    """An app's ``tasks`` module raised when a worker imported it."""
    logger.error(
        "%s could not be imported; its tasks are put back until it can.", module, exc_info=error
    )


def task_unknown(task: str, error: BaseException) -> None:
    """A name leads to no task in this process: logged once for each name."""
    if _unknown_names.allows(task):
        logger.warning(
            "Task %s is not known here (%s); such tasks are put back for a worker that knows it.",
            task,
            failures.safe_str(error).removeprefix(f"{task}: "),
        )


def error_swallowed(path: str, task: str) -> None:
    """A perform middleware swallowed what a task raised. Logged at a bounded rate."""
    if _errors.allows(f"{path} {task}"):
        logger.warning(
            "The perform middleware %s swallowed an error of %s; the attempt has failed all the "
            "same.",
            path,
            task,
        )


def not_carried(path: str, why: str) -> None:
    """A context variable holds what cannot travel: logged once for each variable."""
    if _not_carried.allows(path):
        logger.warning("The context variable %s is not carried to tasks: %s.", path, why)


def store_error(doing: str, error: BaseException) -> None:
    """The store failed at ``doing``; it is tried again. Logged at a bounded rate."""
    if _errors.allows(doing):
        unforeseen = not isinstance(error, OSError)
        logger.error(
            "%s failed: %s. It is tried again until it succeeds.",
            doing,
            f"{kind(error)}: {error}",
            exc_info=error if unforeseen else None,
        )


def too_much_memory(size: str) -> None:
    """A worker process ends because its tasks have left so much memory in use."""
    logger.info("This worker process has %s in use; another one takes its place.", size)


def put_back(task_id: str, *, beside_stuck: bool = False) -> None:
    """A task that had not ended was put back by a stop, or because of another that is stuck."""
    why = "runs in a process that is replaced" if beside_stuck else "did not end in time"
    logger.warning("Task %s %s; it is put back and runs again.", task_id, why)


def task_stuck(task: str, task_id: str, seconds: float, what: str) -> None:
    """A task has not ended though it was interrupted at its timeout; ``what`` follows from it."""
    logger.error(
        "Task %s (%s) does not react to its timeout of %g s; %s.", task, task_id, seconds, what
    )
