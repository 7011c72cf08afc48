"""The rules of ``docs/storage-format.md`` for reading, once more and as plainly as they can be put.

What this finds in an image is what the store must find there, no less and no more. It shares no
code with the package.
"""

from __future__ import annotations

import re
import zlib

from tests.crash.books import Pending


def _body(line: bytes) -> bytes | None:
    """The body of a record, if the line is one."""
    if len(line) > 9 and line[8:9] == b":" and line[:8] == b"%08x" % zlib.crc32(line[9:]):
        return line[9:]
    return None


def _bodies(data: bytes, *, nuls_anywhere: bool) -> list[bytes]:
    """The bodies of all records.

    Zeros behind a record are what a power cut leaves of bytes that did not arrive: at the end of a
    file, and in the log, where others append behind them, at the end of any line.
    """
    found = []
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        body = _body(line)
        if body is None and (nuls_anywhere or number == len(lines)):
            body = _body(line.rstrip(b"\0"))
        if body is not None:
            found.append(body)
    return found


def live_tasks(segment: bytes) -> dict[str, Pending]:
    """The pending tasks of a segment."""
    adds: dict[str, tuple[str, bytes]] = {}
    runs: dict[str, list[bytes]] = {}
    for body in _bodies(segment, nuls_anywhere=True):
        op, task_id, nonce, rest = (*body.decode("latin-1").split(":", 3), "")[:4]
        if op == "add":
            payload = rest.split(":", 3)[3].encode("latin-1")
            adds[task_id], runs[task_id] = (nonce, payload), []
        elif adds.get(task_id, ("",))[0] != nonce:
            continue
        elif op == "rem":
            del adds[task_id]
        elif op == "end":
            del runs[task_id][-1:]
        elif op == "run" and body not in runs[task_id]:
            runs[task_id].append(body)
    return {
        task_id: Pending(_unescaped(payload), len(runs[task_id]))
        for task_id, (_, payload) in adds.items()
    }


def _unescaped(payload: bytes) -> bytes:
    meanings = {b"\\\\": b"\\", b"\\n": b"\n"}
    return re.sub(rb"\\.", lambda match: meanings[match[0]], payload)


def dead_tasks(file: bytes) -> dict[str, bytes]:
    """The newest record of each id."""
    found = {}
    for body in _bodies(file, nuls_anywhere=False):
        kind, task_id, record = body.split(b":", 2)
        assert kind == b"dead_task", body
        found[task_id.decode("ascii")] = record
    return found
