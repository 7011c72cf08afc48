"""The worker in a thread of the test, on a backend in memory."""

from __future__ import annotations

import functools
import logging
import threading
import time

import pytest

from deferred_django import recycling
from deferred_django import worker as worker_module
from deferred_django.backends.base import ClaimedTask
from deferred_django.bell import Bell
from deferred_django.execution import execute
from deferred_django.hold import Hold
from deferred_django.pool import Pool
from deferred_django.queue import Queue
from deferred_django.queue_choice import QueueChoice
from deferred_django.recycling import Ended
from deferred_django.worker import Worker
from tests.support import wait_until
from tests.worker import tasks
from tests.worker.fakes import MemoryBackend, Running, add


def begun(name: str) -> bool:
    return ("begun", name) in tasks.ran


def ended(name: str) -> bool:
    return ("ended", name) in tasks.ran


def test_it_runs_what_is_enqueued(queue: Queue, backend: MemoryBackend) -> None:
    with Running(queue) as running:
        for number in range(200):
            add(backend, tasks.note, number)
        wait_until(lambda: len(tasks.ran) == 200)
    assert sorted(tasks.ran) == list(range(200))
    assert running.ended is Ended.STOPPED
    assert backend.tasks == {}
    assert backend.calls.of("worker_started")
    assert backend.calls.of("worker_stopped")


def test_it_tells_the_store_that_it_lives(queue: Queue, backend: MemoryBackend) -> None:
    with Running(queue):
        wait_until(lambda: backend.calls.of("worker_heartbeat"))
        wait_until(lambda: backend.calls.of("maintain"))


def test_only_its_queues(queue: Queue, backend: MemoryBackend) -> None:
    for name in ("mail", "default", "slow"):
        add(backend, tasks.note, name, queue=name)
    with Running(queue, choice=QueueChoice.of(["mail", "slow"]), drain=True) as running:
        assert running.join() is Ended.DRAINED
    assert sorted(tasks.ran) == ["mail", "slow"]


def test_preferred_queues_first_and_excluded_ones_never(
    queue: Queue, backend: MemoryBackend
) -> None:
    for name in ("default", "slow", "mail", "other"):
        add(backend, tasks.note, name, queue=name, priority=0 if name == "mail" else 5)
    choice = QueueChoice.of(["mail", "other", "*"], ["slow"])
    with Running(queue, choice=choice, drain=True, threads=1) as running:
        assert running.join() is Ended.DRAINED
    assert tasks.ran == ["mail", "other", "default"]
    assert [task.queue for task in backend.tasks.values()] == ["slow"]


def test_async_tasks_run_beside_each_other(queue: Queue, backend: MemoryBackend) -> None:
    for name in ("a", "b"):
        add(backend, tasks.async_wait_for, name)
    with Running(queue):
        wait_until(lambda: begun("a") and begun("b"))
        tasks.gate("a").set()
        tasks.gate("b").set()


# -- claims ------------------------------------------------------------------------------------


def test_claims_that_no_thread_begins_with_are_let_go(queue: Queue, backend: MemoryBackend) -> None:
    """R14: another worker runs them while the slow tasks go on here."""
    for name in ("a", "b"):
        add(backend, tasks.wait_for, name)
    for number in range(48):
        add(backend, tasks.note, number)
    slow = Running(queue)
    # As after a burst of short tasks: many are claimed in advance.
    slow.worker._prefetch._not_before = time.monotonic() + 60  # however slow the machine is
    slow.worker._prefetch.number, slow.worker._pool.low_mark = 48, 24
    with slow:
        wait_until(lambda: begun("a") and begun("b"))
        start = time.monotonic()
        with Running(queue):
            wait_until(lambda: len(tasks.ran) == 50)
            assert time.monotonic() - start < 2
            tasks.gate("a").set()
            tasks.gate("b").set()
    assert len(backend.calls.of("release_task")) >= 40
    assert backend.tasks == {}


def test_what_was_let_go_is_not_claimed_in_advance_again_at_once(
    queue: Queue, backend: MemoryBackend
) -> None:
    """Else the others, which look every 0.25 s, would hardly ever find it free."""
    for name in ("a", "b"):
        add(backend, tasks.wait_for, name)
    waiting = [add(backend, tasks.note, number) for number in range(3)]
    slow = Running(queue)
    slow.worker._prefetch._not_before = time.monotonic() + 60  # however slow the machine is
    slow.worker._prefetch.number = 3
    with slow:
        wait_until(lambda: len(backend.calls.of("release_task")) == 3)
        slow.worker._prefetch._sampled -= 1000  # as if much had been finished in the next moment
        time.sleep(0.15)
        slow.worker._waits.wake()
        time.sleep(0.05)
        assert not any(backend.tasks[task_id].claimed for task_id in waiting)
        tasks.gate("a").set()
        tasks.gate("b").set()
        wait_until(lambda: {0, 1, 2} <= set(tasks.ran))


