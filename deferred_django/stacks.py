"""Where code that has not raised anything is right now, as the traceback of an exception."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import CodeType, FrameType, TracebackType


def of_thread(thread_id: int, below: CodeType) -> TracebackType | None:
    """What the thread runs inside its innermost frame of the code ``below``.

    ``None`` if it is not inside such a frame, or in no other.
    """
    frames: list[FrameType] = []
    frame = sys._current_frames().get(thread_id)
    while frame is not None and frame.f_code is not below:
        frames.append(frame)
        frame = frame.f_back
    return _traceback(frames) if frame is not None else None


def of_awaitable(awaitable: object) -> TracebackType | None:
    """Where a suspended coroutine waits, and what it waits for, as far as that can be told."""
    frames: list[FrameType] = []
    seen = set()
    while awaitable is not None and id(awaitable) not in seen:
        seen.add(id(awaitable))
        # Of a coroutine, of a generator, of an asynchronous generator.
        for prefix, waits_for in (("cr", "await"), ("gi", "yieldfrom"), ("ag", "await")):
            frame = getattr(awaitable, f"{prefix}_frame", None)
            if isinstance(frame, FrameType):
                frames.append(frame)
                awaitable = getattr(awaitable, f"{prefix}_{waits_for}", None)
                break
        else:
            break
    return _traceback(reversed(frames))


def _traceback(innermost_first: Iterable[FrameType]) -> TracebackType | None:
    whole: TracebackType | None = None
    for frame in innermost_first:
        line = frame.f_lineno or frame.f_code.co_firstlineno
        whole = TracebackType(whole, frame, frame.f_lasti, line)
    return whole
