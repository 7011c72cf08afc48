"""The file that says when periodic tasks are due: what is in it, and what is done to it."""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from deferred_django.backends.base import BackendConfig
from deferred_django.backends.disk import files, records, schedule_file
from deferred_django.backends.disk.backend import DiskBackend
from deferred_django.backends.schedule import TickRecord
from tests.disk.support import fail_once, in_child

NEXT = TickRecord(
    name="nightly", next_at=1792888200.25, last_at=1.5, unfinished_at=2.0, data=b"\xff"
)


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[DiskBackend]:
    backend = DiskBackend(BackendConfig(path=tmp_path / "store", prefix="app-"))
    yield backend
    backend.close()


def save(backend: DiskBackend, *ticks: TickRecord) -> None:
    with backend.hold_schedule() as hold:
        assert hold is not None
        hold.save(ticks)


def path_of(backend: DiskBackend) -> Path:
    return Path(backend.tasks.names.at("app-schedule-0"))


def line(values: object) -> bytes:
    return records.encode(b"tick:" + json.dumps(values).encode()) + b"\n"


def test_the_bytes_are_those_of_the_storage_format(backend: DiskBackend) -> None:
    save(backend, NEXT, TickRecord(name="é", next_at=5))
    first, second = path_of(backend).read_bytes().splitlines()
    assert records.is_valid(first)
    assert first[9:] == (
        b'tick:{"name":"nightly","next":1792888200.25,"last":1.5,"unfinished":2.0,"data":"\\u00ff"}'
    )
    assert second[9:] == b'tick:{"name":"\\u00e9","next":5,"data":""}'
    assert sorted(os.listdir(backend.config.path)) == ["app-schedule-0", "app-schedule.lock"]


def test_looking_makes_no_file(backend: DiskBackend) -> None:
    assert backend.tick_records() == []
    assert backend.status().problems == []
    assert not backend.config.path.exists()


@pytest.mark.parametrize(
    "foreign",
    [
        b"foreign\n",
        bytes(4096),
        b"00000000:tick:{}\n",
        line({"name": "x", "next": float("nan")}),
        line({"name": "x", "next": 1e300}),
        line({"name": "x", "next": True}),
        line({"name": 5, "next": 5}),
        line({"name": "x"}),
        line({"name": "x", "next": 5, "data": "\u20ac"}),
        line([5]),
        line(5),
        records.encode(b"tick:" + b"[" * 100_000) + b"\n",
        records.encode(b"tick:\xff") + b"\n",
        records.encode(b"add:x") + b"\n",
    ],
    ids=range(14),
)
def test_what_is_no_record_is_reported_and_skipped(
    backend: DiskBackend, foreign: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    save(backend, NEXT)
    good = path_of(backend).read_bytes()
    path_of(backend).write_bytes(foreign + b"\n" + good + foreign)
    assert backend.tick_records() == [NEXT]
    found = backend.verify()
    assert [finding.kind for finding in found] == ["damage"] * 2
    assert {finding.file for finding in found} == {str(path_of(backend))}
    assert found[1].offset == len(foreign) + 1 + len(good)
    assert all("app-schedule-0: " in problem for problem in backend.status().problems)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):  # it is looked at again and again
            with backend.hold_schedule() as hold:
                assert hold is not None
                assert list(hold.records) == [NEXT]
    assert len(caplog.records) == 2
    assert str(path_of(backend)) in caplog.text


def test_a_file_without_its_last_newline_is_whole(backend: DiskBackend) -> None:
    save(backend, NEXT)
    os.truncate(path_of(backend), path_of(backend).stat().st_size - 1)
    assert backend.tick_records() == [NEXT]
    assert backend.verify() == []


def test_the_later_of_two_records_counts(backend: DiskBackend) -> None:
    save(backend, NEXT)
    with open(path_of(backend), "ab") as file:
        file.write(line({"name": "nightly", "next": 7}))
    assert backend.tick_records() == [TickRecord(name="nightly", next_at=7.0)]


