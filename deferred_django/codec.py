"""Arguments of tasks to JSON-level values and back, with the same value and the same type.

What JSON has stays as it is, so that a person can read a stored call: ``None``, booleans, text,
lists, dicts with text keys, integers, and floats that are numbers. Everything else is an object
with one key that begins with ``$``:

=================  ===============================================================================
``$int``           ``"0x…"``: an integer of more than 2000 bits
``$float``         ``"nan"``, ``"-nan"``, ``"inf"`` or ``"-inf"``
``$str``           pieces of a text with surrogates that JSON would join to one character
``$bytes``         base64
``$tuple``         its items; so are ``$set`` and ``$frozenset``, in no certain order
``$dict``          ``[key, value]`` pairs, in order, where a plain object would not do
``$datetime``      ISO 8601, with the offset of a fixed one; or ``{"at": …}`` with ``"zone"`` (an
                   IANA key), ``"name"`` (of a fixed offset) and ``"fold"``; so is ``$time``
``$date``          ISO 8601
``$timedelta``     ``[days, seconds, microseconds]``
``$decimal``       its digits; ``$uuid`` the usual form
``$enum``          ``[module, class, member's name]``; a combination of flags has its number
``$model``         ``[app label, model name, database alias, primary key]``
=================  ===============================================================================

Only exactly these types are carried, no subclasses of them, since a subclass would come back as
something else. ``SafeString`` and lazy text are taken as the text that they are. Two references
to one list come back as two equal lists. Decoding calls nothing of what it reads but the look-up
of an Enum class, and the managers of a model (see :mod:`deferred_django.references`).
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db.models import Model
from django.utils.functional import Promise
from django.utils.safestring import SafeString

from deferred_django import references
from deferred_django.references import NotCarriedError

MAX_DEPTH = 100
"""Containers inside each other. JSON's own recursion takes up to three levels for each."""
# str(int) refuses more digits than sys.set_int_max_str_digits() allows, which is never under 640.
_MAX_PLAIN_BITS = 2000
_JOINABLE = re.compile("(?<=[\ud800-\udbff])(?=[\udc00-\udfff])")
_CARRIED = (
    "None, bool, int, float, str, bytes, list, tuple, dict, set, frozenset, datetime, date, "
    "time, timedelta, Decimal, UUID, Enum members and model instances, but no subclasses"
)


def encode(value: Any, depth: int = 0) -> Any:
    """The JSON-level form of ``value``, sharing no mutable object with it.

    Raises :class:`NotCarriedError`, which knows the way to the value that cannot be carried.
    """
    encoder = _ENCODERS.get(type(value))
    if encoder is not None:
        return encoder(value, depth)
    if issubclass(type(value), Enum):
        return {"$enum": references.describe_member(value)}
    if type(value) is SafeString:
        return _encode_str(str.__str__(value), depth)
    if issubclass(type(value), Promise):
        return _encode_lazy(value, depth)
    if isinstance(value, Model):  # also one inside a SimpleLazyObject, such as request.user
        *model, pk = references.describe_instance(value)
        try:
            return {"$model": [*model, encode(pk, depth + 1)]}
        except NotCarriedError as refusal:
            refusal.path.append(".pk")
            raise
    raise NotCarriedError(f"{_type_name(value)} cannot be carried (carried are {_CARRIED})")


# -- text and numbers ------------------------------------------------------------------------


def _encode_plain(value: Any, depth: int) -> Any:
    return value


def _encode_str(value: str, depth: int) -> Any:
    if value.isascii():
        return value
    pieces = _JOINABLE.split(value)
    return value if len(pieces) == 1 else {"$str": pieces}


def _encode_lazy(value: Promise, depth: int) -> Any:
    if not hasattr(type(value), "casefold"):  # lazy objects have the methods of their results
        raise NotCarriedError("a lazy object that is not text cannot be carried")
    if hasattr(type(value), "_get_number_value"):
        raise NotCarriedError("a lazy plural is no text before it has its number")
    return _encode_str(str.__str__(str(value)), depth)


def _encode_int(value: int, depth: int) -> Any:
    return value if value.bit_length() <= _MAX_PLAIN_BITS else {"$int": hex(value)}


def _encode_float(value: float, depth: int) -> Any:
    if math.isfinite(value):
        return value
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    return {"$float": sign + ("nan" if math.isnan(value) else "inf")}


