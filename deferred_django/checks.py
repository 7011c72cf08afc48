"""System checks of the ``DEFERRED`` setting and of the place that it names.

Errors (``deferred_django.E…``) are what :mod:`deferred_django.conf` finds wrong.
Warnings are about what may differ between where the checks run and where the project does, such as
the place, and about what is valid and can hardly be meant.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from deferred_django import conf, schedule_checks
from deferred_django.backends.disk import ofd
from deferred_django.conf_wording import named
from deferred_django.middleware_setting import ENQUEUE_KEY, LOG_CONTEXT_KEY, PERFORM_KEY

TAG: Final = schedule_checks.TAG
MOUNTS: Final = "/proc/self/mountinfo"
NETWORK_FILE_SYSTEMS: Final = frozenset(
    {
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "fuse.glusterfs",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "smb3",
        "smbfs",
    }
)
"""File systems of other hosts: their locks and fsync may not mean what the store relies on."""


def register() -> None:
    """Let Django's ``check`` run the checks of this module."""
    checks.register(check_setting, TAG)
    checks.register(check_log_context, TAG)
    checks.register(check_place, TAG)
    checks.register(schedule_checks.check_schedule, TAG)


def check_setting(**kwargs: Any) -> list[checks.CheckMessage]:
    """The setting's keys, types and values."""
    return [
        checks.Error(problem.message, hint=problem.hint, id=f"{TAG}.{problem.code}")
        for problem in conf.problems()
    ]


def check_log_context(**kwargs: Any) -> list[checks.CheckMessage]:
    """Whether anything can carry the context variables that are listed.

    Middleware of the project may call what is shipped: only where there is none is it certain.
    """
    try:
        features = conf.load().features
    except ImproperlyConfigured:  # reported by check_setting
        return []
    missing = [
        key
        for key, middleware in (
            (ENQUEUE_KEY, features.enqueue_middleware),
            (PERFORM_KEY, features.perform_middleware),
        )
        if not middleware
    ]
    if not features.log_context_vars or not missing:
        return []
    return [
        checks.Warning(
            f"{named(LOG_CONTEXT_KEY)} has no effect: there is no {' and no '.join(missing)}.",
            hint=f'List "deferred_django.middleware.carry_log_context" in {ENQUEUE_KEY} and '
            f'"deferred_django.middleware.log_context" in {PERFORM_KEY}.',
            id=f"{TAG}.W005",
        )
    ]


def check_place(**kwargs: Any) -> list[checks.CheckMessage]:
    """Whether the disk backend can work in its directory."""
    try:
        loaded = conf.load()
    except ImproperlyConfigured:  # reported by check_setting
        return []
    if not ofd.locks_are_supported():  # then the disk backend cannot be imported
        return []
    from deferred_django.backends.disk import DiskBackend

    if not issubclass(loaded.backend_class, DiskBackend):
        return []
    found: list[checks.CheckMessage] = []
    path = loaded.config.path
    why = cannot_be_written(path)
    if why is not None:
        found.append(
            checks.Warning(
                f'DEFERRED["PATH"] cannot be written: {why}.',
                hint="Tasks can be neither enqueued nor run until it can.",
                id=f"{TAG}.W001",
            )
        )
    file_system = file_system_of(path)
    if file_system in NETWORK_FILE_SYSTEMS:
        found.append(
            checks.Warning(
                f'DEFERRED["PATH"], {path}, is on a network file system ({file_system}), where '
                "locks and fsync may not hold: tasks may be lost or run twice.",
                hint=f"Use a local disk, or set the backend to {conf.other_backends()}.",
                id=f"{TAG}.W002",
            )
        )
    return found


def cannot_be_written(path: Path) -> str | None:
    """Why no store can be kept in ``path``; ``None`` if it can. Creates nothing."""
    place = _nearest_existing(path)
    if not place.is_dir():
        return f"{place} is not a directory"
    if not os.access(place, os.W_OK | os.X_OK):
        return f"{place} is not writable for this user"
    return None


def file_system_of(path: Path, mounts: str = MOUNTS) -> str | None:
    """The type of the file system that ``path`` is, or would be made, on; ``None`` if unknown."""
    place = os.path.realpath(_nearest_existing(path))
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:  # not Linux
        return None
    best, answer = -1, None
    for line in lines:
        # "36 35 98:0 /root /mount\040point rw,noatime master:1 - ext3 /dev/root rw": see proc(5).
        before, separator, after = line.partition(" - ")
        fields = before.split(" ")
        if not separator or len(fields) < 5:
            continue
        mount_point = _unescaped(fields[4])
        # Of two mounts on one point the later hides the earlier.
        if len(mount_point) >= best and _is_below(place, mount_point):
            best, answer = len(mount_point), after.split(" ")[0]
    return answer


def _nearest_existing(path: Path) -> Path:
    for candidate in (path, *path.parents):
        try:
            candidate.lstat()
        except FileNotFoundError:
            continue
        except OSError:  # below a file, or in a directory that may not be searched
            continue
        return candidate
    return Path("/")


def _is_below(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def _unescaped(field: str) -> str:
    # The kernel writes space, tab, newline and backslash as three octal digits.
    parts: Sequence[str] = field.split("\\")
    return parts[0] + "".join(chr(int(part[:3], 8)) + part[3:] for part in parts[1:])
