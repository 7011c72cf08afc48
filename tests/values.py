"""Every kind of value that a task's argument can be, and a way to compare two of them exactly."""

from __future__ import annotations

import enum
import math
from collections.abc import Hashable
from datetime import UTC, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

from django.db import models
from hypothesis import strategies as st


class Colour(enum.Enum):
    RED = "red"
    CRIMSON = "red"  # noqa: PIE796 - an alias
    NOTHING = None


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Kind(enum.StrEnum):
    A = "a"


class OldKind(str, enum.Enum):  # noqa: UP042 - the older way
    B = "b"


class Access(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()
    RUN = enum.auto()


class Bits(enum.IntFlag):
    ONE = 1
    TWO = 2


class Order:
    class Status(models.TextChoices):
        PAID = "paid", "Paid"


MEMBERS: list[enum.Enum] = [
    *Colour,
    *Level,
    *Kind,
    *OldKind,
    *Access,
    *Order.Status,
    Access.READ | Access.RUN,
    Access(0),
    Bits.ONE | Bits.TWO,
    Bits(8 | 1),
]

ZONES: list[tzinfo | None] = [
    None,
    UTC,
    ZoneInfo("UTC"),
    ZoneInfo("Europe/Paris"),
    ZoneInfo("America/St_Johns"),
    timezone(timedelta(hours=5, minutes=30)),
    timezone(timedelta(0), "UTC"),
    timezone(timedelta(hours=1), "CET"),
    timezone(-timedelta(hours=3, microseconds=17)),
]


def exact(value: Any) -> Any:
    """Equal, and hashable, for two values only if their types and values are the same."""
    kind = type(value)
    if kind in (list, tuple):
        return kind, tuple(exact(item) for item in value)
    if kind in (set, frozenset):
        return kind, len(value), frozenset(exact(item) for item in value)
    if kind is dict:
        return kind, tuple((exact(key), exact(item)) for key, item in value.items())
    if kind is float:
        return kind, repr(value), math.copysign(1.0, value)
    if kind is Decimal:
        return kind, value.as_tuple()
    if kind is datetime:
        return kind, value.replace(tzinfo=None).isoformat(), value.fold, _zone(value.tzinfo)
    if kind is time:
        return kind, value.replace(tzinfo=None).isoformat(), value.fold, _zone(value.tzinfo)
    if isinstance(value, models.Model):
        return kind, value.pk, value._state.db
    if isinstance(value, enum.Enum):
        return kind, value.name, value.value
    return kind, value


def _zone(zone: tzinfo | None) -> Any:
    if isinstance(zone, timezone):
        return timezone, zone.__getinitargs__()  # type: ignore[attr-defined]
    return type(zone), str(zone)


TEXT = st.text() | st.text(st.sampled_from("a$\u2028\n\ud83d\ude00\udcff😀"))
HASHABLE_LEAVES: st.SearchStrategy[Hashable] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=600, max_value=30_000).map(lambda bits: -(3**bits)),
    st.floats(),
    TEXT,
    st.sampled_from(["$tuple", "$dict", "$", ""]),
    st.binary(),
    st.dates(),
    st.times(timezones=st.sampled_from(ZONES)),
    st.builds(
        lambda value, fold: value.replace(fold=fold),
        st.datetimes(timezones=st.sampled_from(ZONES), allow_imaginary=True),
        st.integers(0, 1),
    ),
    st.timedeltas(),
    st.decimals().filter(lambda number: not number.is_snan()),
    st.sampled_from([Decimal(text) for text in ("-0", "1.10", "1E+999999", "NaN123", "-Infinity")]),
    st.uuids(),
    st.sampled_from(MEMBERS),
)
SIGNALLING = st.just(Decimal("sNaN7"))  # cannot be hashed
HASHABLE = st.recursive(
    HASHABLE_LEAVES,
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=6,
)


def carried(*more: Any) -> st.SearchStrategy[Any]:
    """Any value that can be carried, ``more`` among the innermost ones."""
    leaves = HASHABLE | SIGNALLING
    if more:
        leaves |= st.sampled_from(more)
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.lists(inner, max_size=4).map(tuple)
            | st.sets(HASHABLE, max_size=4)
            | st.dictionaries(HASHABLE, inner, max_size=4)
            | st.dictionaries(TEXT, inner, max_size=4)
        ),
        max_leaves=12,
    )
