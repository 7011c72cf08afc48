"""``manage.py deferred_worker``: run the tasks of the store."""

from __future__ import annotations

import contextlib
from importlib import import_module
from typing import Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.module_loading import module_has_submodule

from deferred_django import checks, logs, registry
from deferred_django.backends.base import Backend
from deferred_django.console.arguments import (
    checked,
    checked_if_given,
    option,
    positive_int,
    seconds,
)
from deferred_django.heartbeat_file import HeartbeatFile
from deferred_django.queue_choice import QueueChoice, checked_names
from deferred_django.recycling import format_size, parse_size, resident_bytes
from deferred_django.supervisor import Supervisor
from deferred_django.worker import Worker
from deferred_django.worker_process import run_here

TASKS_MODULE = "tasks"
MAX_PROCESSES, MAX_THREADS = 512, 1000
"""A slip of the hand must not bring the machine down."""


class Command(BaseCommand):
    """Works until it is stopped by SIGTERM or SIGINT, or with ``--drain`` until nothing is due.

    From the command line a supervisor keeps the processes running. Under ``call_command`` with
    one process nothing forks, and outside the main thread no signal handler is set.
    """

    help = "Run deferred tasks until stopped (SIGTERM, Ctrl-C; a second one stops at once)."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        parser.add_argument(
            "--processes", type=option(process_count), default=1, help="How many processes."
        )
        parser.add_argument(
            "--threads", type=option(thread_count), default=4, help="How many in each process."
        )
        parser.add_argument(
            "--queues",
            type=option(queue_names),
            metavar="A,B",
            help="Run the tasks of these queues only. A,B,* runs those of all queues: first what "
            "is due in A, then in B, then the rest.",
        )
        parser.add_argument(
            "--exclude-queues",
            type=option(excluded_names),
            metavar="A,B",
            help="Leave the tasks of these queues to other workers.",
        )
        parser.add_argument(
            "--drain", action="store_true", help="Run what is due, then exit with 0."
        )
        parser.add_argument(
            "--max-tasks",
            type=option(positive_int),
            metavar="N",
            help="Replace a process after it has run so many tasks.",
        )
        parser.add_argument(
            "--max-memory",
            type=option(memory_size),
            metavar="SIZE",
            help="Replace a process that has more memory in use (512M, 2G) when a task has ended.",
        )
        parser.add_argument(
            "--shutdown-timeout",
            type=option(seconds),
            default=30.0,
            metavar="SECONDS",
            help="How long a stop waits for running tasks before it puts them back.",
        )
        parser.add_argument(
            "--heartbeat-file",
            metavar="FILE",
            help="Keep this file fresh while all processes work: for deferred_status --check.",
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
        choice = checked("queues", lambda names: QueueChoice.of(names, excluded or ()), queues)
        drain = bool(options["drain"])
        in_this_process = processes == 1 and not getattr(self, "_called_from_command_line", False)
        if max_memory is not None and in_this_process:
            raise CommandError(
                "max_memory replaces a worker process, and with one process under call_command "
                "there is none: use processes=2, or the command line.",
                returncode=2,
            )

        backend = usable_backend()
        heartbeat = None
        if options.get("heartbeat_file"):
            heartbeat = begun_heartbeat(str(options["heartbeat_file"]), processes)
        import_tasks()
        if max_memory is not None and resident_bytes() >= max_memory:
            raise CommandError(
                f"max_memory is {format_size(max_memory)}, and {format_size(resident_bytes())} "
                "are in use before the first task: each process would run one task only.",
                returncode=2,
            )

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
        else:
            Supervisor(
                make_worker,
                processes=processes,
                drain=drain,
                shutdown_timeout=shutdown_timeout,
                heartbeat=heartbeat,
                on_stop=lambda: self.say(
                    f"stopping; running tasks have {shutdown_timeout:g} s, "
                    "a second signal puts them back at once"
                ),
            ).run()
        self.say("stopped")

    def say(self, what: str) -> None:
        """Print a line; whether anybody reads it does not matter to the work."""
        with contextlib.suppress(OSError, AttributeError):  # sys.stdout is None where it is closed
            self.stdout.write(f"deferred_worker: {what}")
            self.stdout.flush()


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


def import_tasks() -> None:
    """Import the ``tasks`` modules of the installed apps.

    One that fails is logged and its tasks are not known here: they are put back, as those of a
    module that is missing, and the tasks of the other apps run.
    """
    for config in apps.get_app_configs():
        if config.module is None or not module_has_submodule(config.module, TASKS_MODULE):
            continue
        name = f"{config.name}.{TASKS_MODULE}"
        try:
            import_module(name)
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


def process_count(value: Any) -> int:
    """How many processes; ``ValueError`` also for a number that can only be a slip."""
    return _at_most(MAX_PROCESSES, positive_int(value))


def thread_count(value: Any) -> int:
    """How many threads; ``ValueError`` also for a number that can only be a slip."""
    return _at_most(MAX_THREADS, positive_int(value))


def _at_most(limit: int, number: int) -> int:
    if number > limit:
        raise ValueError(f"it must be {limit} at most")
    return number


def queue_names(value: Any) -> list[str]:
    """Queue names from a comma-separated text or a list; ``ValueError`` if one is none.

    The last one may be ``*``.
    """
    return checked_names(value.split(",") if isinstance(value, str) else value, others=True)


def excluded_names(value: Any) -> list[str]:
    """The same without ``*``."""
    return checked_names(value.split(",") if isinstance(value, str) else value)


def memory_size(value: Any) -> int:
    """Bytes from ``512M`` or a number of bytes; ``ValueError`` for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("it must be a size such as 512M or 2G")
    return parse_size(str(value))
