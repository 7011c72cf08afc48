"""Questions to the person at the terminal."""

from __future__ import annotations

import sys

from django.core.management import CommandError

from deferred_django.console.output import Output


def require_consent_is_possible(*, noinput: bool) -> None:
    """``CommandError`` (exit code 2) where nobody can be asked and ``--noinput`` was not given."""
    if not noinput and not (sys.stdin is not None and sys.stdin.isatty()):
        raise CommandError(
            "There is no terminal to ask at: give --noinput to go on without a question. "
            "Nothing was changed.",
            returncode=2,
        )


def ask(screen: Output, question: str) -> None:
    """Return if the answer is yes; ``CommandError`` (exit code 1) for anything else."""
    try:  # a person may answer as soon as the question is to be seen
        screen.write(screen.escape(f"{question} [y/N] "))
        screen.flush()
        answer = input()
    except (EOFError, UnicodeError):
        screen.line()
        answer = ""
    except KeyboardInterrupt:
        screen.line()
        raise CommandError("Interrupted. Nothing was changed.", returncode=130) from None
    if answer.strip().lower() not in ("y", "yes"):
        raise CommandError("Nothing was changed.")
