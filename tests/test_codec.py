"""Arguments survive with value and type, and nothing else is taken."""

from __future__ import annotations

import collections
import enum
import io
import json
import os
import struct
import sys
import types
import uuid
from datetime import date, datetime, time, timedelta, tzinfo
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from django.apps import apps
from django.contrib.auth.models import AnonymousUser, User
from django.db import models
from django.utils.functional import SimpleLazyObject, lazy
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy, ngettext_lazy, override
from hypothesis import HealthCheck, given, settings

from deferred_django import codec, decoding
from deferred_django.references import NotCarriedError
from tests.testapp.models import Note
from tests.values import MEMBERS, ZONES, Access, Bits, Level, carried, exact


def through(value: Any) -> Any:
    """``value`` encoded, written as strict JSON in ASCII, read and decoded."""
    text = json.dumps(codec.encode(value), allow_nan=False)
    assert text.isascii()
    return decoding.decode(json.loads(text))


def reason(value: Any) -> str:
    """Why ``value`` is not carried, with the way to it."""
    with pytest.raises(NotCarriedError) as caught:
        codec.encode(value)
    return str(caught.value.for_argument("order", "shop.tasks.send"))


@pytest.mark.django_db
def test_every_listed_value_comes_back_equal_and_of_the_same_type() -> None:
    notes = [Note.objects.create(text="a"), Note.objects.create(text="b")]

    @given(carried(*notes))
    @settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    def check(value: Any) -> None:
        assert exact(through(value)) == exact(value)

    check()


@pytest.mark.parametrize(
    "value",
    [
        {1: (1, 2), "1": "x", 2.5: [], None: 3, True + 1: 0},
        {True: 1},
        {1: 1},
        {1.0: 2},
        {None: 3},
        {"$tuple": [1]},
        {"$dict": {"$dict": []}},
        {"$x": 1, "y": 2},
        {(1, ("a", frozenset({2}))): {3: {4}}},
        [True, 1, 1.0, False, 0, -0.0, 0.0],
        {(1, 2), ((3,), 4)},
        float("inf"),
        float("-inf"),
        float("nan"),
        -float("nan"),
        5e-324,
        Decimal("1.10"),
        Decimal("-sNaN17"),
        10**5000,
        -(10**5000),
        uuid.UUID(int=7),
        b"\x00\xff",
        "a\u2028b\x85c\x0bd\x1ce\rf\ng:h,i\t%s\x00",
        "\ud83d\ude00 joined would be \N{GRINNING FACE}",
        {"\ud83d\ude00": 1, "\N{GRINNING FACE}": 2},
        date.min,
        time.max,
        timedelta.min,
        datetime.max,
        datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Paris")),
        datetime(2026, 3, 29, 2, 30, tzinfo=ZoneInfo("Europe/Paris")),
    ],
    ids=lambda value: repr(value)[:40] if not isinstance(value, int) else "huge",
)
def test_values_that_broke_others(value: Any) -> None:
    """C26, C30."""
    assert exact(through(value)) == exact(value)


def test_a_name_that_is_not_text_survives() -> None:
    """C28."""
    name = os.fsdecode(b"\xff.txt")
    assert through([name]) == [name]


@pytest.mark.parametrize("zone", ZONES, ids=str)
@pytest.mark.parametrize("fold", [0, 1])
def test_zones_and_folds(zone: tzinfo | None, fold: int) -> None:
    moment = datetime(2026, 10, 25, 2, 30, 0, 7, tzinfo=zone, fold=fold)
    for value in (moment, moment.timetz()):
        assert exact(through(value)) == exact(value)


@pytest.mark.parametrize("member", MEMBERS, ids=repr)
def test_enum_members_come_back_as_themselves(member: enum.Enum) -> None:
    # Python 3.11.2 makes a new object for each combination of flags with bits of no name.
    assert through(member) is member or type(member)(member.value) is not member
    assert exact(through(member)) == exact(member)
    assert through({member: [member]}) == {member: [member]}


def test_plain_values_are_stored_as_plain_json() -> None:
    value = {"order": 7, "lines": [{"sku": "x", "price": 1.5, "gift": None, "new": True}]}
    assert codec.encode(value) == value
    assert codec.encode((1, b"a")) == {"$tuple": [1, {"$bytes": "YQ=="}]}


def test_later_changes_do_not_reach_the_encoded_form() -> None:
    inner: list[int] = [1]
    value = {"a": inner, 2: inner}
    encoded = codec.encode(value)
    inner.append(2)
    value["b"] = [3]
    assert decoding.decode(encoded) == {"a": [1], 2: [1]}


def test_safe_and_lazy_text_become_text() -> None:
    """C30."""
    with override("de"):
        for value in (mark_safe("<b>"), gettext_lazy("Yes")):
            result = through([value])[0]
            assert type(result) is str
            assert result == str(value)
        assert through(gettext_lazy("Yes")) == "Ja"


