"""Fixtures: a backend in memory, and the command line with its exit code."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from django.core.management import load_command_class
from django.test import override_settings

from deferred_django.registry import get_backend
from tests.commands.fakes import FakeBackend


@dataclass(frozen=True)
class Result:
    """How a command line ended."""

    code: int
    out: str
    err: str


CommandLine = Callable[..., Result]


class Terminal(io.TextIOWrapper):
    """A stream that says it is a terminal and is as strict about its encoding as one."""

    def __init__(self, encoding: str = "utf-8") -> None:
        self.bytes = io.BytesIO()
        super().__init__(self.bytes, encoding=encoding, errors="strict", newline="\n")

    def isatty(self) -> bool:
        return True

    @property
    def text(self) -> str:
        """What was written, without the colours."""
        self.flush()
        return self.bytes.getvalue().decode(self.encoding)


@pytest.fixture
def backend() -> Iterator[FakeBackend]:
    """The configured backend: one in memory."""
    with override_settings(DEFERRED={"BACKEND": "tests.commands.fakes.FakeBackend"}):
        made = get_backend()
        assert isinstance(made, FakeBackend)
        yield made


@pytest.fixture
def command_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> CommandLine:
    """Run ``manage.py NAME …`` in this process, where stdin and stdout are no terminals."""
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.stdin", io.StringIO())

    def run(name: str, *arguments: str) -> Result:
        command = load_command_class("deferred_django", name)
        capsys.readouterr()
        try:
            command.run_from_argv(["manage.py", name, *arguments])
            code: object = 0
        except SystemExit as end:
            code = end.code
        captured = capsys.readouterr()
        assert isinstance(code, int)
        return Result(code, captured.out, captured.err)

    return run
