"""The words in which a wrong setting is reported, the same for every key."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from typing import Final, TypeGuard

SETTING: Final = "DEFERRED"

Reject = Callable[[str, str | None], None]
"""Notes something that is wrong: a sentence that names the key, and a hint if there is one."""


def named(*keys: str) -> str:
    """A key, or a key inside of one, as it is written in a program: ``DEFERRED["PATH"]``."""
    return SETTING + "".join(f'["{key}"]' for key in keys)


def shown(value: object) -> str:
    """``value`` for an error message, whatever it is: short, and never raising."""
    try:
        text = repr(value)
    except Exception:  # a broken __repr__ must not hide what is wrong with the setting
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 100 else f"{text[:97]}..."


def listed(values: Iterable[object]) -> str:
    """Values that are allowed, for a sentence."""
    return ", ".join(str(value) if value is None else f'"{value}"' for value in values)


def did_you_mean(value: str, allowed: Iterable[str]) -> str | None:
    """A hint that names the allowed value that ``value`` was probably meant to be."""
    close = difflib.get_close_matches(value, allowed, n=1, cutoff=0.7)
    return f'Did you mean "{close[0]}"?' if close else None


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is an int or a float; ``True`` is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_int(value: object) -> TypeGuard[int]:
    """Whether it is an int; ``True`` is none."""
    return isinstance(value, int) and not isinstance(value, bool)
