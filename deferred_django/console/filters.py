"""The command-line options that choose dead tasks, the same for every command that takes them."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Mapping
from typing import Any

from django.core.management import CommandError

from deferred_django.backends.base import DeadTaskFilter
from deferred_django.console.times import FORMS, parse_moment

_OPTIONS = {
    "task": ("T", "the task's dotted name, or its last parts"),
    "exception": ("E", "the exception's dotted name, or its last parts"),
    "queue": ("Q", "the queue's name"),
    "since": ("W", f"died at or after this time: {FORMS}"),
    "until": ("W", "died before this time"),
    "search": ("S", "text in the id, the exception's message or the arguments, whatever its case"),
}


def add_filter_arguments(parser: ArgumentParser) -> None:
    """Add ``--task``, ``--exception``, ``--queue``, ``--since``, ``--until`` and ``--search``."""
    group = parser.add_argument_group("filters", "all that are given must hold")
    for name, (metavar, text) in _OPTIONS.items():
        group.add_argument(f"--{name}", metavar=metavar, help=text)


def add_age_argument(parser: ArgumentParser) -> None:
    """Add ``--older-than``, which is a filter like the others."""
    parser.add_argument(
        "--older-than", metavar="AGE", help="died longer ago than this, such as 30d or 12h"
    )


def filter_from(options: Mapping[str, Any]) -> DeadTaskFilter | None:
    """The filter that the options ask for; ``None`` if they ask for none.

    Raises ``CommandError`` with exit code 2 for a time that cannot be read.
    """
    given = {name: options[name] for name in _OPTIONS if options.get(name) is not None}
    for name in ("since", "until"):
        if name in given:
            given[name] = _moment(name, given[name])
    if options.get("older_than") is not None:
        limit = _moment("older-than", options["older_than"])
        given["until"] = min(given.get("until", limit), limit)
    return DeadTaskFilter(**given) if given else None


def _moment(name: str, text: Any) -> float:
    try:
        return parse_moment(str(text))
    except ValueError as error:
        raise CommandError(f"--{name}: {error}", returncode=2) from None
