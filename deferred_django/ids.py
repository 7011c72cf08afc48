"""Task ids and nonces: unique across processes, forks, hosts and pid namespaces.

A task id is ``{unix seconds}-{pid}-{token}-{counter}``. The token, 13 of ``[0-9a-z]`` from
``os.urandom``, is new in each process and after each fork, so uniqueness never rests on the pid
or on the clock. The seconds never go backwards within a process, so that ids of one process sort
by age even when the clock is set back. No Django is imported here.
"""

from __future__ import annotations

import itertools
import os
import re
import threading
import time

from deferred_django import forks

ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
TOKEN_LENGTH = 13
MAX_ID_LENGTH = 200
"""An id, like a queue's name, is a field of a log record: short, and of these characters only."""
ID_PATTERN = re.compile(r"[A-Za-z0-9_.-]{1,200}")
# A leading clock far in the future (a file copied from a host with a broken clock) is not followed.
MAX_LEAD_SECONDS = 3600


def random_token(length: int = TOKEN_LENGTH) -> str:
    """``length`` random characters of ``[0-9a-z]``."""
    number = int.from_bytes(os.urandom(length), "big")
    chars = []
    for _ in range(length):
        number, digit = divmod(number, 36)
        chars.append(ALPHABET[digit])
    return "".join(chars)


class IdSource:
    """Makes the ids of one process. Thread-safe."""

    def __init__(self) -> None:
        self.token = random_token()
        self._tail = f"-{os.getpid()}-{self.token}-"
        self._counter = itertools.count(1)
        self._seconds = 0
        self._lock = threading.Lock()

    def new_id(self) -> str:
        """A task id that no other process and no other call of this process gives."""
        seconds = int(time.time())
        if seconds != self._seconds:
            with self._lock:
                seconds = self._seconds = max(seconds, self._seconds)
        return f"{seconds}{self._tail}{next(self._counter)}"

    def new_nonce(self) -> str:
        """A name for one ``add`` record, unique like an id but shorter."""
        return f"{self.token}{next(self._counter)}"

    def start_from(self, seconds: int) -> None:
        """Let later ids start no lower than ``seconds``, unless that is over an hour ahead."""
        with self._lock:
            if self._seconds < seconds <= time.time() + MAX_LEAD_SECONDS:
                self._seconds = seconds


_source = IdSource()


def _renew() -> None:
    global _source
    _source = IdSource()


forks.after_in_child(_renew)


def process_token() -> str:
    """This process's token; a forked child has another."""
    return _source.token


def new_id() -> str:
    """A new task id."""
    return _source.new_id()


def new_nonce() -> str:
    """A new nonce for an ``add`` record."""
    return _source.new_nonce()


def start_from(seconds: int) -> None:
    """Let this process's ids start no lower than ``seconds`` (see :meth:`IdSource.start_from`)."""
    _source.start_from(seconds)


def seconds_of(task_id: str) -> int | None:
    """The unix seconds that a generated id starts with; ``None`` for an id of another form."""
    head, dash, _ = task_id.partition("-")
    return int(head) if dash and head.isascii() and head.isdigit() and len(head) < 16 else None
