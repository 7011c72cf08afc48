"""Values of command options: from the command line as text, from ``call_command`` as they are."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import Any

from django.core.management.base import CommandError


def positive_int(value: Any) -> int:
    """An int of 1 or more, from itself or its text; ``ValueError`` for anything else."""
    return _int_from(1, value)


def count(value: Any) -> int:
    """An int of 0 or more, from itself or its text; ``ValueError`` for anything else."""
    return _int_from(0, value)


def _int_from(least: int, value: Any) -> int:
    text = str(value)
    if isinstance(value, bool) or not text.isascii() or not text.isdigit() or int(text) < least:
        raise ValueError(f"it must be a whole number of {least} or more")
    return int(text)


def seconds(value: Any) -> float:
    """Seconds of 0 or more; ``ValueError`` for anything else."""
    number = float(value)
    if not 0 <= number < math.inf:
        raise ValueError("it must be a number of seconds of 0 or more")
    return number


def one_of(choices: Sequence[str]) -> Callable[[Any], str]:
    """Reads one of ``choices``; ``ValueError`` for anything else."""

    def parse(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"it must be one of {', '.join(choices)}")
        return str(value)

    return parse


def option(parse: Callable[[Any], Any]) -> Callable[[str], Any]:
    """``parse`` as the ``type`` of an option: what it refuses is a usage error that says why."""

    def parse_text(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r}: {error}") from None

    return parse_text


def checked(name: str, parse: Callable[[Any], Any], value: Any) -> Any:
    """The value of the option ``name``, which ``call_command`` passes past the parser."""
    try:
        return parse(value)
    except (TypeError, ValueError) as error:
        raise CommandError(f"{name} is {value!r}: {error}", returncode=2) from None


def checked_if_given(name: str, parse: Callable[[Any], Any], value: Any) -> Any:
    """The same; ``None`` if there is none."""
    return None if value is None else checked(name, parse, value)
