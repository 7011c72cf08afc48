"""Faults in processes that the test has started: they last until the test lifts them.

A project that imports this in its settings (:data:`SETTINGS`) fails where the file of faults in its
directory says, in each process that reads those settings, and only as long as it says so.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from deferred_django.backends.disk import files
from tests.harness import Project

SETTINGS = """
from tests.faults import switched
switched.install(BASE_DIR)
"""
FAULTS, COUNTS = "faults.json", "injected.txt"

RECORDS = {
    "run": b":run:",
    "rem": b":rem:",
    "retry": b":add:",
    "dead": b":dead_task:",
}
"""Places at which a write fails, by what is written."""
CALLS = {
    "fsync": ("fsync", "fsync_directory"),
    "open": ("open_file", "create_file"),
    "lock": ("try_lock", "lock_is_held", "try_flock", "wait_flock"),
}
"""Places at which these calls fail, all of them."""
PLACES = (*RECORDS, *CALLS)


class Switch:
    """The test's side."""

    def __init__(self, project: Project) -> None:
        self._file = project.path / FAULTS
        self._counts = project.path / COUNTS

    def set(self, faults: Mapping[str, int]) -> None:
        """From now on the calls at these places fail with these errors, and no others do."""
        new = self._file.with_suffix(".new")
        new.write_text(json.dumps(dict(faults)))
        new.rename(self._file)

    def injected(self) -> dict[str, int]:
        """How often each place has failed so far."""
        counts = dict.fromkeys(PLACES, 0)
        if self._counts.exists():
            for place in self._counts.read_text().split():
                counts[place] += 1
        return counts


def install(directory: Path) -> None:
    """In a process of the project: let its calls fail when the test says so."""
    for name in {"write", *(name for names in CALLS.values() for name in names)}:
        setattr(files, name, _failing(name, getattr(files, name), directory))


def _failing(name: str, real: Callable[..., Any], directory: Path) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        faults = _faults(directory)
        place = _place(name, arguments) if faults else None
        if place in faults:
            _count(directory, place)
            code = faults[place]
            of = arguments[0]
            path = of if isinstance(of, str) else files._path_of(of)
            raise OSError(code, os.strerror(code), path)
        return real(*arguments)

    return call


def _place(name: str, arguments: tuple[Any, ...]) -> str | None:
    if name == "write":
        data = arguments[1]
        return next((place for place, mark in RECORDS.items() if mark in data[:20]), None)
    return next(place for place, names in CALLS.items() if name in names)


def _faults(directory: Path) -> dict[str | None, int]:
    try:
        text = (directory / FAULTS).read_text()
    except FileNotFoundError:
        return {}
    found: dict[str | None, int] = json.loads(text)
    return found


def _count(directory: Path, place: str | None) -> None:
    fd = os.open(directory / COUNTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, f"{place}\n".encode())
    finally:
        os.close(fd)
