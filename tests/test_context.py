"""What one call carries, as bytes."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deferred_django import context as contexts
from deferred_django.context import TaskContext, displayed
from tests.values import TEXT, carried, exact


def build(*args: Any, **kwargs: Any) -> TaskContext:
    return TaskContext.build("shop.tasks.send", args, kwargs, names=("order", "copy_to"))


@given(st.lists(carried(), max_size=3), st.dictionaries(st.text(), carried(), max_size=2))
@settings(max_examples=60, deadline=None)
def test_arguments_survive_as_bytes(args: list[Any], kwargs: dict[str, Any]) -> None:
    context = TaskContext.build("shop.tasks.send", tuple(args), kwargs)
    data = context.to_bytes()
    assert data.isascii()
    assert b"\n" not in data
    again = TaskContext.from_bytes(data)
    assert again == context
    assert exact(again.arguments()) == exact((tuple(args), kwargs))
    shown = displayed(data)
    assert set(shown) == {"args", "kwargs"}
    json.dumps(shown, allow_nan=False)


def test_the_form_that_is_stored() -> None:
    context = TaskContext.build("shop.tasks.send", (7,), {"copy_to": None}, enqueued_at=5.12349)
    assert context.to_bytes() == (
        b'{"v":1,"task":"shop.tasks.send","at":5.123,"args":[7],"kwargs":{"copy_to":null}}'
    )


def test_everything_else_that_it_carries_survives() -> None:
    context = TaskContext.build("a.b", (), {}, user_context={"trace": (1, b"x")})
    context = dataclasses.replace(context, attempts=3, unknown_since=8.5, put_backs=2)
    assert TaskContext.from_bytes(context.to_bytes()) == context


def test_separators_and_control_characters_are_data() -> None:
    """C26."""
    text = "a\u2028b\x85c\x0bd\x1ce\rf\ng:h,i\t%s"
    data = build(text, **{text: text}).to_bytes()
    assert all(0x20 <= byte < 0x7F for byte in data)
    assert TaskContext.from_bytes(data).arguments() == ((text,), {text: text})


@pytest.mark.parametrize(
    ("args", "kwargs", "where"),
    [
        ((1, [object()]), {}, r"argument 'copy_to' of shop\.tasks\.send: copy_to\[0\]: "),
        ((1, 2, {3j}), {}, r"argument 'args\[2\]' of shop\.tasks\.send: args\[2\]\{…\}: "),
        ((1,), {"note": {"a": 1j}}, r"argument 'note' of shop\.tasks\.send: note\['a'\]: "),
        ((1,), {"\ud83d\ude00": 1}, "surrogates"),
    ],
)
def test_the_argument_is_named(args: Any, kwargs: Any, where: str) -> None:
    with pytest.raises(TypeError, match=where):
        build(*args, **kwargs)


def test_an_oversized_record_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contexts, "MAX_RECORD_BYTES", 1000)
    with pytest.raises(ValueError, match=r"shop\.tasks\.send take 1\d\d\d bytes"):
        build("x" * 1000).to_bytes()


GOOD = build(7).to_bytes()
BAD: list[bytes] = [
    b"",
    b"null",
    b"[]",
    b"{}",
    GOOD[:-1],
    GOOD.replace(b'"v":1', b'"v":0'),
    GOOD.replace(b'"v":1', b'"v":true'),
    GOOD.replace(b'"v":1,', b""),
    GOOD.replace(b'"args":[7]', b'"args":7'),
    GOOD.replace(b'"args":[7]', b'"args":[NaN]'),
    GOOD.replace(b'"args":[7],', b""),
    GOOD.replace(b'"kwargs":{}', b'"kwargs":[]'),
    GOOD.replace(b'"kwargs":{}', b'"kwargs":{},"attempts":"1"'),
    GOOD.replace(b'"args":[7]', b'"args":[' + b"9" * 5000 + b"]"),
    b'{"v":1,"args":' + b"[" * 100_000,
    b"\xff\x00",
    "{\u2028}".encode(),
]


@pytest.mark.parametrize("data", BAD, ids=lambda data: repr(data[:40]))
def test_what_is_no_context_is_a_value_error_and_is_still_displayed(data: bytes) -> None:
    with pytest.raises(ValueError, match="."):
        TaskContext.from_bytes(data)
    json.dumps(displayed(data), allow_nan=False)


def test_a_newer_context_is_refused_clearly_and_displayed() -> None:
    newer = GOOD.replace(b'"v":1', b'"v":2,"new":[]')
    with pytest.raises(ValueError, match="version 2, written by a newer deferred-django"):
        TaskContext.from_bytes(newer)
    assert displayed(newer) == {"args": [7], "kwargs": {}}


@given(st.binary() | TEXT.map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_displaying_never_fails(data: bytes) -> None:
    shown = displayed(data)
    assert json.loads(json.dumps(shown, allow_nan=False)) == shown


def test_the_encoder_made_once_writes_what_json_writes() -> None:
    values = {"a": [1, -2.5, 1e300, None, True, 'é\u2028\udcff\n"\\'], "b": {"c": {}, "d": []}}
    assert contexts._to_json(values) == json.dumps(values, separators=(",", ":"))
    with pytest.raises(ValueError, match="JSON compliant"):
        contexts._to_json({"a": float("nan")})
