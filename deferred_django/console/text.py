"""Stored text on a terminal: the dangerous is escaped, the wide measured, the long cut.

Exception messages and arguments come from anywhere. Control characters would move the cursor or
recolour the screen, bidi marks would show text in another order than it has, and lone surrogates
or characters outside the terminal's encoding cannot be written at all. Each becomes the escape
that Python's own ``repr`` would show (``\\x1b``, ``\\u202e``, ``\\udcff``).
"""

from __future__ import annotations

import unicodedata

# Control, format (bidi marks, tags, byte order mark), surrogate, line and paragraph separators.
_ESCAPED_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# The joiners are format characters too, but Persian, Indic scripts and emoji need them.
_JOINERS = "\u200c\u200d"
_ZERO_WIDTH_CATEGORIES = frozenset({"Mn", "Me", "Cf"})


def escape(text: str, encoding: str = "utf-8") -> str:
    """One line of ``text`` that a terminal of this encoding shows and does not obey."""
    if not (text.isascii() and text.isprintable()):
        text = "".join(map(_escape_character, text))
    return text.encode(encoding, "backslashreplace").decode(encoding)


def _escape_character(character: str) -> str:
    if unicodedata.category(character) in _ESCAPED_CATEGORIES and character not in _JOINERS:
        return character.encode("unicode_escape").decode("ascii")
    return character


def width(text: str) -> int:
    """The columns that escaped ``text`` takes: wide East Asian characters two, marks none."""
    if text.isascii():
        return len(text)
    return sum(map(_character_width, text))


def _character_width(character: str) -> int:
    if unicodedata.category(character) in _ZERO_WIDTH_CATEGORIES:
        return 0
    if "\u1160" <= character <= "\u11ff":  # Hangul vowels and finals join the syllable before them
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cut(text: str, columns: int, *, ellipsis: str = "…", keep_end: bool = False) -> str:
    """``text`` in at most ``columns`` columns, with an ellipsis where something was left out.

    With ``keep_end`` the beginning is left out: the end of a dotted name says the most.
    """
    if width(text) <= columns:
        return text
    if columns <= len(ellipsis):
        return ellipsis[: max(columns, 0)]
    room = columns - len(ellipsis)
    kept: list[str] = []
    for character in reversed(text) if keep_end else text:
        room -= _character_width(character)
        if room < 0:
            break
        kept.append(character)
    return ellipsis + "".join(reversed(kept)) if keep_end else "".join(kept) + ellipsis


def first_line(text: str, limit: int = 300) -> str:
    """The first line of ``text`` that is not blank, at most ``limit`` characters of it."""
    for line in text[: 16 * limit].split("\n"):
        if line.strip():
            return line.strip()[:limit]
    return ""
