"""``--autoreload``: the workers begin anew when the code has changed. For development.

Three kinds of processes: the one that a person starts (:func:`run`) starts another one like itself
with the current code, again and again. That is the supervisor, whose worker processes each have
Django's reloader on a thread (:func:`watch`), since only they know what their tasks have imported.
What a worker sees changed is told to the supervisor, which stops all workers as for a signal and
ends with :data:`EXIT_CODE_CHANGED`. Orders come to the supervisor through a pipe, as from it to its
workers: a Ctrl-C reaches all of them and must count once, and no process outlives the one above it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

from django.apps import apps
from django.utils import autoreload

from deferred_django.worker_process import GRACE_SECONDS, STOP, STOP_NOW, handled_signals

logger = logging.getLogger("deferred_django")

EXIT_CODE_CHANGED = 3
"""As Django's own reloader has it."""
CONTROL_VARIABLE = "DEFERRED_WORKER_CONTROL"
_LOOK_SECONDS = 1.0

Snapshot = dict[Path, float]


def run(say: Callable[[str], None], shutdown_timeout: float) -> None:
    """Keep a supervisor with the current code running until a signal comes or it ends well.

    For the main thread. SIGTERM, SIGINT and SIGHUP stop it; a second one at once.
    """
    _Outermost(say, shutdown_timeout).run()


def take_control() -> int | None:
    """The reading end of the pipe of a process that does :func:`run`, if there is one above.

    Asked once: what is started from here on does not find it.
    """
    number = os.environ.pop(CONTROL_VARIABLE, None)
    if number is None:
        return None
    control = int(number)
    os.set_inheritable(control, False)
    return control


class _Outermost:
    def __init__(self, say: Callable[[str], None], shutdown_timeout: float) -> None:
        self._say = say
        self._shutdown_timeout = shutdown_timeout
        self._signals = 0
        self._kill_at: float | None = None
        self._control = -1
        self._signalled = threading.Event()

    def run(self) -> None:
        handlers: dict[int, Any] = dict.fromkeys((signal.SIGTERM, signal.SIGINT), self._on_signal)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
            handlers[signal.SIGHUP] = self._on_signal
        with handled_signals(handlers, to_the_end=True):
            while not self._signalled.is_set():
                before = snapshot()
                code = self._run_once()
                if code == 0:
                    return
                if code != EXIT_CODE_CHANGED and not self._signalled.is_set():
                    self._say(f"ended with exit code {code}; waiting for a change of the code")
                    self._wait_for_change(before)

    def _run_once(self) -> int:
        """Start a supervisor and wait for its end."""
        reading, self._control = os.pipe()
        try:
            environment = {
                **os.environ,
                autoreload.DJANGO_AUTORELOAD_ENV: "true",
                CONTROL_VARIABLE: str(reading),
            }
            process = subprocess.Popen(  # noqa: S603 - this very command
                autoreload.get_child_arguments(), env=environment, pass_fds=[reading]
            )
            os.close(reading)
            reading = -1
            if self._signals:  # it came before there was anybody to tell
                self._tell()
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return process.wait(_LOOK_SECONDS)
                if self._kill_at is not None and time.monotonic() >= self._kill_at:
                    logger.error("Process %d does not stop; it is killed.", process.pid)
                    process.kill()
        finally:
            control, self._control = self._control, -1
            for end in (reading, control):
                if end != -1:
                    os.close(end)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        self._signals += 1
        self._tell()
        self._signalled.set()

    def _tell(self) -> None:
        timeout = self._shutdown_timeout if self._signals == 1 else 0.0
        self._kill_at = time.monotonic() + timeout + 2 * GRACE_SECONDS
        if self._control != -1:
            with contextlib.suppress(BrokenPipeError):  # it has just ended
                os.write(self._control, STOP if self._signals == 1 else STOP_NOW)

    def _wait_for_change(self, before: Snapshot) -> None:
        while not self._signalled.wait(_LOOK_SECONDS):
            if snapshot() != before:
                return


def snapshot() -> Snapshot:
    """When the files of the project's code were changed last: of what this process has imported,
    and of the apps' directories, where there may be a file that could not be imported."""
    reloader = autoreload.StatReloader()
    for config in apps.get_app_configs():
        if "site-packages" not in config.path:
            reloader.watch_dir(Path(config.path), "**/*.py")
    return dict(reloader.snapshot_files())


def import_watched(name: str) -> object:
    """Import a module; if that fails, the file with the error is watched all the same."""
    return autoreload.check_errors(import_module)(name)


def watch(before: Snapshot, changed: Callable[[], None]) -> None:
    """Call ``changed`` once the code is no longer what it was at the snapshot ``before``.

    In a worker process: returns at once and watches on a thread, by Django's reloader.
    """
    threading.Thread(
        target=_watch, args=(before, changed), name="deferred-reload", daemon=True
    ).start()


def _watch(before: Snapshot, changed: Callable[[], None]) -> None:
    # Not its run(): that takes a file as it finds it first for what was imported, and this process
    # has the code that its supervisor has read, perhaps long ago.
    reloader, seen = autoreload.StatReloader(), dict(before)
    try:
        autoreload.autoreload_started.send(sender=reloader)
        while True:
            for path, changed_at in reloader.snapshot_files():
                if seen.setdefault(path, changed_at) != changed_at:
                    seen[path] = changed_at
                    reloader.notify_file_changed(path)
            time.sleep(_LOOK_SECONDS)
    except SystemExit:  # how Django's reloader says so
        changed()
    except Exception:
        logger.exception("The code is not watched any more.")
