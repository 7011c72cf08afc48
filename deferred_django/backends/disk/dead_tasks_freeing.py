"""Giving a large file's blocks back bit by bit, so that no add waits for all of them.

The last one to close a file without a name frees its blocks at once. For a gigabyte that can keep
the file system's journal busy for a second (each block is discarded on disks that are told so),
and the ``fsync`` of an add waits for the journal.
"""

from __future__ import annotations

import contextlib

from deferred_django.backends.disk import files, ofd

STEP_BYTES = 32 * 1024 * 1024


def free(fd: int) -> None:
    """Shrink a file that has lost its name step by step, before it is closed.

    Nothing is done to a file that has a name, as an operator's hard link, nor to one that somebody
    reads. Who opens it by a path that was looked up before the name went sees that it has none,
    and opens the path again (:meth:`.DeadTasksFile.open`).
    """
    with contextlib.suppress(OSError):  # the rest is freed when it is closed
        info = files.status(fd)
        if info.st_size <= 2 * STEP_BYTES or info.st_nlink or ofd.is_open_elsewhere(fd):
            return
        for size in range(info.st_size - STEP_BYTES, 0, -STEP_BYTES):
            files.truncate(fd, size)
            files.fsync(fd)  # the pause in which others have their turn
