"""What the package logs about the work: one function for each event, and bounded rates.

Arguments of tasks never appear in a log line. A task's exception does, with its traceback at the
first attempt and when the task dies.
"""

from __future__ import annotations

import logging
import threading
import time

from deferred_django.backends import failures

logger = logging.getLogger("deferred_django")

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


def _kind(error: BaseException) -> str:
    return type(error).__qualname__


def _described(error: BaseException) -> str:
    """The exception in one line: its kind and the beginning of its message."""
    first_line = next(iter(failures.safe_str(error).splitlines()), "")
    if len(first_line) > MESSAGE_CHARS:
        first_line = f"{first_line[:MESSAGE_CHARS]}…"
    return f"{_kind(error)}: {first_line}" if first_line else _kind(error)


def task_retried(task: str, task_id: str, attempt: int, error: BaseException, wait: float) -> None:
    """An attempt failed and there will be another."""
    logger.warning(
        "Task %s (%s) failed in attempt %d with %s; it runs again in %s s.",
        task,
        task_id,
        attempt,
        _described(error),
        f"{wait:.0f}" if wait >= 10 else f"{wait:.1f}",
        # The last attempt may be days away: whoever looks for the cause needs the traceback now.
        exc_info=error if attempt == 1 else None,
    )


def task_died(
    task: str, task_id: str, attempts: int, error: BaseException, *, kept: bool = True
) -> None:
    """A task gave up: it is a dead task now, where the backend keeps those."""
    logger.error(
        "Task %s (%s) failed in attempt %d with %s; %s.",
        task,
        task_id,
        attempts,
        _kind(error),
        "it is a dead task now" if kept else "it is dropped, this backend keeps no dead tasks",
        exc_info=error,
    )


def task_unreadable(task_id: str, error: BaseException) -> None:
    """A task's stored bytes are no context."""
    logger.error("Task %s cannot be read (%s); it is a dead task now.", task_id, error)


def task_lost(task: str, task_id: str, crashes: int) -> None:
    """A task's workers died under it too often."""
    logger.error(
        "Task %s (%s) is a dead task now: the worker process died %d times while it ran it.",
        task,
        task_id,
        crashes,
    )


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


def store_error(doing: str, error: BaseException) -> None:
    """The store failed at ``doing``; it is tried again. Logged at a bounded rate."""
    if _errors.allows(doing):
        unforeseen = not isinstance(error, OSError)
        logger.error(
            "%s failed: %s. It is tried again until it succeeds.",
            doing,
            f"{_kind(error)}: {error}",
            exc_info=error if unforeseen else None,
        )


def put_back(task_id: str) -> None:
    """A stopping worker put back a task that had not ended in time."""
    logger.warning("Task %s did not end in time; it is put back and runs again.", task_id)
