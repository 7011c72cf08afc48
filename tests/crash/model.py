"""What a power cut may leave of a recorded operation.

A pure model, with nothing of the store in it. When the power goes after the first *n* events:

- a file has what its last fsync covered. Of each later write, and independently of the others, may
  be there: nothing, all, a beginning (the file ends there, or has grown and holds zeros where bytes
  did not arrive), or what lies behind a sector's edge. A later write that is there while an earlier
  one is not has zeros in front of it. A later change of the size is there or not.
- a name that was made, moved or removed since the directory's last fsync was so or was not, each
  independently of the others. A rename happens at once: its target is the old file or the new one.
- an fsync that failed covers nothing, and no later one covers what it did not: it is as likely
  lost as there.

A file system may promise more. The store does not count on it.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from tests.crash.books import Books
from tests.crash.events import (
    DIRECTORY,
    Event,
    FailedFsync,
    FileChange,
    Fsync,
    FsyncDirectory,
    Link,
    Mark,
    NameChange,
    Rename,
    Truncate,
    Unlink,
    Write,
)

SECTOR = 512
EVERY_BYTE_UP_TO = 256
LAST_BYTES = 9

Names: TypeAlias = dict[tuple[str, str], int]
Image: TypeAlias = tuple[tuple[str, bytes | None], ...]
"""The path below the root and the bytes of each file, sorted; a directory has ``None``."""
Choice: TypeAlias = tuple[int, ...]
"""For each thing that may be lost or there, which of its variants: 0 is lost, 1 is whole."""


@dataclass(frozen=True, slots=True)
class Arrived:
    """What is there of a write: the bytes from ``start`` to ``end``, in a file that had grown to
    hold ``size`` of them."""

    start: int
    end: int
    size: int


@lru_cache(maxsize=4096)
def variants_of(offset: int, length: int) -> tuple[Arrived, ...]:
    """All that may be there of a write of ``length`` bytes at ``offset``; lost and whole first."""
    first = offset + SECTOR - offset % SECTOR
    edges = [edge - offset for edge in range(first, offset + length, SECTOR)]
    cuts = {*range(1, min(length, EVERY_BYTE_UP_TO)), *range(length - LAST_BYTES, length), *edges}
    inside = sorted(cut for cut in cuts if 0 < cut < length)
    return (
        Arrived(0, 0, 0),
        Arrived(0, length, length),
        Arrived(0, 0, length),
        *(Arrived(0, cut, cut) for cut in inside),
        *(Arrived(0, cut, length) for cut in inside),
        *(Arrived(edge, length, length) for edge in edges),
    )


@dataclass(slots=True)
class _History:
    """The changes of one file since its recording began."""

    base: bytes
    changes: list[FileChange]
    durable: set[int]
    doubtful: set[int]
    """Those that a failed fsync was to cover."""


class CrashPoint:
    """One moment at which the power goes, with all that is open then."""

    def __init__(
        self,
        index: int,
        books: Books,
        names: Names,
        name_changes: Sequence[NameChange],
        histories: dict[int, _History],
    ) -> None:
        self.index = index
        """How many events had happened."""
        self.books = books
        self._names = names
        self._name_changes = name_changes
        self._histories = {
            number: _History(h.base, list(h.changes), set(h.durable), set())
            for number, h in histories.items()
        }
        self._open = [
            (number, position)
            for number, history in self._histories.items()
            for position in range(len(history.changes))
            if position not in history.durable
        ]
        self.counts = [2] * len(name_changes) + [self._count(*place) for place in self._open]
        """How many variants each open thing has."""

    def _count(self, number: int, position: int) -> int:
        change = self._histories[number].changes[position]
        if isinstance(change, Truncate):
            return 2
        return len(variants_of(change.offset, len(change.data)))

    def image(self, choice: Choice) -> Image:
        """The disk that this choice leaves."""
        names = dict(self._names)
        kept = len(self._name_changes)
        for change, chosen in zip(self._name_changes, choice[:kept], strict=True):
            if chosen:
                apply_name_change(names, change)
        picked = dict(zip(self._open, choice[kept:], strict=True))
        found: list[tuple[str, bytes | None]] = []
        for (directory, name), number in names.items():
            if not _is_reachable(directory, names):
                continue
            path = f"{directory}/{name}" if directory else name
            found.append((path, None if number == DIRECTORY else self._content(number, picked)))
        return tuple(sorted(found, key=_path))

    def _content(self, number: int, picked: dict[tuple[int, int], int]) -> bytes:
        history = self._histories[number]
        content = bytearray(history.base)
        for position, change in enumerate(history.changes):
            chosen = picked.get((number, position), 1)
            if isinstance(change, Truncate):
                if chosen:
                    del content[change.length :]
                    content.extend(bytes(change.length - len(content)))
                continue
            if not chosen:
                continue
            arrived = variants_of(change.offset, len(change.data))[chosen]
            size = change.offset + arrived.size
            content.extend(bytes(max(0, size - len(content))))
            start, end = change.offset + arrived.start, change.offset + arrived.end
            content[start:end] = change.data[arrived.start : arrived.end]
        return bytes(content)

    def choices(self, limit: int, chance: random.Random) -> Iterator[Choice]:
        """All choices if there are no more than ``limit``, else so many of them.

        Of many: first nothing and everything, then each thing lost or there while the others are
        not, then by halves each variant of one thing beside whole ones and combinations by chance.
        """
        if math.prod(self.counts) <= limit:
            yield from itertools.product(*map(range, self.counts))
            return
        several = len(self.counts) > 1
        yield from itertools.islice(self._extremes(), limit // 2 if several else limit)
        singles = [(at, v) for at, count in enumerate(self.counts) for v in range(2, count)]
        chance.shuffle(singles)
        rest = max(2, limit - min(limit // 2, 2 + 2 * len(self.counts)))
        for at, variant in singles[: rest // 2 if several else rest]:
            yield self._with(1, at, variant)
        for _ in range(rest // 2 if several else 0):
            yield tuple(self._by_chance(count, chance) for count in self.counts)

    @staticmethod
    def _by_chance(count: int, chance: random.Random) -> int:
        # Of a write: as often lost or whole as in parts.
        return chance.randrange(2) if chance.random() < 0.5 else chance.randrange(count)

    def _with(self, others: int, at: int, variant: int) -> Choice:
        return tuple(variant if i == at else others for i in range(len(self.counts)))

    def _extremes(self) -> Iterator[Choice]:
        yield (0,) * len(self.counts)
        yield (1,) * len(self.counts)
        for at in range(len(self.counts)):
            yield self._with(0, at, 1)
            yield self._with(1, at, 0)


def _path(entry: tuple[str, bytes | None]) -> str:
    return entry[0]


def _is_reachable(directory: str, names: Names) -> bool:
    while directory:
        parent, _, name = directory.rpartition("/")
        if (parent, name) not in names:
            return False
        directory = parent
    return True


def apply_name_change(names: Names, change: NameChange) -> None:
    """Do to a directory what was done."""
    if isinstance(change, Link):
        names[change.directory, change.name] = change.file
    elif isinstance(change, Rename):
        names.pop((change.directory, change.source), None)
        names[change.directory, change.target] = change.file
    else:
        names.pop((change.directory, change.name), None)


def crash_points(
    events: Sequence[Event], names: Names, contents: dict[int, bytes], books: Books
) -> Iterator[CrashPoint]:
    """The moments that matter: before each fsync and each change of a promise, and at the end.

    At any other moment the power leaves what it may leave at the next of these too.
    """
    names = dict(names)
    pending: list[NameChange] = []
    histories = {number: _History(data, [], set(), set()) for number, data in contents.items()}
    changed = True
    for index, event in enumerate(events):
        if isinstance(event, (Fsync, FsyncDirectory, Mark)) and changed:
            yield CrashPoint(index, books, dict(names), list(pending), histories)
            changed = False
        if isinstance(event, (Link, Rename, Unlink)):
            changed = True
            pending.append(event)
            if isinstance(event, Link) and event.file != DIRECTORY:
                histories[event.file] = _History(b"", [], set(), set())
        elif isinstance(event, (Write, Truncate)):
            changed = True
            histories[event.file].changes.append(event)
        elif isinstance(event, Fsync):
            history = histories[event.file]
            history.durable |= set(range(len(history.changes))) - history.doubtful
        elif isinstance(event, FailedFsync):
            history = histories[event.file]
            history.doubtful |= set(range(len(history.changes))) - history.durable
        elif isinstance(event, FsyncDirectory):
            for change in pending:
                if change.directory == event.directory:
                    apply_name_change(names, change)
            pending = [change for change in pending if change.directory != event.directory]
        else:
            books = event.books
            changed = True
    yield CrashPoint(len(events), books, dict(names), list(pending), histories)
