"""What a supervisor sees of the time limits in its worker processes: memory that they share.

A process whose interpreter is held by C code can do nothing about its own deadlines. Each attempt
with a limit is therefore written here while it runs, which costs no system call.
"""

from __future__ import annotations

import mmap
import struct
from typing import Final

MAX_SLOTS: Final = 256
"""Attempts of one process that are seen; those of further threads are not."""
_SLOT: Final = struct.Struct("d100s")  # a deadline (monotonic; 0: none) and a task's id
_HEAD: Final = struct.Struct("q")  # how many slots were ever in use
_PROCESS_BYTES: Final = _HEAD.size + MAX_SLOTS * _SLOT.size


class BoardSlot:
    """The place of one thread."""

    __slots__ = ("_at", "_board", "_head", "_number")

    def __init__(self, board: mmap.mmap, start: int, number: int) -> None:
        self._board = board
        self._head = start
        self._number = number
        self._at = start + _HEAD.size + number * _SLOT.size

    def begin(self, deadline: float, task_id: str) -> None:
        """The thread begins with an attempt that is to end by then (monotonic)."""
        if _HEAD.unpack_from(self._board, self._head)[0] <= self._number:
            _HEAD.pack_into(self._board, self._head, self._number + 1)
        _SLOT.pack_into(self._board, self._at, deadline, task_id.encode("ascii", "replace"))

    def end(self) -> None:
        """It has ended, or is taken care of in its own process."""
        _SLOT.pack_into(self._board, self._at, 0.0, b"")


class LimitsBoard:
    """The places of all threads of all processes. Make it before the processes fork."""

    def __init__(self, processes: int) -> None:
        """Memory is taken only for what is written to."""
        self._board = mmap.mmap(-1, processes * _PROCESS_BYTES)

    def slot(self, process: int, thread: int) -> BoardSlot | None:
        """The place of a thread, if there is one."""
        if thread >= MAX_SLOTS:
            return None
        return BoardSlot(self._board, process * _PROCESS_BYTES, thread)

    def clear(self, process: int) -> None:
        """A new process begins there."""
        start = process * _PROCESS_BYTES
        for number in range(_HEAD.unpack_from(self._board, start)[0]):
            BoardSlot(self._board, start, number).end()

    def in_use(self, process: int) -> bool:
        """Whether any attempt of the process ever had a limit."""
        return bool(_HEAD.unpack_from(self._board, process * _PROCESS_BYTES)[0])

    def overdue(self, process: int, moment: float) -> dict[str, float]:
        """The ids of attempts that were to end before that moment, and when."""
        start = process * _PROCESS_BYTES
        found = {}
        for number in range(_HEAD.unpack_from(self._board, start)[0]):
            at = start + _HEAD.size + number * _SLOT.size
            deadline, task_id = _SLOT.unpack_from(self._board, at)
            if 0 < deadline < moment:
                found[task_id.rstrip(b"\0").decode("ascii", "replace")] = deadline
        return found
