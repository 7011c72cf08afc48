"""``manage.py deadtasks``: look at the tasks that gave up, run them again, or throw them away."""

from __future__ import annotations

from argparse import SUPPRESS
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from django.core.management.base import CommandError, CommandParser

from deferred_django.backends.base import Backend, Progress
from deferred_django.console.bulk import BulkAction
from deferred_django.console.command import StoreCommand
from deferred_django.console.filters import add_age_argument, add_filter_arguments, filter_from
from deferred_django.console.records import (
    displayed,
    to_json,
    write_detail,
    write_json_list,
    write_table_of,
)
from deferred_django.console.selection import named
from deferred_django.registry import get_queue

TABLE_LIMIT = 50
COUNTED_FURTHER = 1000
"""A page must not wait until a million records behind it are counted."""


class Command(StoreCommand):
    """Dead tasks at a terminal and, with ``--format json``, for programs."""

    help = "List, show, retry or purge the dead tasks: those that used up their retries."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the four subcommands and their options."""
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        common = [_common_options()]

        listing = actions.add_parser(
            "list", parents=common, help="list dead tasks, the newest first"
        )
        listing.add_argument(
            "--limit", type=int, metavar="N", help=f"at most N (default: {TABLE_LIMIT} in a table)"
        )
        listing.add_argument("--offset", type=int, default=0, metavar="N", help="leave out N")
        listing.add_argument("--format", choices=["table", "json"], default="table")
        add_filter_arguments(listing)

        show = actions.add_parser(
            "show", parents=common, help="show one dead task with its traceback"
        )
        show.add_argument("id", metavar="ID")
        show.add_argument("--format", choices=["text", "json"], default="text")

        retry = actions.add_parser(
            "retry", parents=common, help="enqueue dead tasks again, with fresh retries"
        )
        purge = actions.add_parser("purge", parents=common, help="remove dead tasks for good")
        for action in (retry, purge):
            action.add_argument("ids", nargs="*", metavar="ID")
            action.add_argument("--all", action="store_true", help="all that there are")
            action.add_argument(
                "--noinput",
                "--no-input",
                action="store_false",
                dest="interactive",
                help="do not ask",
            )
            add_filter_arguments(action)
        add_age_argument(purge)
        purge.add_argument("--dry-run", action="store_true", help="only say what would be purged")

    def run(self, backend: Backend, options: Mapping[str, Any]) -> None:
        """Run the subcommand."""
        action = {"list": self.list, "show": self.show, "retry": self.retry, "purge": self.purge}
        action[options["action"]](backend, options)

    def list(self, backend: Backend, options: Mapping[str, Any]) -> None:
        """Print a table of the newest, or a JSON array of all."""
        limit, offset = options["limit"], options["offset"]
        if offset < 0 or (limit is not None and limit < 0):
            raise CommandError("--limit and --offset are not negative.", returncode=2)
        filter = filter_from(options)
        if options["format"] == "json":
            records = backend.iterate_dead_tasks(limit=limit, offset=offset, filter=filter)
            write_json_list(self.out, records)
            if limit is None:  # a page does not read the whole store
                self._report_problems(backend)
            return
        limit = TABLE_LIMIT if limit is None else limit
        records = backend.iterate_dead_tasks(
            limit=limit + COUNTED_FURTHER, offset=offset, filter=filter
        )
        page = list(islice(records, limit))
        if page:
            write_table_of(self.out, page)
            self.out.flush()
        shown, further = offset + len(page), sum(1 for _ in records)
        if further == COUNTED_FURTHER:
            self.out.line(f"At least {further} more: --offset {shown} goes on.", "WARNING")
            return
        total = shown + further
        if further:
            self.out.line(f"{further} more of {total}: --offset {shown} goes on.", "WARNING")
        elif not page and (total := backend.count_dead_tasks(filter=filter)):
            self.out.line(f"Only {total} dead tasks.")
        elif not page:
            self.out.line("No dead tasks." if filter is None else "No dead tasks match.")
        self._report_problems(backend)

    def _report_problems(self, backend: Backend) -> None:
        for problem in backend.dead_tasks_problems():
            self.err.line(problem, "WARNING")

    def show(self, backend: Backend, options: Mapping[str, Any]) -> None:
        """Print everything about one dead task."""
        record = backend.find_dead_task(options["id"])
        if record is None:
            raise CommandError(named([options["id"]]))
        if options["format"] == "json":
            self.out.write(to_json(displayed(record), indent=2) + "\n")
        else:
            write_detail(self.out, record)

    def retry(self, backend: Backend, options: Mapping[str, Any]) -> None:
        """Enqueue dead tasks again under their old ids."""

        def act(ids: Sequence[str], progress: Progress | None) -> int:
            return len(get_queue().retry_dead_tasks(ids, progress=progress))

        BulkAction(self.out, self.err, options, name="retry", done="enqueued again").run(
            backend, act
        )

    def purge(self, backend: Backend, options: Mapping[str, Any]) -> None:
        """Remove dead tasks."""

        def act(ids: Sequence[str], progress: Progress | None) -> int:
            return backend.remove_dead_tasks(ids, progress=progress)

        BulkAction(self.out, self.err, options, name="purge", done="purged").run(backend, act)


def _common_options() -> CommandParser:
    # Django knows its own options in front of the subcommand only; people write them behind it.
    common = CommandParser(add_help=False)
    for option in ("--settings", "--pythonpath"):
        common.add_argument(option, default=SUPPRESS, help=SUPPRESS)
    for option in ("--traceback", "--no-color", "--force-color"):
        common.add_argument(option, action="store_true", default=SUPPRESS, help=SUPPRESS)
    common.add_argument("-v", "--verbosity", type=int, default=SUPPRESS, help=SUPPRESS)
    return common
