"""The documentation names what there is, and nothing that there is not."""

from __future__ import annotations

import argparse
import ast
import logging
import logging.config
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from django.core.management import load_command_class
from django.core.management.base import BaseCommand
from django.dispatch import Signal

import deferred_django
from deferred_django import conf, event_log, signals, testing
from deferred_django.recycling import Ended
from tests.source import modules
from tests.support import REPOSITORY

COMMANDS = ("deadtasks", "deferred_status", "deferred_verify", "deferred_worker")
PAGES = sorted(
    [
        REPOSITORY / "README.md",
        REPOSITORY / "ARCHITECTURE.md",
        REPOSITORY / "CONTRIBUTING.md",
        *REPOSITORY.glob("docs/**/*.md"),
    ]
)
OTHERS_OPTIONS = {"--fork", "--no-deps", "--pid", "--preload", "--settings", "--workers"}
OTHERS_OPTIONS |= {"--bind", "--init", "--interval", "--no-cache-dir", "--quiet", "--start-period"}
OTHERS_OPTIONS |= {"--create", "--directory", "--file", "--gzip", "--timeout", "--uid", "--warning"}
"""Options of other programs that the documentation mentions."""

TEXTS = {str(page.relative_to(REPOSITORY)): page.read_text(encoding="utf-8") for page in PAGES}
GUIDE = "\n".join(text for name, text in TEXTS.items() if not name.startswith("docs/decisions/"))


def mentions(word: str) -> bool:
    """Whether the documentation has the word, as a word of its own."""
    return re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", GUIDE) is not None


def options_of(parser: argparse.ArgumentParser) -> Iterator[tuple[str, ...]]:
    """The long options of a parser and its subcommands; those of one action together."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                yield (name,)
                yield from options_of(sub)
        elif action.help != argparse.SUPPRESS:
            yield tuple(option for option in action.option_strings if option.startswith("--"))


@cache
def django_options() -> frozenset[str]:
    """What every command of Django has."""
    parser = BaseCommand().create_parser("manage.py", "x")
    return frozenset(option for names in options_of(parser) for option in names)


@cache
def own_options() -> frozenset[tuple[str, ...]]:
    """What this package's commands have besides, subcommands included."""
    found = set()
    for name in COMMANDS:
        parser = load_command_class("deferred_django", name).create_parser("manage.py", name)
        found |= {names for names in options_of(parser) if not set(names) & django_options()}
    return frozenset(names for names in found if names)


def code_blocks(language: str) -> Iterator[tuple[str, str]]:
    """The fenced blocks of a language: (page, code)."""
    pattern = re.compile(rf"^( *)```{language}\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
    for name, text in TEXTS.items():
        for match in pattern.finditer(text):
            yield name, textwrap.dedent(match[2])


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_documented(name: str) -> None:
    assert mentions(name)


def test_every_option_is_documented() -> None:
    missing = [names for names in own_options() if not any(map(mentions, names))]
    assert missing == []


def test_the_help_names_the_defaults() -> None:
    parser = load_command_class("deferred_django", "deferred_worker").create_parser("", "")
    ours = [
        action for action in parser._actions if not set(action.option_strings) & django_options()
    ]
    values = [action for action in ours if action.nargs != 0]
    assert len(values) > 5
    for action in values:
        said = re.search(r"\(default: (.+?)\)", (action.help or "") % vars(action))
        assert said, action.option_strings
        if action.default is not None:
            assert float(said[1]) == action.default, action.option_strings


def test_every_documented_option_exists() -> None:
    known = {option for names in own_options() for option in names}
    known |= django_options() | OTHERS_OPTIONS
    for name, text in TEXTS.items():
        found = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", text))
        assert found <= known, name


@pytest.mark.parametrize("key", conf.KEYS)
def test_every_key_of_the_setting_is_documented(key: str) -> None:
    settings = TEXTS["docs/settings.md"]
    assert re.search(rf"\b{key}\b", settings)


def test_every_documented_key_exists() -> None:
    for name, code in code_blocks("python"):
        for node in ast.walk(ast.parse(code)):
            if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Dict):
                continue
            if [ast.unparse(target) for target in node.targets] != ["DEFERRED"]:
                continue
            keys = {key.value for key in node.value.keys if isinstance(key, ast.Constant)}
            values = dict(zip(map(ast.unparse, node.value.keys), node.value.values, strict=True))  # type: ignore[arg-type]
            backend = values.get("'BACKEND'")
            if isinstance(backend, ast.Constant) and "." in str(backend.value):
                continue  # another's backend may have keys of its own
            assert keys <= set(conf.KEYS), name


def rows(page: str, heading: str) -> dict[str, list[str]]:
    """The table with that first heading: the other cells by the first, without its backticks."""
    table = re.search(rf"^\| {heading} \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", TEXTS[page], re.MULTILINE)
    assert table, f"{page} has no table of {heading}"
    cells = [line.strip("|").split("|") for line in table[1].splitlines()]
    return {first.strip(" `"): [cell.strip() for cell in others] for first, *others in cells}


