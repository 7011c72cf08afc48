"""``deadtasks retry`` and ``deadtasks purge``."""

from __future__ import annotations

import io
import time
from collections.abc import Callable

import pytest
from django.core.management import CommandError, call_command

from deferred_django.exceptions import DeadTasksLockTimeout
from tests.commands.conftest import CommandLine, Result, Terminal
from tests.commands.fakes import FakeBackend, dead_task

DAY = 86400


@pytest.fixture
def three(backend: FakeBackend) -> FakeBackend:
    backend.dead = [
        dead_task("1-7-a-1", failed_at=time.time() - 40 * DAY),
        dead_task("1-7-a-11", task_class="shop.tasks.sync", failed_at=time.time() - 2 * DAY),
        dead_task("1-7-a-2"),
    ]
    return backend


def ids(backend: FakeBackend) -> list[str]:
    return [record["id"] for record in backend.dead]


class Keyboard(io.StringIO):
    """Somebody at a terminal, who does something else before each answer."""

    def __init__(self, text: str, meanwhile: Callable[[], None] = lambda: None) -> None:
        super().__init__(text)
        self.meanwhile = meanwhile

    def isatty(self) -> bool:
        return True

    def readline(self, size: int = -1, /) -> str:  # type: ignore[override]
        self.meanwhile()
        return super().readline()


def ask(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: str,
    *arguments: str,
    meanwhile: Callable[[], None] = lambda: None,
) -> Result:
    """Run the command with somebody at the terminal."""
    monkeypatch.setattr("sys.stdin", Keyboard(answer, meanwhile))
    code = 0
    failure = ""
    try:
        call_command("deadtasks", *arguments)
    except CommandError as error:
        code, failure = error.returncode, str(error)
    captured = capsys.readouterr()
    return Result(code, captured.out, captured.err + failure)


@pytest.mark.parametrize("action", ["retry", "purge"])
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ([], 2),
        (["--noinput"], 2),
        (["--all"], 2),
        (["1-7-a-1"], 2),
        (["1-7-a-1", "--all", "--noinput"], 2),
        (["1-7-a-1", "--task", "sync", "--noinput"], 2),
        (["--all", "--task", "sync", "--noinput"], 2),
        (["--since", "whenever", "--noinput"], 2),
        (["--task", "none.such"], 2),
        (["nope"], 1),
        (["nope", "--noinput"], 1),
        (["--task", "none.such", "--noinput"], 0),
    ],
)
def test_what_is_refused_changes_nothing(
    three: FakeBackend, command_line: CommandLine, action: str, arguments: list[str], code: int
) -> None:
    before = list(three.dead)
    done = command_line("deadtasks", action, *arguments)
    assert done.code == code
    assert bool(done.err) == (code != 0)
    assert three.dead == before
    assert three.added == []


def test_call_command_raises_with_the_exit_code(three: FakeBackend) -> None:
    for arguments, code in (([], 2), (["nope", "--noinput"], 1), (["--all", "--task", "x"], 2)):
        with pytest.raises(CommandError) as raised:
            call_command("deadtasks", "purge", *arguments)
        assert raised.value.returncode == code


def test_only_exact_ids_are_purged(three: FakeBackend, command_line: CommandLine) -> None:
    """C60"""
    three.dead.append(dead_task("1-7-a-1"))  # a crash between the two stores wrote it twice
    done = command_line("deadtasks", "purge", "1-7-a-1", "1-7-a-1", "--noinput")
    assert (done.code, done.err) == (0, "")
    assert "1 dead task will be purged" in done.out
    assert done.out.endswith("Purged: 1 dead task.\n")
    assert ids(three) == ["1-7-a-11", "1-7-a-2"]


def test_the_unknown_are_named_and_the_rest_is_done(
    three: FakeBackend, command_line: CommandLine
) -> None:
    """C60"""
    done = command_line("deadtasks", "purge", "1-7-a-1", "1-7-a-1", "no", "pe", "--noinput")
    assert done.code == 1
    assert "no, pe" in done.err
    assert "1-7-a-1" not in done.err
    assert ids(three) == ["1-7-a-11", "1-7-a-2"]
    done = command_line("deadtasks", "retry", "gone\x1b[2J", "1-7-a-2", "--noinput")
    assert done.code == 1
    assert "gone\\x1b[2J" in done.err
    assert three.added == ["1-7-a-2"]
    assert ids(three) == ["1-7-a-11"]


def test_it_says_what_will_be_touched(three: FakeBackend, command_line: CommandLine) -> None:
    done = command_line("deadtasks", "purge", "--all", "--noinput")
    lines = done.out.splitlines()
    assert lines[0] == "3 dead tasks will be purged:"
    assert lines[2].split() == ["2", "shop.tasks.send_receipt", "ValueError"]
    assert lines[3].split() == ["1", "shop.tasks.sync", "ValueError"]
    assert lines[4].startswith("Oldest died ")
    assert "40 d ago" in lines[4]
    assert "1 min ago" in lines[5]
    assert ids(three) == []


def test_many_kinds_are_summed_up(backend: FakeBackend, command_line: CommandLine) -> None:
    backend.dead = [dead_task(f"{n}-1", task_class=f"app.t{n % 30}") for n in range(90)]
    lines = command_line("deadtasks", "purge", "--all", "--dry-run").out.splitlines()
    assert len(lines) < 20
    assert "and 20 more kinds" in lines[12]


