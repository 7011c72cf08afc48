"""When periodic tasks are due: one small file, replaced as a whole by whoever holds its lock.

The lock is ``flock`` on a file of its own, opened anew for each hold, so that it keeps the threads
of one process from each other too; the kernel frees it at the holder's death. Readers take no lock:
the file that they open is whole, since it is never written in place.

A line that is no record is reported and skipped: the periodic task that it was of begins anew.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from deferred_django.backends.base import Finding
from deferred_django.backends.disk import files, records
from deferred_django.backends.disk.dead_tasks_lock import release
from deferred_django.backends.disk.names import StoreNames
from deferred_django.backends.schedule import ScheduleHold, TickRecord

logger = logging.getLogger("deferred_django.disk")

KIND = b"tick:"
MAX_BYTES = 16 * 1024 * 1024
"""Of a file: some ten thousands of periodic tasks. What is behind that is not read."""
MAX_SECONDS = 1e15
_TRIES_TO_LOCK = 10
"""Each fails only because another program has removed the lock file in this moment."""


@dataclass(frozen=True, slots=True)
class _Damage:
    offset: int
    detail: str


class ScheduleFile:
    """The schedule of one store. Thread-safe; touches no file before it has something to do."""

    def __init__(self, names: StoreNames, file_permissions: int) -> None:
        self._names = names
        self._permissions = file_permissions
        self._path = names.at(names.schedule)
        self._temp_path = names.at(names.schedule_temp)
        self._lock_path = names.at(names.schedule_lock)
        self._reported: list[_Damage] = []

    # -- reading -------------------------------------------------------------------------------

    def read(self) -> list[TickRecord]:
        """What is kept, by name; none if there is no file yet."""
        return self._read()[0]

    def problems(self) -> list[str]:
        """Sentences about what cannot be read."""
        return [
            f"{self._names.schedule}: {finding.detail}"
            if finding.kind == "damage"
            # Such an error names the file.
            else f"the schedule cannot be read: {finding.detail}"
            for finding in self.verify()
        ]

    def verify(self) -> list[Finding]:
        """What is not as it was written."""
        try:
            damage = self._read()[1]
        except OSError as error:
            return [Finding(file=self._path, offset=None, kind="unreadable", detail=str(error))]
        return [
            Finding(file=self._path, offset=each.offset, kind="damage", detail=each.detail)
            for each in damage
        ]

    def other_paths(self) -> list[str]:
        """The lock, and what a save writes."""
        return [self._lock_path, self._temp_path]

    def _read(self) -> tuple[list[TickRecord], list[_Damage]]:
        try:
            fd = files.open_file(self._path, os.O_RDONLY)
        except FileNotFoundError:
            if os.path.islink(self._path):
                raise
            return [], []
        try:
            parts: list[bytes] = []
            size = 0
            while size <= MAX_BYTES and (part := files.read_at(fd, MAX_BYTES + 1 - size, size)):
                parts.append(part)
                size += len(part)
        finally:
            files.close(fd)
        return _parse(b"".join(parts))

    # -- changing ------------------------------------------------------------------------------

    @contextlib.contextmanager
    def hold(self) -> Iterator[ScheduleHold | None]:
        """See :meth:`ScheduleStore.hold_schedule`; makes the lock file, and its directory."""
        fd = self._try_lock()
        if fd is None:
            yield None
            return
        try:
            found, damage = self._read()
            if damage != self._reported:
                self._reported = damage
                for each in damage:
                    logger.error(
                        "%s: offset %d: %s; the periodic task that this was of begins anew",
                        self._path,
                        each.offset,
                        each.detail,
                    )
            yield _Hold(self, found)
        finally:
            release(fd)

    def _try_lock(self) -> int | None:
        for _ in range(_TRIES_TO_LOCK):
            fd = self._open_lock()
            try:
                if not files.try_flock(fd):
                    files.close(fd)
                    return None
                if files.is_at_path(fd, self._lock_path):
                    return fd
            except BaseException:
                release(fd)
                raise
            release(fd)
        return None

    def _open_lock(self) -> int:
        with contextlib.suppress(FileNotFoundError):
            return files.open_file(self._lock_path, os.O_RDWR)
        files.make_directory(self._names.path, self._permissions)
        with contextlib.suppress(FileExistsError):  # another process was faster
            return files.create_file(self._lock_path, os.O_RDWR, self._permissions)
        return files.open_file(self._lock_path, os.O_RDWR)

    def save(self, ticks: Iterable[TickRecord]) -> None:
        """Put another file in the place of the one that is there. For the holder of the lock."""
        content = b"".join(map(_line, ticks))
        if len(content) > MAX_BYTES:
            raise OSError(errno.EFBIG, "too many periodic tasks", self._path)
        # Only the holder writes it, so one that is there was left by a process that died.
        with contextlib.suppress(FileNotFoundError):
            files.unlink(self._temp_path)
        like = None
        with contextlib.suppress(FileNotFoundError):
            like = os.stat(self._path)
        fd = files.create_file(self._temp_path, os.O_RDWR | os.O_APPEND, self._permissions, like)
        try:
            if content:
                files.append_record(fd, content)
            files.fsync(fd)
            files.rename(self._temp_path, self._path)
        except BaseException:
            with contextlib.suppress(OSError):
                files.unlink(self._temp_path)
            raise
        finally:
            files.close(fd)
        files.fsync_directory(self._names.path)


class _Hold:
    def __init__(self, file: ScheduleFile, found: Sequence[TickRecord]) -> None:
        self.records = found
        self._file = file

    def save(self, records: Iterable[TickRecord]) -> None:
        self._file.save(records)


# -- lines -------------------------------------------------------------------------------------


def _line(tick: TickRecord) -> bytes:
    for at in (tick.next_at, tick.last_at, tick.unfinished_at):
        if at is not None and not _is_time(at):
            raise ValueError(f"{tick.name}: {at!r} cannot be stored as a time")
    values: dict[str, object] = {"name": tick.name, "next": tick.next_at}
    if tick.last_at is not None:
        values["last"] = tick.last_at
    if tick.unfinished_at is not None:
        values["unfinished"] = tick.unfinished_at
    values["data"] = tick.data.decode("latin-1")
    return records.encode(KIND + json.dumps(values, separators=(",", ":")).encode()) + b"\n"


def _parse(content: bytes) -> tuple[list[TickRecord], list[_Damage]]:
    found: dict[str, TickRecord] = {}
    damage: list[_Damage] = []
    offset = 0
    if len(content) > MAX_BYTES:
        content = content[:MAX_BYTES]
        damage.append(_Damage(MAX_BYTES, f"only the first {MAX_BYTES:,} bytes are read"))
    for line in content.split(b"\n"):
        if line:
            try:
                tick = _tick(line)
                found[tick.name] = tick
            except (ValueError, RecursionError) as error:
                damage.append(_Damage(offset, str(error)))
        offset += len(line) + 1
    return sorted(found.values(), key=lambda tick: tick.name), damage


def _tick(line: bytes) -> TickRecord:
    if not records.is_valid(line):
        raise ValueError("a line whose checksum is wrong")
    body = line[records.CRC_BYTES :]
    if not body.startswith(KIND):
        raise ValueError("a record of another kind")
    values = json.loads(body[len(KIND) :])
    if not isinstance(values, dict):
        raise ValueError("a tick that is no object")
    name, data = values.get("name"), values.get("data", "")
    if not isinstance(name, str) or not isinstance(data, str):
        raise ValueError("a tick without a name, or with data that is no text")
    return TickRecord(
        name=name,
        next_at=_time(values.get("next")),
        last_at=_optional_time(values.get("last")),
        unfinished_at=_optional_time(values.get("unfinished")),
        data=data.encode("latin-1"),
    )


def _optional_time(value: object) -> float | None:
    return None if value is None else _time(value)


def _time(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_time(value):
        raise ValueError("a tick whose times are none")
    return float(value)


def _is_time(value: float) -> bool:
    return math.isfinite(value) and abs(value) <= MAX_SECONDS
