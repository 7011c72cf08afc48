"""``manage.py deferred_verify``: read a store through and report what is not as it was written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError, CommandParser

from deferred_django.backends.base import Backend, Finding
from deferred_django.console.arguments import checked, one_of
from deferred_django.console.command import StoreCommand
from deferred_django.console.records import to_json

FORMATS = ("table", "json")


class Command(StoreCommand):
    """Torn writes are reported and are no error; damage and unreadable files are (exit code 1)."""

    help = "Read the whole store and report unfinished writes and damage. Changes nothing."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add ``--format``."""
        parser.add_argument(
            "--format", choices=FORMATS, default="table", help="What to print (default: table)."
        )

    def run(self, backend: Backend, options: Mapping[str, Any]) -> None:
        """Print each finding and how many there are."""
        form = checked("format", one_of(FORMATS), options["format"])
        findings = backend.verify()
        if form == "json":
            self.out.write(to_json([asdict(finding) for finding in findings], indent=2) + "\n")
        else:
            self._write(findings)
        harmful = sum(finding.kind != "torn" for finding in findings)
        if harmful:
            places = "place" if harmful == 1 else "places"
            raise CommandError(f"The store is damaged or cannot be read in {harmful} {places}.")

    def _write(self, findings: Sequence[Finding]) -> None:
        for finding in findings:
            place = finding.file if finding.offset is None else f"{finding.file}:{finding.offset}"
            role = "WARNING" if finding.kind == "torn" else "ERROR"
            kind = self.out.styled(self.out.escape(f"{finding.kind:<10}"), role)
            self.out.write(f"{kind}  {self.out.escape(place)}  {self.out.escape(finding.detail)}\n")
        if findings:
            kinds = Counter(finding.kind for finding in findings)
            counts = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
            number = f"{len(findings)} finding{'' if len(findings) == 1 else 's'}"
            self.out.line(f"{number}: {counts}")
        else:
            self.out.line("0 findings: every record is as it was written", "SUCCESS")
