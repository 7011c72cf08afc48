"""The signals that tell what becomes of tasks and workers.

The ``sender`` of a task's signal is the :class:`~deferred_django.DeferredTask` (``None`` where
the process knows no task of that name), that of a worker's the class
:class:`~deferred_django.worker.Worker`. Receivers run in the thread that did the work, after what
they are told of has been written. What they raise is logged and harms neither task nor worker.
"""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from django.dispatch import Signal, dispatcher

from deferred_django import logs, naming


class EventSignal(Signal):
    """A signal that is sent only where somebody takes notice, and whose receivers do no harm."""

    def __init__(
        self, name: str, *arguments: str, contained: type[BaseException] = BaseException
    ) -> None:
        """``arguments`` are what receivers get, besides ``signal`` and ``sender``; ``contained``
        is what of a receiver's errors goes no further than the log."""
        super().__init__()
        self.name = name
        self.arguments = arguments
        self._contained = contained
        self._quiet: tuple[str, Callable[[], bool]] | None = None

    def connect_quietly(
        self, receiver: Callable[..., object], uid: str, listens: Callable[[], bool]
    ) -> None:
        """Connect a receiver that does nothing while ``listens()`` is false.

        Unless there are others, the signal is then not even sent. One receiver can be so.
        """
        self.connect(receiver, weak=False, dispatch_uid=uid)
        self._quiet = uid, listens

    @property
    def is_heard(self) -> bool:
        """Whether anybody would notice the signal now. On the path of every short task."""
        receivers = self.receivers[:2]  # a copy: another thread may disconnect one
        if len(receivers) != 1 or self._quiet is None:
            return bool(receivers)
        uid, listens = self._quiet
        # The first of a receiver is its key: (dispatch_uid or the receiver's id, the sender's id).
        return receivers[0][0][0] != uid or listens()

    def notify(self, sender: object, /, **arguments: Any) -> None:
        """Send it to every receiver. What receivers raise is logged."""
        try:
            self.send_robust(sender, **arguments)
        except self._contained as error:  # Django contains no SystemExit, nor what asgiref raises
            self._log_robust_failure(None, error)

    def _log_robust_failure(self, receiver: object, error: BaseException) -> None:
        # Called by Django too, whose own fails for a receiver without a __qualname__.
        name = _name_in(error) if receiver is None else getattr(receiver, "__qualname__", receiver)
        message = "The receiver %s of the signal %s failed."
        logs.logger.error(message, name, self.name, exc_info=error)


def _name_in(error: BaseException) -> str:
    """The function that a receiver's error came out of."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_filename not in (__file__, dispatcher.__file__):
            return frame.f_code.co_qualname
    return "(unknown)"


_TASK = ("task_id", "task", "queue")

# An enqueue runs in the caller's thread, whose SystemExit or KeyboardInterrupt is the caller's.
task_enqueued: Final = EventSignal(
    "task_enqueued", *_TASK, "priority", "publish_at", contained=Exception
)
"""A task was written. ``publish_at``: when it falls due (unix seconds; ``None``: at once)."""
task_started: Final = EventSignal("task_started", *_TASK, "attempt", "latency")
"""An attempt begins. ``attempt``: from 1; ``latency``: seconds since the task fell due."""
task_succeeded: Final = EventSignal("task_succeeded", *_TASK, "attempt", "duration")
"""An attempt ended well. ``duration``: its seconds."""
task_retried: Final = EventSignal(
    "task_retried", *_TASK, "attempt", "exception", "wait", "duration"
)
"""An attempt failed, and another follows in ``wait`` seconds."""
task_died: Final = EventSignal("task_died", *_TASK, "attempt", "exception", "duration", "kept")
"""A task gave up after so many attempts. ``duration``: of the attempt that was made just now, if
there was one, else ``None``; ``kept``: whether the backend keeps it as a dead task."""
worker_started: Final = EventSignal("worker_started", "worker", "threads", "queues")
"""A worker process begins to work. ``worker``: ``host:pid``; ``queues``: ``None`` for all."""
worker_stopped: Final = EventSignal("worker_stopped", "worker", "reason", "attempts")
"""A worker process has done its work. ``reason``: see :class:`~.recycling.Ended`; ``attempts``:
how many it made."""
worker_lost: Final = EventSignal("worker_lost", "worker", "exit_code", "replaced")
"""A worker process died; sent by its supervisor. ``exit_code``: negative, the number of the signal
that killed it; ``replaced``: whether another process takes its place."""

TASK_SIGNALS: Final = (task_enqueued, task_started, task_succeeded, task_retried, task_died)
WORKER_SIGNALS: Final = (worker_started, worker_stopped, worker_lost)


def sender_of(task: str) -> object:
    """The sender for a task of that dotted name: itself where it is imported, else ``None``.

    Nobody can have asked for the signals of a task that is not imported.
    """
    module, _, name = task.rpartition(".")
    found = naming.find_imported(module, name)
    return found if getattr(found, "name", None) == task else None


def announce_enqueued(
    task: str, task_id: str, queue: str, priority: int, publish_at: float | None = None
) -> None:
    """Send :data:`task_enqueued` for a task that is written. See ``task_enqueued.is_heard``."""
    task_enqueued.notify(
        sender_of(task),
        task_id=task_id,
        task=task,
        queue=queue,
        priority=priority,
        publish_at=publish_at,
    )


@cache
def _host() -> str:
    return socket.gethostname()


def worker_name(pid: int | None = None) -> str:
    """What a worker process of this host is called in signals and log lines: ``host:pid``."""
    return f"{_host()}:{os.getpid() if pid is None else pid}"
