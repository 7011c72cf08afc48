"""One log line for each signal: what became of tasks and workers.

The logger is ``deferred_django``. Every line has the attributes of :data:`KEYS` (``extra``), with
``None`` where one says nothing, for formatters and collectors. Arguments of tasks are never part
of a line; the exception of a task is, with its traceback at the first failure and at the last.
"""

from __future__ import annotations

import functools
import logging
import signal as os_signals
from collections.abc import Callable
from typing import Any, Final

from deferred_django import logs, signals
from deferred_django.signals import EventSignal

logger = logging.getLogger("deferred_django")

KEYS: Final = ("event", "task_id", "task", "queue", "attempt", "worker", "duration_ms")
"""The attributes that each line has besides those of every ``LogRecord``."""
LEVELS: Final = {
    signals.task_enqueued: logging.DEBUG,
    signals.task_started: logging.DEBUG,
    signals.task_succeeded: logging.INFO,
    signals.task_retried: logging.WARNING,
    signals.task_died: logging.ERROR,
    signals.worker_started: logging.INFO,
    signals.worker_stopped: logging.INFO,
    signals.worker_lost: logging.ERROR,
}
"""The level of each signal's line."""


def connect() -> None:
    """Have the signals logged. Called again, it changes nothing."""
    for signal, write in _WRITERS.items():
        listens = functools.partial(logger.isEnabledFor, LEVELS[signal])
        signal.connect_quietly(write, f"{__name__}.{signal.name}", listens)


def _write(
    signal: EventSignal,
    told: dict[str, Any],
    message: str,
    *values: object,
    error: BaseException | None = None,
) -> None:
    duration = told.get("duration")
    here = None if signal is signals.task_enqueued else signals.worker_name()
    extra = {
        "event": signal.name,
        "task_id": told.get("task_id"),
        "task": told.get("task"),
        "queue": told.get("queue"),
        "attempt": told.get("attempt"),
        "worker": told.get("worker", here),
        "duration_ms": None if duration is None else round(duration * 1000, 3),
    }
    logger.log(LEVELS[signal], message, *values, exc_info=error, extra=extra)


def _write_task(
    signal: EventSignal,
    told: dict[str, Any],
    message: str,
    *values: object,
    error: BaseException | None = None,
) -> None:
    message = f"Task %s (%s) {message}"
    _write(signal, told, message, told["task"], told["task_id"], *values, error=error)


def _enqueued(signal: EventSignal, **told: Any) -> None:
    _write_task(signal, told, "is enqueued.")


def _started(signal: EventSignal, **told: Any) -> None:
    _write_task(signal, told, "starts with attempt %d.", told["attempt"])


def _succeeded(signal: EventSignal, **told: Any) -> None:
    values = told["attempt"], told["duration"]
    _write_task(signal, told, "succeeded in attempt %d after %.3f s.", *values)


def _retried(signal: EventSignal, **told: Any) -> None:
    error, wait = told["exception"], told["wait"]
    _write_task(
        signal,
        told,
        "failed in attempt %d with %s; it runs again in %s s.",
        told["attempt"],
        logs.described(error),
        f"{wait:.0f}" if wait >= 10 else f"{wait:.1f}",
        # The last attempt may be days away: whoever looks for the cause needs the traceback now.
        error=error if told["attempt"] == 1 else None,
    )


def _died(signal: EventSignal, **told: Any) -> None:
    error, kept = told["exception"], told["kept"]
    end = "it is a dead task now" if kept else "it is dropped, this backend keeps no dead tasks"
    if told["duration"] is None:
        message, why = "is given up after %d attempts: %s; %s.", logs.described(error)
    else:
        # Not the exception's message, by which those who collect errors could not group them.
        message, why = "failed in attempt %d with %s; %s.", logs.kind(error)
    _write_task(signal, told, message, told["attempt"], why, end, error=error)


def _worker_started(signal: EventSignal, **told: Any) -> None:
    queues = "all queues" if told["queues"] is None else f"queues {', '.join(told['queues'])}"
    threads = told["threads"]
    message = f"Worker %s starts: %d thread{'' if threads == 1 else 's'}, %s."
    _write(signal, told, message, told["worker"], threads, queues)


def _worker_stopped(signal: EventSignal, **told: Any) -> None:
    attempts = told["attempts"]
    message = f"Worker %s ends (%s) after %d attempt{'' if attempts == 1 else 's'}."
    _write(signal, told, message, told["worker"], told["reason"], attempts)


def _worker_lost(signal: EventSignal, **told: Any) -> None:
    code, pid = told["exit_code"], told["worker"].rpartition(":")[2]
    how = f"was killed by {_signal_name(-code)}" if code < 0 else f"exited with {code}"
    then = "another one takes its place" if told["replaced"] else "no other takes its place"
    _write(signal, told, "Worker process %s %s; %s.", pid, how, then)


_WRITERS: Final[dict[EventSignal, Callable[..., None]]] = {
    signals.task_enqueued: _enqueued,
    signals.task_started: _started,
    signals.task_succeeded: _succeeded,
    signals.task_retried: _retried,
    signals.task_died: _died,
    signals.worker_started: _worker_started,
    signals.worker_stopped: _worker_stopped,
    signals.worker_lost: _worker_lost,
}


def _signal_name(number: int) -> str:
    try:
        return os_signals.Signals(number).name
    except ValueError:
        return f"signal {number}"
