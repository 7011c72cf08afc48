"""Which bytes of a segment are locked for what.

All are write locks of the open file description (see :mod:`.files`). *Ownership*, one byte far
behind any record, is held by the one process that appends new tasks. A *claim* is the bytes of one
task's ``add`` record; the *tail* is a claim on whatever the owner is about to append. *Whole*
covers both and is taken on a descriptor of its own, so that it fails while anybody, this process
included, owns the segment or holds a claim in it.
"""

from __future__ import annotations

import contextlib

from deferred_django.backends.disk import files

OWNERSHIP_BYTE = 1 << 62
_TO_THE_END = 0


def try_ownership(fd: int) -> bool:
    """Become the one that appends new tasks."""
    return files.try_lock(fd, OWNERSHIP_BYTE, 1)


def release_ownership(fd: int) -> None:
    """Let another process append."""
    files.unlock(fd, OWNERSHIP_BYTE, 1)


def is_owned(fd: int) -> bool:
    """Whether another descriptor owns the segment."""
    return files.lock_is_held(fd, OWNERSHIP_BYTE, 1)


def has_claims(fd: int) -> bool:
    """Whether another descriptor claims any record."""
    return files.lock_is_held(fd, 0, OWNERSHIP_BYTE)


def try_tail(fd: int, start: int) -> bool:
    """Claim whatever will be written behind ``start``, if nobody claims anything there."""
    return files.try_lock(fd, start, OWNERSHIP_BYTE - start)


def release_tail(fd: int, start: int) -> None:
    """Let others claim what is there."""
    files.unlock(fd, start, OWNERSHIP_BYTE - start)


def try_whole(fd: int) -> bool:
    """Take the whole file, if nobody owns it or claims in it."""
    return files.try_lock(fd, 0, _TO_THE_END)


def is_whole_free(fd: int) -> bool:
    """Whether :func:`try_whole` on another descriptor could succeed now."""
    return not files.lock_is_held(fd, 0, _TO_THE_END)


def close_whole(fd: int) -> None:
    """Let go of everything on this descriptor and close it: that alone frees its locks too.

    (Not where a child forked by C code shares it, hence the unlock.)
    """
    try:
        with contextlib.suppress(OSError):
            files.unlock(fd, 0, _TO_THE_END)
    finally:
        files.close(fd)
