"""``manage.py deferred_worker``: run the tasks of the store."""

from __future__ import annotations

import contextlib
import sys
from functools import partial
from importlib import import_module
from typing import Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.module_loading import module_has_submodule

from deferred_django import autoreload, checks, logs, registry
from deferred_django.backends.base import Backend
from deferred_django.console.arguments import (
    checked,
    checked_if_given,
    option,
    positive_int,
    seconds,
)
from deferred_django.console.worker_options import (
    excluded_names,
    memory_size,
    process_count,
    queue_names,
    thread_count,
)
from deferred_django.heartbeat_file import HeartbeatFile
from deferred_django.queue_choice import QueueChoice
from deferred_django.recycling import format_size, resident_bytes
from deferred_django.supervisor import Supervisor
from deferred_django.worker import Worker
from deferred_django.worker_process import run_here

TASKS_MODULE = "tasks"


class Command(BaseCommand):
    """Works until it is stopped by SIGTERM or SIGINT, or with ``--drain`` until nothing is due.

    From the command line a supervisor keeps the processes running. Under ``call_command`` with
    one process nothing forks, and outside the main thread no signal handler is set.
    """

    help = "Run deferred tasks until stopped (SIGTERM, Ctrl-C; a second one stops at once)."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        parser.add_argument(
            "--processes",
            type=option(process_count),
            default=1,
            metavar="N",
            help="How many processes (default: %(default)s).",
        )
        parser.add_argument(
            "--threads",
            type=option(thread_count),
            default=4,
            metavar="N",
            help="How many tasks each process runs at the same time (default: %(default)s).",
        )
        parser.add_argument(
            "--queues",
            type=option(queue_names),
            metavar="A,B",
            help="Run the tasks of these queues only (default: of all). A,B,* runs those of all "
            "queues: first what is due in A, then in B, then the rest.",
        )
        parser.add_argument(
            "--exclude-queues",
            type=option(excluded_names),
            metavar="A,B",
            help="Leave the tasks of these queues to other workers (default: of none).",
        )
        parser.add_argument(
            "--drain", action="store_true", help="Run what is due, then exit with 0."
        )
        parser.add_argument(
            "--max-tasks",
            type=option(positive_int),
            metavar="N",
            help="Replace a process after it has run so many tasks (default: no limit).",
        )
        parser.add_argument(
            "--max-memory",
            type=option(memory_size),
            metavar="SIZE",
            help="Replace a process that has more memory in use (512M, 2G) when a task has ended "
            "(default: no limit).",
        )
        parser.add_argument(
            "--autoreload",
            action="store_true",
            help="Start anew when the code has changed. For development.",
        )
        parser.add_argument(
            "--shutdown-timeout",
            type=option(seconds),
            default=30.0,
            metavar="SECONDS",
            help="How long a stop waits for running tasks before it puts them back (default: 30).",
        )
        parser.add_argument(
            "--heartbeat-file",
            metavar="FILE",
            help="Keep this file fresh while all processes work: for deferred_status --check "
            "(default: none).",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Work."""
        processes = checked("processes", process_count, options["processes"])
        threads = checked("threads", thread_count, options["threads"])
        shutdown_timeout = checked("shutdown_timeout", seconds, options["shutdown_timeout"])
        max_tasks = checked_if_given("max_tasks", positive_int, options["max_tasks"])
        max_memory = checked_if_given("max_memory", memory_size, options["max_memory"])
        queues = checked_if_given("queues", queue_names, options["queues"])
        excluded = checked_if_given("exclude_queues", excluded_names, options["exclude_queues"])
        choice = chosen_queues(queues, excluded)
        drain = bool(options["drain"])
        from_command_line = getattr(self, "_called_from_command_line", False)
        in_this_process = processes == 1 and not from_command_line
        reloads = bool(options["autoreload"])
        if reloads and not from_command_line:
            raise CommandError(
                "autoreload starts this command anew: it works from the command line only.",
                returncode=2,
            )
        if max_memory is not None and in_this_process:
            raise CommandError(
                "max_memory replaces a worker process, and with one process under call_command "
                "there is none: use processes=2, or the command line.",
                returncode=2,
            )

        control = autoreload.take_control() if reloads else None
        backend = usable_backend()
        heartbeat = None
        if options.get("heartbeat_file") and (control is not None or not reloads):
            heartbeat = begun_heartbeat(str(options["heartbeat_file"]), processes)
        import_tasks(reloads=reloads)
        if max_memory is not None and resident_bytes() >= max_memory:
            raise CommandError(
                f"--max-memory is {format_size(max_memory)}, and {format_size(resident_bytes())} "
                "are in use before the first task: each process would run one task only.",
                returncode=2,
            )

        if reloads and control is None:
            self.say("starts anew when the code has changed")
            autoreload.run(self.say, shutdown_timeout)
            return

        def make_worker() -> Worker:
            return Worker(
                registry.get_queue(),
                threads=threads,
                choice=choice,
                drain=drain,
                max_tasks=max_tasks,
                max_memory=max_memory,
                shutdown_timeout=shutdown_timeout,
            )

        self.say(
            f"{place(backend)}, {counted(processes, 'process', 'processes')} "
            f"with {counted(threads, 'thread', 'threads')}, "
            f"{choice}"
            f"{', until nothing is due' if drain else '; stop it with Ctrl-C'}"
        )
        if in_this_process:
            run_here(make_worker, heartbeat)
            self.say("stopped")
            return
        supervisor = Supervisor(
            make_worker,
            processes=processes,
            drain=drain,
            shutdown_timeout=shutdown_timeout,
            heartbeat=heartbeat,
            on_stop=lambda: self.say(
                f"stopping; running tasks have {shutdown_timeout:g} s, "
                "a second signal puts them back at once"
            ),
            ends_process=from_command_line,
            control=control,
            watch_code=partial(autoreload.watch, autoreload.snapshot()) if reloads else None,
        )
        supervisor.run()
        if supervisor.code_changed:
            self.say("the code has changed")
            sys.exit(autoreload.EXIT_CODE_CHANGED)
        self.say("stopped")

    def say(self, what: str) -> None:
        """Print a line; whether anybody reads it does not matter to the work."""
        with contextlib.suppress(OSError, AttributeError):  # sys.stdout is None where it is closed
            self.stdout.write(f"deferred_worker: {what}")
            self.stdout.flush()


def chosen_queues(queues: list[str] | None, excluded: list[str] | None) -> QueueChoice:
    """What the two options say together; ``CommandError`` if they contradict each other."""
    try:
        return QueueChoice.of(queues, excluded or ())
    except ValueError as error:
        raise CommandError(f"--queues and --exclude-queues: {error}.", returncode=2) from None


def usable_backend() -> Backend:
    """The configured backend; ``CommandError`` if a worker can do nothing with it."""
    try:
        backend = registry.get_backend()
    except ImproperlyConfigured as error:
        raise CommandError(str(error)) from error
    if not backend.keeps_tasks:
        raise CommandError(
            'DEFERRED["BACKEND"] is None: tasks run in the process that enqueues them, and a '
            "worker has nothing to do.",
            returncode=2,
        )
    if is_disk(backend):
        why = checks.cannot_be_written(backend.config.path)
        if why is not None:
            raise CommandError(
                f'DEFERRED["PATH"], {backend.config.path}, cannot be written: {why}.'
            )
    return backend


def begun_heartbeat(path: str, processes: int) -> HeartbeatFile:
    """The heartbeat file; ``CommandError`` if it cannot be written."""
    heartbeat = HeartbeatFile(path, processes)
    try:
        heartbeat.begin()
    except OSError as error:
        raise CommandError(
            f"--heartbeat-file {heartbeat.path} cannot be written: {error.strerror}."
        ) from error
    return heartbeat


def is_disk(backend: Backend) -> bool:
    """Whether the backend keeps its store in ``PATH``."""
    return type(backend).__module__.startswith("deferred_django.backends.disk")


def import_tasks(*, reloads: bool = False) -> None:
    """Import the ``tasks`` modules of the installed apps.

    One that fails is logged and its tasks are not known here: they are put back, as those of a
    module that is missing, and the tasks of the other apps run.
    """
    load = autoreload.import_watched if reloads else import_module
    for config in apps.get_app_configs():
        if config.module is None or not module_has_submodule(config.module, TASKS_MODULE):
            continue
        name = f"{config.name}.{TASKS_MODULE}"
        try:
            load(name)
        except (Exception, SystemExit) as error:  # the module is the project's
            logs.tasks_module_failed(name, error)


def place(backend: Backend) -> str:
    """Where the tasks are, for a line to a person."""
    if is_disk(backend):
        return f"store {backend.config.path} (prefix {backend.config.prefix!r})"
    return f"backend {type(backend).__qualname__}"


def counted(number: int, one: str, many: str) -> str:
    """``1 process`` or ``2 processes``."""
    return f"{number} {one if number == 1 else many}"
