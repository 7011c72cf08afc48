"""Turns an exception into text that can be stored, whatever the exception's own code does.

``traceback.TracebackException`` trusts what it is given: it asks for ``__notes__``, ``bool()`` and
``__qualname__``, follows every member of every nested group, and copies messages of any size. So
the exception is first mirrored by stand-ins: plain exceptions of the same printed name that carry
the same traceback, links and notes as short strings, in a bounded number. Only these are printed.
No Django is imported here.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any

MAX_MESSAGE_BYTES = 16_000
MAX_FRAMES = 20
"""Innermost frames kept of each traceback."""
MAX_LINES = 400
MAX_BACKTRACE_BYTES = 64_000
MAX_NAME_BYTES = 300
MAX_NOTES = 50
MAX_EXCEPTIONS = 40
"""Causes, contexts and members of groups that are printed, the exception itself included."""
MAX_GROUP_DEPTH = 10

_UNKNOWN = "<unknown>"
_HEAD_LINES = 150
_HEAD_BYTES = 20_000

Description = tuple[str, str, list[str]]


def describe(exception: BaseException) -> Description:
    """The exception's class, message and backtrace, ready to be stored. Never raises.

    The class is named as a traceback prints it: ``ValueError``, ``django.db.utils.IntegrityError``.
    The message has at most 16,000 bytes of UTF-8. The backtrace is a list of lines without their
    newlines, as :mod:`traceback` prints them with causes, notes and groups: the innermost 20 frames
    of each traceback, at most 400 lines and 64,000 bytes; what is left out is marked.
    """
    name = _class_name(exception)
    message = safe_str(exception)
    backtrace = (
        _try_backtrace(exception, suggestions=True)
        or _try_backtrace(exception, suggestions=False)
        or _cut_lines(f"{name}: {message}".split("\n"))
    )
    return name, message, backtrace


def safe_str(value: object) -> str:
    """``str(value)``, cut to 16,000 bytes of UTF-8; a placeholder if that fails. Never raises."""
    return _safe_text(value, str)


def _safe_text(value: object, convert: Callable[[Any], str]) -> str:
    try:
        return _cut(convert(value), MAX_MESSAGE_BYTES)
    except BaseException:  # even SystemExit out of a __str__ says nothing but that it failed
        what = "exception" if issubclass(type(value), BaseException) else _name_of(type(value))
        return f"<{what} {convert.__name__}() failed>"


def _cut(text: str, limit: int) -> str:
    """A plain ``str`` of at most ``limit`` bytes. Copies no more than that of a longer one."""
    length = str.__len__(text)
    head = str.__getitem__(text, slice(0, limit))  # a subclass's own methods are not called
    data = head.encode("utf-8", "surrogatepass")
    if len(data) <= limit and len(head) == length:
        return head
    mark = f"… (cut; {length:,} characters in all)"
    end = limit - len(mark.encode())
    while end > 0 and data[end] & 0xC0 == 0x80:  # not within a character
        end -= 1
    return data[:end].decode("utf-8", "surrogatepass") + mark


def _name_of(cls: type) -> str:
    """The class's qualified name; its metaclass is only asked by way of ``type``."""
    return _text_of(cls, "__qualname__") or _text_of(cls, "__name__") or _UNKNOWN


def _module_of(cls: type) -> str:
    return _text_of(cls, "__module__") or _UNKNOWN


def _text_of(cls: type, attribute: str) -> str | None:
    try:
        text = type.__getattribute__(cls, attribute)
        return _cut(text, MAX_NAME_BYTES) if issubclass(type(text), str) else None
    except BaseException:  # a metaclass's property can raise anything
        return None


def _class_name(exception: BaseException) -> str:
    cls = type(exception)
    module, name = _module_of(cls), _name_of(cls)
    return name if module in ("builtins", "__main__") else f"{module}.{name}"


# -- stand-ins -----------------------------------------------------------------------------------


def _attribute(exception: BaseException, name: str, kind: type | tuple[type, ...]) -> Any:
    """The attribute if it can be read and is of that kind, else ``None``."""
    try:
        value = getattr(exception, name)
    except BaseException:  # properties of the user's class
        return None
    return value if issubclass(type(value), kind) else None


