"""The checks: given any bytes as a file's content, what the store makes of them.

Each raises ``AssertionError`` where the store and :mod:`.reference` differ, and lets through what
the store raises: nothing is allowed to.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import signal
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from deferred_django.backends.disk import (
    dead_tasks_cold,
    dead_tasks_index,
    dead_tasks_reader,
    dead_tasks_removal,
    dead_tasks_rows,
    dead_tasks_tail,
    scanner,
    segment,
)
from deferred_django.backends.disk.dead_tasks_storage import DeadTasksStorage
from deferred_django.backends.disk.scanner import Scanner
from deferred_django.backends.disk.segment import Entry, Segment
from tests.fuzz import mutations, reference

SMALL_CHUNK = 64
SMALL_LIMIT = 2000
LIMITS = {False: (reference.LOG_LIMIT, reference.DEAD_LIMIT), True: (SMALL_LIMIT, SMALL_LIMIT)}
"""How long a line may be in the log and in the dead-tasks file: really, and with small blocks."""


def in_memory() -> str | None:
    """A directory that is no disk, where there is one."""
    return "/dev/shm" if os.path.isdir("/dev/shm") else None


@contextlib.contextmanager
def small_blocks(small: bool) -> Iterator[None]:
    """Blocks so small that most lines are long ones, a limit that some exceed, hashes that meet."""
    if not small:
        yield
        return
    changed = (
        (scanner, "CHUNK_BYTES", SMALL_CHUNK),
        (scanner, "MAX_LINE_BYTES", SMALL_LIMIT),
        (scanner, "MAX_LONG_LINE_BYTES", SMALL_LIMIT),
        (dead_tasks_cold, "CHUNK_BYTES", SMALL_CHUNK),
        (dead_tasks_tail, "BACKWARD_BYTES", SMALL_CHUNK),
        (dead_tasks_tail, "MAX_LONG_LINE_BYTES", SMALL_LIMIT),
        (dead_tasks_cold, "SEARCH_BYTES", SMALL_CHUNK),
        (dead_tasks_index, "_HEADS_BYTES", 600),
        (dead_tasks_reader, "COLD_LINES", 3),
        (dead_tasks_reader, "PAGE_RECORDS", 2),
        (dead_tasks_reader, "SEARCHES", 2),
        (dead_tasks_reader, "SOON_BYTES", 100),
        (dead_tasks_removal, "BLOCK_BYTES", SMALL_CHUNK),
        (dead_tasks_removal, "SYNC_BYTES", 200),
        (dead_tasks_rows, "_HASH_MASK", 1),
        (segment, "HASH_MASK", 1),
    )
    before = [(module, name, getattr(module, name)) for module, name, _ in changed]
    for module, name, value in changed:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the store's own log: a million damaged files have much to say."""
    logger = logging.getLogger("deferred_django")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextlib.contextmanager
