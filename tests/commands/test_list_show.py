"""``deadtasks list`` and ``deadtasks show``."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from deferred_django.backends.base import DeadTaskRecord
from deferred_django.console.text import width
from deferred_django.context import TaskContext
from tests.commands.conftest import CommandLine, Terminal
from tests.commands.fakes import FakeBackend, dead_task

ID = "1796000000-123456-abcdefghijklm-{}"
HOSTILE = "one\x1b[31m\x00\u202e\udcff\r\x9b\u2028 漢字 <b>\ntwo"


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_the_newest_first_with_age(backend: FakeBackend, command_line: CommandLine) -> None:
    backend.dead = [
        dead_task("old", failed_at=time.time() - 3 * 86400),
        dead_task("new", failed_at=time.time() - 185, exception_class="shop.errors.Refused"),
    ]
    done = command_line("deadtasks", "list")
    lines = done.out.splitlines()
    assert done.code == 0
    assert lines[0].split() == ["ID", "DIED", "TRIES", "TASK", "ERROR"]
    assert lines[1].startswith("new ")
    assert "UTC, 3 min ago" in lines[1]
    assert lines[1].endswith("shop.tasks.send_receipt  Refused: no such order")
    assert "3 d ago" in lines[2]
    assert len(lines) == 3


def test_an_empty_store(backend: FakeBackend, command_line: CommandLine) -> None:
    assert command_line("deadtasks", "list").out == "No dead tasks.\n"
    assert command_line("deadtasks", "list", "--task", "x").out == "No dead tasks match.\n"
    assert command_line("deadtasks", "list", "--format", "json").out == "[]\n"


def test_the_table_shows_50_and_says_how_many_more(
    backend: FakeBackend, command_line: CommandLine
) -> None:
    backend.dead = [dead_task(ID.format(n)) for n in range(120)]
    lines = command_line("deadtasks", "list").out.splitlines()
    assert len(lines) == 1 + 50 + 1
    assert lines[-1] == "70 more of 120: --offset 50 goes on."
    lines = command_line("deadtasks", "list", "--offset", "50", "--limit", "60").out.splitlines()
    assert lines[1].startswith(ID.format(69))
    assert lines[-1] == "10 more of 120: --offset 110 goes on."
    lines = command_line("deadtasks", "list", "--offset", "110").out.splitlines()
    assert len(lines) == 1 + 10
    assert command_line("deadtasks", "list", "--limit", "0").out == (
        "120 more of 120: --offset 0 goes on.\n"
    )
    assert command_line("deadtasks", "list", "--offset", "500").out == "Only 120 dead tasks.\n"


def test_a_table_counts_only_so_many_further(
    backend: FakeBackend, command_line: CommandLine
) -> None:
    """A page of a large store does not wait for a count of all."""
    backend.dead = [dead_task(ID.format(n)) for n in range(1060)]
    backend.count_dead_tasks = lambda **_: pytest.fail("counted")  # type: ignore[method-assign]
    last = command_line("deadtasks", "list").out.splitlines()[-1]
    assert last == "At least 1000 more: --offset 50 goes on."
    last = command_line("deadtasks", "list", "--offset", "11").out.splitlines()[-1]
    assert last == "999 more of 1060: --offset 61 goes on."


@pytest.mark.parametrize(
    "arguments",
    [
        ["list", "--format", "json"],
        ["list", "--task", "send_receipt"],
        ["purge", "--all", "--dry-run"],
        ["purge", "--older-than", "0d", "--noinput"],
        ["retry", "--all", "--noinput"],
    ],
)
def test_many_records_are_never_in_memory_at_once(
    backend: FakeBackend,
    command_line: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
) -> None:
    """They are read one by one, and of those that are chosen only the ids are kept."""
    alive, most = 0, 0

    class Message(str):
        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    def records(**_: Any) -> Iterator[DeadTaskRecord]:
        nonlocal alive, most
        for number in range(300):
            alive += 1
            most = max(most, alive)
            yield dead_task(ID.format(number), exception_message=Message("x" * 9))

    monkeypatch.setattr(backend, "iterate_dead_tasks", records)
    assert command_line("deadtasks", *arguments).code in (0, 1)
    assert 0 < most < 60, "a page of a table, at most"
    assert alive <= 1


def test_json_is_the_records_and_all_of_them(
    backend: FakeBackend, command_line: CommandLine
) -> None:
    context = TaskContext.build("shop.tasks.send_receipt", (7, float("nan")), {"to": "ä\udcff"})
    backend.dead = [dead_task(ID.format(n), context=context.to_bytes()) for n in range(70)]
    done = command_line("deadtasks", "list", "--format", "json")
    assert done.out.isascii()
    shown = strict(done.out)
    assert [record["id"] for record in shown] == [ID.format(n) for n in reversed(range(70))]
    for record, stored in zip(shown, backend.list_dead_tasks(), strict=True):
        args = record.pop("context")
        assert args["args"][0] == 7
        assert args["kwargs"] == {"to": "ä\udcff"}
        assert record == {name: value for name, value in stored.items() if name != "context"}
    page = strict(
        command_line("deadtasks", "list", "--format", "json", "--limit", "2", "--offset", "1").out
    )
    assert [record["id"] for record in page] == [ID.format(68), ID.format(67)]


def test_filters(backend: FakeBackend, command_line: CommandLine) -> None:
    day = 86400
    backend.dead = [
        dead_task("a", queue="mail", failed_at=time.time() - 40 * day),
        dead_task("b", task_class="shop.tasks.sync", exception_message="Größe falsch"),
        dead_task("c", exception_class="django.db.utils.IntegrityError"),
    ]

    def listed(*arguments: str) -> set[str]:
        done = command_line("deadtasks", "list", "--format", "json", *arguments)
        assert done.code == 0
        return {record["id"] for record in strict(done.out)}

    assert listed("--task", "sync") == {"b"}
    assert listed("--task", "shop.tasks.send_receipt") == {"a", "c"}
    assert listed("--exception", "IntegrityError") == {"c"}
    assert listed("--queue", "mail") == {"a"}
    assert listed("--since", "2w") == {"b", "c"}
    assert listed("--until", "30d") == {"a"}
    assert listed("--since", "2w", "--task", "sync") == {"b"}
    assert listed("--search", "GRÖSSE") == {"b"}
    assert listed("--search", "nothing") == set()


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["lost"],
        ["list", "--limit", "many"],
        ["list", "--limit", "-1"],
        ["list", "--offset", "-1"],
        ["list", "--since", "yesterday"],
        ["list", "--format", "yaml"],
        ["show"],
    ],
)
def test_wrong_use_exits_2(
    backend: FakeBackend, command_line: CommandLine, arguments: list[str]
) -> None:
    done = command_line("deadtasks", *arguments)
    assert done.code == 2
    assert done.out == ""
    assert done.err


def test_show_has_everything(backend: FakeBackend, command_line: CommandLine) -> None:
    context = TaskContext.build("shop.tasks.send_receipt", (7, "ä"), {"copy_to": None})
    backend.dead = [
        dead_task("x", context=context.to_bytes(), enqueued_at=1792888200.0, queue="mail")
    ]
    done = command_line("deadtasks", "show", "x")
    assert done.code == 0
    for text in (
        "Dead task x",
        "shop.tasks.send_receipt",
        "mail",
        "21",
        "2026-10-25 00:30:00 UTC",
        "ValueError",
        "no such order",
        '  7\n  "ä"\n  copy_to = null\n',
        '  Traceback (most recent call last):\n    File "/srv/shop/tasks.py", line 7',
    ):
        assert text in done.out
    shown = strict(command_line("deadtasks", "show", "x", "--format", "json").out)
    assert shown["context"]["kwargs"] == {"copy_to": None}
    assert shown["backtrace"] == backend.dead[0]["backtrace"]


def test_show_of_an_unknown_id_exits_1(backend: FakeBackend, command_line: CommandLine) -> None:
    for arguments in (["show", "nope"], ["show", "nope", "--format", "json"]):
        done = command_line("deadtasks", *arguments)
        assert (done.code, done.out) == (1, "")
        assert "nope" in done.err
    with pytest.raises(CommandError) as raised:
        call_command("deadtasks", "show", "nope")
    assert raised.value.returncode == 1


def hostile_task() -> dict[str, Any]:
    return dead_task(
        ID.format(1),
        task_class=HOSTILE,
        queue=HOSTILE,
        exception_class=HOSTILE,
        exception_message=HOSTILE,
        backtrace=[HOSTILE, HOSTILE + "\n"],
        context=bytes(range(256)),
        failed_at=1e30,
        enqueued_at=float("nan"),
    )


@pytest.mark.parametrize("encoding", ["utf-8", "ascii", "latin-1"])
@pytest.mark.parametrize("columns", [20, 40, 80, 200])
def test_hostile_text_on_any_terminal(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch, columns: int, encoding: str
) -> None:
    """C28"""
    monkeypatch.setenv("COLUMNS", str(columns))
    backend.dead = [hostile_task(), dead_task("x")]
    for arguments in (["list"], ["show", ID.format(1)]):
        terminal = Terminal(encoding)
        call_command("deadtasks", *arguments, stdout=terminal, no_color=True)
        written = terminal.text
        assert not set("\x1b\x00\u202e\udcff\r\x9b\u2028") & set(written)
        assert "\\x1b[31m" in written


def test_hostile_text_as_json(backend: FakeBackend, command_line: CommandLine) -> None:
    """C28"""
    backend.dead = [hostile_task()]
    (listed,) = strict(command_line("deadtasks", "list", "--format", "json").out)
    assert listed["exception_message"] == HOSTILE
    shown = strict(command_line("deadtasks", "show", ID.format(1), "--format", "json").out)
    assert shown == listed


@pytest.mark.parametrize("columns", [60, 80, 100, 150])
def test_the_table_fits_the_terminal(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    backend.dead = [
        dead_task(ID.format(n), exception_message="漢字 and more " * 50, task_class="a." * 90 + "b")
        for n in (1, 22, 333)
    ]
    terminal = Terminal()
    call_command("deadtasks", "list", stdout=terminal, no_color=True)
    lines = terminal.text.splitlines()
    assert max(map(width, lines)) <= columns
    assert all(any(ID.format(n) in line for line in lines) for n in (1, 22, 333))
    if columns >= 80:
        place = next(line for line in lines if "DIED" in line).index("DIED")
        assert {line[place:][:2] for line in lines if line.startswith("1796")} == {"20"}


def test_colour_on_a_terminal_only(backend: FakeBackend, command_line: CommandLine) -> None:
    backend.dead = [dead_task("x")]
    assert "\x1b" not in command_line("deadtasks", "list").out
    terminal = Terminal()
    call_command("deadtasks", "list", stdout=terminal, force_color=True)
    assert "\x1b[1m" in terminal.text
    assert "\x1b" in command_line("deadtasks", "list", "--force-color").out
