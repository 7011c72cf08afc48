"""``manage.py deferred_status``: the store at a glance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.management.base import CommandParser

from deferred_django.backends.base import Backend
from deferred_django.console.command import StoreCommand
from deferred_django.console.records import to_json
from deferred_django.console.status import as_dict, write_status


class Command(StoreCommand):
    """Counts, the oldest task's age, the workers and whatever is wrong. Creates no file."""

    help = "Show how many tasks are pending, delayed, running and dead, and which workers live."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add ``--format``."""
        parser.add_argument("--format", choices=["table", "json"], default="table")

    def run(self, backend: Backend, options: Mapping[str, Any]) -> None:
        """Print the status."""
        status = backend.status()
        if options["format"] == "json":
            self.out.write(to_json(as_dict(status), indent=2) + "\n")
        else:
            write_status(self.out, status)
