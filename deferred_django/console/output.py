"""A command's stdout or stderr, written so that no text, terminal or reader can break it."""

from __future__ import annotations

import os
import sys
from typing import Any

from django.core.management.base import OutputWrapper
from django.core.management.color import no_style

from deferred_django.console import text as texts


class Output:
    """Writes lines to a command's ``stdout`` or ``stderr``.

    A reader that goes away (``| head -1``) is no error: from then on nothing is written, and
    ``closed`` lets a long output stop early. Any other failure to write is an ``OSError``.
    Colours are used on a terminal only, whatever other stream the process has, or when forced.
    """

    def __init__(self, stream: OutputWrapper, style: Any, *, force_color: bool = False) -> None:
        self._stream = stream
        self.target: Any = getattr(stream, "_out", stream)
        """The stream itself, under Django's wrapper."""
        self.closed = self.target is None  # Python's stdout after `>&-`
        self.is_terminal = stream.isatty()
        self.encoding: str = getattr(stream, "encoding", None) or "utf-8"
        self._style = style if self.is_terminal or force_color else no_style()
        self.ellipsis = "…" if self.escape("…") == "…" else "..."

    @property
    def columns(self) -> int | None:
        """The width to fit: ``$COLUMNS`` or the terminal's; ``None`` where nothing limits it."""
        wanted = os.environ.get("COLUMNS", "")
        if wanted.isascii() and wanted.isdigit() and int(wanted) > 0:
            return int(wanted)
        if not self.is_terminal:
            return None
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or 80
        except (OSError, ValueError):
            return 80

    @property
    def colours(self) -> bool:
        """Whether anything is coloured here."""
        return self.styled("", "ERROR") != ""

    def escape(self, text: str) -> str:
        """Stored text as one line that is safe to write here."""
        return texts.escape(text, self.encoding)

    def styled(self, text: str, role: str | None) -> str:
        """``text``, which is escaped already, in the colour of a role of Django's palette."""
        return str(getattr(self._style, role)(text)) if role else text

    def line(self, text: str = "", role: str | None = None) -> None:
        """Write one line of any text."""
        self.write(self.styled(self.escape(text), role) + "\n")

    def block(self, text: str, *, indent: str = "", role: str | None = None) -> None:
        """Write text of several lines, keeping its line breaks and indentation."""
        for line in text.rstrip("\n").split("\n"):
            self.line((indent + line.expandtabs(4)).rstrip(), role)

    def write(self, text: str) -> None:
        """Write text that is escaped already (it may hold colours)."""
        if not self.closed:
            self._attempt(lambda: self._stream.write(text, _as_it_is, ending=""))

    def flush(self) -> None:
        """Pass on what is buffered, so that a failure shows here and not at the process's end."""
        if not self.closed:
            self._attempt(self._stream.flush)

    def _attempt(self, action: Any) -> None:
        try:
            action()
        except BrokenPipeError:
            self._abandon()
        except OSError:
            self._abandon()
            raise

    def _abandon(self) -> None:
        # The interpreter flushes its streams at exit and would report the failure once more.
        self.closed = True
        for stream in (sys.stdout, sys.stderr):
            if stream is not None and stream is self.target:
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, stream.fileno())
                os.close(null)


def _as_it_is(text: str) -> str:
    return text
