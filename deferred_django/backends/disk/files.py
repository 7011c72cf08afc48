"""Every call that matters for durability or exclusion, and so more than 300 lines.

The rest of the disk backend calls these functions through the module (``files.fsync(fd)``), so
that a test can replace any one of them (:data:`CALLS`) to record, pause or fail it. Each raises
``OSError`` naming the file.

It is longer than 300 lines because this is one place on purpose.

Locks
    ``F_OFD_SETLK`` byte-range locks belong to the open file description: threads that share a
    descriptor do not exclude each other (the storage's own table does), and two descriptors of
    one process do. An explicit unlock precedes each close, since a child forked by C code could
    still hold the description.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from typing import Final

from deferred_django.backends.disk import descriptors, ofd

CALLS: Final = (
    "open_file",
    "create_file",
    "close",
    "read_at",
    "write",
    "write_at",
    "touch",
    "fsync",
    "fsync_directory",
    "rename",
    "truncate",
    "unlink",
    "make_directory",
    "try_lock",
    "unlock",
    "lock_is_held",
    "try_flock",
    "wait_flock",
    "unlock_flock",
    "is_at_path",
)
"""The functions that a fault, a pause or a record is injected into."""


def _path_of(fd: int) -> str:
    return descriptors.paths.get(fd, f"descriptor {fd}")


@contextlib.contextmanager
def _named(fd: int) -> Iterator[None]:
    # A call on a descriptor raises an error without a name; people need the file's. (The calls
    # that each task costs have the same three lines in them, at a fifth of the price.)
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = _path_of(fd)
        raise


# -- opening -----------------------------------------------------------------------------------


def open_file(path: str, flags: int) -> int:
    """Open an existing regular file; ``OSError`` if it is anything else (a FIFO never blocks)."""
    with descriptors.mutex:
        fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK)
        descriptors.paths[fd] = path
    try:
        if not stat.S_ISREG(status(fd).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", path)
    except BaseException:
        close(fd)
        raise
    return fd


def create_file(path: str, flags: int, permissions: int, like: os.stat_result | None = None) -> int:
    """Make a file that must not exist yet (``FileExistsError``) and open it.

    It gets exactly ``permissions`` whatever the umask. Made by root it gets the owner of its
    directory, so that an administrator's shell leaves nothing that the web user cannot read.
    With ``like`` it gets that file's mode and, for root, its owner instead.
    """
    with descriptors.mutex:
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, permissions)
        descriptors.paths[fd] = path
    try:
        with _named(fd):
            os.fchmod(fd, stat.S_IMODE(like.st_mode) if like else permissions)
            if os.geteuid() == 0:
                owner = like or os.stat(os.path.dirname(path) or ".")
                os.fchown(fd, owner.st_uid, owner.st_gid)
            elif like is not None and like.st_gid != os.fstat(fd).st_gid:
                with contextlib.suppress(PermissionError):  # only members give a file to a group
                    os.fchown(fd, -1, like.st_gid)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        close(fd)
        raise
    return fd


def close(fd: int) -> None:
    """Close a descriptor of the table. The caller has released its locks.

    What a file system says on this occasion (``EIO``, ``EDQUOT``) changes nothing: the descriptor
    is gone, and what is durable was told by :func:`fsync`.
    """
    with descriptors.mutex:
        descriptors.paths.pop(fd, None)
        try:
            os.close(fd)
        except OSError as error:
            if error.errno == errno.EBADF:
                raise


def directory_permissions(file_permissions: int) -> int:
    """The mode of a directory made for files of this mode: who may read them may look them up."""
    return file_permissions | (file_permissions & 0o444) >> 2 | 0o700


def make_directory(path: str, file_permissions: int) -> None:
    """Make ``path`` and its missing parents; each new name is durable when this returns."""
    missing = []
    current = os.path.abspath(path)
    while not is_directory(current):
        missing.append(current)
        current = os.path.dirname(current)
    if missing:
        # Another process may have made the rest of the way, and have died before its fsync.
        fsync_parent(current)
    for directory in reversed(missing):
        parent = os.path.dirname(directory)
        try:
            os.mkdir(directory, 0o700)
        except FileExistsError:
            refuse_link_to_nowhere(directory)
            if not is_directory(directory):
                raise NotADirectoryError(
                    errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory
                ) from None
        else:
            os.chmod(directory, directory_permissions(file_permissions))
            if os.geteuid() == 0:
                owner = os.stat(parent)
                os.chown(directory, owner.st_uid, owner.st_gid)
        fsync_directory(parent)


def is_directory(path: str) -> bool:
    """Whether there is a directory; ``OSError`` if that cannot be found out.

    (``os.path.isdir`` takes a disk that fails for one without the directory.)
    """
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def refuse_link_to_nowhere(path: str) -> None:
    """``NotADirectoryError`` if a directory's name is a link to nothing.

    What it should lead to is not mounted, or was moved: that is no empty store.
    """
    if os.path.islink(path) and not is_directory(path):
        raise NotADirectoryError(errno.ENOTDIR, "is a link that leads to no directory", path)


def resolved(path: str) -> str:
    """The path without symbolic links; ``OSError`` if they cannot be read.

    (``os.path.realpath`` takes a link that it cannot read for a file.)
    """
    try:
        return os.path.realpath(path, strict=True)
    except FileNotFoundError:
        return os.path.realpath(path)


# -- reading and writing -----------------------------------------------------------------------


def status(fd: int) -> os.stat_result:
    """``fstat``."""
    try:
        return os.fstat(fd)
    except OSError as error:
        error.filename = _path_of(fd)
        raise


def read_at(fd: int, size: int, offset: int) -> bytes:
    """Up to ``size`` bytes from ``offset``."""
    try:
        return os.pread(fd, size, offset)
    except OSError as error:
        error.filename = _path_of(fd)
        raise


def write(fd: int, data: bytes) -> int:
    """One ``write()``; returns how many bytes were taken, which may be fewer."""
    try:
        return os.write(fd, data)
    except OSError as error:
        error.filename = _path_of(fd)
        raise


def write_at(fd: int, data: bytes, offset: int) -> int:
    """One ``pwrite()`` to a file not opened for appending; returns how many bytes were taken."""
    with _named(fd):
        return os.pwrite(fd, data, offset)


def touch(fd: int) -> None:
    """Let the file's time of modification be now."""
    with _named(fd):
        os.utime(fd)


