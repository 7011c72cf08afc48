"""Reading the whole dead-tasks file through to report what is not as it was written."""

from __future__ import annotations

from deferred_django.backends.base import Finding
from deferred_django.backends.disk import dead_tasks_file, files
from deferred_django.backends.disk.dead_tasks_file import READ, DeadTasksFile
from deferred_django.backends.disk.scanner import Damage, Scanner

_TRIES = 5


def verify(file: DeadTasksFile) -> list[Finding]:
    """What a read-through of the file finds wrong; it changes nothing and takes no lock."""
    try:
        with file.opened(READ) as fd:
            found = _findings(file.path, fd)
            for _ in range(_TRIES):
                # Believed when seen twice: an add may have been at work on the last line.
                again = _findings(file.path, fd) if found else found
                if again == found:
                    break
                found = again
            return found
    except FileNotFoundError:
        return []
    except OSError as error:
        return [_finding(file.path, "unreadable", None, str(error))]


def _findings(path: str, fd: int) -> list[Finding]:
    size = files.status(fd).st_size
    scanner = Scanner(newline_in_front=False)
    for offset, length, body in scanner.read(fd, size):
        if dead_tasks_file.id_of(body) is None:
            scanner.note_damage(Damage(offset, length, "a record that is no dead task's"))
    found = [
        _finding(path, "damage", damage.offset, f"{damage.length:,} bytes: {damage.reason}")
        for damage in scanner.damage
    ]
    further = scanner.damaged - len(scanner.damage)
    if further:
        found.append(_finding(path, "damage", None, f"{further:,} more bad places"))
    if scanner.torn_in_all:
        found.append(_finding(path, "torn", scanner.offset, "an unfinished write at the end"))
    return found


def _finding(path: str, kind: str, offset: int | None, detail: str) -> Finding:
    return Finding(file=path, offset=offset, kind=kind, detail=detail)
