"""Defects to be found: each is the store with one line of its wrong.

They are patched in from here; the product has no switch for any. A module's view of
:mod:`deferred_django.backends.disk.files` is replaced as a rule, so that the recorder, which wraps
``files`` itself, sees what the defective code does.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from deferred_django.backends.disk import (
    dead_tasks_file,
    dead_tasks_removal,
    dead_tasks_tail,
    files,
    ownership,
    writer,
)

Defect = Callable[[], Any]


class FilesWith:
    """``files`` as a module sees it, with some of its functions others."""

    def __init__(self, **replaced: Callable[..., Any]) -> None:
        self._replaced = replaced

    def __getattr__(self, name: str) -> Any:
        return self._replaced.get(name) or getattr(files, name)


@contextmanager
def _sees(module: Any, **replaced: Callable[..., Any]) -> Iterator[None]:
    with mock.patch.object(module, "files", FilesWith(**replaced)):
        yield


def nothing(*arguments: Any) -> None:
    """What a call that was left out does."""


def no_fsync_of_the_log() -> Any:
    """An add is acknowledged without an fsync."""
    return _sees(writer, fsync=nothing)


def no_directory_fsync_of_a_segment() -> Any:
    """A segment's name is not made durable."""
    return _sees(ownership, fsync_directory=nothing)


def no_fsync_of_a_dead_task() -> Any:
    """A dead task is acknowledged without an fsync."""
    return _sees(dead_tasks_file, fsync=nothing)


def no_directory_fsync_of_dead_tasks() -> Any:
    """Neither a new file's name nor a replacement is made durable."""
    return _sees(dead_tasks_file, fsync_directory=nothing)


def no_fsync_before_rename() -> Any:
    """A removal's copy takes the file's place before it is durable."""
    return _sees(dead_tasks_removal, fsync=nothing)


def no_repair() -> Any:
    """An add is appended behind a torn line."""
    return mock.patch.object(
        dead_tasks_tail,
        "find_tail",
        lambda fd: dead_tasks_tail.Tail(
            os.fstat(fd).st_size, os.fstat(fd).st_size, newline_missing=False
        ),
    )


DEFECTS: dict[str, tuple[Defect, str]] = {
    function.__name__: (function, scenario)
    for function, scenario in (
        (no_fsync_of_the_log, "log: adopt, durable at once"),
        (no_directory_fsync_of_a_segment, "log: first use, durable at once"),
        (no_fsync_of_a_dead_task, "dead: add"),
        (no_directory_fsync_of_dead_tasks, "dead: remove"),
        (no_fsync_before_rename, "dead: remove"),
        (no_repair, "dead: add behind a torn line"),
    )
}
