"""Exceptions that callers of the package may see. No Django is imported here."""

from __future__ import annotations


class DeadTasksLockTimeout(TimeoutError):
    """The lock of the dead-tasks store was not had in time (about 2 s).

    Nothing was changed: whatever was asked for can be asked for again.
    """


class PushTimeout(TimeoutError):
    """An enqueue waited for room in the queue and did not get it in time. Nothing was enqueued."""


class EnqueueStopped(Exception):
    """For enqueue middleware to raise: the task is not to be enqueued. Nothing was enqueued."""


class TaskTimeout(TimeoutError):
    """A task ran longer than its ``timeout`` allows.

    It is raised inside a plain function at that moment. The attempt has failed whatever the
    function makes of it, or of the cancellation that an ``async def`` function gets instead.
    """


class WorkerLost(RuntimeError):
    """A task's worker process died under it, three times: recorded as the task's failure."""


class UnknownTask(LookupError):
    """No worker could import the task by its name for 24 hours: recorded as the task's failure."""
