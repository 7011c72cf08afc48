"""A command on a pseudo-terminal: what a person sees and types."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tests.harness import Project

# A session's first terminal is its own: Ctrl-C typed there is a signal. Who runs the tests may have
# it ignored, as a shell does for what it runs in the background.
TAKE_TERMINAL = """\
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.close(os.open(os.ttyname(0), os.O_RDWR))
os.execv(sys.argv[1], sys.argv[1:])
"""
# One process for all of them: most of a command's time is Django's start.
RUN = """\
import json, sys
from django.core.management import execute_from_command_line
for command in json.loads(sys.argv[1]):
    execute_from_command_line(["manage.py", *command])
"""
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
CTRL_C = b"\x03"
Key = bytes | Callable[[], bytes]


@dataclass(frozen=True)
class Session:
    """How a command on a terminal ended, and all that it wrote."""

    code: int
    written: bytes

    @property
    def text(self) -> str:
        """What was written, without colours and carriage returns."""
        return COLOUR.sub("", self.written.decode("utf-8").replace("\r\n", "\n"))


def on_terminal(
    project: Project,
    *commands: Sequence[str],
    columns: int = 80,
    keys: Sequence[tuple[str, Key]] = (),
    env: Mapping[str, str] | None = None,
    timeout: float = 30.0,
) -> Session:
    """Run these commands of ``manage.py``, one after the other, on a terminal of this width.

    The first that fails ends the session. Each of ``keys`` is a text to
    wait for and what is typed then, or what gives it.
    """
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, columns))
    environment = {**project.env, "TERM": "xterm-256color", **(env or {})}
    environment.pop("COLUMNS", None)
    process = subprocess.Popen(
        [sys.executable, "-ISc", TAKE_TERMINAL, sys.executable, "-c", RUN, json.dumps(commands)],
        cwd=project.path,
        env=environment,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    try:
        written = _converse(master, list(keys), time.monotonic() + timeout)
        return Session(process.wait(timeout), written)
    finally:
        process.kill()
        process.wait()
        os.close(master)


def _converse(master: int, keys: list[tuple[str, Key]], deadline: float) -> bytes:
    written = bytearray()
    typed = b""
    while True:
        left = max(deadline - time.monotonic(), 0)
        # A Ctrl-C just before the process begins to read is noted but does not end the read. A
        # person presses it again.
        pause = min(left, 1.0) if typed == CTRL_C else left
        if not select.select([master], [], [], pause)[0]:
            assert pause < left, f"too late; so far: {written!r}"
            os.write(master, typed)
            continue
        try:
            data = os.read(master, 65536)
        except OSError:  # Linux's way to say that nobody has the terminal open any more
            data = b""
        if not data:
            assert not keys, f"nobody asked {keys[0][0]!r}: {written!r}"
            return bytes(written)
        written += data
        if data.strip(b"^C\r\n"):
            typed = b""  # more than the echo: there is an answer, whatever it says
        if keys and keys[0][0].encode() in written:
            _, key = keys.pop(0)
            typed = key if isinstance(key, bytes) else key()
            os.write(master, typed)
