"""What a recorded operation did to the disk, in order.

A file is known by a number of its own (an inode's number comes round again), a name is an entry of
a directory, and a directory is known by its path below the recorded root (``""`` is the root).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from tests.crash.books import Books

DIRECTORY = 0
"""Stands for a directory where the number of a file is meant."""


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes put at an offset."""

    file: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    """The file's size was set."""

    file: int
    length: int


@dataclass(frozen=True, slots=True)
class Fsync:
    """The file's bytes and size are durable."""

    file: int


@dataclass(frozen=True, slots=True)
class FailedFsync:
    """What was not durable may be lost for good, though later fsyncs succeed."""

    file: int


@dataclass(frozen=True, slots=True)
class Link:
    """A name was made, of a new file or of a directory."""

    directory: str
    name: str
    file: int


@dataclass(frozen=True, slots=True)
class Rename:
    """A file got another name in the same directory, at once."""

    directory: str
    source: str
    target: str
    file: int


@dataclass(frozen=True, slots=True)
class Unlink:
    """A name was removed."""

    directory: str
    name: str


@dataclass(frozen=True, slots=True)
class FsyncDirectory:
    """The names in the directory are durable."""

    directory: str


@dataclass(frozen=True, slots=True)
class Mark:
    """What is promised from here on."""

    books: Books


FileChange: TypeAlias = Write | Truncate
NameChange: TypeAlias = Link | Rename | Unlink
Event: TypeAlias = FileChange | NameChange | Fsync | FailedFsync | FsyncDirectory | Mark
