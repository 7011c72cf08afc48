"""The contract test suite that every backend passes before its own tests count.

For a backend of your own::

    class TestMyBackend(StoreContract):
        def open_backend(self, directory):
            return MyBackend(BackendConfig(path=directory))

Every call of ``open_backend`` with one directory is another facade on one store, as another
process has it. A backend that keeps nothing is tested by :class:`BackendContract` alone.

It has more than 300 lines because it is one text to be read as a whole: the contract.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deferred_django.backends.base import Backend, ClaimedTask, DeadTaskFilter, NewTask, RunningTask

ODD_BYTES = bytes(range(256)) + b"\n\\n\\\r\n:\xe2\x80\xa8\n"
PAST = 1_000_000_000.0


class BackendContract:
    """What holds for every backend, also for one that keeps nothing."""

    def open_backend(self, directory: Path) -> Backend:
        """A facade on the store in ``directory``, which need not exist yet."""
        raise NotImplementedError

    @pytest.fixture
    def facades(self, tmp_path: Path) -> Iterator[list[Backend]]:
        """The facades that the test opened; closed at its end."""
        opened: list[Backend] = []
        yield opened
        for backend in opened:
            backend.close()

    @pytest.fixture
    def backend(self, tmp_path: Path, facades: list[Backend]) -> Backend:
        """A facade on an empty store."""
        return self.another(tmp_path, facades)

    @pytest.fixture
    def other(self, tmp_path: Path, backend: Backend, facades: list[Backend]) -> Backend:
        """A second facade on the same store."""
        return self.another(tmp_path, facades)

    def another(self, directory: Path, facades: list[Backend]) -> Backend:
        """One more facade on the store."""
        facades.append(self.open_backend(directory / "store"))
        return facades[-1]

    def test_building_a_facade_touches_nothing(self, tmp_path: Path, backend: Backend) -> None:
        assert list(tmp_path.iterdir()) == []

    def test_reading_an_empty_store_gives_the_empty_answers(
        self, tmp_path: Path, backend: Backend
    ) -> None:
        assert backend.pending_tasks() == []
        assert backend.pending_count() == 0
        assert backend.claim_tasks(10) == []
        assert backend.list_dead_tasks() == []
        assert backend.count_dead_tasks() == 0
        assert backend.find_dead_task(id="1-1-a-1") is None
        assert backend.remove_task("1-1-a-1") is False
        assert backend.verify() == []
        assert backend.tick_records() == []
        status = backend.status()
        assert (status.pending, status.delayed, status.running, status.dead) == (0, 0, 0, 0)
        assert status.oldest_age is None
        assert list(status.workers) == []
        assert list(tmp_path.iterdir()) == []

    def test_removing_no_ids_removes_nothing(self, backend: Backend) -> None:
        assert backend.remove_dead_tasks([]) == 0
        assert backend.remove_dead_tasks("1-1-a-1") == 0
        assert backend.take_dead_tasks(["1-1-a-1"], lambda record: None) == []

    def test_an_add_returns_the_id_it_was_given_or_a_new_one(self, backend: Backend) -> None:
        assert backend.add_task(b"x", task_id="given") == "given"
        first, second = backend.add_task(b"x"), backend.add_task(b"x")
        assert first != second
        assert int(first.split("-")[0]) == pytest.approx(time.time(), abs=60)

    def test_adding_several_returns_their_ids_in_order(self, backend: Backend) -> None:
        assert backend.add_tasks([]) == []
        first, given, last = backend.add_tasks(
            [NewTask(b"x"), NewTask(b"y", task_id="given"), NewTask(b"z")]
        )
        assert given == "given"
        assert first != last

    def test_a_dead_task_add_returns_its_id(self, backend: Backend) -> None:
        error = ValueError("no")
        assert backend.add_dead_task("1", b"", error, task_class="a.b", attempts=1) == "1"

    def test_wake_ends_the_next_wait(self, backend: Backend) -> None:
        backend.wait(0)
        backend.wake()
        began = time.monotonic()
        backend.wait(30)
        assert time.monotonic() - began < 20

    def test_where_no_schedule_is_kept_nobody_holds_one(self, backend: Backend) -> None:
        """(Where one is: ``ScheduleContract`` of ``contract_schedule``.)"""
        with backend.hold_schedule() as hold:
            assert (hold is not None) == backend.keeps_schedule

    def test_a_wake_hides_no_task(self, backend: Backend) -> None:
        """A claim may end early by it, and says so; the next wait then ends too, and all is as
        before."""
        backend.wait(0)
        task_id = backend.add_task(b"x")
        backend.wake()
        claims = backend.claim_tasks(1)
        assert claims or backend.claim_was_cut_short() or not backend.keeps_tasks
        if not claims:
            backend.wait(0)
            claims = backend.claim_tasks(1)
            assert not backend.claim_was_cut_short()
        assert [claim.id for claim in claims] == [task_id] * backend.keeps_tasks

    def test_the_life_cycle_hooks_can_be_called_in_any_order(self, backend: Backend) -> None:
        backend.worker_heartbeat()
        backend.worker_started(threads=2, queues=["mail"])
        backend.worker_started(threads=2, queues=["mail"])
        backend.maintain()
        backend.sync()
        backend.worker_stopped()
        backend.worker_stopped()
        backend.close()
        backend.close()
        assert backend.pending_tasks() == []


class StoreContract(BackendContract):
    """What holds for every backend that keeps tasks."""

    frees_dead_claims_within = 1.0
    """Seconds from the death of a claimer until its tasks can be claimed elsewhere."""

    # -- adding and reading --------------------------------------------------------------------

    def test_a_task_is_there_for_other_facades(self, backend: Backend, other: Backend) -> None:
        task_id = backend.add_task(ODD_BYTES, queue="mail", priority=-7)
        [task] = other.pending_tasks()
        assert (task.id, task.context, task.queue, task.priority) == (
            task_id,
            ODD_BYTES,
            "mail",
            -7,
        )
        assert task.publish_at == pytest.approx(time.time(), abs=60)
        assert task.status == "pending"

    @pytest.mark.parametrize("context", [b"", b"\n", b"\\", b"\\n", b"\x00", "é\u2028".encode()])
    def test_contexts_come_back_to_the_byte(self, backend: Backend, context: bytes) -> None:
        backend.add_task(context)
        assert [task.context for task in backend.pending_tasks()] == [context]
        assert [claim.context for claim in backend.claim_tasks(1)] == [context]

    def test_milliseconds_of_publish_at_are_kept(self, backend: Backend) -> None:
        at = [1792888200.123, 1792888200.999, 1792891800.0, 0.0]
        for number, when in enumerate(at):
            backend.add_task(b"", publish_at=when, task_id=f"t{number}")
        kept = {task.id: task.publish_at for task in backend.pending_tasks()}
        assert kept == {f"t{number}": when for number, when in enumerate(at)}

    @pytest.mark.parametrize(
        "wrong",
        [
            {"task_id": ""},
            {"task_id": "a:b"},
            {"task_id": "a\nb"},
            {"task_id": "é"},
            {"task_id": "x" * 201},
            {"queue": "two words"},
            {"queue": ""},
            {"priority": 1.5},
            {"priority": True},
            {"priority": 40000},
            {"publish_at": float("nan")},
            {"publish_at": float("inf")},
        ],
        ids=str,
    )
    def test_what_cannot_be_stored_is_refused(
        self, backend: Backend, other: Backend, wrong: dict[str, Any]
    ) -> None:
        with pytest.raises(ValueError, match=r"task id|queue|priority|publish_at"):
            backend.add_task(b"x", **wrong)
        assert other.pending_tasks() == []

    def test_a_record_over_64_mib_is_refused(self, backend: Backend) -> None:
        with pytest.raises(ValueError, match="67,108,864"):
            backend.add_task(bytes(64 * 1024 * 1024 + 1))
        assert backend.pending_tasks() == []

    def test_several_tasks_are_added_together(self, backend: Backend, other: Backend) -> None:
        later = round(time.time()) + 500.25
        backend.add_task(b"before", task_id="before", publish_at=PAST)
        ids = backend.add_tasks(
            [
                NewTask(ODD_BYTES, publish_at=PAST + 1, queue="mail", priority=-7),
                NewTask(b"", task_id="given", publish_at=later),
                *[NewTask(b"%d" % n, publish_at=PAST + 2 + n) for n in range(300)],
            ]
        )
        backend.add_task(b"behind", task_id="behind", publish_at=PAST + 400)
        found = other.pending_tasks()
        assert [task.id for task in found] == ["before", ids[0], *ids[2:], "behind", "given"]
        assert (found[1].context, found[1].queue, found[1].priority) == (ODD_BYTES, "mail", -7)
        assert (found[-1].publish_at, found[-1].status) == (later, "delayed")
        claims = other.claim_tasks(1000)
        assert len(claims) == 303
        assert [claim.context for claim in claims[1:4]] == [b"0", b"1", b"2"]
        for claim in claims:
            other.start_task(claim)
            other.complete_task(claim)
        assert [task.id for task in backend.pending_tasks()] == ["given"]

    @pytest.mark.parametrize(
        "wrong",
        [
            NewTask(b"x", task_id="a:b"),
            NewTask(b"x", queue="two words"),
            NewTask(b"x", priority=40000),
            NewTask(b"x", publish_at=float("nan")),
            NewTask(bytes(64 * 1024 * 1024 + 1)),
        ],
        ids=lambda task: str(task)[:60],
    )
    def test_where_one_of_several_is_refused_all_are(
        self, backend: Backend, other: Backend, wrong: NewTask
    ) -> None:
        with pytest.raises(ValueError, match=r"task id|queue|priority|publish_at|67,108,864"):
            backend.add_tasks([NewTask(b"x", task_id="a"), wrong, NewTask(b"x", task_id="b")])
        assert other.pending_tasks() == []
        backend.add_task(b"x", task_id="c")
        assert [claim.id for claim in other.claim_tasks(5)] == ["c"]

    def test_a_later_add_of_an_id_replaces_the_earlier_one(
        self, backend: Backend, other: Backend
    ) -> None:
        backend.add_task(b"old", task_id="x")
        backend.add_task(b"new", task_id="x")
        assert [task.context for task in other.pending_tasks()] == [b"new"]
        assert [claim.context for claim in other.claim_tasks(5)] == [b"new"]

    def test_a_removed_task_stays_removed(self, backend: Backend, other: Backend) -> None:
        task_id = backend.add_task(b"x")
        assert other.remove_task(task_id) is True
        assert other.remove_task(task_id) is False
        assert backend.claim_tasks(5) == []

    def test_a_claimed_task_is_not_removed(self, backend: Backend, other: Backend) -> None:
        task_id = backend.add_task(b"x")
        [claim] = other.claim_tasks(1)
        assert backend.remove_task(task_id) is False
        assert other.remove_task(task_id) is False
        other.start_task(claim)
        other.complete_task(claim)
        assert backend.remove_task(task_id) is False

    # -- claims --------------------------------------------------------------------------------

    def test_a_claim_is_exclusive(self, backend: Backend, other: Backend) -> None:
        task_id = backend.add_task(b"x")
        assert [claim.id for claim in backend.claim_tasks(5)] == [task_id]
        assert other.claim_tasks(5) == []
        assert backend.claim_tasks(5) == []

    def test_threads_never_share_a_claim(self, backend: Backend, other: Backend) -> None:
        expected = {backend.add_task(b"x") for _ in range(200)}
        claimed: list[str] = []

        def claim(facade: Backend) -> None:
            while claims := facade.claim_tasks(3):
                claimed.extend(claim.id for claim in claims)

        threads = [threading.Thread(target=claim, args=(f,)) for f in (backend, other) * 3]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(claimed) == sorted(expected)

    def test_claims_come_by_priority_then_by_time(self, backend: Backend, other: Backend) -> None:
        backend.add_task(b"", task_id="late", publish_at=PAST + 2)
        backend.add_task(b"", task_id="early", publish_at=PAST + 1)
        backend.add_task(b"", task_id="urgent", publish_at=PAST + 3, priority=5, queue="b")
        backend.add_task(b"", task_id="unhurried", publish_at=PAST, priority=-5)
        order = [claim.id for _ in range(4) for claim in other.claim_tasks(1)]
        assert order == ["urgent", "early", "late", "unhurried"]

    def test_claims_are_limited_to_queues(self, backend: Backend) -> None:
        for queue in ("a", "b", "c"):
            backend.add_task(b"", task_id=queue, queue=queue)
        assert [claim.id for claim in backend.claim_tasks(5, queues=["b", "x"])] == ["b"]
        assert [claim.id for claim in backend.claim_tasks(5, exclude=["c"])] == ["a"]
        assert backend.claim_tasks(5, queues=["c"], exclude=["c"]) == []
        assert [claim.id for claim in backend.claim_tasks(5)] == ["c"]

    def test_preferred_queues_come_first_in_their_order(
        self, backend: Backend, other: Backend
    ) -> None:
        """Whatever the priority of others; within a queue, and among the rest, as ever."""
        for name, queue, priority in (
            ("urgent", "c", 9),
            ("rest", "d", 0),
            ("second", "b", 3),
            ("late", "a", 0),
            ("first", "a", 1),
            ("left out", "x", 9),
        ):
            backend.add_task(b"", task_id=name.replace(" ", "-"), queue=queue, priority=priority)
        backend.add_task(b"", task_id="delayed", queue="a", publish_at=time.time() + 3600)
        order = ["first", "late", "second", "urgent", "rest"]
        claims = backend.claim_tasks(9, exclude=["x"], prefer=["a", "b", "none"])
        assert [claim.id for claim in claims] == order
        for claim in claims:
            backend.release_task(claim)
        one_by_one = [
            self.eventually_claim(other, exclude=["x"], prefer=["a", "b"]).id for _ in order
        ]
        assert one_by_one == order
        assert other.claim_tasks(9, queues=["d", "a"], prefer=["a"]) == []

    def test_a_queue_that_others_hold_holds_up_no_other(
        self, backend: Backend, other: Backend
    ) -> None:
        """Also where it is preferred and of a higher priority."""
        for number in range(20):
            backend.add_task(b"", queue="held", priority=9, task_id=f"held{number}")
        assert len(backend.claim_tasks(20)) == 20
        backend.add_task(b"", task_id="free", queue="free")
        assert [claim.id for claim in other.claim_tasks(5, prefer=["held"])] == ["free"]

    def test_a_worker_that_stops_and_starts_again_claims_again(self, backend: Backend) -> None:
        backend.add_task(b"", task_id="a")
        backend.worker_started(threads=1)
        backend.worker_stopped()
        assert self.eventually_claim(backend).id == "a"

    def test_claims_are_limited_to_ids(self, backend: Backend) -> None:
        for task_id in ("a", "b", "c"):
            backend.add_task(b"", task_id=task_id)
        assert [claim.id for claim in backend.claim_tasks(5, ids=["b", "x"])] == ["b"]
        assert backend.claim_tasks(5, ids=["b"]) == []
        assert sorted(claim.id for claim in backend.claim_tasks(5)) == ["a", "c"]

    def test_a_delayed_task_waits_for_its_time(self, backend: Backend, other: Backend) -> None:
        backend.add_task(b"", task_id="later", publish_at=time.time() + 3600)
        backend.add_task(b"", task_id="soon", publish_at=time.time() + 0.2)
        assert [task.status for task in other.pending_tasks()] == ["delayed", "delayed"]
        claim = self.eventually_claim(other)
        assert claim.id == "soon"
        assert time.time() >= claim.publish_at

    def eventually_claim(
        self, backend: Backend, timeout: float = 10.0, **choice: Any
    ) -> ClaimedTask:
        """The next claim, waiting as a worker does. ``choice`` is of ``claim_tasks``."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            claims = backend.claim_tasks(1, **choice)
            if claims:
                return claims[0]
            backend.wait(0.1)
        raise AssertionError(f"nothing could be claimed within {timeout} s")

    def test_a_completed_task_is_gone(self, backend: Backend, other: Backend) -> None:
        backend.add_task(b"x")
        [claim] = backend.claim_tasks(1)
        backend.start_task(claim)
        [task] = other.pending_tasks()
        assert task.status == "running"
        backend.complete_task(claim)
        assert other.pending_tasks() == []
        assert other.claim_tasks(1) == []

    def test_a_claim_that_was_let_go_cannot_be_used(self, backend: Backend) -> None:
        backend.add_task(b"x")
        [claim] = backend.claim_tasks(1)
        backend.complete_task(claim)
        with pytest.raises(ValueError, match=claim.id):
            backend.complete_task(claim)

    def test_a_released_task_is_claimed_again_uncounted(
        self, backend: Backend, other: Backend
    ) -> None:
        task_id = backend.add_task(b"x")
        [claim] = backend.claim_tasks(1)
        backend.release_task(claim)
        again = self.eventually_claim(other)
        other.start_task(again)
        other.release_task(again)
        last = self.eventually_claim(backend)
        assert (last.id, last.context, last.crashes) == (task_id, b"x", 0)

    def test_a_released_task_can_be_claimed_at_once(self, backend: Backend) -> None:
        """A worker that drains would else leave behind what it has let go of itself."""
        task_id = backend.add_task(b"x")
        for _ in range(3):
            [claim] = backend.claim_tasks(1)
            assert claim.id == task_id
            backend.start_task(claim)
            backend.release_task(claim)

    def test_a_held_release_keeps_the_claim(self, backend: Backend, other: Backend) -> None:
        backend.add_task(b"x")
        [claim] = backend.claim_tasks(1)
        backend.start_task(claim)
        backend.release_task(claim, hold=True)
        assert other.claim_tasks(1) == []
        assert backend.claim_tasks(1) == []

    def test_a_rescheduled_task_replaces_the_old_one(
        self, backend: Backend, other: Backend
    ) -> None:
        task_id = backend.add_task(b"first", queue="mail", priority=3)
        [claim] = backend.claim_tasks(1)
        backend.start_task(claim)
        backend.reschedule_task(claim, b"second", publish_at=PAST)
        again = self.eventually_claim(other)
        assert (again.id, again.context, again.queue, again.priority, again.crashes) == (
            task_id,
            b"second",
            "mail",
            3,
            0,
        )
        other.start_task(again)
        other.complete_task(again)
        assert backend.pending_tasks() == []

    def test_a_task_put_off_is_delayed(self, backend: Backend, other: Backend) -> None:
        backend.add_task(b"x")
        [claim] = backend.claim_tasks(1)
        later = round(time.time()) + 500.25
        backend.reschedule_task(claim, b"x", publish_at=later)
        [task] = other.pending_tasks()
        assert (task.status, task.publish_at) == ("delayed", later)
        assert backend.claim_tasks(1) == []

    def test_due_and_running_tasks_are_counted(self, backend: Backend, other: Backend) -> None:
        other.add_tasks([NewTask(b"x", task_id=f"t{number}") for number in range(3)])
        assert backend.pending_count() == 3
        backend.add_task(b"x")
        assert backend.pending_count() == 4  # its own at once
        backend.add_tasks([NewTask(b"x"), NewTask(b"x", publish_at=time.time() + 500)])
        assert backend.pending_count() == 5
        assert backend.pending_count(max_age=0) == 5
        backend.add_task(b"x", publish_at=time.time() + 500)
        assert backend.pending_count(max_age=0) == 5
        claims = other.claim_tasks(2)
        for claim in claims:
            other.start_task(claim)
        assert backend.pending_count(max_age=0) == 5
        other.complete_task(claims[0])
        other.reschedule_task(claims[1], b"x", publish_at=time.time() + 500)
        assert backend.pending_count(max_age=0) == 3
        assert other.pending_count(max_age=0) == 3

    def test_others_changes_are_counted_within_a_second(
        self, backend: Backend, other: Backend
    ) -> None:
        assert backend.pending_count() == 0
        other.add_task(b"x")
        began = time.monotonic()
        while backend.pending_count() != 1:
            assert time.monotonic() - began < 5
        assert other.remove_task(other.pending_tasks()[0].id)
        while backend.pending_count() != 0:
            assert time.monotonic() - began < 5

    def test_a_delayed_task_is_counted_when_it_is_due(self, backend: Backend) -> None:
        backend.add_task(b"x", publish_at=time.time() + 0.3)
        assert backend.pending_count(max_age=0) == 0
        began = time.monotonic()
        while backend.pending_count(max_age=0) != 1:
            assert time.monotonic() - began < 5

    def test_waiting_ends_when_another_facade_adds(self, backend: Backend, other: Backend) -> None:
        backend.wait(0)
        backend.claim_tasks(1)
        timer = threading.Timer(0.1, other.add_task, [b"x"])
        timer.start()
        assert self.eventually_claim(backend).context == b"x"
        timer.join()

    def test_status_counts(self, backend: Backend, other: Backend) -> None:
        for _ in range(4):
            backend.add_task(b"", publish_at=time.time() - 50)
        backend.add_task(b"", publish_at=time.time() + 500)
        [claim] = backend.claim_tasks(1)
        backend.start_task(claim)
        backend.add_dead_task("d", b"", ValueError(), task_class="a.b", attempts=1)
        status = other.status()
        assert (status.pending, status.delayed, status.running, status.dead) == (3, 1, 1, 1)
        assert status.oldest_age == pytest.approx(50, abs=30)

    def test_the_status_counts_by_queue(self, backend: Backend, other: Backend) -> None:
        for priority in (0, 5, 0):
            backend.add_task(b"", queue="mail", publish_at=time.time() - 50, priority=priority)
        backend.add_task(b"", queue="slow", publish_at=time.time() + 500)
        [claim] = backend.claim_tasks(1, queues=["mail"])
        backend.start_task(claim)
        queues = other.status().queues
        assert set(queues) == {"mail", "slow"}
        mail, slow = queues["mail"], queues["slow"]
        assert (mail.pending, mail.delayed, mail.running) == (2, 0, 1)
        assert mail.oldest_age == pytest.approx(50, abs=30)
        assert (slow.pending, slow.delayed, slow.running) == (0, 1, 0)
        assert slow.oldest_age is None

    def test_a_worker_is_listed_while_it_lives(self, backend: Backend, other: Backend) -> None:
        backend.worker_started(threads=3, queues=["mail"])
        [worker] = other.status().workers
        assert (worker.threads, worker.queues) == (3, ("mail",))
        backend.worker_stopped()
        assert list(other.status().workers) == []

    def test_a_workers_heartbeat_tells_what_it_runs(self, backend: Backend, other: Backend) -> None:
        running = [RunningTask("1-2-a-3", "shop.tasks.charge", 1_000_000_000.5)]
        backend.worker_started()
        backend.worker_heartbeat(running)
        [worker] = other.status().workers
        assert list(worker.running) == running
        if worker.heartbeat_at is not None:
            assert worker.heartbeat_at == pytest.approx(time.time(), abs=60)
        backend.worker_heartbeat()
        [worker] = other.status().workers
        assert list(worker.running) == []
        backend.worker_stopped()
        backend.worker_heartbeat(running)
        assert list(other.status().workers) == []

    # -- dead tasks ----------------------------------------------------------------------------

    def die(self, backend: Backend, task_id: str, **changes: Any) -> str:
        """Add a dead task."""
        values: dict[str, Any] = {
            "context": b"ctx",
            "exception": ValueError("no such account"),
            "task_class": "shop.tasks.charge",
            "attempts": 3,
            **changes,
        }
        return backend.add_dead_task(task_id, values.pop("context"), **values)

    def test_a_dead_task_is_kept_whole(self, backend: Backend, other: Backend) -> None:
        try:
            raise KeyError("missing\nline\u2028\udcff\0")
        except KeyError as error:
            self.die(
                backend, "1-2-a-3", context=ODD_BYTES, exception=error, queue="m", enqueued_at=5.5
            )
        [record] = other.list_dead_tasks()
        assert record == other.find_dead_task("1-2-a-3")
        assert set(record) == {
            "id",
            "task_class",
            "queue",
            "attempts",
            "enqueued_at",
            "failed_at",
            "exception_class",
            "exception_message",
            "backtrace",
            "context",
        }
        assert record["id"] == "1-2-a-3"
        assert record["task_class"] == "shop.tasks.charge"
        assert (record["queue"], record["attempts"], record["enqueued_at"]) == ("m", 3, 5.5)
        assert record["exception_class"] == "KeyError"
        assert "missing" in record["exception_message"]
        assert record["backtrace"][0].startswith("Traceback")
        assert record["context"] == ODD_BYTES
        assert record["failed_at"] == pytest.approx(time.time(), abs=60)

    def test_the_time_of_the_enqueue_is_in_the_id(self, backend: Backend) -> None:
        self.die(backend, "1792888200-7-abcdefghijklm-1")
        [record] = backend.list_dead_tasks()
        assert record["enqueued_at"] == 1792888200

    def test_dead_tasks_come_newest_first(self, backend: Backend, other: Backend) -> None:
        for number in range(10):
            self.die(backend, f"t{number}")
        assert [r["id"] for r in other.list_dead_tasks()] == [f"t{n}" for n in range(9, -1, -1)]
        assert [r["id"] for r in other.list_dead_tasks(limit=3)] == ["t9", "t8", "t7"]
        assert [r["id"] for r in other.list_dead_tasks(limit=2, offset=8)] == ["t1", "t0"]
        assert other.list_dead_tasks(limit=2, offset=10) == []
        assert other.list_dead_tasks(limit=0) == []

    def test_dead_tasks_are_read_one_by_one(self, backend: Backend, other: Backend) -> None:
        for number in range(6):
            self.die(backend, f"t{number}", queue="even" if number % 2 == 0 else "odd")
        records = other.iterate_dead_tasks()
        assert next(records)["id"] == "t5"
        backend.remove_dead_tasks(["t4", "t0"])
        self.die(backend, "t6")
        rest = list(records)
        assert [record["id"] for record in rest] == ["t4", "t3", "t2", "t1", "t0"]
        assert rest[1] == other.find_dead_task("t3")
        page = other.iterate_dead_tasks(limit=2, offset=1, filter=DeadTaskFilter(queue="odd"))
        assert [record["id"] for record in page] == ["t3", "t1"]
        assert list(other.iterate_dead_tasks(limit=0)) == []

    def test_only_the_newest_death_of_an_id_counts(self, backend: Backend) -> None:
        self.die(backend, "a", attempts=1)
        self.die(backend, "b")
        self.die(backend, "a", attempts=2)
        assert [r["id"] for r in backend.list_dead_tasks()] == ["a", "b"]
        found = backend.find_dead_task("a")
        assert found is not None
        assert found["attempts"] == 2
        assert backend.count_dead_tasks() == 2
        assert backend.remove_dead_tasks("a") == 1
        assert [r["id"] for r in backend.list_dead_tasks()] == ["b"]

    def test_only_exact_ids_are_removed(self, backend: Backend, other: Backend) -> None:
        for task_id in ("1-7-a-1", "1-7-a-11", "1-7-a-12"):
            self.die(backend, task_id)
        assert other.remove_dead_tasks(["1-7-a-1", "1-7-a-1", "nope", "1-7-a-12"]) == 2
        assert [r["id"] for r in backend.list_dead_tasks()] == ["1-7-a-11"]
        assert backend.find_dead_task("1-7-a-1") is None

    def test_dead_tasks_are_filtered(self, backend: Backend) -> None:
        self.die(backend, "a", task_class="shop.tasks.mail", context=b"to=ann")
        self.die(backend, "b", task_class="blog.tasks.mail", exception=KeyError("Bob"))
        self.die(backend, "c", queue="slow")

        def ids(**conditions: Any) -> list[str]:
            wanted = DeadTaskFilter(**conditions)
            found = [record["id"] for record in backend.list_dead_tasks(filter=wanted)]
            assert backend.count_dead_tasks(filter=wanted) == len(found)
            return found

        assert ids(task="shop.tasks.mail") == ["a"]
        assert ids(task="mail") == ["b", "a"]
        assert ids(task="ail") == []
        assert ids(exception="KeyError") == ["b"]
        assert ids(queue="slow") == ["c"]
        assert ids(search="ANN") == ["a"]
        assert ids(search="bob") == ["b"]
        assert ids(since=time.time() - 60) == ["c", "b", "a"]
        assert ids(until=time.time() - 60) == []
        limited = backend.list_dead_tasks(filter=DeadTaskFilter(task="mail"), limit=1, offset=1)
        assert [record["id"] for record in limited] == ["a"]

    def test_taken_dead_tasks_are_handed_over_once(self, backend: Backend, other: Backend) -> None:
        for task_id in ("a", "b", "c"):
            self.die(backend, task_id)
        given: list[str] = []
        assert other.take_dead_tasks(["c", "x", "a"], lambda r: given.append(r["id"])) == ["c", "a"]
        assert sorted(given) == ["a", "c"]
        assert backend.take_dead_tasks(["a"], lambda record: given.append("again")) == []
        assert [record["id"] for record in backend.list_dead_tasks()] == ["b"]

    def test_a_failed_hand_over_removes_nothing(self, backend: Backend) -> None:
        self.die(backend, "a")

        def fail(record: dict[str, Any]) -> None:
            raise OSError("no room")

        with pytest.raises(OSError, match="no room"):
            backend.take_dead_tasks(["a"], fail)
        assert [record["id"] for record in backend.list_dead_tasks()] == ["a"]

    def test_a_second_death_during_a_take_stays(self, backend: Backend, other: Backend) -> None:
        self.die(backend, "a", attempts=1)
        taken = backend.take_dead_tasks(["a"], lambda record: self.die_quietly(other, "a"))
        assert taken == ["a"]
        found = backend.find_dead_task("a")
        assert found is not None
        assert found["attempts"] == 2

    def die_quietly(self, backend: Backend, task_id: str) -> None:
        """A second death of the id."""
        self.die(backend, task_id, attempts=2)

    # -- the end of a process ------------------------------------------------------------------

    def test_a_new_facade_finds_everything(
        self, tmp_path: Path, backend: Backend, facades: list[Backend]
    ) -> None:
        backend.add_task(b"a", task_id="a")
        backend.add_task(b"b", task_id="b", publish_at=time.time() + 500)
        self.die(backend, "c")
        backend.close()
        again = self.another(tmp_path, facades)
        assert [task.id for task in again.pending_tasks()] == ["a", "b"]
        assert [record["id"] for record in again.list_dead_tasks()] == ["c"]

    def test_a_closed_facade_can_be_used_again(self, backend: Backend) -> None:
        backend.add_task(b"a", task_id="a")
        backend.close()
        backend.add_task(b"b", task_id="b")
        assert sorted(claim.id for claim in backend.claim_tasks(5)) == ["a", "b"]