class _Mirror:
    """Builds the stand-ins of one exception and of all that hangs on it."""

    def __init__(self, *, suggestions: bool) -> None:
        self._suggestions = _WITH_SUGGESTIONS if suggestions else {}
        self._left = MAX_EXCEPTIONS
        # A cause or context that was printed is not printed again: ends loops, as in traceback.
        self._seen: set[int] = set()

    def of(self, exception: BaseException, depth: int = 0) -> BaseException:
        first = self._one(exception, depth)
        current, stand_in = exception, first
        while True:  # not recursive: a chain can be thousands long
            cause = self._link(current, "__cause__")
            suppressed = _attribute(current, "__suppress_context__", bool) is True
            context = None if cause or suppressed else self._link(current, "__context__")
            linked = cause or context
            if linked is None:
                return first
            next_one = self._one(linked[0], depth)
            if cause:
                stand_in.__cause__ = next_one
            else:
                stand_in.__context__ = next_one
            current, stand_in = linked[0], next_one

    def _link(self, exception: BaseException, name: str) -> tuple[BaseException] | None:
        # In a tuple, since the truth of an exception is its own class's to say.
        linked = _attribute(exception, name, BaseException)
        if linked is None or id(linked) in self._seen or self._left <= 0:
            return None
        return (linked,)

    def _one(self, exception: BaseException, depth: int) -> BaseException:
        self._left -= 1
        self._seen.add(id(exception))
        cls = type(exception)
        members = None
        if issubclass(cls, BaseExceptionGroup):
            members = self._members(exception, depth)
        elif issubclass(cls, SyntaxError):
            location = _syntax_error_arguments(exception)
            if location is not None:
                stand_in = _class_like(cls, SyntaxError)(*location)
                return self._dress(stand_in, exception)
        if members:
            stand_in = _class_like(cls, BaseExceptionGroup)("", members)
        else:
            base = next((b for b in self._suggestions if issubclass(cls, b)), BaseException)
            stand_in = _class_like(cls, base)()
            for attribute in self._suggestions.get(base, ()):
                setattr(stand_in, attribute, _attribute(exception, attribute, object))
        return self._dress(stand_in, exception)

    def _dress(self, stand_in: BaseException, exception: BaseException) -> BaseException:
        stand_in.printed_text = safe_str(exception)  # type: ignore[attr-defined]
        stand_in.__traceback__ = _attribute(exception, "__traceback__", TracebackType)
        notes = _notes(exception)
        if notes:
            stand_in.__notes__ = notes
        return stand_in

    def _members(self, group: BaseException, depth: int) -> list[BaseException]:
        members: list[BaseException] = []
        listed = _attribute(group, "exceptions", (tuple, list)) or ()
        for member in listed:
            if not issubclass(type(member), BaseException):
                continue
            if self._left <= 0 or depth >= MAX_GROUP_DEPTH:
                members.append(_LeftOut())
                break
            members.append(self.of(member, depth + 1))
        return members


class _LeftOut(Exception):  # noqa: N818 - printed, not raised
    """Printed in place of the members of a group that are too many."""

    __module__ = "builtins"
    __qualname__ = "…"

    def __str__(self) -> str:
        return "further exceptions are left out"


# Newer versions of Python say "Did you mean …?", for which the exception's class and these count.
_WITH_SUGGESTIONS: dict[type[BaseException], tuple[str, ...]] = {
    AttributeError: ("name", "obj"),
    NameError: ("name",),
    ImportError: ("name", "name_from"),
}


def _class_like(cls: type, base: type[BaseException]) -> Callable[..., BaseException]:
    """A class that prints under the name of ``cls`` and has ``base``'s layout."""
    return type(
        "StandIn",
        (base,),
        {
            "__module__": _module_of(cls),
            "__qualname__": _name_of(cls),
            "__str__": lambda self: self.printed_text,
        },
    )


def _syntax_error_arguments(exception: BaseException) -> tuple[Any, ...] | None:
    message = _attribute(exception, "msg", str)
    text = _attribute(exception, "text", str)
    filename = _attribute(exception, "filename", str)
    if message is None:
        return None
    numbers = [
        _attribute(exception, name, int)
        for name in ("lineno", "offset", "end_lineno", "end_offset")
    ]
    if text is not None and len(text) > MAX_NAME_BYTES:  # a caret in a line that long helps nobody
        text = None
    place = (filename, numbers[0], numbers[1], text, numbers[2], numbers[3])
    return (_cut(message, MAX_MESSAGE_BYTES), place)


def _notes(exception: BaseException) -> list[str]:
    try:
        notes = getattr(exception, "__notes__", None)
        if notes is None:
            return []
        if not issubclass(type(notes), (list, tuple)):
            return [_safe_text(notes, repr)]
        return [safe_str(note) for note in notes[:MAX_NOTES]]
    except BaseException:  # properties and sequences of the user's
        return ["<__notes__ could not be read>"]


# -- printing ------------------------------------------------------------------------------------


def _try_backtrace(exception: BaseException, *, suggestions: bool) -> list[str] | None:
    try:
        stand_in = _Mirror(suggestions=suggestions).of(exception)
        printed = traceback.TracebackException(
            type(stand_in), stand_in, stand_in.__traceback__, limit=-MAX_FRAMES, compact=True
        )
        return _cut_lines("".join(printed.format()).removesuffix("\n").split("\n"))
    except BaseException:  # the user's code may raise anything, and the failure must be kept
        return None


def _cut_lines(lines: list[str]) -> list[str]:
    """At most 400 lines and 64,000 bytes: the beginning and, mostly, the end."""
    lines = [_cut(line, MAX_MESSAGE_BYTES) for line in lines]
    if len(lines) <= MAX_LINES and _size(lines) <= MAX_BACKTRACE_BYTES:
        return lines
    head = _take(lines, _HEAD_LINES, _HEAD_BYTES)
    mark_bytes = 100
    rest = lines[len(head) :]
    room = MAX_BACKTRACE_BYTES - _size(head) - mark_bytes
    tail = _take(reversed(rest), MAX_LINES - len(head) - 1, room)[::-1]
    return [*head, f"  … ({len(rest) - len(tail):,} lines left out) …", *tail]


def _take(lines: Iterable[str], count: int, size: int) -> list[str]:
    taken: list[str] = []
    for line in lines:
        size -= _size([line])
        if size < 0 or len(taken) == count:
            break
        taken.append(line)
    return taken


def _size(lines: list[str]) -> int:
    """Bytes in UTF-8 with a newline each."""
    return sum(len(line.encode("utf-8", "surrogatepass")) + 1 for line in lines)
