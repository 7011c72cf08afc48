"""A disk of some KiB of its own, which a test fills up and gives room again."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

PAGE = 4096


class SmallDisk:
    """A tmpfs at ``path``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._filler = path / "filler"

    def fill(self) -> None:
        """Leave room for nothing but what the last pages of files have left."""
        with open(self._filler, "ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 1024)

    def free(self) -> None:
        """Give the room back."""
        self._filler.unlink()

    def grow(self, kib: int) -> None:
        """Make the disk larger."""
        _mount("-o", f"remount,size={kib}k", str(self.path))


def _mount(*arguments: str) -> str:
    done = subprocess.run(["mount", *arguments], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stderr.strip() or "mount failed"


@contextlib.contextmanager
def small_disk(path: Path, kib: int = 64) -> Iterator[SmallDisk]:
    """Mount one, or skip the test: it takes root, or ``unshare -rm`` around the whole run."""
    path.mkdir(parents=True, exist_ok=True)
    try:
        refused = _mount("-t", "tmpfs", "-o", f"size={kib}k", "none", str(path))
    except FileNotFoundError:
        refused = "there is no mount command"
    if refused:
        pytest.skip(f"no small disk can be mounted ({refused}); try `unshare -rm python -m pytest`")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def room_in_last_page(path: Path) -> int:
    """How many bytes can be appended to a file on a full disk."""
    return -os.stat(path).st_size % PAGE
