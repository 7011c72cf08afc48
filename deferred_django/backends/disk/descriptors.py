"""The table of the store's open descriptors, and what a fork does to them.

A child that ``os.fork`` makes inherits open-file-description locks and ``flock`` with the
descriptors, and would keep them after its parent's death. Every descriptor of the store is
therefore in one table, and the fork hook closes them all in the child at once, without unlocking
(an unlock in the child would free the parent's lock). The mutex is held around open→register and
unregister→close and by the forking thread, so that no child is made between the two. What was
built on the descriptors is told through :func:`on_fork`.

Children forked by C code pass by this hook: they must close what they inherit themselves.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable

# Reentrant: a signal handler that forks while this thread opens a file must not wait for itself.
mutex = threading.RLock()
paths: dict[int, str] = {}
_fork_callbacks: list[weakref.WeakMethod[Callable[[], None]]] = []


def on_fork(method: Callable[[], None]) -> None:
    """Call the bound ``method`` in each forked child, after the descriptors were closed.

    Its object is referenced weakly. The method must make new locks and forget all descriptors.
    """
    with mutex:
        _fork_callbacks[:] = [callback for callback in _fork_callbacks if callback() is not None]
        _fork_callbacks.append(weakref.WeakMethod(method))


def _before_fork() -> None:
    mutex.acquire()


def _after_fork_in_parent() -> None:
    mutex.release()


def _after_fork_in_child() -> None:
    global mutex
    mutex = threading.RLock()
    for fd in paths:
        with contextlib.suppress(OSError):
            os.close(fd)
    paths.clear()
    for reference in _fork_callbacks:
        callback = reference()
        if callback is not None:
            callback()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)


def open_descriptors() -> dict[int, str]:
    """The store's open descriptors and the paths they were opened by (a copy)."""
    with mutex:
        return dict(paths)


def register(fd: int, path: str) -> int:
    """Put a descriptor that another call made (inotify, a pipe) into the table."""
    with mutex:
        paths[fd] = path
    return fd