def test_a_file_of_any_size_is_read_in_bounded_memory(
    backend: DiskBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(backend, NEXT)
    monkeypatch.setattr(schedule_file, "MAX_BYTES", 1000)
    with open(path_of(backend), "ab") as file:
        file.truncate(1 << 40)
    assert backend.tick_records() == [NEXT]
    assert "only the first 1,000 bytes" in " ".join(backend.status().problems)
    with pytest.raises(OSError, match="too many periodic tasks"):
        save(backend, TickRecord(name="x" * 2000, next_at=1))


@pytest.mark.parametrize("kind", ["directory", "fifo", "link to nowhere"])
def test_what_is_no_file_is_named(backend: DiskBackend, kind: str) -> None:
    backend.config.path.mkdir()
    path = path_of(backend)
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(path.parent / "nowhere")
    with pytest.raises(OSError, match="app-schedule-0"):
        backend.tick_records()
    with pytest.raises(OSError, match="app-schedule-0"), backend.hold_schedule():
        pass
    assert [(f.kind, f.file) for f in backend.verify()] == [("unreadable", str(path))]
    assert "app-schedule-0" in " ".join(backend.status().problems)


def test_a_lock_that_is_no_file_is_named(backend: DiskBackend) -> None:
    backend.config.path.mkdir()
    (backend.config.path / "app-schedule.lock").mkdir()
    with pytest.raises(OSError, match=r"app-schedule\.lock"), backend.hold_schedule():
        pass
    assert [finding.kind for finding in backend.verify()] == ["unreadable"]


def test_files_get_the_permissions_of_the_store(tmp_path: Path) -> None:
    backend = DiskBackend(BackendConfig(path=tmp_path / "s", prefix="app-", file_permissions=0o640))
    old = os.umask(0o077)
    try:
        save(backend, NEXT)
    finally:
        os.umask(old)
    for name in ("app-schedule-0", "app-schedule.lock"):
        assert stat.S_IMODE((tmp_path / "s" / name).stat().st_mode) == 0o640
    path_of(backend).chmod(0o660)  # an operator's change stays
    save(backend, NEXT)
    assert stat.S_IMODE(path_of(backend).stat().st_mode) == 0o660
    backend.close()


def test_the_files_of_another_prefix_are_not_touched(tmp_path: Path) -> None:
    backends = [
        DiskBackend(BackendConfig(path=tmp_path, prefix=prefix))
        for prefix in ("app-", "app-0-", "app-schedule-", "")
    ]
    for number, backend in enumerate(backends):
        save(backend, TickRecord(name="a", next_at=number))
    assert [backend.tick_records()[0].next_at for backend in backends] == [0, 1, 2, 3]
    for backend in backends:
        assert backend.tasks.names.segments() == []
        backend.close()


def test_the_death_of_the_holder_frees_it(backend: DiskBackend) -> None:
    def die_holding() -> None:
        hold = backend.hold_schedule()
        assert hold.__enter__() is not None
        os.kill(os.getpid(), 9)

    in_child(die_holding)
    save(backend, NEXT)
    assert backend.tick_records() == [NEXT]


def test_a_forked_child_does_not_keep_the_lock(backend: DiskBackend) -> None:
    with backend.hold_schedule() as hold:
        assert hold is not None
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
    with backend.hold_schedule() as hold:
        assert hold is not None
    os.close(writing)
    os.close(reading)
    os.waitpid(pid, 0)


def test_a_lock_file_that_was_removed_is_no_lock(
    backend: DiskBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody removes it between our open and our lock: others lock the new one."""
    save(backend, NEXT)
    real = files.try_flock
    removed: list[int] = []

    def remove_first(fd: int) -> bool:
        if not removed:
            removed.append(fd)
            os.unlink(files._path_of(fd))
        return real(fd)

    monkeypatch.setattr(files, "try_flock", remove_first)
    with backend.hold_schedule() as hold:
        assert hold is not None
        with backend.hold_schedule() as second:
            assert second is None


@pytest.mark.parametrize("call", ["create_file", "write", "fsync", "rename"])
def test_a_save_that_fails_changes_nothing(
    backend: DiskBackend, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    save(backend, NEXT)
    failed = fail_once(monkeypatch, call, OSError(errno.ENOSPC, "No space left", "that file"))
    with pytest.raises(OSError, match="No space left"):
        save(backend, TickRecord(name="new", next_at=1))
    assert failed
    assert backend.tick_records() == [NEXT]
    assert not path_of(backend).with_name("app-schedule-0.tmp").exists()
    save(backend, TickRecord(name="new", next_at=1))
    assert [record.name for record in backend.tick_records()] == ["new"]


def test_what_a_killed_save_left_is_replaced(backend: DiskBackend) -> None:
    save(backend, NEXT)
    temp = path_of(backend).with_name("app-schedule-0.tmp")
    temp.write_bytes(line({"name": "torn", "next": 9})[:20])
    assert backend.tick_records() == [NEXT]
    assert backend.verify() == []
    save(backend, TickRecord(name="new", next_at=1))
    assert [record.name for record in backend.tick_records()] == ["new"]
    assert not temp.exists()


def test_the_order_of_the_calls_makes_it_durable(
    backend: DiskBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(backend, NEXT)
    calls: list[str] = []
    for name in ("write", "fsync", "rename", "fsync_directory"):
        real = getattr(files, name)

        def note(*arguments: object, _name: str = name, _real: object = real) -> object:
            calls.append(_name)
            assert callable(_real)
            return _real(*arguments)

        monkeypatch.setattr(files, name, note)
    save(backend, NEXT)
    assert calls == ["write", "fsync", "rename", "fsync_directory"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_root_makes_belongs_to_the_owner_of_the_directory(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    os.chown(store, 12345, 12346)
    backend = DiskBackend(BackendConfig(path=store, prefix="app-"))
    save(backend, NEXT)
    save(backend, NEXT)
    for name in ("app-schedule-0", "app-schedule.lock"):
        status = (store / name).stat()
        assert (status.st_uid, status.st_gid) == (12345, 12346)
    backend.close()
