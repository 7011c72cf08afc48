"""``manage.py demo``: a newsletter goes out although servers refuse it and a worker is killed."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from deferred_django import get_backend
from example_project.newsletter.surroundings import own_surroundings


class Command(BaseCommand):
    """See the module's docstring."""

    help = (
        "Send a newsletter to 500 subscribers through a real SMTP server on loopback, kill a "
        "worker process in the middle, and count what arrived. Takes under a minute and works "
        "in a directory of its own, which is removed at the end."
    )

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the demonstration; ``CommandError`` (exit code 1) if a subscriber got nothing."""
        try:
            from example_project.newsletter import demonstration
        except ImportError as error:
            raise CommandError(f"{error}. Try: pip install 'deferred-django[demo]'") from error
        storage = get_backend().config.path
        storage.mkdir(parents=True, exist_ok=True)
        server = demonstration.mail_server()
        with (
            _ended_by_signals(),
            tempfile.TemporaryDirectory(prefix="demo-", dir=storage) as directory,
            server,
            own_surroundings(Path(directory), server.host, server.port) as environment,
        ):
            try:
                demonstration.Demonstration(self.stdout, server, Path(directory), environment).run()
            finally:
                get_backend().close()


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end the block like Ctrl-C does: tidily."""

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    previous = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