@pytest.mark.parametrize(
    ("arguments", "left"),
    [
        (["--older-than", "30d"], ["1-7-a-11", "1-7-a-2"]),
        (["--older-than", "30d", "--until", "1d"], ["1-7-a-11", "1-7-a-2"]),
        (["--older-than", "1h", "--until", "30d"], ["1-7-a-11", "1-7-a-2"]),
        (["--older-than", "0d"], []),
        (["--older-than", "1d", "--task", "sync"], ["1-7-a-1", "1-7-a-2"]),
        (["--task", "sync"], ["1-7-a-1", "1-7-a-2"]),
        (["--search", "a-1"], ["1-7-a-2"]),
    ],
)
def test_purge_by_filter(
    three: FakeBackend, command_line: CommandLine, arguments: list[str], left: list[str]
) -> None:
    assert command_line("deadtasks", "purge", *arguments, "--noinput").code == 0
    assert ids(three) == left


def test_dry_run_changes_nothing_and_asks_nothing(
    three: FakeBackend, command_line: CommandLine
) -> None:
    """C60"""
    for arguments in (["--all"], ["--older-than", "0d"], ["1-7-a-1", "1-7-a-11", "1-7-a-2"]):
        done = command_line("deadtasks", "purge", *arguments, "--dry-run")
        assert done.code == 0
        assert "3 dead tasks would be purged" in done.out
        assert "Nothing was changed" in done.out
    assert len(ids(three)) == 3


def test_retry_enqueues_under_the_old_ids(three: FakeBackend, command_line: CommandLine) -> None:
    done = command_line("deadtasks", "retry", "--task", "send_receipt", "--noinput")
    assert done.code == 0
    assert sorted(three.added) == ["1-7-a-1", "1-7-a-2"]
    assert ids(three) == ["1-7-a-11"]
    assert done.out.endswith("Enqueued again: 2 dead tasks.\n")


@pytest.mark.parametrize("answer", ["", "\n", "n\n", "yesno\n", "all\n"])
def test_anything_but_yes_changes_nothing(
    three: FakeBackend,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: str,
) -> None:
    done = ask(monkeypatch, capsys, answer, "purge", "--all")
    assert done.code == 1
    assert "Nothing was changed" in done.err
    assert len(ids(three)) == 3


@pytest.mark.parametrize("answer", ["y\n", "YES\n"])
def test_the_question_is_on_stderr(
    three: FakeBackend,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: str,
) -> None:
    done = ask(monkeypatch, capsys, answer, "purge", "1-7-a-1", "nope", "1-7-a-2")
    assert done.code == 1
    assert "2 dead tasks will be purged" in done.err
    assert "No dead task nope." in done.err
    assert "Purge 2 dead tasks? [y/N] " in done.err
    assert done.out == "Purged: 2 dead tasks.\n"
    assert ids(three) == ["1-7-a-11"]


def test_the_question_is_where_it_is_seen(
    three: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", Keyboard("y\n"))
    terminal, file = Terminal(), io.StringIO()
    call_command("deadtasks", "purge", "1-7-a-1", stdout=terminal, stderr=file)
    assert "Purge 1 dead task? [y/N] " in terminal.text
    assert file.getvalue() == ""


def test_what_dies_while_it_asks_is_not_purged_unseen(
    three: FakeBackend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """C60"""

    def meanwhile() -> None:
        three.dead.append(dead_task("1-7-a-3"))
        three.dead.append(dead_task("1-7-a-2", failed_at=time.time()))  # its second death

    done = ask(monkeypatch, capsys, "y\n", "purge", "--all", meanwhile=meanwhile)
    assert done.code == 0
    assert ids(three) == ["1-7-a-2", "1-7-a-3", "1-7-a-2"]
    assert "Purged: 2 dead tasks." in done.out
    assert "1 dead task" in done.err


@pytest.mark.parametrize("action", ["retry", "purge"])
def test_what_somebody_else_took_is_reported(
    three: FakeBackend, command_line: CommandLine, action: str
) -> None:
    """R2"""
    three.before_change = three.dead.pop
    done = command_line("deadtasks", action, "1-7-a-1", "1-7-a-2", "--noinput")
    assert done.code == 1
    assert "1 dead task" in done.out
    assert "somebody else" in done.err


@pytest.mark.parametrize(
    "error",
    [
        DeadTasksLockTimeout("busy"),
        OSError(28, "No space", "/p"),
        PermissionError(13, "Permission denied", "/p"),
    ],
)
@pytest.mark.parametrize("action", ["retry", "purge"])
def test_a_store_that_fails_is_an_error(
    three: FakeBackend, command_line: CommandLine, action: str, error: OSError
) -> None:
    def fail() -> None:
        raise error

    three.before_change = fail
    done = command_line("deadtasks", action, "--all", "--noinput")
    assert done.code == 1
    assert "Traceback" not in done.err
    assert ("try again" in done.err) == isinstance(error, DeadTasksLockTimeout)
    assert ("FILE_PERMISSIONS" in done.err) == isinstance(error, PermissionError)
    assert len(ids(three)) == 3
