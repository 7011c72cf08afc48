"""What one enqueued call carries, and its encoding to the bytes that a backend stores.

The bytes are one JSON object in ASCII without a raw newline, for example
``{"v":1,"task":"shop.tasks.send","at":1792888200.25,"args":[7],"kwargs":{}}``; arguments have the
form of :mod:`deferred_django.codec`. ``attempts``, ``user``, ``unknown_since``, ``put_backs`` and
``priority`` are there when they say something. ``v`` is raised when older code could no longer
read what is written.
"""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from deferred_django import codec, decoding
from deferred_django.backends.base import MAX_PRIORITY, MAX_RECORD_BYTES, MIN_PRIORITY
from deferred_django.nesting import is_too_deep
from deferred_django.references import NotCarriedError

VERSION = 1


def _make_to_json() -> Callable[[Any], str]:
    # The encoded values are a tree of our own making: nothing in it can be circular.
    encoder = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False)
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    escape = getattr(json.encoder, "encode_basestring_ascii", None)
    try:
        # JSONEncoder.encode makes this at each call, which takes longer than the encoding itself.
        compiled = make(None, encoder.default, escape, None, ":", ",", False, False, False)
        "".join(compiled({"a": [1, "b"]}, 0))
    except TypeError:  # another Python's, or none
        return encoder.encode
    return lambda values: "".join(compiled(values, 0))


_to_json = _make_to_json()
_quoted = functools.lru_cache(maxsize=1024)(json.dumps)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"not a task's context: {name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):  # it could never be written again
        raise ValueError(f"not a task's context: {text:.40} is too large a number")
    return value


_from_json = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_finite).raw_decode
_MAX_SECONDS = 1e15
_MAX_COUNT = 10**9


