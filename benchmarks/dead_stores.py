"""Stores of many dead tasks, and what processes of their own do to them. No Django."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import resource
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

from deferred_django.backends.disk import dead_task_json, dead_tasks_file
from deferred_django.backends.disk.backend import DiskBackend
from deferred_django.backends.values import BackendConfig
from deferred_django.exceptions import DeadTasksLockTimeout

RECORD_BYTES = 1000
ADD_PAUSE = 0.01
_SPAWN = multiprocessing.get_context("spawn")
_CHUNK_BYTES = 256 * 1024


def open_store(path: Path) -> DiskBackend:
    """The facade over the store in a directory."""
    return DiskBackend(BackendConfig(path=path))


def data_file(path: Path) -> Path:
    """The file of the dead tasks."""
    return Path(open_store(path).dead_tasks._file.path)


def task_id(number: int) -> str:
    """The id of the record with that number, of the form and length that real ones have."""
    return f"{1764430000 + number}-812-x7k2m9q4w1z8c-{number}"


def build(path: Path, count: int) -> None:
    """Write a store with so many records of 1 kB; the queue of every other is ``mail``."""
    path.mkdir()
    with data_file(path).open("wb") as file:
        os.fchmod(file.fileno(), 0o600)
        for number in range(count):
            record = dead_task_json.encode(
                {
                    "id": task_id(number),
                    "task_class": "shop.tasks.send_receipt",
                    "queue": "mail" if number % 2 else "default",
                    "attempts": 21,
                    "enqueued_at": 1764430000.0 + number,
                    "failed_at": 1764440000.0 + number,
                    "exception_class": "smtplib.SMTPServerDisconnected",
                    "exception_message": "Connection unexpectedly closed",
                    "backtrace": ["Traceback (most recent call last):"],
                    "context": b'{"v":1,"task":"shop.tasks.send_receipt","args":[7],"kwargs":{}}',
                }
            )
            # JSON may end with blanks.
            line = dead_tasks_file.encode(task_id(number), record)
            padded = record.ljust(len(record) + RECORD_BYTES - len(line))
            file.write(dead_tasks_file.encode(task_id(number), padded))
        file.flush()
        os.fsync(file.fileno())


def wait_for_removal(path: Path, seconds: float = 60.0) -> None:
    """Wait until a removal is at work: its lock is held, so that whoever comes now is second."""
    lock_path = open_store(path).dead_tasks._removal_lock.path
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if Path(lock_path).exists():
            with open(lock_path, "rb") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return
        time.sleep(0.001)
    raise TimeoutError("no removal began")


def rss() -> int:
    """Bytes of memory that this process has just now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def read_and_check(file: Path) -> float:
    """Seconds to read a file and compute the checksum of each line: what any index costs."""
    start = time.perf_counter()
    fd = os.open(file, os.O_RDONLY)
    try:
        position = 0
        while chunk := os.pread(fd, _CHUNK_BYTES, position):
            position += len(chunk)
            for line in chunk.split(b"\n"):
                crc32(line)
    finally:
        os.close(fd)
    return time.perf_counter() - start


def in_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a function in a new process, as in a command's."""
    with _SPAWN.Pool(1) as pool:
        return pool.apply(function, arguments)


# -- for processes of their own ------------------------------------------------------------------


def index(path: Path, tries: int) -> dict[str, float]:
    """Build the index; its least time and its floor's, and its memory."""
    backend = open_store(path)
    figures = {name: float("inf") for name in ("seconds", "cpu", "floor")}
    before = 0
    for number in range(tries):
        figures["floor"] = min(figures["floor"], read_and_check(data_file(path)))
        backend.close()
        before = before or rss()
        start, cpu = time.perf_counter(), time.process_time()
        figures["records"] = backend.count_dead_tasks()
        figures["seconds"] = min(figures["seconds"], time.perf_counter() - start)
        figures["cpu"] = min(figures["cpu"], time.process_time() - cpu)
        if number == 0:
            figures["rss"] = rss() - before
    backend.close()
    tracemalloc.start()
    backend.count_dead_tasks()
    figures["traced"], figures["traced_peak"] = tracemalloc.get_traced_memory()
    return figures


def purge(path: Path, numbers: range) -> dict[str, float]:
    """Remove these records in one call; again if another removal takes longer than it waits."""
    backend = open_store(path)
    ids = [task_id(number) for number in numbers]
    before = rss()
    start, cpu = time.perf_counter(), time.process_time()
    while True:
        try:
            removed = backend.remove_dead_tasks(ids)
            break
        except DeadTasksLockTimeout:
            pass
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    cpu = time.process_time() - cpu
    return {"removed": removed, "seconds": seconds, "cpu": cpu, "memory": peak - before}


def look_after_removal(path: Path, number: int) -> dict[str, float]:
    """What a process that has an index, and removes one record, then waits for."""
    backend = open_store(path)
    backend.count_dead_tasks()
    start = time.perf_counter()
    backend.remove_dead_tasks(task_id(number))
    figures = {"removal": time.perf_counter() - start}
    for name, look in (
        ("page", lambda: backend.list_dead_tasks(limit=25)),
        ("count", backend.count_dead_tasks),
        ("find", lambda: backend.find_dead_task(task_id(number + 1))),
    ):
        start = time.perf_counter()
        look()
        figures[name] = time.perf_counter() - start
    return figures


def _add_until(path: Path, ready: Any, stop: Any, answer: Any) -> None:
    store = open_store(path).dead_tasks
    waits: list[float] = []
    errors: list[str] = []
    number = 0
    while not number or not stop.is_set():
        start = time.perf_counter()
        try:
            store.add(f"1899999999-1-aaaaaaaaaaaaa-{os.getpid()}-{number}", b"x" * RECORD_BYTES)
        except OSError as error:
            errors.append(str(error))
        waits.append(time.perf_counter() - start)
        number += 1
        ready.set()
        time.sleep(ADD_PAUSE)
    answer.send((waits, errors))


class Adder:
    """A process that adds dead tasks, each durable, from the beginning of a block to its end."""

    def __init__(self, path: Path) -> None:
        self._ready, self._stop = _SPAWN.Event(), _SPAWN.Event()
        self._answer, other = _SPAWN.Pipe(duplex=False)
        self._process = _SPAWN.Process(
            target=_add_until, args=(path, self._ready, self._stop, other)
        )
        self.waits: list[float] = []
        self.errors: list[str] = []

    def __enter__(self) -> Adder:
        self._process.start()
        self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._answer.poll(60):
            self.waits, self.errors = self._answer.recv()
        self._process.join(60)
