"""From JSON-level values to a task's arguments: the way back of :mod:`deferred_django.codec`.

What is read may have been written by anybody. Nothing is called but the types that are listed here,
the look-up of an Enum class, and the managers of a model (:mod:`deferred_django.references`).
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db.models import Model

from deferred_django import references


def decode(value: Any) -> Any:
    """The value that :func:`.codec.encode` made ``value`` from; reads model instances.

    Raises ``ValueError`` for what :func:`.codec.encode` never makes, and whatever the look-up of an
    Enum member or a model instance raises.
    """
    kind = type(value)
    if kind is list:
        return [decode(item) for item in value]
    if kind is not dict:
        return value
    if len(value) == 1:
        [(tag, payload)] = value.items()
        if tag.startswith("$"):
            decoder = _DECODERS.get(tag)
            if decoder is None:
                raise ValueError(f"unknown form {tag!r}: was it written by a newer version?")
            return decoder(payload)
    return {key: decode(item) for key, item in value.items()}


def _checked(kind: type, decoder: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``decoder`` for payloads of ``kind``, which calls nothing but the types it makes."""

    def decode_checked(payload: Any) -> Any:
        try:
            if isinstance(payload, kind):
                return decoder(payload)
        except (ArithmeticError, LookupError, TypeError) as error:
            raise ValueError(f"no stored value has this form: {error!r:.200}") from error
        raise ValueError(f"no stored value has this form: {payload!r:.60}")

    return decode_checked


def _list(payload: Any, length: int | None = None) -> list[Any]:
    if not isinstance(payload, list) or (length is not None and len(payload) != length):
        raise ValueError(f"no stored value has this form: {payload!r:.60}")
    return payload


def _items(payload: Any) -> list[Any]:
    return [decode(item) for item in _list(payload)]


def _decode_dict(payload: Any) -> Any:
    pairs = [_list(pair, 2) for pair in _list(payload)]
    return _make_dict([(decode(key), decode(item)) for key, item in pairs])


_make_dict = _checked(list, dict)  # keys that cannot be hashed
_make_set = _checked(list, set)
_make_frozenset = _checked(list, frozenset)


def _decode_member(payload: Any) -> Enum:
    module, qualname, key = _list(payload, 3)
    return references.find_member(module, qualname, key)


def _decode_model(payload: Any) -> Model:
    app_label, model_name, alias, pk = _list(payload, 4)
    return references.find_instance(app_label, model_name, alias, decode(pk))


def _decode_moment(kind: type[datetime] | type[time]) -> Callable[[Any], Any]:
    def decode_moment(payload: Any) -> Any:
        if isinstance(payload, str):
            return kind.fromisoformat(payload)
        value = kind.fromisoformat(payload["at"])
        if "zone" in payload:
            try:
                value = value.replace(tzinfo=ZoneInfo(payload["zone"]))
            except OSError as error:  # a directory of zones, or a name that no file can have
                raise ValueError(f"no time zone: {payload['zone']!r:.60}") from error
        elif "name" in payload:
            offset = value.utcoffset()
            if offset is None:
                raise ValueError("a time zone's name without an offset")
            value = value.replace(tzinfo=timezone(offset, payload["name"]))
        return value.replace(fold=payload.get("fold", 0))

    return decode_moment


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "$int": _checked(str, lambda payload: int(payload, 16)),
    "$float": _checked(str, float),
    "$str": _checked(list, "".join),
    "$bytes": _checked(str, lambda payload: base64.b64decode(payload, validate=True)),
    "$tuple": lambda payload: tuple(_items(payload)),
    "$set": lambda payload: _make_set(_items(payload)),
    "$frozenset": lambda payload: _make_frozenset(_items(payload)),
    "$dict": _decode_dict,
    "$datetime": _checked(object, _decode_moment(datetime)),
    "$time": _checked(object, _decode_moment(time)),
    "$date": _checked(str, date.fromisoformat),
    "$timedelta": _checked(list, lambda payload: timedelta(*payload)),
    "$decimal": _checked(str, Decimal),
    "$uuid": _checked(str, UUID),
    "$enum": _decode_member,
    "$model": _decode_model,
}