@dataclass(slots=True)
class TaskContext:
    """One call of a task: which, with what, and what has happened to it since.

    Shares nothing with the caller's objects. Not to be changed: ``dataclasses.replace`` makes
    another one. (It is not ``frozen`` because that would triple the cost of making it.)
    """

    task: str
    """The task's dotted name."""
    args: list[Any]
    """Positional arguments, encoded; :meth:`arguments` decodes them."""
    kwargs: dict[str, Any]
    """Keyword arguments, each value encoded."""
    enqueued_at: float
    """Unix seconds."""
    attempts: int = 0
    """How many attempts were made and failed."""
    user_context: dict[str, Any] = field(default_factory=dict)
    """What travels along besides the arguments, each value encoded."""
    unknown_since: float | None = None
    """Since when (unix seconds) no worker could import the task."""
    put_backs: int = 0
    """How often it was put back because no worker could import the task."""
    priority: int = 0
    """Of a dead task: the priority that it had, for when it is run again."""

    @classmethod
    def build(
        cls,
        task: str,
        args: Sequence[Any],
        kwargs: dict[str, Any],
        *,
        enqueued_at: float | None = None,
        user_context: dict[str, Any] | None = None,
        names: Sequence[str] = (),
    ) -> TaskContext:
        """The context of a call, its arguments encoded.

        ``names`` are those of the positional parameters, for messages. Raises ``TypeError`` for
        an argument that cannot be carried and ``ValueError`` for an unsaved model instance; both
        name the argument and the way to the value in it.
        """
        name = ""
        encoded: list[Any] = []
        try:
            encode = codec.encode
            for value in args:
                encoded.append(encode(value))  # noqa: PERF401 - its length is the position
            encoded_kwargs: dict[str, Any] = {}
            for name, value in kwargs.items():
                if encode(name) != name:
                    raise NotCarriedError("a name with such surrogates cannot be carried")
                encoded_kwargs[name] = encode(value)
            encoded_user: dict[str, Any] = {}
            if user_context:
                for key, value in user_context.items():
                    name = f"user_context[{key!r}]"
                    if encode(key) != key or not isinstance(key, str):
                        raise NotCarriedError("a name in the user context must be a plain str")
                    encoded_user[key] = encode(value)
        except NotCarriedError as refusal:
            position = len(encoded)
            if not name:
                name = names[position] if position < len(names) else f"args[{position}]"
            error = refusal.for_argument(name, task)
        else:
            at = round(time.time() if enqueued_at is None else enqueued_at, 3)
            return cls(task, encoded, encoded_kwargs, at, 0, encoded_user)
        raise error

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call's arguments as they were given.

        Reads model instances from their databases and imports the modules of Enum classes, so
        it needs a configured Django, must not be called on an event loop's thread, and raises
        whatever those raise.
        """
        decode = decoding.decode
        args = tuple([decode(value) for value in self.args])
        return args, {name: decode(value) for name, value in self.kwargs.items()}

    def to_bytes(self) -> bytes:
        """The bytes to store. Raises ``ValueError`` if they are more than a record can hold."""
        # Put together by hand, as far as it is the same for each: this is half of an enqueue.
        kwargs = _to_json(self.kwargs) if self.kwargs else "{}"
        text = (
            f'{{"v":{VERSION},"task":{_quoted(self.task)},"at":{self.enqueued_at!r},'
            f'"args":{_to_json(self.args)},"kwargs":{kwargs}'
        )
        if self.attempts:
            text += f',"attempts":{self.attempts}'
        if self.user_context:
            text += f',"user":{_to_json(self.user_context)}'
        if self.unknown_since is not None:
            text += f',"unknown_since":{self.unknown_since!r}'
        if self.put_backs:
            text += f',"put_backs":{self.put_backs}'
        if self.priority:
            text += f',"priority":{self.priority}'
        data = f"{text}}}".encode("ascii")
        if len(data) > MAX_RECORD_BYTES:
            raise ValueError(
                f"the arguments of {self.task} take {len(data)} bytes; "
                f"a record holds {MAX_RECORD_BYTES} at most"
            )
        return data

    @classmethod
    def from_bytes(cls, data: bytes) -> TaskContext:
        """The context that ``data`` holds. Raises ``ValueError`` that says why if it holds none."""
        values = _read(data)
        version = values.get("v")
        if type(version) is not int or version < 1:
            raise ValueError("not a task's context: it has no version")
        if version > VERSION:
            raise ValueError(
                f"a context of version {version}, written by a newer deferred-django; "
                f"this one reads version {VERSION}"
            )
        for key, kinds in _REQUIRED:
            if type(values.get(key)) not in kinds:
                raise ValueError(f"not a task's context: {key!r} is missing or of a wrong type")
        if abs(values["at"]) > _MAX_SECONDS:
            raise ValueError("not a task's context: 'at' is not a time")
        if len(values) > 1 + len(_REQUIRED):
            _check_optional(values)
        return cls(
            values["task"],
            values["args"],
            values["kwargs"],
            values["at"],
            values.get("attempts", 0),
            values.get("user", {}),
            values.get("unknown_since"),
            values.get("put_backs", 0),
            values.get("priority", 0),
        )


_REQUIRED: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("task", (str,)),
    ("at", (int, float)),
    ("args", (list,)),
    ("kwargs", (dict,)),
)
_OPTIONAL: tuple[tuple[str, tuple[type, ...], float, float], ...] = (
    ("attempts", (int,), 0, _MAX_COUNT),
    ("unknown_since", (int, float), -_MAX_SECONDS, _MAX_SECONDS),
    ("put_backs", (int,), 0, _MAX_COUNT),
    ("priority", (int,), MIN_PRIORITY, MAX_PRIORITY),
)
"""With the least and the largest value: what is calculated from them must not fail."""


def _check_optional(values: dict[str, Any]) -> None:
    if type(values.get("user", {})) is not dict:
        raise ValueError("not a task's context: 'user' is of a wrong type")
    for key, kinds, least, largest in _OPTIONAL:
        if key in values:
            value = values[key]
            if type(value) not in kinds or not least <= value <= largest:
                raise ValueError(f"not a task's context: {key!r} is not what it can be")


def displayed(data: bytes) -> dict[str, Any]:
    """``{"args": […], "kwargs": {…}}`` of a stored context, to show to a person. Never fails.

    The values have the encoded form, which strict JSON can hold: ``json.dumps`` takes them as
    they are. Neither the task's code nor a database is needed. Bytes that are not a context are
    shown as text under ``"unreadable"``, with empty arguments.
    """
    try:
        values = _read(data)
        args, kwargs = values["args"], values["kwargs"]
        if isinstance(args, list) and isinstance(kwargs, dict):
            return {"args": args, "kwargs": kwargs}
    except (ValueError, LookupError):
        pass
    text = bytes(data).decode("utf-8", "backslashreplace")
    return {"args": [], "kwargs": {}, "unreadable": text}


def _read(data: bytes) -> dict[str, Any]:
    try:
        values, end = _from_json(data.decode("ascii"))
        if is_too_deep(values, data):
            raise RecursionError
    except RecursionError:
        raise ValueError("not a task's context: it is nested too deep") from None
    if not isinstance(values, dict) or end != len(data):
        raise ValueError("not a task's context: it is not an object")
    return values
