"""Defects between the two stores."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from deferred_django.backends.disk.tasks_storage import TasksStorage
from deferred_django.queue import Queue
from tests.crash.defect import Found, nothing


def removed_before_it_is_dead() -> AbstractContextManager[Any]:
    """The task leaves the log before its dead task is written."""
    real = Queue._bury

    def bury(self: Queue, claim: Any, *arguments: Any) -> None:
        complete = self.backend.complete_task
        complete(claim)
        self.backend.sync()
        with mock.patch.object(self.backend, "complete_task", nothing):
            real(self, claim, *arguments)

    return mock.patch.object(Queue, "_bury", bury)


def retry_is_not_made_durable() -> AbstractContextManager[Any]:
    """A dead task is removed before its new life in the log was fsynced."""
    return mock.patch.object(TasksStorage, "sync", nothing)


DEFECTS: tuple[Found, ...] = (
    (removed_before_it_is_dead, "both: hand over"),
    (retry_is_not_made_durable, "both: retry"),
)
