"""A progress bar for work that takes long, on a terminal only."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from deferred_django.backends.base import Progress
from deferred_django.console.output import Output

DELAY = 0.5
"""Seconds after which work counts as long."""


@contextlib.contextmanager
def progress_bar(err: Output, label: str) -> Iterator[Progress | None]:
    """Give a callable to report progress with; ``None`` where nobody watches.

    The bar is on stderr, appears when the work has lasted :data:`DELAY` seconds, and is gone
    afterwards.
    """
    if not err.is_terminal:
        yield None
        return
    bar = _Bar(err, label)
    try:
        yield bar.update
    finally:
        bar.close()


class _Bar:
    def __init__(self, err: Output, label: str) -> None:
        self._err = err
        self._label = label
        self._shown_from = time.monotonic() + DELAY
        self._close = contextlib.ExitStack()
        self._show: Progress | None = None

    def update(self, done: int, total: int) -> None:
        if self._show is None:
            if time.monotonic() < self._shown_from:
                return
            self._show = self._open()
        self._show(done, total)

    def close(self) -> None:
        self._close.close()

    def _open(self) -> Progress:
        # Imported when a bar is needed: most commands are over before it would be.
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        columns = [
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
        ]
        # No thread that redraws: the bar moves when the work reports.
        bar = self._close.enter_context(
            RichProgress(
                *columns,
                console=Console(
                    file=self._err.target,
                    width=self._err.columns,
                    no_color=not self._err.colours,
                ),
                auto_refresh=False,
                transient=True,
                expand=True,
            )
        )
        task = bar.add_task(self._label, total=None)

        def show(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, refresh=True)

        return show
