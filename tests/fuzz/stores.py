"""A whole store of mutated files: verified, looked at, added to, drained; then its books."""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from pathlib import Path

from deferred_django.backends.base import BackendConfig, Finding
from deferred_django.backends.disk import DiskBackend
from deferred_django.backends.disk.scanner import MAX_DAMAGE_KEPT
from tests.fuzz import reference
from tests.fuzz.levels import LIMITS, small_blocks
from tests.fuzz.material import DEAD_TASKS, FUTURE, Material

PREFIX = "s-"

State = dict[str, tuple[int, int, bytes]]
"""Mode, time of the last change and bytes of each file."""


def state(directory: Path) -> State:
    """All that a read-only command must leave as it is."""
    found = {}
    for path in directory.iterdir():
        status = path.lstat()
        found[path.name] = (status.st_mode, status.st_mtime_ns, path.read_bytes())
    return found


class StoreLevel:
    """One directory, filled anew for each input."""

    def __init__(self, directory: Path, material: Material) -> None:
        self._directory = directory
        self._material = material
        self._small = False

    def _backend(self) -> DiskBackend:
        return DiskBackend(BackendConfig(path=self._directory, prefix=PREFIX))

    def check(self, chance: random.Random) -> None:
        """Fill the store with what ``chance`` chooses, and see it through to the end."""
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir()
        for number in range(chance.randint(1, 3)):
            content = self._material.segment(chance)
            (self._directory / f"{PREFIX}0-2026112{number}-7-abcdefgh").write_bytes(content)
        if chance.random() < 0.5:
            content = self._material.dead_tasks(chance)
            (self._directory / f"{PREFIX}{DEAD_TASKS}").write_bytes(content)
        self._small = chance.random() < 0.4
        with small_blocks(self._small):
            self._check_all(chance)

    def _check_all(self, chance: random.Random) -> None:
        self._check_looking()
        if chance.random() < 0.5:
            producer = self._backend()
            producer.add_task(b"from the producer")
            producer.close()
        self._check_drain()

    def _read_log(self, content: bytes) -> reference.Reading:
        return reference.read_log(content, LIMITS[self._small][0])

    def _segments(self) -> dict[str, bytes]:
        paths = sorted(self._directory.glob(f"{PREFIX}0-*"))
        return {path.name: path.read_bytes() for path in paths}

    def _check_looking(self) -> None:
        before = state(self._directory)
        backend = self._backend()
        self._compare_findings(backend.verify())
        readings = [self._read_log(content) for content in self._segments().values()]
        pending = Counter(
            (name, task.payload)
            for reading in readings
            for name, task in reading.tasks.items()
            if task.payload is not None
        )
        assert Counter((task.id, task.context) for task in backend.pending_tasks()) == pending
        status = backend.status()
        assert status.pending + status.delayed == sum(len(reading.tasks) for reading in readings)
        damaged = sum(bool(reading.damage) for reading in readings)
        # What stands at the end may still be growing, for all that a look can tell.
        assert sum("damaged records" in problem for problem in status.problems) <= damaged
        backend.list_dead_tasks()
        backend.close()
        assert state(self._directory) == before, "a look changes nothing"

    def _compare_findings(self, findings: list[Finding]) -> None:
        damage: dict[str, list[int]] = {}
        torn: dict[str, str] = {}
        for name, content in self._segments().items():
            path = str(self._directory / name)
            reading = self._read_log(content)
            unreadable = [task.offset for task in reading.tasks.values() if task.payload is None]
            damage[path] = sorted(reading.damage + unreadable)
            if reading.torn:
                torn[path] = f"unfinished writes: {reading.torn}"
        dead = self._directory / f"{PREFIX}{DEAD_TASKS}"
        if dead.exists():
            reading = reference.read_dead(dead.read_bytes(), LIMITS[self._small][1])
            damage[str(dead)] = reading.damage
            if reading.torn:
                torn[str(dead)] = "an unfinished write at the end"
        assert {found.file: found.detail for found in findings if found.kind == "torn"} == torn
        for path, offsets in damage.items():
            found = [f.offset for f in findings if (f.file, f.kind) == (path, "damage")]
            if len(offsets) > MAX_DAMAGE_KEPT:  # the rest is counted in one more finding
                assert found.pop() is None
                assert len(found) == MAX_DAMAGE_KEPT
                assert set(found) <= set(offsets)
            else:
                assert found == offsets
        known = sum(min(len(offsets), MAX_DAMAGE_KEPT + 1) for offsets in damage.values())
        assert len(findings) == known + len(torn)

    def _check_drain(self) -> None:
        before = self._segments()
        now_ms = time.time() * 1000
        due: Counter[tuple[str, bytes]] = Counter()
        left: dict[str, set[str]] = {}
        for file, content in before.items():
            tasks = self._read_log(content).tasks
            left[file] = set()
            for name, task in tasks.items():
                if task.payload is not None and task.publish_ms <= now_ms:
                    due[name, task.payload] += 1
                else:
                    assert task.payload is None or task.publish_ms > FUTURE / 2
                    left[file].add(name)
        worker = self._backend()
        ran: Counter[tuple[str, bytes]] = Counter()
        while claims := worker.claim_tasks(100):
            for claim in claims:
                worker.start_task(claim)
                worker.complete_task(claim)
                ran[claim.id, claim.context] += 1
        assert ran == due, "each intact task that is due runs once"
        worker.maintain()
        worker.close()
        after = self._segments()
        for file, content in before.items():
            if left[file]:
                assert after.pop(file).startswith(content)
            elif self._read_log(content).damage:
                assert after.pop(f"{file}.damaged").startswith(content), "kept for a person"
            else:
                assert file not in after
        assert after == {}
        last = self._backend()
        self._compare_findings(last.verify())
        last.close()