def bounded(seconds: int) -> Iterator[None]:
    """What may never end is ended by a signal, as an error. Also :func:`quiet`."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"it does not end within {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        with quiet():
            yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class LogLevel:
    """A segment as a reader takes it in, on a file in memory."""

    def __init__(self) -> None:
        self._fd, path = tempfile.mkstemp(dir=in_memory())
        os.unlink(path)

    def close(self) -> None:
        os.close(self._fd)

    def _grow(self, content: bytes, start: int = 0) -> None:
        os.ftruncate(self._fd, start)
        os.pwrite(self._fd, content[start:], start)

    def _segment(self) -> Segment:
        return Segment("segment", "segment", self._fd, writable=True)

    def attempt(self, content: bytes, chance: random.Random) -> None:
        """Check ``content``, in a way that ``chance`` chooses."""
        cuts = mutations.places_to_stop(content, chance)
        self.check(content, cuts, small=chance.random() < 0.5)

    def check(self, content: bytes, cuts: Sequence[int] = (), *, small: bool = False) -> None:
        """Read ``content`` at once, and again while it grows to each of ``cuts`` and its end."""
        limit, _ = LIMITS[small]
        expected = reference.read_log(content, limit)
        with small_blocks(small):
            self._grow(content)
            read = self._segment()
            read.read_on()
            self._compare_tasks(read, expected)
            read.scanner.at_end()
            compare_damage(read.scanner, expected)
            if cuts and all(reads_on_alike(content, cut, limit, log=True) for cut in cuts):
                os.ftruncate(self._fd, 0)
                read = self._segment()
                for cut in sorted(cuts):
                    self._grow(content[:cut], os.fstat(self._fd).st_size)
                    while not read.read_on(budget=1):  # as little as it may
                        pass
                    read.read_on()
                self._grow(content, os.fstat(self._fd).st_size)
                read.read_on()
                self._compare_tasks(read, expected)
                read.scanner.at_end()
                compare_damage(read.scanner, expected)

    def _compare_tasks(self, segment: Segment, expected: reference.Reading) -> None:
        found: dict[str, reference.Task] = {}
        for row in segment.table.live_rows():
            entry = Entry(segment, row)
            try:
                payload: bytes | None = entry.name(segment.line(entry))
            except ValueError:
                payload = None
            found[entry.id] = reference.Task(
                entry.offset,
                entry.length,
                entry.nonce,
                entry.publish_ms,
                entry.priority,
                entry.queue,
                payload,
                [(run.worker, run.boot_id, run.started_ms) for run in entry.runs],
            )
        assert found == expected.tasks
        assert segment.live_bytes == sum(task.length for task in expected.tasks.values())


def compare_damage(found: Scanner, expected: reference.Reading) -> None:
    """All bad places are counted, the first hundred kept, each where it is."""
    offsets = sorted(damage.offset for damage in found.damage)
    assert found.damaged == len(expected.damage)
    if found.damaged <= scanner.MAX_DAMAGE_KEPT:
        assert offsets == expected.damage
    else:
        assert len(offsets) == scanner.MAX_DAMAGE_KEPT
        assert set(offsets) <= set(expected.damage)
    assert found.torn_in_all == expected.torn


def reads_on_alike(content: bytes, cut: int, limit: int, *, log: bool) -> bool:
    """Whether a reader that came when ``cut`` bytes were there may not have seen anything else.

    It takes a last line without its newline for a record if the checksum is right. Nobody but a
    foreign hand writes on in that line; then the record was given, and is no line any more. What
    stands behind a NUL byte may be ended in the log alone: in the dead-tasks file it is cut off.
    """
    start = content.rfind(b"\n", 0, cut) + 1
    end = content.find(b"\n", cut)
    line = content[start : len(content) if end < 0 else end]
    begun = content[start:cut]
    for record in (begun, begun.partition(b"\0")[0]):
        if reference.is_record(record, limit) and line != record:
            return line.partition(b"\0")[0] == record and (log or end < 0)
    return True


class DeadLevel:
    """The dead-tasks file as its readers, an add and a removal take it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._path = directory / "d-dead_tasks-0"

    def _store(self) -> DeadTasksStorage:
        return DeadTasksStorage(str(self._directory), "d-")

    def attempt(self, content: bytes, chance: random.Random) -> None:
        """Check ``content``, in a way that ``chance`` chooses."""
        cuts = mutations.places_to_stop(content, chance)
        small, change = chance.random() < 0.5, chance.random() < 0.5
        self.check(content, cuts, small=small, change=change)

    def check(
        self,
        content: bytes,
        cuts: Sequence[int] = (),
        *,
        small: bool = False,
        change: bool = True,
    ) -> None:
        """Read ``content`` in every way; then add to it and remove from it.

        With ``cuts``, by a reader that has looked at it while it grew to each of these lengths.
        """
        _, limit = LIMITS[small]
        expected = reference.read_dead(content, limit)
        if not all(reads_on_alike(content, cut, limit, log=False) for cut in cuts):
            cuts = ()
        with small_blocks(small):
            store = self._store()
            self._path.write_bytes(b"")
            for cut in sorted(cuts):
                self._grow(content[:cut])
                store.count()
            self._grow(content)
            self._compare(store, expected)
            assert self._path.read_bytes() == content, "reading changes nothing"
            if change:
                self._change(content, store, limit)

    def _grow(self, content: bytes) -> None:
        with self._path.open("r+b") as file:
            start = file.seek(0, os.SEEK_END)
            file.write(content[start:])

    def _compare(self, store: DeadTasksStorage, expected: reference.Reading) -> None:
        newest_first = list(expected.dead.items())[::-1]
        for reader in (self._store(), store):
            for limit, offset in ((100, 0), (2, 0), (1, 1), (3, 2)):
                page = reader.read(limit=limit, offset=offset)
                assert page == newest_first[offset : offset + limit]
        cold = self._store()
        for name, data in newest_first:
            assert cold.find(name) == data
        assert cold.find("nobody") is None
        assert list(self._store().iterate()) == newest_first
        assert store.read() == newest_first
        assert store.count() == len(newest_first)
        for name, data in newest_first:
            assert store.find(name) == data
        assert store.find("nobody") is None
        assert store.problems() == self._store().problems()
        findings = store.verify()
        offsets = [found.offset for found in findings if found.kind == "damage"]
        if len(expected.damage) <= scanner.MAX_DAMAGE_KEPT:
            assert sorted(offset for offset in offsets if offset is not None) == expected.damage
            assert None not in offsets
        else:
            assert offsets.count(None) == 1
        assert sum(found.kind == "torn" for found in findings) == expected.torn
        assert all(found.file == str(self._path) for found in findings)
        assert bool(store.problems()) == bool(expected.damage)

    def _change(self, content: bytes, store: DeadTasksStorage, limit: int) -> None:
        before = reference.read_dead(content, limit)
        store.add("new", b"{}")
        after_add = self._path.read_bytes()
        # A last line that no newline ends is an unfinished write; all else stays as it is.
        kept = content[: content.rfind(b"\n") + 1]
        assert after_add.startswith(kept)
        now = reference.read_dead(after_add, limit)
        assert now.dead == {**before.dead, "new": b"{}"}
        assert now.torn == 0
        self._compare(store, now)
        gone = list(now.dead)[::2]
        assert store.remove([*gone, "nobody"]) == len(gone)
        after_removal = self._path.read_bytes()
        left = reference.read_dead(after_removal, limit)
        assert left.dead == {name: data for name, data in now.dead.items() if name not in gone}
        assert _damaged_lines(after_removal, left) == _damaged_lines(after_add, now)
        self._compare(store, left)
        assert store.remove(["nobody"]) == 0
        assert self._path.read_bytes() == after_removal


def _damaged_lines(content: bytes, reading: reference.Reading) -> list[bytes]:
    return [content[offset:].partition(b"\n")[0] for offset in reading.damage]
