"""What the store says while it is used, and an end to what does not end."""

from __future__ import annotations

import contextlib
import logging
import signal
from collections.abc import Iterator

BOUND = 10.0
"""Seconds after which a lock is taken for kept, or a loop for endless."""


class _Log(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextlib.contextmanager
def logged() -> Iterator[list[str]]:
    """What the store logs meanwhile; nothing of it is shown."""
    logger = logging.getLogger("deferred_django")
    handler, propagates = _Log(), logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield handler.lines
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates


class EndlessError(BaseException):
    """A call of the store did not end."""


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Raise :class:`EndlessError` in the main thread if it takes too long."""

    def end(*_: object) -> None:
        raise EndlessError(f"not within {BOUND:g} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, BOUND)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
