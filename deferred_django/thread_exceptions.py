"""Raising an exception in another thread: CPython's ``PyThreadState_SetAsyncExc``.

A thread has room for one such exception. It is raised between two bytecodes of whatever Python
code the thread runs next; a thread that is inside a call of C code finds it when that returns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

_SetAsyncExc = Callable[[int, type[BaseException] | None], int]


def raise_in(thread_id: int, kind: type[BaseException]) -> bool:
    """Have the thread raise an exception of that class; ``False`` if there is no such thread.

    The interpreter makes the instance, with no arguments, in that thread.
    """
    return _functions()[0](thread_id, kind) > 0


def withdraw(thread_id: int) -> None:
    """Take back what the thread has not raised yet, if there is anything."""
    _functions()[1](thread_id, None)


@functools.cache
def _functions() -> tuple[_SetAsyncExc, _SetAsyncExc]:
    # Only projects that set a timeout load ctypes. A prototype for each use: NULL is no object.
    import ctypes

    where = ("PyThreadState_SetAsyncExc", ctypes.pythonapi)
    # PYFUNCTYPE keeps the interpreter's lock: the call is one step among those of all threads.
    raising = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.py_object)(where)
    withdrawing = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p)(where)
    return raising, withdrawing