SIGNALS = (*signals.TASK_SIGNALS, *signals.WORKER_SIGNALS)


def test_every_signal_is_documented_with_its_arguments() -> None:
    page = "docs/signals-and-logging.md"
    described = {
        name: re.findall(r"`(\w+)`", cells[0]) for name, cells in rows(page, "signal").items()
    }
    assert described == {signal.name: list(signal.arguments) for signal in SIGNALS}
    explained = {word for names in rows(page, "argument") for word in re.findall(r"\w+", names)}
    assert explained == {"sender"}.union(*(signal.arguments for signal in SIGNALS))


def test_every_reason_of_a_workers_end_is_documented() -> None:
    (reasons,) = rows("docs/signals-and-logging.md", "argument")["reason"]
    assert set(re.findall(r'"([^"]+)"', reasons)) == {ended.value for ended in Ended}


def test_every_signal_is_a_name_of_its_module() -> None:
    found = {name for name, value in vars(signals).items() if isinstance(value, Signal)}
    assert found == {signal.name for signal in SIGNALS}


def test_the_log_lines_are_documented() -> None:
    page = "docs/signals-and-logging.md"
    levels = {name: cells[0] for name, cells in rows(page, "event").items()}
    assert levels == {
        signal.name: logging.getLevelName(level) for signal, level in event_log.LEVELS.items()
    }
    attributes = [word for names in rows(page, "attribute") for word in re.findall(r"\w+", names)]
    assert attributes == list(event_log.KEYS)


def test_the_documented_format_writes_every_line() -> None:
    [code] = [code for name, code in code_blocks("python") if "LOGGING = {" in code]
    found: dict[str, Any] = {}
    exec(code, found)
    configurator = logging.config.DictConfigurator(found["LOGGING"])
    form = configurator.configure_formatter(configurator.config["formatters"]["tasks"])
    assert isinstance(form, logging.Formatter)
    plain = {"msg": "no event", "levelname": "INFO"}
    event = {**plain, **dict.fromkeys(event_log.KEYS), "queue": "mail", "duration_ms": 1.5}
    assert form.format(logging.makeLogRecord(event)).endswith(" INFO no event queue=mail ms=1.5")
    assert form.format(logging.makeLogRecord(plain)).endswith(" no event queue=None ms=None")


def test_every_public_name_is_documented() -> None:
    names = {*deferred_django.__all__, *testing.__all__, "deferred_store"} - {"__version__"}
    assert [name for name in sorted(names) if not mentions(name)] == []


def test_every_check_is_documented() -> None:
    source = "".join(module.text for module in modules("deferred_django"))
    ids = set(re.findall(r'"(E\d{3})"', source)) | set(re.findall(r"\{TAG\}\.([EW]\d{3})", source))
    settings = TEXTS["docs/settings.md"]
    assert [check for check in sorted(ids) if check not in settings] == []
    assert set(re.findall(r"\b[EW]\d{3}\b", settings)) <= ids


def test_the_code_in_the_documentation() -> None:
    """It is Python, and what it imports from this package is there."""
    for name, code in code_blocks("python"):
        for node in ast.walk(ast.parse(code, name)):
            if not isinstance(node, ast.ImportFrom):
                continue
            source = node.module or ""
            if source.split(".")[0] == "deferred_django":
                module = __import__(source, fromlist=["x"])
                for alias in node.names:
                    assert hasattr(module, alias.name), f"{name}: {ast.unparse(node)}"


def test_the_tests_that_are_named_exist() -> None:
    source = "".join(module.text for module in modules("tests", "deferred_django"))
    known = set(re.findall(r"^ *(?:async )?def (test_\w+)\(", source, re.MULTILINE))
    for name, text in TEXTS.items():
        assert set(re.findall(r"`(test_\w+)`", text)) <= known, name


def test_links_lead_somewhere() -> None:
    for name, text in TEXTS.items():
        folder = (REPOSITORY / name).parent
        for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text):
            if not re.match(r"[a-z]+:", target):
                assert (folder / target).exists(), f"{name}: {target}"


def test_the_tests_that_are_named_with_their_files_exist() -> None:
    for name, text in TEXTS.items():
        for path, test in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text):
            source = REPOSITORY / path
            assert source.exists(), f"{name}: {path}"
            functions = {
                node.name
                for node in ast.parse(source.read_text(encoding="utf-8")).body
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            }
            assert test in functions, f"{name}: {path}::{test}"


def test_every_promise_names_the_test_that_shows_it() -> None:
    text = TEXTS["docs/guarantees.md"]
    tables = re.findall(r"^\| promise \| shown by \|\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    rows = [row for table in tables for row in table.splitlines()]
    assert len(rows) > 30
    assert [row for row in rows if "::test_" not in row.split(" | ")[1]] == []
