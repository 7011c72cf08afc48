"""What the scheduler enqueues, by a simulated clock and a store in memory."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from deferred_django import EnqueueStopped
from deferred_django import scheduler as scheduling
from deferred_django.backends.schedule import TickRecord
from deferred_django.conf_features import Features
from deferred_django.context import TaskContext
from deferred_django.queue import Queue
from deferred_django.schedule_plan import Due
from deferred_django.schedule_setting import PeriodicTask
from deferred_django.scheduler import HELD_SECONDS, LOOK_SECONDS, RETRY_SECONDS, Scheduler
from deferred_django.timing import Cron, Every
from tests.periodic.memory import Clock, ScheduleMemory, entry, scheduler
from tests.support import wait_until

START = 1792888200.0
HOURLY = entry("hourly", Every(3600.0))
NIGHTLY = entry("nightly", Cron("0 3 * * *", ZoneInfo("Europe/Paris")))


@pytest.fixture
def backend() -> ScheduleMemory:
    return ScheduleMemory()


@pytest.fixture
def clock() -> Clock:
    return Clock(START)


def ids(backend: ScheduleMemory) -> list[str]:
    return [task_id for task_id, *_ in backend.added]


def id_at(periodic: PeriodicTask, at: float) -> str:
    return Due(periodic, at, is_resumed=False).task_id


def test_a_new_entry_waits_for_its_first_tick(backend: ScheduleMemory, clock: Clock) -> None:
    worker = scheduler(backend, clock, HOURLY, NIGHTLY)
    assert worker.look() == START + LOOK_SECONDS
    assert ids(backend) == []
    assert backend.next_at("hourly") == START + 3600
    assert START < backend.next_at("nightly") <= START + 86400
    saves = backend.saves
    clock.now = START + 3599
    assert worker.look() == START + 3600
    assert (ids(backend), backend.saves) == ([], saves)  # nothing is written where nothing is due
    clock.now = START + 3600
    worker.look()
    assert ids(backend) == [f"{int(START) + 3600}-tick-hourly-000"]
    assert backend.saves == saves + 2
    [hourly] = [tick for tick in backend.ticks if tick.name == "hourly"]
    assert (hourly.last_at, hourly.next_at, hourly.unfinished_at) == (
        START + 3600,
        START + 7200,
        None,
    )


def test_what_is_enqueued(backend: ScheduleMemory, clock: Clock) -> None:
    entries = [
        entry("own", Every(60.0)),
        entry("given", Every(60.0), args=(1, "a"), kwargs={"x": None}, queue="mail", priority=7),
        replace(entry("unknown", Every(60.0)), task="nowhere.tasks.x"),
    ]
    worker = scheduler(backend, clock, *entries)
    worker.look()
    clock.now += 60
    worker.look()
    found = {added[0].split("-")[2]: added for added in backend.added}
    assert [found[name][1:3] for name in ("own", "given", "unknown")] == [
        ("default", 0),
        ("mail", 7),
        ("default", 0),
    ]
    context = TaskContext.from_bytes(found["given"][3])
    assert context.task == "tests.testapp.tasks.record"
    assert context.arguments() == ((1, "a"), {"x": None})


def test_missed_ticks_are_made_up_for_by_one(backend: ScheduleMemory, clock: Clock) -> None:
    scheduler(backend, clock, HOURLY).look()
    clock.now = START + 10 * 3600 + 5
    worker = scheduler(backend, clock, HOURLY)
    for _ in range(3):
        worker.look()
    assert ids(backend) == [id_at(HOURLY, START + 3600)]
    assert backend.next_at("hourly") == START + 11 * 3600


def test_a_changed_timing_waits_for_its_first_tick(backend: ScheduleMemory, clock: Clock) -> None:
    scheduler(backend, clock, HOURLY).look()
    clock.now = START + 4000  # a tick of the old timing is due
    changed = entry("hourly", Every(600.0))
    scheduler(backend, clock, changed, settings_read_at=1.0).look()
    assert ids(backend) == []
    assert backend.next_at("hourly") == START + 4600


def test_other_arguments_are_no_other_timing(backend: ScheduleMemory, clock: Clock) -> None:
    scheduler(backend, clock, HOURLY).look()
    clock.now = START + 100
    scheduler(backend, clock, replace(HOURLY, args=(5,)), settings_read_at=1.0).look()
    assert backend.next_at("hourly") == START + 3600


def test_a_removed_entry_is_forgotten(backend: ScheduleMemory, clock: Clock) -> None:
    scheduler(backend, clock, HOURLY, NIGHTLY).look()
    scheduler(backend, clock, NIGHTLY, settings_read_at=1.0).look()
    assert [tick.name for tick in backend.ticks] == ["nightly"]
    clock.now = START + 10 * 3600
    scheduler(backend, clock, HOURLY, NIGHTLY, settings_read_at=2.0).look()
    assert id_at(HOURLY, START + 3600) not in ids(backend)
    assert backend.next_at("hourly") == START + 11 * 3600


def test_an_empty_schedule_forgets_all(backend: ScheduleMemory, clock: Clock) -> None:
    scheduler(backend, clock, HOURLY).look()
    assert scheduler(backend, clock, settings_read_at=1.0).look() == START + LOOK_SECONDS
    assert backend.ticks == []


def test_a_clock_that_was_set_back_repeats_no_tick(backend: ScheduleMemory, clock: Clock) -> None:
    worker = scheduler(backend, clock, HOURLY)
    worker.look()
    for back in (1800, 7200, 80_000):
        clock.now = START + 3600.5
        worker.look()
        clock.now -= back
        while clock.now < START + 7199:
            worker.look()
            clock.now += 300
    assert ids(backend) == [id_at(HOURLY, START + 3600)]


def test_a_clock_that_was_years_ahead_is_not_waited_for(
    backend: ScheduleMemory, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    clock.now = START + 50 * 365 * 86400
    scheduler(backend, clock, HOURLY, NIGHTLY).look()
    clock.now = START
    with caplog.at_level(logging.INFO):
        scheduler(backend, clock, HOURLY, NIGHTLY).look()
    assert "the clock was days ahead" in caplog.text
    assert (ids(backend), backend.next_at("hourly")) == ([], START + 3600)


def test_foreign_records_make_no_storm(backend: ScheduleMemory, clock: Clock) -> None:
    backend.ticks = [
        TickRecord(name="hourly", next_at=5.0, data=data) for data in (b"", b"[]", b'{"at": "x"}')
    ] + [TickRecord(name="other", next_at=5.0, data=b"\xff")]
    worker = scheduler(backend, clock, HOURLY)
    for _ in range(5):
        worker.look()
    assert ids(backend) == []
    assert [tick.name for tick in backend.ticks] == ["hourly"]


def test_one_of_many_enqueues_a_tick(backend: ScheduleMemory, clock: Clock) -> None:
    workers = [scheduler(backend, clock, HOURLY) for _ in range(5)]
    for _ in range(20):
        for worker in workers:
            worker.look()
        clock.now += 1800
    assert len(ids(backend)) == len(set(ids(backend))) == 9


def test_whoever_finds_it_held_looks_again_soon(backend: ScheduleMemory, clock: Clock) -> None:
    backend.held = True
    assert scheduler(backend, clock, HOURLY).look() == START + HELD_SECONDS
    assert backend.ticks == []


# -- workers of different settings ----------------------------------------------------------------


def test_while_a_new_version_is_deployed_the_newer_timing_counts(
    backend: ScheduleMemory, clock: Clock
) -> None:
    old_entry, added = HOURLY, entry("added", Every(7200.0))
    new_entry = entry("hourly", Every(5000.0))
    old = scheduler(backend, clock, old_entry, settings_read_at=1.0)
    old.look()
    new = scheduler(backend, clock, new_entry, added, settings_read_at=2.0)
    for _ in range(100):
        clock.now += 100
        for worker in (old, new, old):
            worker.look()
    assert ids(backend) == [
        id_at(new_entry, START + 100 + 5000),
        id_at(added, START + 100 + 7200),
    ]


def test_an_older_version_goes_on_where_the_newer_one_is_gone(
    backend: ScheduleMemory, clock: Clock
) -> None:
    """A deploy that was broken off."""
    old = scheduler(backend, clock, HOURLY, settings_read_at=1.0)
    old.look()
    scheduler(backend, clock, entry("hourly", Every(600.0)), settings_read_at=2.0).look()
    for _ in range(70):
        clock.now += 100
        old.look()
    assert ids(backend) == [id_at(HOURLY, START + 700 + 3600)]


def test_an_entry_of_others_is_left_to_them(backend: ScheduleMemory, clock: Clock) -> None:
    scheduler(backend, clock, HOURLY, NIGHTLY, settings_read_at=2.0).look()
    older = scheduler(backend, clock, NIGHTLY, settings_read_at=1.0)
    older.look()
    assert {tick.name for tick in backend.ticks} == {"hourly", "nightly"}
    clock.now = START + 2 * 3600 + 1  # nobody serves it any more
    older.look()
    assert {tick.name for tick in backend.ticks} == {"nightly"}


# -- errors ---------------------------------------------------------------------------------------


def due(backend: ScheduleMemory, clock: Clock, *entries: PeriodicTask) -> Scheduler:
    worker = scheduler(backend, clock, *entries)
    worker.look()
    clock.now = START + 3600
    return worker


@pytest.mark.parametrize("error", [OSError("full"), RuntimeError("no")])
def test_a_tick_that_cannot_be_enqueued_is_tried_again(
    backend: ScheduleMemory, clock: Clock, error: Exception
) -> None:
    other = entry("other", Every(3600.0))
    worker = due(backend, clock, HOURLY, other)
    backend.failing["add_task"] = [error]
    assert worker.look() == clock.now + RETRY_SECONDS
    assert ids(backend) == [id_at(other, START + 3600)]
    clock.now += 1
    worker.look()
    assert sorted(ids(backend)) == sorted([id_at(other, START + 3600), id_at(HOURLY, START + 3600)])
    clock.now += 1
    worker.look()
    assert len(ids(backend)) == 2


def test_a_tick_that_can_never_be_enqueued_holds_up_nothing(
    backend: ScheduleMemory, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    bad = entry("bad", Every(3600.0), args=(object(),))
    worker = due(backend, clock, bad, HOURLY)
    worker.look()
    assert ids(backend) == [id_at(HOURLY, START + 3600)]
    assert "The tick of periodic task 'bad' is dropped" in caplog.text
    assert backend.next_at("bad") == START + 7200
    assert all(tick.unfinished_at is None for tick in backend.ticks)


def test_nothing_is_enqueued_before_the_intention_is_durable(
    backend: ScheduleMemory, clock: Clock
) -> None:
    worker = due(backend, clock, HOURLY)
    backend.failing["save"] = [OSError("full")]
    with pytest.raises(OSError, match="full"):
        worker.look()
    assert ids(backend) == []
    worker.look()
    assert ids(backend) == [id_at(HOURLY, START + 3600)]


@pytest.mark.parametrize("has_run", [False, True])
def test_what_was_enqueued_is_noted_down_before_another_gets_the_schedule(
    backend: ScheduleMemory, clock: Clock, has_run: bool
) -> None:
    """The disk is full for that moment; the task may have run meanwhile."""
    worker = due(backend, clock, HOURLY)
    pauses: list[float] = []

    def pause(seconds: float) -> bool:
        pauses.append(seconds)
        if has_run:
            backend.ran.add(id_at(HOURLY, START + 3600))
        with backend.hold_schedule() as hold:
            assert hold is None
        return False

    real = backend.sync

    def sync() -> None:
        backend.failing["save"] = [OSError("full"), OSError("full")]
        real()

    backend.sync = sync  # type: ignore[method-assign]
    worker.look(pause)
    assert pauses == [RETRY_SECONDS] * 2
    scheduler(backend, clock, HOURLY).look()
    assert ids(backend) == [id_at(HOURLY, START + 3600)]


@pytest.mark.parametrize("where", ["pending", "dead", "nowhere"])
def test_an_intention_is_carried_out_if_it_was_not(
    backend: ScheduleMemory, clock: Clock, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = due(backend, clock, HOURLY)
    backend.failing["sync" if where == "pending" else "add_task"] = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):  # as good as a death
        worker.look()
    [tick] = backend.ticks
    assert (tick.unfinished_at, tick.next_at) == (START + 3600, START + 7200)
    if where == "dead":
        monkeypatch.setattr(backend, "find_dead_task", lambda task_id: {"id": task_id})
    clock.now += 5
    scheduler(backend, clock, HOURLY).look()
    expected = [] if where == "dead" else [id_at(HOURLY, START + 3600)]
    assert ids(backend) == expected
    assert backend.ticks[0].unfinished_at is None


def test_an_intention_outlives_a_changed_timing(backend: ScheduleMemory, clock: Clock) -> None:
    worker = due(backend, clock, HOURLY)
    backend.failing["add_task"] = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        worker.look()
    scheduler(backend, clock, entry("hourly", Every(600.0)), settings_read_at=1.0).look()
    assert ids(backend) == [id_at(HOURLY, START + 3600)]
    assert backend.next_at("hourly") == START + 3600 + 600


# -- enqueue middleware ----------------------------------------------------------------------------


@pytest.mark.parametrize("stops", [False, True])
def test_enqueue_middleware_sees_a_tick(backend: ScheduleMemory, clock: Clock, stops: bool) -> None:
    seen: list[Any] = []

    def see(call: Any) -> None:
        seen.append((call.id, call.name, call.queue))
        call.kwargs["by"] = "middleware"
        call.user_context["request"] = 5
        if stops:
            raise EnqueueStopped("not now")

    queue = Queue(backend, features=Features(enqueue_middleware=(("x.see", see),)))
    worker = Scheduler(queue, (HOURLY,), clock=clock, settings_read_at=0.0)
    worker.look()
    clock.now += 3600
    worker.look()
    assert seen == [(id_at(HOURLY, START + 3600), HOURLY.task, "default")]
    assert HOURLY.kwargs == {}
    worker.look()
    assert len(backend.added) == (0 if stops else 1)
    for *_, data in backend.added:
        context = TaskContext.from_bytes(data)
        assert (context.kwargs, context.user_context) == ({"by": "middleware"}, {"request": 5})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nightly", "1792888200-tick-nightly-250"),
        ("a b", "1792888200-tick-a_b-a7ffc6f8-250"),
        ("é" * 100, None),
    ],
)
def test_the_id_of_a_tick_can_be_stored(name: str, expected: str | None) -> None:
    task_id = id_at(entry(name, Every(60.0)), 1792888200.25)
    assert len(task_id) <= 200
    assert task_id.startswith("1792888200-tick-")
    if name == "nightly":
        assert task_id == expected
    assert id_at(entry("a b", Every(60.0)), 5.0) != id_at(entry("a_b", Every(60.0)), 5.0)


@pytest.mark.parametrize("kind", [SystemExit, GeneratorExit, asyncio.CancelledError])
def test_what_ends_threads_ends_no_scheduler(
    backend: ScheduleMemory, clock: Clock, kind: type[BaseException]
) -> None:
    """A tick that middleware answers so is tried again, and holds up no other."""
    raising = [True]

    def see(call: Any) -> None:
        if raising and call.id == id_at(HOURLY, START + 3600):
            raise kind

    other = entry("other", Every(3600.0))
    queue = Queue(backend, features=Features(enqueue_middleware=(("x.see", see),)))
    worker = Scheduler(queue, (HOURLY, other), clock=clock, settings_read_at=0.0)
    worker.look()
    clock.now += 3600
    worker.look()
    assert ids(backend) == [id_at(other, START + 3600)]
    raising.clear()
    worker.look()
    assert sorted(ids(backend)) == sorted([id_at(HOURLY, START + 3600), id_at(other, START + 3600)])


def test_the_schedules_thread_goes_on_after_anything(
    backend: ScheduleMemory, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduling, "RETRY_SECONDS", 0.01)
    answers: list[BaseException] = [SystemExit(1), KeyboardInterrupt(), OSError("full")]
    looks: list[None] = []

    def look(pause: object) -> float:
        if answers:
            raise answers.pop()
        looks.append(None)
        return clock() + LOOK_SECONDS

    worker = scheduler(backend, clock, HOURLY)
    monkeypatch.setattr(worker, "look", look)
    ticker = scheduling.Ticker(worker)
    ticker.start()
    wait_until(lambda: bool(looks))
    ticker.stop()