def _encode_bytes(value: bytes, depth: int) -> Any:
    return {"$bytes": base64.b64encode(value).decode("ascii")}


# -- containers ------------------------------------------------------------------------------


def _encode_items(value: Iterable[Any], depth: int) -> list[Any]:
    if depth >= MAX_DEPTH:
        raise NotCarriedError(f"it contains itself, or more than {MAX_DEPTH} levels")
    items: list[Any] = []
    try:
        for item in value:
            items.append(encode(item, depth + 1))  # noqa: PERF401 - its length is the position
    except NotCarriedError as refusal:
        refusal.path.append(f"[{len(items)}]" if isinstance(value, list | tuple) else "{…}")
        raise
    return items


def _encode_dict(value: dict[Any, Any], depth: int) -> Any:
    if depth >= MAX_DEPTH:
        raise NotCarriedError(f"it contains itself, or more than {MAX_DEPTH} levels")
    plain: dict[str, Any] = {}
    key: Any = None
    try:
        for key, item in value.items():
            if type(key) is not str or not (key.isascii() or len(_JOINABLE.split(key)) == 1):
                break
            plain[key] = encode(item, depth + 1)
        else:
            if len(plain) != 1 or not next(iter(plain)).startswith("$"):
                return plain
        pairs = []
        for key, item in value.items():
            pairs.append([_encode_key(key, depth + 1), encode(item, depth + 1)])
    except NotCarriedError as refusal:
        if not refusal.in_key:
            refusal.path.append(f"[{references.short(key)}]")
        refusal.in_key = False
        raise
    return {"$dict": pairs}


def _encode_key(key: Any, depth: int) -> Any:
    try:
        return encode(key, depth)
    except NotCarriedError as refusal:
        refusal.path = [f" (a key, {references.short(key)})"]
        refusal.in_key = True
        raise


# -- times -----------------------------------------------------------------------------------


def _encode_moment(tag: str) -> Callable[[Any, int], Any]:
    """The encoder of ``datetime`` or ``time``, which keep their zone and fold alike."""

    def encode_moment(value: datetime | time, depth: int) -> Any:
        extras = _zone_extras(value.tzinfo)
        if value.fold:
            extras["fold"] = 1
        # isoformat() leaves out the fold, and gives a fixed offset with all its digits.
        at = (value.replace(tzinfo=None) if "zone" in extras else value).isoformat()
        return {tag: {"at": at, **extras} if extras else at}

    return encode_moment


def _zone_extras(zone: tzinfo | None) -> dict[str, Any]:
    kind = type(zone)
    if zone is None:
        return {}
    if kind is timezone:
        _, *name = zone.__getinitargs__()  # type: ignore[attr-defined]
        return {"name": name[0]} if name else {}
    if isinstance(zone, ZoneInfo) and kind is ZoneInfo and _found_by_key(zone):
        return {"zone": zone.key}
    raise NotCarriedError(
        f"its time zone is {_type_name(zone)} that cannot be found again by a name"
    )


def _found_by_key(zone: ZoneInfo) -> bool:
    try:
        zone.__reduce__()  # refuses a zone that was read from a file, whatever its key
    except Exception:
        return False
    return True


def _encode_timedelta(value: timedelta, depth: int) -> Any:
    return {"$timedelta": [value.days, value.seconds, value.microseconds]}


def _type_name(value: object) -> str:
    kind = type(value)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return f"a value of type {module}{kind.__qualname__}"


_ENCODERS: dict[type, Callable[[Any, int], Any]] = {
    type(None): _encode_plain,
    bool: _encode_plain,
    int: _encode_int,
    float: _encode_float,
    str: _encode_str,
    bytes: _encode_bytes,
    list: _encode_items,
    tuple: lambda value, depth: {"$tuple": _encode_items(value, depth)},
    set: lambda value, depth: {"$set": _encode_items(value, depth)},
    frozenset: lambda value, depth: {"$frozenset": _encode_items(value, depth)},
    dict: _encode_dict,
    datetime: _encode_moment("$datetime"),
    time: _encode_moment("$time"),
    date: lambda value, depth: {"$date": value.isoformat()},
    timedelta: _encode_timedelta,
    Decimal: lambda value, depth: {"$decimal": str(value)},
    UUID: lambda value, depth: {"$uuid": str(value)},
}
