"""What a file says by ``docs/storage-format.md`` alone: slow, simple, and none of the store's code.

Everything is read at once and split at the newlines, so that what the store's readers do in blocks,
in steps and in bounded memory has something to be compared with.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from zlib import crc32

LOG_LIMIT = 64 * 1024 * 1024 + 9
DEAD_LIMIT = 448 * 1024 * 1024 + 9

_WORD = rb"[A-Za-z0-9_.-]"
_ADD = re.compile(
    rb"add:(%b{1,200}):(%b{1,100}):(-?[0-9]{1,18}):(-?[0-9]{1,5}):(%b{1,100}):(.*)"
    % (_WORD, _WORD, _WORD),
    re.DOTALL,
)
_RUN = re.compile(
    rb"run:(%b{1,200}):(%b{1,100}):(%b{1,100}):(%b{1,100}):(-?[0-9]{1,18})"
    % (_WORD, _WORD, _WORD, _WORD)
)
_END = re.compile(rb"(end|rem):(%b{1,200}):(%b{1,100})" % (_WORD, _WORD))
_DEAD = re.compile(rb"dead_task:(%b{1,200}):(.*)" % _WORD, re.DOTALL)

Run = tuple[str, str, int]
"""Worker, boot, time in ms."""


@dataclass
class Line:
    """A line that is not empty: where it is, what it is, and whether a newline ends it."""

    offset: int
    data: bytes
    ended: bool
    record: bytes | None
    """The body, if it is one of a record; what stands behind a NUL byte does not count."""


@dataclass
class Task:
    """A pending task."""

    offset: int
    length: int
    nonce: str
    publish_ms: int
    priority: int
    queue: str
    payload: bytes | None
    """``None``: it has escapes that nobody writes."""
    runs: list[Run] = field(default_factory=list)


@dataclass
class Reading:
    """What is in a file."""

    tasks: dict[str, Task] = field(default_factory=dict)
    dead: dict[str, bytes] = field(default_factory=dict)
    """The newest record of each id, the oldest first."""
    damage: list[int] = field(default_factory=list)
    """The offsets of the lines that no write left."""
    torn: int = 0


def is_record(line: bytes, limit: int) -> bool:
    """Whether the checksum is right and the length allowed."""
    return len(line) <= limit and line[:9] == b"%08x:" % crc32(line[9:])


def is_beginning(line: bytes) -> bool:
    """Whether a bad line can be the beginning of a record.

    One that is whole but for what stands in the place of its newline is not.
    """
    if is_record(line[:-1], len(line)):
        return False
    if len(line) < 9:
        return re.fullmatch(rb"[0-9a-f]{0,8}", line) is not None
    if re.fullmatch(rb"[0-9a-f]{8}:", line[:9]) is None:
        return False
    kind, colon, rest = line[9:].partition(b":")
    if re.fullmatch(rb"[a-z_]{0,20}", kind) is None:
        return False
    name, _, _ = rest.partition(b":")
    return not colon or re.fullmatch(rb"%b{0,200}" % _WORD, name) is not None


def split(content: bytes, limit: int) -> list[Line | None]:
    """The lines; ``None`` for an empty one."""
    pieces = content.split(b"\n")
    lines: list[Line | None] = []
    offset = 0
    for number, data in enumerate(pieces):
        ended = number < len(pieces) - 1
        record = None
        for candidate in (data, data.split(b"\0")[0]):
            if record is None and is_record(candidate, limit):
                record = candidate[9:]
        lines.append(Line(offset, data, ended, record) if data else None)
        offset += len(data) + 1
    return lines


def unescape(payload: bytes) -> bytes | None:
    """The context in a payload."""
    if re.fullmatch(rb"(?:[^\\]|\\[\\n0])*", payload, re.DOTALL) is None:
        return None
    meaning = {b"n": b"\n", b"0": b"\0", b"\\": b"\\"}
    return re.sub(rb"\\(.)", lambda m: meaning[m[1]], payload, flags=re.DOTALL)


def read_log(content: bytes, limit: int = LOG_LIMIT) -> Reading:
    """A segment that nobody appends to any more."""
    reading = Reading()
    lines = split(content, limit)
    for line, follower in zip(lines, [*lines[1:], None], strict=True):
        if line is None:
            continue
        if line.record is None:
            begun = is_beginning(line.data) and len(line.data) <= limit
            if begun and (follower is not None or not line.ended):
                reading.torn += 1
            else:
                reading.damage.append(line.offset)
            continue
        length = len(line.record) + 9
        if length < len(line.data):
            reading.torn += 1
        if not _apply(reading, line.offset, length, line.record):
            reading.damage.append(line.offset)
    return reading


def _apply(reading: Reading, offset: int, length: int, body: bytes) -> bool:
    added, run, end = (form.fullmatch(body) for form in (_ADD, _RUN, _END))
    if added is not None:
        name, nonce, publish, priority, queue, payload = added.groups()
        if not -32768 <= int(priority) <= 32767:
            return False
        reading.tasks.pop(name.decode(), None)
        reading.tasks[name.decode()] = Task(
            offset,
            length,
            nonce.decode(),
            int(publish),
            int(priority),
            queue.decode(),
            unescape(payload),
        )
        return True
    if run is not None:
        name, nonce, worker, boot, at = run.groups()
        task = reading.tasks.get(name.decode())
        start = (worker.decode(), boot.decode(), int(at))
        if task is not None and task.nonce == nonce.decode() and start not in task.runs:
            task.runs.append(start)
        return True
    if end is not None:
        operation, name, nonce = end.groups()
        task = reading.tasks.get(name.decode())
        if task is not None and task.nonce == nonce.decode():
            if operation == b"rem":
                del reading.tasks[name.decode()]
            elif task.runs:
                task.runs.pop()
        return True
    return False


def read_dead(content: bytes, limit: int = DEAD_LIMIT) -> Reading:
    """A dead-tasks file that nobody writes to at this moment."""
    reading = Reading()
    for line in split(content, limit):
        if line is None:
            continue
        record = line.record
        if record is not None and len(record) + 9 < len(line.data):
            if line.ended:  # only the end of the file can have been lost to zeros
                record = None
            else:
                reading.torn += 1
        if record is None:
            if line.ended:
                reading.damage.append(line.offset)
            elif line.record is None:
                reading.torn += 1
            continue
        found = _DEAD.fullmatch(record)
        if found is None:
            reading.damage.append(line.offset)
        else:
            reading.dead.pop(found[1].decode(), None)
            reading.dead[found[1].decode()] = found[2]
    return reading
