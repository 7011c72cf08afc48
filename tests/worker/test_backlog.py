"""A worker that must read a large backlog of other queues before it knows of a task of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from deferred_django.backends.base import BackendConfig
from deferred_django.backends.disk import DiskBackend, segment_set, tasks_storage
from deferred_django.queue import Queue
from deferred_django.queue_choice import QueueChoice
from deferred_django.recycling import Ended
from tests.support import wait_until
from tests.worker import tasks
from tests.worker.fakes import Running, add

SEGMENTS = 30


class Backlog:
    """Many segments, of which a claim reads one after the other; the last has the one task of the
    queue ``mail``."""

    def __init__(self, path: Path) -> None:
        self._config = BackendConfig(path=path / "store")
        self.grow(SEGMENTS)
        self.backend = DiskBackend(self._config)
        self.reads = 0
        self.at_read: dict[int, Callable[[], object]] = {}
        self._refresh = self.backend.tasks._segments.refresh

    def grow(self, segments: int) -> None:
        """Add to so many segments, new ones or others."""
        producers = {}
        for _ in range(segments):
            producer = DiskBackend(self._config)
            add(producer, tasks.note, "other", queue="other", publish_at=1e9)
            owned = producer.tasks._writer._current
            assert owned is not None
            producers[owned.path] = producer
        # Of segments that begin with the same time the one with the last name is read last.
        add(producers[max(producers)], tasks.note, "mail", queue="mail", publish_at=1e9)
        for producer in producers.values():
            producer.close()

    def refresh(self, *arguments: Any, **options: Any) -> bool:
        """In place of the one that reads a slice."""
        if threading.current_thread().name != "deferred-house":
            self.reads += 1
            if action := self.at_read.get(self.reads):
                action()
        return self._refresh(*arguments, **options)


@pytest.fixture
def backlog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backlog]:
    backlog = Backlog(tmp_path)
    for name in ("SLICE_BYTES", "HURRY_BYTES"):
        monkeypatch.setattr(tasks_storage, name, 1)
    monkeypatch.setattr(segment_set, "FRESH_BYTES", 1)
    monkeypatch.setattr(backlog.backend.tasks._segments, "refresh", backlog.refresh)
    # The housekeeping reads on too, which is not what these tests are about.
    monkeypatch.setattr(backlog.backend, "maintain", lambda: None)
    yield backlog
    backlog.backend.close()


def test_a_stop_does_not_wait_until_all_is_read(backlog: Backlog) -> None:
    with Running(Queue(backlog.backend), choice=QueueChoice.of(["none"])) as running:
        backlog.at_read[3] = running.worker.request_stop
        assert running.join() is Ended.STOPPED
    assert backlog.reads == 3


@pytest.mark.parametrize("at", range(1, SEGMENTS, 7))
def test_a_wake_lets_no_drain_end_early(backlog: Backlog, at: int) -> None:
    """Whoever it is that wakes: a task that has ended in this moment does."""
    backlog.at_read[at] = backlog.at_read[at + 1] = backlog.backend.wake
    with Running(Queue(backlog.backend), choice=QueueChoice.of(["mail"]), drain=True) as running:
        assert running.join() is Ended.DRAINED
    assert tasks.ran == ["mail"]


def test_a_wake_at_the_last_claim_of_a_drain(
    backlog: Backlog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There was nothing; then there is, and the claim that makes sure is ended early."""

    def maintain() -> None:
        if threading.current_thread().name != "deferred-house" and tasks.ran == ["mail"]:
            tasks.ran.append("tidied")
            backlog.grow(5)
            backlog.at_read[backlog.reads + 1] = backlog.backend.wake

    monkeypatch.setattr(backlog.backend, "maintain", maintain)
    with Running(Queue(backlog.backend), choice=QueueChoice.of(["mail"]), drain=True) as running:
        assert running.join() is Ended.DRAINED
    assert tasks.ran == ["mail", "tidied", "mail"]


def test_a_wake_costs_a_worker_nothing_but_another_round(backlog: Backlog) -> None:
    backlog.at_read[3] = backlog.backend.wake
    with Running(Queue(backlog.backend), choice=QueueChoice.of(["mail"])):
        wait_until(lambda: tasks.ran == ["mail"])
    assert backlog.reads < SEGMENTS + 10
