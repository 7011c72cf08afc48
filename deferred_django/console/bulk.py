"""Retry and purge: choose, say what will be touched, ask, act, say what was done."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from django.core.management import CommandError

from deferred_django.backends.base import Backend, DeadTaskRecord, Progress
from deferred_django.console.confirm import ask, require_consent_is_possible
from deferred_django.console.filters import filter_from
from deferred_django.console.output import Output
from deferred_django.console.progress import progress_bar
from deferred_django.console.selection import (
    Selection,
    counted,
    find_all,
    named,
    selected,
    write_summary,
)

Act = Callable[[Sequence[str], Progress | None], int]
"""Do it to these ids and return how many of them were still there."""


def selector(
    backend: Backend, options: Mapping[str, Any]
) -> Callable[[], Iterator[DeadTaskRecord]]:
    """What reads the dead tasks that the command line names, each once.

    ``CommandError`` (exit code 2) unless it is exactly one of ids, ``--all`` and filters: of two
    of them nobody could say whether the one widens or narrows the other.
    """
    ids, everything, filter = options["ids"], options["all"], filter_from(options)
    given = [bool(ids), bool(everything), filter is not None]
    if sum(given) == 0:
        raise CommandError("Which dead tasks? Give ids, filters or --all.", returncode=2)
    if sum(given) > 1:
        raise CommandError(
            "Give either ids, or filters, or --all. Nothing was changed.", returncode=2
        )
    if ids:
        return lambda: find_all(backend, dict.fromkeys(ids))
    return lambda: backend.iterate_dead_tasks(filter=filter)


class BulkAction:
    """One retry or purge. ``name`` and ``done`` are its words: "purge", "purged"."""

    def __init__(
        self, out: Output, err: Output, options: Mapping[str, Any], *, name: str, done: str
    ):
        self.out = out
        self.err = err
        self.options = options
        self.name = name
        self.done = done

    def run(self, backend: Backend, act: Act) -> None:
        """Go through with it.

        Exit code 1 if an id that was named is not there (the rest is done), 2 if nobody can be
        asked. Only what was chosen, and shown, before the question is touched.
        """
        records = selector(backend, self.options)
        noinput, dry_run = not self.options["interactive"], self.options.get("dry_run", False)
        by_id = bool(self.options["ids"])
        if not by_id and not dry_run:
            # Whatever there is to touch just now: a script is told on its first run.
            require_consent_is_possible(noinput=noinput)
        seen, gone = selected(records()), 0
        unknown = [id for id in dict.fromkeys(self.options["ids"]) if id not in seen.died]
        if seen.died and not dry_run:
            require_consent_is_possible(noinput=noinput)
        if dry_run:
            self._preview(seen)
        elif seen.died:
            ids = self._announced(seen) if noinput else self._asked(seen, unknown, records)
            gone = len(seen.died) - self._act(ids, act)
        elif not by_id:
            self.out.line("No dead tasks match: there is nothing to do.")
        missing = [named(unknown)] if unknown else []
        if gone:
            missing.append(f"Retried or purged by somebody else meanwhile: {counted(gone)}.")
        if missing and by_id:
            raise CommandError(" ".join(missing))
        for sentence in missing:
            self.err.line(sentence)

    def _preview(self, seen: Selection) -> None:
        if seen.died:
            write_summary(self.out, seen, what_happens=f"would be {self.done}")
        self.out.line("Nothing was changed (--dry-run).")

    def _announced(self, seen: Selection) -> list[str]:
        write_summary(self.out, seen, what_happens=f"will be {self.done}")
        return list(seen.died)

    def _asked(
        self,
        seen: Selection,
        unknown: Sequence[str],
        records: Callable[[], Iterator[DeadTaskRecord]],
    ) -> list[str]:
        # On stderr it is seen though stdout is a file, but stderr itself may be one.
        screen = self.out if self.out.is_terminal and not self.err.is_terminal else self.err
        write_summary(screen, seen, what_happens=f"will be {self.done}")
        if unknown:
            screen.line(named(unknown))
        ask(screen, f"{self.name.capitalize()} {counted(len(seen.died))}?")
        return seen.unchanged_in(records())

    def _act(self, ids: list[str], act: Act) -> int:
        with progress_bar(self.err, self.name.capitalize()) as progress:
            there = act(ids, progress) if ids else 0
        self.out.line(f"{self.done.capitalize()}: {counted(there)}.", "SUCCESS")
        return there
