"""The directory of one test run outside pytest's own: made once, removed at the end.

Of the processes that run the tests of one run side by side (pytest-xdist), each is a run here.

A run that is killed cannot remove its directory: the next one does, for every directory that no
living process holds. Merely importing the settings (as mypy's plugin for Django does, which leaves
without running exit handlers) makes nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

PREFIX = "deferred-tests-"
NEW_SECONDS = 60.0
"""A directory this new may not be locked yet by the run that makes it."""


def variable() -> str:
    """The environment variable that names the directory to the processes that tests start.

    Processes that run tests side by side inherit the environment of the one that started them;
    theirs are other variables, so that they share no store and no database.
    """
    process = os.environ.get("PYTEST_XDIST_WORKER")
    return "DEFERRED_TEST_BASE_DIR" + (f"_{process.upper()}" if process else "")


def of_this_run() -> Path:
    """The run's directory; the first caller names it. Nothing is made."""
    name = f"{PREFIX}{os.getpid()}-{os.urandom(4).hex()}"
    return Path(os.environ.setdefault(variable(), os.path.join(tempfile.gettempdir(), name)))


def make(directory: Path) -> None:
    """Make the directory, hold it until this process ends, and remove it then."""
    directory.mkdir(mode=0o700)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    atexit.register(_remove, directory, os.getpid())


def _remove(directory: Path, pid: int) -> None:
    if os.getpid() == pid:  # a forked child inherits the hook, not the directory
        shutil.rmtree(directory, ignore_errors=True)


def remove_stale(parent: Path) -> list[Path]:
    """Remove what killed runs of this user have left in ``parent``; return what that was."""
    removed = []
    for directory in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(
                directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            )
            try:
                status = os.fstat(descriptor)
                new = time.time() - status.st_mtime < NEW_SECONDS
                if not new and status.st_uid == os.geteuid():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(directory, ignore_errors=True)
                    removed.append(directory)
            finally:
                os.close(descriptor)
    return removed
