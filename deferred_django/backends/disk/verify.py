"""Reading a whole store through, changing nothing."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable

from deferred_django.backends.base import Finding
from deferred_django.backends.disk import files, survey
from deferred_django.backends.disk.names import StoreNames
from deferred_django.backends.disk.scanner import Damage
from deferred_django.backends.disk.segment import Entry, Segment


def verify_segments(names: StoreNames) -> list[Finding]:
    """What is wrong in the segments, those included that were kept because of damage."""
    found: list[Finding] = []
    for name in [*names.segments(), *names.asides()]:
        path = names.at(name)
        try:
            found += _verify(path, name)
        except FileNotFoundError as error:
            if os.path.islink(path):  # to nowhere; else it was drained and erased meanwhile
                found.append(_unreadable(path, error))
        except OSError as error:
            found.append(_unreadable(path, error))
    return found


def verify_other_files(paths: Iterable[str]) -> list[Finding]:
    """Files of which only the name and the kind matter: what is no regular file is in the way."""
    found: list[Finding] = []
    for path in paths:
        try:
            if not stat.S_ISREG(os.stat(path).st_mode):
                error = OSError(errno.EINVAL, "is not a regular file", path)
                found.append(_unreadable(path, error))
        except FileNotFoundError as error:
            if os.path.islink(path):
                found.append(_unreadable(path, error))
        except OSError as error:
            found.append(_unreadable(path, error))
    return found


def _unreadable(path: str, error: OSError) -> Finding:
    return Finding(file=path, offset=None, kind="unreadable", detail=str(error))


def _verify(path: str, name: str) -> list[Finding]:
    segment = Segment.open(name, path)
    try:
        segment.read_on()
        size = files.status(segment.fd).st_size
        scanner = segment.scanner
        scanner.at_end()
        for row, line in survey.lines(segment, segment.table.live_rows()):
            entry = Entry(segment, row)
            try:
                entry.name(line if len(line) == entry.length else segment.line(entry))
            except ValueError as error:
                scanner.note_damage(Damage(entry.offset, entry.length, str(error)))
        found = [
            Finding(file=path, offset=damage.offset, kind="damage", detail=damage.reason)
            for damage in sorted(scanner.damage, key=lambda damage: damage.offset)
        ]
        further = scanner.damaged - len(scanner.damage)
        if further:
            found.append(
                Finding(file=path, offset=None, kind="damage", detail=f"{further} more bad places")
            )
        if scanner.torn_in_all:
            found.append(
                Finding(
                    file=path,
                    offset=scanner.offset if scanner.offset < size else None,
                    kind="torn",
                    detail=f"unfinished writes: {scanner.torn_in_all:,}",
                )
            )
        return found
    finally:
        segment.close()
