"""Helpers for the whole suite: bounded waits, and processes that run a piece of code."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

REPOSITORY = Path(__file__).resolve().parent.parent


def wait_until(condition: Callable[[], T], timeout: float = 10.0, what: str = "") -> T:
    """Ask ``condition`` every 5 ms until its answer is true, and return that answer.

    After ``timeout`` seconds the test fails with ``what``, or the condition's name.
    """
    deadline = time.monotonic() + timeout
    while True:
        # The clock is read first, so that a condition is always asked once after the last pause.
        late = time.monotonic() >= deadline
        answer = condition()
        if answer:
            return answer
        if late:
            name = what or getattr(condition, "__name__", repr(condition))
            raise AssertionError(f"not within {timeout:g} s: {name} (last answer: {answer!r})")
        time.sleep(0.005)


def environment(**extra: str) -> dict[str, str]:
    """The environment for a process that imports this repository's packages."""
    env = {**os.environ, **extra}
    paths = [str(REPOSITORY), env.get("PYTHONPATH", "")]
    env["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return env


def run_python(
    code: str,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    timeout: float = 60.0,
    check: bool = True,
) -> subprocess.CompletedProcess[str]:
    """Run ``code`` in a Python process of its own, wait for its end, return what it printed.

    With ``check`` an exit code other than 0 fails the test and shows both streams.
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        env=environment(**(env or {})),
        cwd=cwd,
        timeout=timeout,
        check=False,
    )
    if check and done.returncode != 0:
        raise AssertionError(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


def start_python(
    code: str,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
) -> subprocess.Popen[str]:
    """Start ``code`` in a Python process of its own, with pipes to all three of its streams.

    Use it as a context manager and end it inside the block (``kill``, ``wait``, closed stdin).
    """
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**(env or {})),
        cwd=cwd,
    )
