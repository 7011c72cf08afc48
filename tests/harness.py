"""A throw-away Django project in a directory, run by real processes.

The project has one app, ``app``, whose ``tasks`` module is the text that the test gives. Tasks
tell the test what happened through :func:`note`, which appends a line to a file by one write, so
that lines of many processes never mix; :meth:`Project.notes` reads them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent

SETTINGS = """\
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent
SECRET_KEY = "not a secret"
INSTALLED_APPS = ["deferred_django", "app"]
DATABASES = {}
USE_TZ = True
DEFERRED = {"PATH": BASE_DIR / "storage"}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(levelname)s %(name)s: %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "loggers": {"deferred_django": {"handlers": ["stderr"], "level": "INFO"}},
}
"""

TASKS = '''\
import asyncio
import os
import signal
import sys
import time
from pathlib import Path

from deferred_django import current_task, deferred

NOTES = Path(__file__).resolve().parent.parent / "notes.txt"


def note(*words):
    """Append the words as one line to the notes of the project."""
    fd = os.open(NOTES, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, (" ".join(map(str, words)) + "\\n").encode())
    finally:
        os.close(fd)


def wait_for_file(name, timeout=30):
    """Wait until the test has made this file in the project's directory."""
    path = NOTES.parent / name
    end = time.monotonic() + timeout
    while not path.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"{path} was not made")
        time.sleep(0.005)
'''

MANAGE = """\
import sys

from django.core.management import execute_from_command_line

execute_from_command_line(sys.argv)
"""

SETUP = "import django; django.setup()\nimport app.tasks\nfrom app.tasks import *\n"


class Project:
    """One project; also a context manager that ends the workers it started."""

    def __init__(
        self,
        path: Path,
        *,
        settings: str = "",
        tasks: str = "",
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Write the files. ``settings`` and ``tasks`` are appended to what every project has."""
        self.path = path / "project"
        self.storage = self.path / "storage"
        self._workers: list[subprocess.Popen[str]] = []
        (self.path / "app").mkdir(parents=True)
        (self.path / "app" / "__init__.py").touch()
        (self.path / "settings.py").write_text(SETTINGS + textwrap.dedent(settings))
        (self.path / "manage.py").write_text(MANAGE)
        self.write_tasks(tasks)
        self.env = {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "settings",
            "PYTHONPATH": os.pathsep.join([str(self.path), str(REPOSITORY)]),
            "PYTHONUNBUFFERED": "1",
            **(env or {}),
        }

    def write_tasks(self, tasks: str) -> None:
        """Replace the app's tasks, as a deploy does."""
        (self.path / "app" / "tasks.py").write_text(TASKS + textwrap.dedent(tasks))
        # Cached bytecode is told apart by size and whole seconds only.
        shutil.rmtree(self.path / "app" / "__pycache__", ignore_errors=True)

    def manage(
        self, *args: str, timeout: float = 60, input: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """``manage.py`` with these arguments, to its end."""
        return self._finish([sys.executable, "manage.py", *args], timeout, input)

    def run(self, code: str, *, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Python code in the set-up project, with the names of ``app.tasks``; must end well."""
        done = self._finish(self.python_command(code), timeout, None)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def start(self, code: str) -> subprocess.Popen[str]:
        """The same as a process that runs on its own; ended with the project."""
        return self._start(self.python_command(code), "process")

    def python_command(self, code: str) -> list[str]:
        """The command that :meth:`run` runs; for the project's ``path`` and ``env``."""
        return [sys.executable, "-c", SETUP + textwrap.dedent(code)]

    def status(self) -> dict[str, Any]:
        """What ``deferred_status --format json`` prints."""
        done = self.manage("deferred_status", "--format", "json")
        assert done.returncode == 0, done.stdout + done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    def worker(self, *args: str) -> subprocess.Popen[str]:
        """A ``deferred_worker``; its output is in :meth:`log`. Ended with the project."""
        return self._start([sys.executable, "manage.py", "deferred_worker", *args], "worker")

    def drain(self, *args: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """``deferred_worker --drain``, which must exit 0."""
        done = self.manage("deferred_worker", "--drain", *args, timeout=timeout)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def notes(self) -> list[str]:
        """The lines that tasks have noted."""
        try:
            return (self.path / "notes.txt").read_text().splitlines()
        except FileNotFoundError:
            return []

    def log(self) -> str:
        """What all workers of the project have printed so far."""
        logs = sorted(self.path.glob("worker-*.log"))
        return "".join(log.read_text(errors="replace") for log in logs)

    def touch(self, name: str) -> None:
        """Make the file that a task waits for (``wait_for_file``)."""
        (self.path / name).touch()

    def close(self) -> None:
        """Kill what still runs of the workers, their children included."""
        for worker in self._workers:
            if worker.poll() is None:
                children = children_of(worker.pid)
                worker.kill()
                for pid in children:
                    kill_quietly(pid)
            worker.wait()

    def __enter__(self) -> Project:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _finish(
        self, command: list[str], timeout: float, input: str | None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.path,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout,
            input=input,
            check=False,
        )

    def _start(self, command: list[str], kind: str) -> subprocess.Popen[str]:
        with open(self.path / f"{kind}-{len(self._workers)}.log", "wb") as log:
            process = subprocess.Popen(
                command,
                cwd=self.path,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,  # as a shell's job: signals to the group stay in it
            )
        self._workers.append(process)
        return process


def children_of(pid: int) -> list[int]:
    """The pids of a process's children (none if it is gone)."""
    try:
        return [
            int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        ]
    except (FileNotFoundError, ProcessLookupError):
        return []


def kill_quietly(pid: int, signum: int = signal.SIGKILL) -> None:
    """Signal a process that may be gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


def is_alive(pid: int) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