# -- what is not carried ---------------------------------------------------------------------


class Text(str):
    __slots__ = ()


class Mapping(dict[str, int]):
    pass


class Number(int):
    pass


class Moment(datetime):
    pass


class Point(NamedTuple):
    x: int


class OwnZone(tzinfo):
    def utcoffset(self, moment: datetime | None) -> timedelta:
        return timedelta(0)

    dst = utcoffset

    def tzname(self, moment: datetime | None) -> str:
        return "own"


class Liar:
    """Pretends to be text."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return str


def local_member() -> enum.Enum:
    class Local(enum.Enum):
        A = 1

    return Local.A


NOT_CARRIED: list[Any] = [
    object(),
    Text("a"),
    Mapping(a=1),
    Number(1),
    Moment(2026, 1, 1),
    Point(1),
    Liar(),
    collections.OrderedDict(a=1),
    collections.defaultdict(int),
    collections.Counter("a"),
    collections.deque([1]),
    bytearray(b"a"),
    memoryview(b"a"),
    range(3),
    1j,
    Fraction(1, 3),
    Path("a"),
    ...,
    NotImplemented,
    int,
    Level,
    len,
    lambda: None,
    ValueError("a"),
    types,
    iter([1]),
    {}.keys(),
    types.MappingProxyType({}),
    datetime(2026, 1, 1, tzinfo=OwnZone()),
    time(1, tzinfo=OwnZone()),
    AnonymousUser(),
    lazy(lambda: 5, int)(),
    local_member(),
    ngettext_lazy("%(n)d note", "%(n)d notes", "n"),
    SimpleLazyObject(lambda: "a"),
    SimpleLazyObject(lambda: Level.LOW),
]


@pytest.mark.parametrize("value", NOT_CARRIED, ids=lambda value: type(value).__name__)
def test_everything_else_is_refused(value: Any) -> None:
    """C30."""
    assert reason(value).startswith("argument 'order' of shop.tasks.send: ")
    for place in ([value], (0, value), {"a": value}, {1: [{2: value}]}):
        assert reason(place).startswith("argument 'order' of shop.tasks.send: order[")


def test_a_zone_from_a_file_is_refused() -> None:
    counts = struct.pack(">6l", 0, 0, 0, 0, 1, 4)
    smallest = b"TZif\0" + bytes(15) + counts + struct.pack(">lbb", 0, 0, 0) + b"UTC\0"
    zone = ZoneInfo.from_file(io.BytesIO(smallest), key="Europe/Paris")
    assert "time zone" in reason(datetime(2026, 1, 1, tzinfo=zone))
    assert "time zone" in reason(
        datetime(2026, 1, 1, tzinfo=ZoneInfo.from_file(io.BytesIO(smallest)))
    )


def test_the_way_to_the_value_is_named() -> None:
    value = [0, 1, 2, {"x": (7, {"y": bytearray()})}]
    assert "order[3]['x'][1]['y']: a value of type bytearray cannot be carried" in reason(value)
    assert "order['a'][7]: " in reason({"a": {7: 1j}})
    assert "order (a key, (1, <object object" in reason({(1, object()): 1})
    assert "order['a'] (a key, 1j): " in reason({"a": {1j: 1}})
    assert "order[0]{…}: " in reason([{1j}])


def test_what_contains_itself_is_refused() -> None:
    """C30."""
    loop: list[Any] = []
    loop.append({"a": loop})
    assert "contains itself" in reason(loop)
    table: dict[Any, Any] = {}
    table[1] = table
    assert "contains itself" in reason(table)
    assert len(reason(loop)) < 300


def test_nesting_is_taken_to_its_limit_and_refused_beyond() -> None:
    def nested(levels: int, wrap: Any) -> Any:
        value: Any = 0
        for _ in range(levels):
            value = wrap(value)
        return value

    for wrap in (lambda v: [v], lambda v: (v,), lambda v: {1: v}, lambda v: frozenset({v})):
        deepest = nested(codec.MAX_DEPTH, wrap)
        assert exact(through(deepest)) == exact(deepest)
        assert "more than 100 levels" in reason(nested(codec.MAX_DEPTH + 1, wrap))
    assert "more than 100 levels" in reason(nested(100_000, lambda v: [v]))


# -- Enum classes ----------------------------------------------------------------------------


def test_an_enum_that_its_name_does_not_find_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Replaced(enum.Enum):
        A = 1

    Replaced.__qualname__ = "Level"  # another class is there
    assert "cannot be found again" in reason(Replaced.A)
    Replaced.__module__ = "__main__"
    assert "__main__" in reason(Replaced.A)


def test_decoding_an_enum_calls_nothing_but_the_look_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "trap_for_names.py").write_text(
        "import enum\n"
        "def __getattr__(name): raise SystemExit(name)\n"
        "class Trap:\n"
        "    def __class_getitem__(cls, name): raise SystemExit(name)\n"
        "    def __init__(self, *args): raise SystemExit(args)\n"
        "class Good(enum.Enum):\n"
        "    A = 1\n"
        "    def act(self): raise SystemExit('act')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for module, qualname, key in [
        ("trap_for_names", "Trap", "x"),
        ("trap_for_names", "missing", "x"),
        ("trap_for_names", "Good.act", "x"),
        ("trap_for_names", "Good.A", "x"),
        ("os", "system", "true"),
        ("builtins", "exec", "1"),
        (".relative", "x", "y"),
        ("", "", ""),
        (7, "a", "b"),
        ("os path", "a", "b"),
    ]:
        with pytest.raises(ValueError, match="not an Enum class|no module's name"):
            decoding.decode({"$enum": [module, qualname, key]})
    with pytest.raises(KeyError):
        decoding.decode({"$enum": ["trap_for_names", "Good", "act"]})
    assert decoding.decode({"$enum": ["trap_for_names", "Good", "A"]}).value == 1
    with pytest.raises(ModuleNotFoundError):
        decoding.decode({"$enum": ["no_such_module_here", "A", "B"]})
    with pytest.raises(KeyError):
        decoding.decode({"$enum": ["tests.values", "Level", 1]})  # by value: for flags alone


@pytest.mark.parametrize("payload", [{"$nothing": 1}, {"$": 1}, {"$__class__": []}])
def test_unknown_forms_are_refused(payload: Any) -> None:
    with pytest.raises(ValueError, match="unknown form"):
        decoding.decode(payload)


def test_flags_are_named_where_they_have_a_name() -> None:
    assert codec.encode(Access.READ) == {"$enum": ["tests.values", "Access", "READ"]}
    assert codec.encode(Bits.ONE | Bits.TWO) == {"$enum": ["tests.values", "Bits", 3]}


# -- model instances -------------------------------------------------------------------------


@pytest.mark.django_db(databases=["default", "other"])
def test_an_instance_is_read_again_from_its_own_database() -> None:
    Note.objects.create(text="default")
    note = Note.objects.using("other").create(text="before")
    encoded = codec.encode({"note": note})
    assert encoded == {"note": {"$model": ["testapp", "note", "other", note.pk]}}
    Note.objects.using("other").filter(pk=note.pk).update(text="after")
    again = decoding.decode(encoded)["note"]
    assert type(again) is Note
    assert (again.pk, again.text, again._state.db) == (note.pk, "after", "other")


@pytest.mark.django_db
def test_deferred_lazy_and_proxy_instances() -> None:
    user = User.objects.create(username="u")
    deferred = User.objects.only("pk").get()
    assert exact(through(deferred)) == exact(user)
    assert type(through(deferred)) is User
    lazy_user = SimpleLazyObject(lambda: user)
    assert type(through(lazy_user)) is User
    assert "password" in deferred.get_deferred_fields()  # encoding read nothing


@pytest.mark.django_db
def test_an_unsaved_instance_is_a_value_error() -> None:
    deleted = Note.objects.create(text="a")
    deleted.delete()
    for note in (Note(text="a"), Note(pk=5, text="a"), deleted):
        with pytest.raises(NotCarriedError) as caught:
            codec.encode([note])
        error = caught.value.for_argument("order", "shop.tasks.send")
        assert type(error) is ValueError
        assert "order[0]: this testapp.Note is not saved" in str(error)


@pytest.mark.django_db
def test_a_row_that_is_gone_raises_when_it_is_read() -> None:
    note = Note.objects.create(text="a")
    encoded = codec.encode(note)
    Note.objects.all().delete()
    with pytest.raises(Note.DoesNotExist):
        decoding.decode(encoded)


@pytest.mark.django_db
def test_a_key_that_cannot_be_carried_is_named() -> None:
    note = Note.objects.create(text="a")
    note.pk = Text("7")
    assert "order.pk: " in reason(note)


def test_a_model_of_no_app_is_refused() -> None:
    class Stray(models.Model):
        class Meta:
            app_label = "no_such_app"

    try:
        assert "not a model of this project" in reason(Stray(pk=1))
    finally:
        del apps.all_models["no_such_app"]
        apps.clear_cache()


def test_decoding_a_model_needs_one() -> None:
    with pytest.raises(LookupError):
        decoding.decode({"$model": ["os", "system", "default", "true"]})


def test_no_module_that_can_run_stored_code_is_used() -> None:
    for module in (codec, sys.modules["deferred_django.references"]):
        names = set(vars(module)) | set(dir(module))
        assert not names & {"pickle", "marshal", "eval", "exec", "import_string"}
