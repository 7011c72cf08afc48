"""More segments than files may be open: a worker works off all, and a look sees all."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from deferred_django.backends.disk import descriptors, files, segment_set, segment_turns
from tests.disk.conftest import Opener
from tests.disk.support import (
    FUTURE,
    PAST,
    add,
    claim,
    finish,
    in_child,
    open_storage,
    run_all,
    segments,
)

COUNT = 12


def make_segments(store: Path, *, delayed: int = 0, count: int = COUNT) -> list[str]:
    """As many segments as there are tasks; the first of the tasks are delayed. Their ids."""
    owners = [open_storage(store) for _ in range(count)]
    ids = [
        add(owner, publish_at=FUTURE if number < delayed else PAST + number)
        for number, owner in enumerate(owners)
    ]
    for owner in owners:
        owner.close()
    assert len(segments(store)) == count
    return ids


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> int:
    """At most three segments may be open."""
    for module in (segment_set, segment_turns):
        monkeypatch.setattr(module, "room", lambda in_use: 3 - in_use)
    return 3


def opened(store: Path) -> set[str]:
    found = descriptors.open_descriptors().values()
    return {name for name in found if name.startswith(f"{store}{os.sep}")}


def test_all_are_worked_off_and_erased(store: Path, opener: Opener, room: int) -> None:
    ids = make_segments(store)
    worker = opener()
    ran = []
    while claimed := claim(worker, 100):
        assert len(opened(store)) <= room + 1  # and the directory's watch
        for entry in claimed:
            ran.append(entry.id)
            finish(worker, entry)
    assert sorted(ran) == sorted(ids)
    worker.maintain()
    assert segments(store) == []


def test_idle_ones_make_room_for_others(store: Path, opener: Opener, room: int) -> None:
    ids = make_segments(store, delayed=COUNT - 2)
    worker = opener()
    found = [*claim(worker), *claim(worker)]
    assert sorted(entry.id for entry in found) == sorted(ids[-2:])
    # Those that come now have their turn too.
    late = make_late(store)
    assert claim(worker, 10, late)


def make_late(store: Path) -> str:
    producer = open_storage(store)
    try:
        # One that is not free to be adopted: a segment of its own.
        producer._writer.rotate_bytes = 1
        producer._writer.reset()
        return add(producer)
    finally:
        producer.close()


def test_none_is_looked_at_all_the_time(
    store: Path, opener: Opener, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_segments(store, delayed=COUNT)
    worker = opener()
    assert claim(worker) == []
    opened_again: list[str] = []
    real = files.open_file

    def open_file(path: str, flags: int) -> int:
        opened_again.append(path)
        return real(path, flags)

    monkeypatch.setattr(files, "open_file", open_file)
    assert claim(worker) == []
    assert opened_again == []
    monkeypatch.setattr(segment_turns, "LOOK_AGAIN_SECONDS", -1.0)
    # A negative time is over at once.
    assert worker._take_turns()


def test_claims_keep_theirs_open(store: Path, opener: Opener, room: int) -> None:
    ids = make_segments(store)
    worker, other = opener(), opener()
    held = claim(worker)
    assert len(held) == room
    assert claim(worker) == []
    others = claim(other)
    assert {entry.id for entry in others}.isdisjoint(entry.id for entry in held)
    ran = [entry.id for entry in [*held, *others]]
    for entry in held:
        finish(worker, entry)
    for entry in others:
        finish(other, entry)
    while claimed := claim(worker):
        for entry in claimed:
            ran.append(entry.id)
            finish(worker, entry)
    assert sorted(ran) == sorted(ids)


def test_a_look_sees_all(store: Path, opener: Opener, room: int) -> None:
    ids = make_segments(store, delayed=2)
    looker = opener()
    assert sorted(entry.id for entry, _ in looker.survey()) == sorted(ids)
    counts, problems = looker.overview()
    assert (counts.due, counts.delayed, problems) == (COUNT - 2, 2, [])
    assert not looker.remove("nobody")
    assert all(looker.remove(task_id) for task_id in ids)
    assert looker.survey() == []
    assert opened(store) == set()


def test_a_worker_says_what_waits(
    store: Path, opener: Opener, room: int, caplog: pytest.LogCaptureFixture
) -> None:
    make_segments(store, delayed=COUNT)
    worker = opener()
    for _ in range(3):
        assert claim(worker) == []
    [problem] = worker.overview()[1]
    assert problem.startswith(f"{store}: {COUNT - room} segments wait")
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_what_dead_owners_left_is_durable_before_its_file_is_closed(
    store: Path, opener: Opener, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_segments(store, delayed=COUNT)
    synced: set[str] = set()
    real = files.fsync

    def fsync(fd: int) -> None:
        real(fd)
        synced.add(Path(descriptors.paths[fd]).name)

    monkeypatch.setattr(files, "fsync", fsync)
    worker = opener()
    assert claim(worker) == []
    names = {path.name for path in segments(store)}
    still_open = {Path(name).name for name in opened(store)}
    assert names - still_open <= synced


def test_under_a_limit_of_open_files(store: Path) -> None:
    """Half are left for the tasks themselves."""
    count = 60
    make_segments(store, count=count)

    def work() -> None:
        soft = max(descriptors.open_descriptors(), default=0) + len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft + 40, soft + 40))
        worker = open_storage(store)
        ran = 0
        while claimed := claim(worker):
            for fd in [os.open("/dev/null", os.O_RDONLY) for _ in range(10)]:
                os.close(fd)
            for entry in claimed:
                ran += 1
                finish(worker, entry)
        assert ran == count, ran
        worker.close()

    in_child(work, kill=False)
    assert run_all(open_storage(store)) == []
