"""Any bytes as a task's context: decoded without running anything, or a ``ValueError``."""

from __future__ import annotations

import contextlib
import copy
import datetime
import importlib
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from types import SimpleNamespace
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.core.exceptions import ObjectDoesNotExist

from deferred_django import references
from deferred_django.context import TaskContext, displayed
from tests.fuzz import mutations

ZONE = ZoneInfo("Europe/Paris")
ARGUMENTS: tuple[Any, ...] = (
    None,
    True,
    -7,
    2**3000,
    1.5,
    float("nan"),
    "text \ud800 \u2028",
    b"\0\xff",
    (1, (2,), [3]),
    {1, "a"},
    frozenset({(1, 2)}),
    {"a": 1},
    {1: {None: "x"}},
    {"$int": "0x1"},
    datetime.datetime(2026, 10, 25, 2, 30, tzinfo=ZONE, fold=1),
    datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone(datetime.timedelta(hours=2), "x")),
    datetime.time(1, 2, tzinfo=datetime.UTC),
    datetime.date(2026, 1, 1),
    datetime.timedelta(days=-1, microseconds=5),
    Decimal("1.10"),
    UUID(int=7),
)
ODD_VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    10**400,
    1.5,
    1e308,
    "",
    "\ud800",
    "0x",
    "1e999999999999999999",
    "../../etc/passwd",
    "Europe",
    "Europe/Nowhere",
    "a\0b",
    "os",
    "os.system",
    "__import__",
    "9" * 5000,
    [],
    {},
    [[]],
    [1, 2],
    [1, 2, 3],
    [1, 2, 3, 4],
    ["os", "system", "x"],
    ["tests.values", "Level", "HIGH"],
    ["builtins", "eval", "1"],
    ["auth", "User", "default", {"$model": []}],
    {"at": "2026-01-01T00:00:00", "zone": "America"},
    {"at": "2026-01-01T00:00:00", "zone": 5, "fold": 7},
    {"at": "2026-01-01T00:00:00", "name": "x"},
    {"$nothing": 1},
)
TAGS = (
    *("$int", "$float", "$str", "$bytes", "$tuple", "$set", "$frozenset", "$dict", "$datetime"),
    *("$time", "$date", "$timedelta", "$decimal", "$uuid", "$enum", "$model", "$more"),
)
TOKENS = (
    *(b"1e999", b"-1e999", b"NaN", b"Infinity", b"\xff", b"9" * 5000, b"-1", b"true"),
    *(b"[" * 400, b'{"a":' * 500, b"[" * 160 + b"]" * 160, b"[" * 330 + b"]" * 330),
)
FORBIDDEN = (
    *("exec", "compile", "subprocess.", "socket.", "ctypes.", "pickle.", "shutil.", "os.system"),
    *("os.exec", "os.spawn", "os.posix_spawn", "os.fork", "os.kill", "os.remove", "os.rename"),
)
MODULES = ("tests.values", "enum", "builtins", "os")
"""What may be imported here: the import of any other is refused, as if it were not installed."""

# Whatever is loaded later has been loaded by a context.
for _name in MODULES:
    importlib.import_module(_name)
with contextlib.suppress(ZoneInfoNotFoundError):
    ZoneInfo("No/Where")  # the first miss of a process imports what it looks with

_watching = False
_seen: list[str] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _watching and event.startswith(FORBIDDEN):
        _seen.append(event)


sys.addaudithook(_audit)  # for good: there is no way to take one away


@contextlib.contextmanager
def nothing_runs(*, imports: bool = False) -> Iterator[None]:
    """Fail if anything is executed, compiled or started, or a module imported.

    With ``imports``, what the code around it needs may be imported, and what a context names not.
    """
    global _watching

    def import_module(name: str) -> Any:
        if name not in MODULES:
            raise ModuleNotFoundError(name)
        return importlib.import_module(name)

    before = set(sys.modules)
    vars(references)["importlib"] = SimpleNamespace(import_module=import_module)
    _seen.clear()
    _watching = True
    try:
        yield
    finally:
        _watching = False
        vars(references)["importlib"] = importlib
    if imports:
        return
    assert _seen == []
    loaded = [name for name in set(sys.modules) - before if not name.startswith("tzdata")]
    assert not loaded, loaded


def valid(chance: random.Random) -> bytes:
    """A context as it is written."""
    built = TaskContext.build(
        "shop.tasks.send",
        chance.sample(ARGUMENTS, chance.randint(0, 4)),
        {"key": chance.choice(ARGUMENTS)} if chance.random() < 0.5 else {},
        enqueued_at=1_792_888_200.25,
        user_context={"language": "de"} if chance.random() < 0.3 else None,
    )
    return replace(built, attempts=chance.choice((0, 3)), priority=chance.choice((0, 5))).to_bytes()


def _odd(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randrange(5)
    if kind < 2 or depth > 4:
        return copy.deepcopy(chance.choice(ODD_VALUES))
    inner = [_odd(chance, depth + 1) for _ in range(chance.randint(0, 3))]
    if kind == 2:
        return inner
    if kind == 3:
        return {chance.choice(TAGS): chance.choice((inner, *inner))}
    return {chance.choice(("a", "", "at", "zone")): item for item in inner}


def _change(value: Any, chance: random.Random) -> None:
    """Replace one thing somewhere in a parsed context."""
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        if not keys:
            return
        key = chance.choice(keys)
        if isinstance(value[key], dict | list) and value[key] and chance.random() < 0.7:
            value = value[key]
            continue
        if isinstance(value, dict) and chance.random() < 0.2:
            value[chance.choice(TAGS)] = value.pop(key)
        elif chance.random() < 0.2:
            del value[key]
        else:
            value[key] = _odd(chance)
        return


def mutated(chance: random.Random) -> bytes:
    """A context with other values in it, or other bytes."""
    data = valid(chance)
    if chance.random() < 0.7:
        values = json.loads(data)
        for _ in range(chance.randint(1, 3)):
            _change(values, chance)
        data = json.dumps(values, separators=(",", ":")).encode("ascii")
    if chance.random() < 0.4:
        place = chance.randint(0, len(data))
        end = place + chance.choice((0, 0, 1, 5))
        data = data[:place] + chance.choice(TOKENS) + data[end:]
    if chance.random() < 0.2:
        data = mutations.mutate(data, chance, lambda chance: b"")
    return data


def check(data: bytes) -> None:
    """Decode ``data`` as a worker does, and show it as the commands do."""
    with nothing_runs():
        shown = json.dumps(displayed(data), allow_nan=False)
        assert shown.isascii()
        try:
            context = TaskContext.from_bytes(data)
        except ValueError:
            return
        again = TaskContext.from_bytes(context.to_bytes())
        assert again == context
        # What the queue writes when an attempt failed, or the name was not known, or both.
        counts = replace(context, attempts=context.attempts + 1, put_backs=context.put_backs + 1)
        replace(counts, unknown_since=5.5, priority=-5).to_bytes()
        try:
            context.arguments()
        except ValueError:
            return
        except (LookupError, ImportError, ObjectDoesNotExist):
            # Of an Enum or a model that this project lacks, and of nothing else.
            assert b'"$enum"' in data or b'"$model"' in data or b"\\u" in data
