"""The contract test suite of backends that keep a schedule (``keeps_schedule``).

For a backend of your own, beside :class:`~deferred_django.testing.contract.StoreContract`::

    class TestMySchedule(ScheduleContract):
        def open_backend(self, directory):
            return MyBackend(BackendConfig(path=directory))
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from deferred_django.backends.base import Backend
from deferred_django.backends.schedule import TickRecord
from deferred_django.testing.contract import ODD_BYTES, BackendContract

TICK = TickRecord(
    name="nightly", next_at=1792888200.25, last_at=1792801800.5, unfinished_at=0.125, data=ODD_BYTES
)


def save(backend: Backend, *records: TickRecord) -> None:
    """Keep these and no others."""
    with backend.hold_schedule() as hold:
        assert hold is not None
        hold.save(records)


class ScheduleContract(BackendContract):
    """What holds for every backend that keeps a schedule."""

    def test_it_says_that_it_keeps_one(self, backend: Backend) -> None:
        assert backend.keeps_schedule

    def test_a_record_is_kept_whole(self, backend: Backend, other: Backend) -> None:
        save(backend, TICK)
        assert other.tick_records() == [TICK]
        with other.hold_schedule() as hold:
            assert hold is not None
            assert list(hold.records) == [TICK]

    @pytest.mark.parametrize(
        "name", ["", " ", "a\nb\0", "é\u2028", "\udcff", "x" * 500, '{"a": 1}:']
    )
    def test_a_name_is_any_text(self, backend: Backend, name: str) -> None:
        records = [TickRecord(name=name, next_at=5.0), TickRecord(name="z", next_at=-5.0)]
        save(backend, *records)
        assert sorted(backend.tick_records(), key=lambda record: record.next_at) == records[::-1]

    def test_fractions_of_a_second_are_kept(self, backend: Backend, other: Backend) -> None:
        """What is counted from a moment drifts if that is rounded."""
        thirds = TickRecord(name="a", next_at=1792888200 + 1 / 3, last_at=None)
        save(backend, thirds)
        assert other.tick_records() == [thirds]

    def test_a_save_replaces_all(self, backend: Backend, other: Backend) -> None:
        save(backend, TICK, TickRecord(name="gone", next_at=1.0))
        changed = TickRecord(name=TICK.name, next_at=2.0)
        new = TickRecord(name="new", next_at=3.0)
        save(other, new, changed)
        assert sorted(backend.tick_records(), key=lambda record: record.name) == [new, changed]
        save(other)
        assert backend.tick_records() == []

    def test_several_saves_of_one_hold(self, backend: Backend, other: Backend) -> None:
        with backend.hold_schedule() as hold:
            assert hold is not None
            hold.save([TICK])
            hold.save([TickRecord(name="second", next_at=1.0)])
        assert [record.name for record in other.tick_records()] == ["second"]

    @pytest.mark.parametrize("at", [float("nan"), float("inf"), -1e300])
    def test_what_is_no_time_is_refused(self, backend: Backend, at: float) -> None:
        save(backend, TICK)
        with pytest.raises(ValueError, match="time"):
            save(backend, TickRecord(name="a", next_at=at))
        with pytest.raises(ValueError, match="time"):
            save(backend, TickRecord(name="a", next_at=1.0, last_at=at))
        assert backend.tick_records() == [TICK]

    def test_a_hold_is_exclusive(self, backend: Backend, other: Backend) -> None:
        with backend.hold_schedule() as hold:
            assert hold is not None
            for facade in (other, backend):
                with facade.hold_schedule() as second:
                    assert second is None
        with other.hold_schedule() as third:
            assert third is not None

    def test_threads_hold_it_one_at_a_time(self, backend: Backend, other: Backend) -> None:
        """Each adds one to a number that it reads; none of the sums is lost."""
        done: list[int] = []

        def count(facade: Backend) -> None:
            while len(done) < 40:
                with facade.hold_schedule() as hold:
                    if hold is None:
                        continue
                    number = int(hold.records[0].next_at) if hold.records else 0
                    hold.save([TickRecord(name="a", next_at=number + 1)])
                    done.append(number)

        threads = [threading.Thread(target=count, args=(f,)) for f in (backend, other) * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert done == list(range(len(done)))

    def test_an_error_ends_the_hold(self, backend: Backend, other: Backend) -> None:
        with pytest.raises(KeyError), backend.hold_schedule():
            raise KeyError
        with other.hold_schedule() as hold:
            assert hold is not None

    def test_it_survives_a_new_facade(
        self, tmp_path: Path, backend: Backend, facades: list[Backend]
    ) -> None:
        save(backend, TICK)
        backend.close()
        assert self.another(tmp_path, facades).tick_records() == [TICK]

    def test_it_is_no_task(self, backend: Backend) -> None:
        """Nothing else that the backend keeps or counts is changed by it."""
        backend.add_task(b"x", task_id="x")
        save(backend, TICK)
        assert [task.id for task in backend.pending_tasks()] == ["x"]
        assert (backend.verify(), backend.status().problems) == ([], [])
        assert backend.list_dead_tasks() == []
