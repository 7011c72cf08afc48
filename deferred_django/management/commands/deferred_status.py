"""``manage.py deferred_status``: the store at a glance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.core.management.base import CommandError, CommandParser

from deferred_django.backends.base import Backend, Limits
from deferred_django.console import health
from deferred_django.console.arguments import (
    checked,
    checked_if_given,
    count,
    one_of,
    option,
    seconds,
)
from deferred_django.console.command import StoreCommand
from deferred_django.console.prometheus import write_metrics
from deferred_django.console.records import to_json
from deferred_django.console.schedule import as_list, write_schedule
from deferred_django.console.status import as_dict, write_status
from deferred_django.heartbeat_file import MAX_AGE_SECONDS
from deferred_django.registry import get_features

FORMATS = ("table", "json", "prometheus")
CHECKS: Mapping[str, tuple[Callable[[Any], Any], str, str]] = {
    "max_pending": (count, "N", "Not more due tasks than N."),
    "max_age": (seconds, "SECONDS", "No due task that has waited for longer."),
    "max_dead": (count, "N", "Not more dead tasks than N."),
    "heartbeat_file": (str, "FILE", "The file of a worker's --heartbeat-file is fresh."),
    "max_heartbeat_age": (
        seconds,
        "SECONDS",
        f"How old that may be (default: {MAX_AGE_SECONDS:g}).",
    ),
}


class Command(StoreCommand):
    """Counts, the oldest task's age, the workers and whatever is wrong. Creates no file.

    With ``--check`` it says only whether all is well: exit code 0, or 1 with a line for each
    reason on stderr (:class:`~deferred_django.console.health.Unhealthy`).
    """

    help = (
        "Show how many tasks are pending, delayed, running and dead, and which workers live; "
        "or check it (exit code 0: all is well, 1: it is not, 2: wrong usage)."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        parser.add_argument("--format", choices=FORMATS, help="What to print (default: table).")
        parser.add_argument(
            "--check",
            action="store_true",
            help="Only tell whether all is well, by the exit code and a line: that the store can "
            "be read, and what the following options say (default: no limits).",
        )
        for name, (parse, metavar, text) in CHECKS.items():
            flag = f"--{name.replace('_', '-')}"
            parser.add_argument(flag, type=option(parse), metavar=metavar, help=text)

    def run(self, backend: Backend, options: Mapping[str, Any]) -> None:
        """Print the status, or check it."""
        asked = {
            name: checked(name, parse, options[name])
            for name, (parse, _, _) in CHECKS.items()
            if options.get(name) is not None
        }
        form = checked_if_given("format", one_of(FORMATS), options.get("format"))
        if options.get("check"):
            if form is not None:
                raise CommandError("--check prints no status: leave out --format.", returncode=2)
            self._check(backend, **asked)
            return
        if asked:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in asked)
            raise CommandError(f"{flags}: for --check only.", returncode=2)
        status = backend.status()
        periodic = as_list(backend, get_features().schedule)
        if form == "json":
            shown = {**as_dict(status), "schedule": periodic}
            self.out.write(to_json(shown, indent=2) + "\n")
        elif form == "prometheus":
            write_metrics(self.out, status)
        else:
            write_status(self.out, status)
            write_schedule(self.out, periodic)

    def _check(
        self,
        backend: Backend,
        max_pending: int | None = None,
        max_age: float | None = None,
        max_dead: int | None = None,
        heartbeat_file: str | None = None,
        max_heartbeat_age: float | None = None,
    ) -> None:
        limits = Limits(pending=max_pending, age=max_age, dead=max_dead)
        reasons: list[str] = []
        if heartbeat_file is not None:
            most = MAX_AGE_SECONDS if max_heartbeat_age is None else max_heartbeat_age
            reasons += health.reasons_of_heartbeat(heartbeat_file, most)
        elif max_heartbeat_age is not None:
            raise CommandError("--max-heartbeat-age needs --heartbeat-file.", returncode=2)
        if heartbeat_file is None or limits != Limits():
            # Whether one worker is at work is no matter of the store's: a probe that restarts
            # the worker must not do so because of a file that cannot be read.
            reasons += health.reasons_of_store(backend, limits)
        if reasons:
            raise health.Unhealthy([self.err.escape(reason) for reason in reasons])
        self.out.line("Healthy", "SUCCESS")