def end_of_write(fd: int) -> int:
    """Where the last :func:`write` of this descriptor, which has one writer, ended in the file."""
    return os.lseek(fd, 0, os.SEEK_CUR)


def append_record(fd: int, record: bytes) -> None:
    """Append a record that ends in a newline by one :func:`write`.

    A write that is short by that newline alone is a success: the reader takes a tail with a good
    checksum, and the next record begins with a newline of its own. Any other short write raises
    ``OSError`` and is left as it is, since others may have appended behind it already.
    """
    written = write(fd, record)
    if written < len(record) - 1:
        raise OSError(
            errno.ENOSPC,
            f"only {written} of {len(record)} bytes could be written (is the disk full?)",
            _path_of(fd),
        )


def fsync(fd: int) -> None:
    """Make the file's bytes durable."""
    with _named(fd):
        if not ofd.full_fsync(fd):
            os.fsync(fd)


def fsync_directory(path: str) -> None:
    """Make the names in a directory durable."""
    with descriptors.mutex:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        descriptors.paths[fd] = path
    try:
        with _named(fd):
            os.fsync(fd)
    finally:
        close(fd)


def fsync_parent(path: str) -> None:
    """Make the name of a directory durable: another process may have made it and died before.

    A parent that this user may not or cannot fsync was not changed by this user either.
    """
    try:
        fsync_directory(os.path.dirname(os.path.abspath(path)))
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EINVAL):
            raise


def rename(source: str, target: str) -> None:
    """Give a file another name, replacing what has it. Durable after :func:`fsync_directory`."""
    os.rename(source, target)


def truncate(fd: int, length: int) -> None:
    """Cut the file off at ``length`` bytes."""
    with _named(fd):
        os.ftruncate(fd, length)


def unlink(path: str) -> None:
    """Remove a name; ``FileNotFoundError`` if there is none."""
    os.unlink(path)


def is_at_path(fd: int, path: str) -> bool:
    """Whether the open file is the one that the path names now.

    While ``fd`` is open its inode number cannot be given to another file, so the comparison is
    certain; between two opens it would not be.
    """
    try:
        there = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    here = status(fd)
    return here.st_nlink > 0 and here.st_ino == there.st_ino and here.st_dev == there.st_dev


# -- locks -------------------------------------------------------------------------------------


def try_lock(fd: int, start: int, length: int) -> bool:
    """Take the write lock on a byte range; ``False`` if another descriptor has a part of it."""
    try:
        fcntl.fcntl(fd, ofd.SETLK, ofd.pack(fcntl.F_WRLCK, start, length))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        error.filename = _path_of(fd)
        raise
    return True


def unlock(fd: int, start: int, length: int) -> None:
    """Let go of a byte range."""
    try:
        fcntl.fcntl(fd, ofd.SETLK, ofd.pack(fcntl.F_UNLCK, start, length))
    except OSError as error:
        error.filename = _path_of(fd)
        raise


def lock_is_held(fd: int, start: int, length: int) -> bool:
    """Whether another descriptor holds a part of the range; takes nothing."""
    with _named(fd):
        answer = fcntl.fcntl(fd, ofd.GETLK, ofd.pack(fcntl.F_WRLCK, start, length))
    return ofd.kind_of(answer) != fcntl.F_UNLCK


def try_flock(fd: int) -> bool:
    """Take the ``flock`` of the whole file without waiting."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        error.filename = _path_of(fd)
        raise
    return True


def wait_flock(fd: int) -> None:
    """Take the ``flock`` of the whole file, waiting in the kernel's queue, which is fair."""
    with _named(fd):
        fcntl.flock(fd, fcntl.LOCK_EX)


def unlock_flock(fd: int) -> None:
    """Let go of the ``flock``."""
    with _named(fd):
        fcntl.flock(fd, fcntl.LOCK_UN)
