"""What a forked child must do first. No Django is imported here."""

from __future__ import annotations

import os
from collections.abc import Callable


def after_in_child(callback: Callable[[], None]) -> None:
    """Call ``callback`` in each child that ``os.fork`` makes, before any other code runs there.

    Does nothing where processes cannot fork: the package must be importable there, so that its
    checks can say what does not work.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=callback)