def test_few_are_claimed_in_advance_where_tasks_are_slow(
    queue: Queue, backend: MemoryBackend
) -> None:
    for name in ("a", "b", "c", "d"):
        add(backend, tasks.wait_for, name)
    with Running(queue):
        wait_until(lambda: begun("a") and begun("b"))
        time.sleep(0.05)
        assert sum(task.claimed for task in backend.tasks.values()) == 2
        for name in ("a", "b", "c", "d"):
            tasks.gate(name).set()
        wait_until(lambda: backend.tasks == {})


def test_an_error_while_claiming_is_outlived(
    queue: Queue, backend: MemoryBackend, caplog: pytest.LogCaptureFixture
) -> None:
    backend.failing["claim_tasks"] = OSError(5, "Input/output error")
    add(backend, tasks.note, 1)
    with Running(queue):
        wait_until(lambda: len(backend.calls.of("claim_tasks")) >= 3)
        backend.failing.clear()
        wait_until(lambda: tasks.ran == [1])
    assert len([record for record in caplog.records if "Claiming" in record.getMessage()]) <= 1


def test_starts_that_fail_are_tried_at_a_bounded_rate(
    queue: Queue, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C05 a: nothing runs while the disk is full, the processor is left alone, all run later."""
    monkeypatch.setattr(worker_module, "LONGEST_PAUSE", 0.3)
    backend.failing["start_task"] = OSError(28, "No space left on device")
    for number in range(20):
        add(backend, tasks.note, number)
    with Running(queue):
        wait_until(lambda: len(backend.calls.of("start_task")) >= 6)
        tried = len(backend.calls.of("start_task"))
        time.sleep(0.3)
        assert len(backend.calls.of("start_task")) - tried <= 20
        assert tasks.ran == []
        backend.failing.clear()
        wait_until(lambda: len(tasks.ran) == 20)


def test_a_thread_outlives_an_error_of_the_worker_itself(
    queue: Queue,
    backend: MemoryBackend,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures = [MemoryError(), SystemExit(), RuntimeError("a bug")]

    def fail_at_first(queue: Queue, claim: ClaimedTask, *, hold: Hold, **options: object) -> object:
        hold.claim = claim
        if failures:
            raise failures.pop()
        return execute(queue, claim, hold=hold, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(worker_module, "execute", fail_at_first)
    add(backend, tasks.note, "ran")
    with Running(queue, threads=1):
        wait_until(lambda: tasks.ran == ["ran"])
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 3


# -- drain and max_tasks -------------------------------------------------------------------------


def test_a_drain_ends_when_nothing_is_due(queue: Queue, backend: MemoryBackend) -> None:
    add(backend, tasks.fail_with, "value")  # its retry falls due at once
    add(backend, tasks.note, "due")
    delayed = add(backend, tasks.note, "delayed", publish_at=time.time() + 60)
    with Running(queue, drain=True) as running:
        assert running.join() is Ended.DRAINED
    assert tasks.ran.count("due") == 1
    assert ("attempt", "value", 2) in tasks.ran
    assert list(backend.tasks) == [delayed]
    assert backend.calls.of("maintain")


def test_a_drain_does_not_wait_for_the_claims_of_others(
    queue: Queue, backend: MemoryBackend
) -> None:
    add(backend, tasks.note, "other's")
    assert len(queue.claim(1)) == 1
    with Running(queue, drain=True) as running:
        assert running.join() is Ended.DRAINED
    assert tasks.ran == []


def test_it_ends_after_max_tasks(queue: Queue, backend: MemoryBackend) -> None:
    for number in range(10):
        add(backend, tasks.note, number)
    with Running(queue, max_tasks=7, threads=3) as running:
        assert running.join() is Ended.MAX_TASKS
    assert len(tasks.ran) == 7
    assert sum(task.claimed for task in backend.tasks.values()) == 0


def use_memory(monkeypatch: pytest.MonkeyPatch, number: int) -> list[int]:
    """Have so many bytes in use; notes when that is looked at."""
    looked: list[int] = []

    def resident_bytes() -> int:
        looked.append(number)
        return number

    monkeypatch.setattr(recycling, "resident_bytes", resident_bytes)
    return looked


def test_it_ends_when_it_has_more_memory_than_it_may(
    queue: Queue, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked at when a task has ended; what runs then is finished, and nothing more is begun."""
    looked = use_memory(monkeypatch, 200)
    add(backend, tasks.wait_for, "slow")
    with Running(queue, max_memory=200, threads=2) as running:
        wait_until(lambda: begun("slow"))
        assert looked == []
        add(backend, tasks.note, "first")
        wait_until(lambda: running.worker._limits.reached is not None)
        late = [add(backend, tasks.note, "late") for _ in range(5)]
        tasks.gate("slow").set()
        assert running.join() is Ended.MAX_MEMORY
    assert ended("slow")
    assert "first" in tasks.ran
    assert list(backend.tasks) == late
    assert len(looked) == 1


def test_it_goes_on_with_less_memory_than_it_may_have(
    queue: Queue, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = use_memory(monkeypatch, 199)
    for number in range(500):
        add(backend, tasks.note, number)
    with Running(queue, max_memory=200, drain=True) as running:
        assert running.join() is Ended.DRAINED
    assert len(tasks.ran) == 500
    assert 1 <= len(looked) < 250  # not after each of them


# -- stopping ------------------------------------------------------------------------------------


def test_a_stop_begins_nothing_and_finishes_what_runs(queue: Queue, backend: MemoryBackend) -> None:
    for name in ("a", "b"):
        add(backend, tasks.wait_for, name)
    with Running(queue) as running:
        wait_until(lambda: begun("a") and begun("b"))
        late = add(backend, tasks.note, "late")
        running.worker.request_stop()
        wait_until(lambda: running.worker._stopping.is_set())
        tasks.gate("a").set()
        tasks.gate("b").set()
        assert running.join() is Ended.STOPPED
    assert running.worker.left_running == 0
    assert list(backend.tasks) == [late]
    assert not backend.tasks[late].claimed
    assert backend.calls.of("sync")


@pytest.mark.parametrize("task", [tasks.wait_for, tasks.async_wait_for])
@pytest.mark.parametrize("second", [False, True])
def test_what_does_not_end_in_time_is_put_back(
    queue: Queue, backend: MemoryBackend, task: object, second: bool
) -> None:
    """C40, R10: after the timeout, or at once after a second request; its claim is kept."""
    task_id = add(backend, task, "slow")  # type: ignore[arg-type]
    timeout = 60.0 if second else 0.2
    with Running(queue, shutdown_timeout=timeout) as running:
        wait_until(lambda: begun("slow"))
        running.worker.request_stop()
        if second:
            wait_until(lambda: running.worker._stopping.is_set())
            running.worker.request_stop(now=True)
        assert running.join(5) is Ended.STOPPED
    assert running.worker.left_running == 1
    assert backend.calls.of("hold_task") == [task_id]
    tasks.gate("slow").set()
    wait_until(lambda: ("ended", "slow") in tasks.ran)
    wait_until(lambda: running.worker._pool.outstanding == 0)
    assert backend.calls.of("complete_task") == []
    assert task_id in backend.tasks


def test_an_outcome_that_cannot_be_written_does_not_hold_up_a_stop(
    queue: Queue, backend: MemoryBackend
) -> None:
    """C40: SIGTERM while a dead task cannot be handed over. The task is put back."""
    backend.failing["add_dead_task"] = OSError(28, "No space left on device")
    task_id = add(backend, tasks.fail_strangely, "ValueError")
    with Running(queue, shutdown_timeout=0.5) as running:
        wait_until(lambda: backend.calls.of("add_dead_task"))
        start = time.monotonic()
        running.worker.request_stop()
        running.join(5)
        assert time.monotonic() - start < 2
    assert backend.calls.of("hold_task") == [task_id]
    assert backend.dead == {}


# -- suspects ------------------------------------------------------------------------------------


def test_a_suspect_runs_alone(queue: Queue, backend: MemoryBackend) -> None:
    """R9: nothing starts beside it, and what was claimed with it is let go meanwhile."""
    suspect = add(backend, tasks.wait_for, "suspect", crashes=1)
    others = [add(backend, tasks.note, number) for number in range(5)]
    with Running(queue):
        wait_until(lambda: begun("suspect"))
        time.sleep(0.3)
        assert tasks.ran == [("begun", "suspect")]
        assert not any(backend.tasks[task_id].claimed for task_id in others)
        tasks.gate("suspect").set()
        wait_until(lambda: len(tasks.ran) == 7)
    assert suspect not in backend.tasks


def test_room_is_made_for_a_suspect(queue: Queue, backend: MemoryBackend) -> None:
    """A busy process starts nothing new until the suspect has run; others may have it."""
    add(backend, tasks.wait_for, "busy")
    with Running(queue):
        wait_until(lambda: begun("busy"))
        suspect = add(backend, tasks.wait_for, "suspect", crashes=2, priority=1)
        add(backend, tasks.note, "later")
        wait_until(lambda: suspect in backend.calls.of("release_task"), timeout=5)
        assert not backend.tasks[suspect].claimed
        assert not begun("suspect")
        tasks.gate("busy").set()
        wait_until(lambda: begun("suspect"))
        assert "later" not in tasks.ran
        tasks.gate("suspect").set()
        wait_until(lambda: "later" in tasks.ran)


def test_work_goes_on_when_another_process_takes_the_suspect(
    queue: Queue, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Soon, not only when the task that keeps the process busy has ended."""
    monkeypatch.setattr("deferred_django.quarantine.PROBE_SECONDS", 0.1)
    add(backend, tasks.wait_for, "busy")
    with Running(queue):
        wait_until(lambda: begun("busy"))
        suspect = add(backend, tasks.note, "suspect", crashes=1, priority=1)
        wait_until(lambda: suspect in backend.calls.of("release_task"))
        wait_until(lambda: queue.claim(1, ids=[suspect]))
        add(backend, tasks.note, "next")
        wait_until(lambda: "next" in tasks.ran)
        tasks.gate("busy").set()
    assert "suspect" not in tasks.ran


def test_room_is_made_for_a_limited_time(
    queue: Queue, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task of hours does not keep the other threads idle for the sake of a suspect."""
    monkeypatch.setattr("deferred_django.quarantine.QUIET_SECONDS", 0.4)
    add(backend, tasks.wait_for, "hours")
    with Running(queue):
        wait_until(lambda: begun("hours"))
        suspect = add(backend, tasks.note, "suspect", crashes=1, priority=1)
        wait_until(lambda: suspect in backend.calls.of("release_task"))
        for number in range(3):
            add(backend, tasks.note, number)
        wait_until(lambda: {0, 1, 2} <= set(tasks.ran), timeout=5)
        assert "suspect" not in tasks.ran
        tasks.gate("hours").set()
        wait_until(lambda: "suspect" in tasks.ran)


def test_of_several_suspects_each_runs_alone(queue: Queue, backend: MemoryBackend) -> None:
    names = ["s1", "s2", "s3"]
    for name in names:
        add(backend, tasks.wait_for, name, crashes=1)
    with Running(queue):
        for number in range(3):
            wait_until(lambda: len(tasks.ran) % 2 == 1)
            time.sleep(0.05)
            assert len(tasks.ran) == 2 * number + 1
            event, name = tasks.ran[-1]
            assert event == "begun"
            tasks.gate(name).set()
            wait_until(functools.partial(ended, name))


# -- parts ---------------------------------------------------------------------------------------


def test_a_ring_before_the_wait_is_not_lost() -> None:
    bell = Bell()
    bell.ring()
    bell.ring()
    assert bell.wait(0)
    assert not bell.wait(0)


def test_every_claim_given_to_a_pool_is_run_once() -> None:
    ran: list[str] = []
    finished = threading.Event()

    def run(claim: ClaimedTask, hold: Hold) -> None:
        ran.append(claim.id)

    pool = Pool(4, run, stopping=threading.Event(), on_finish=finished.set)
    pool.start()
    taken = []
    for batch in range(300):
        pool.add([ClaimedTask(f"{batch}-{n}", b"", 0.0, "default", 0) for n in range(5)])
        if batch % 10 == 0:
            taken += pool.take_back()
    wait_until(lambda: pool.outstanding == 0)
    assert sorted(ran + [claim.id for claim in taken]) == sorted(
        f"{batch}-{n}" for batch in range(300) for n in range(5)
    )
    assert pool.started == len(ran)
    pool.close()
    assert pool.join(5)


def test_a_worker_that_is_stopped_before_it_runs_ends_at_once(queue: Queue) -> None:
    worker = Worker(queue, threads=1)
    worker.request_stop()
    assert worker.run() is Ended.STOPPED


def test_tasks_that_wait_run_beside_each_other(queue: Queue, backend: MemoryBackend) -> None:
    """One thread does short tasks; what waits for something is given to others at once."""
    with Running(queue, threads=4):
        for number in range(300):
            add(backend, tasks.note, number)
        wait_until(lambda: len(tasks.ran) == 300)
        for number in range(4):
            add(backend, tasks.wait_for, f"slow{number}")
        wait_until(lambda: len([ran for ran in tasks.ran if "begun" in str(ran)]) == 4)
        for number in range(4):
            tasks.gate(f"slow{number}").set()
