"""The rules of the house that a test can hold."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.source import Module, modules
from tests.support import REPOSITORY

MAX_LINES = 300
PRODUCT = modules("deferred_django", "example_project", "benchmarks")
EVERYTHING = [*PRODUCT, *modules("tests")]

LEFTOVERS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
MACHINE_PATHS = re.compile(r"(?<![\w.~$}])/(?:home|root|work|Users)/")


def is_overload(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether it is only another signature of the function that follows."""
    return any(ast.unparse(decorator).endswith("overload") for decorator in node.decorator_list)


def undocumented(module: Module) -> Iterator[str]:
    """The public things of a module that have no docstring."""

    def visit(node: ast.AST, prefix: str, inherits: bool) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            if child.name.startswith(("_", "test_")) or child.name == "Meta" or is_overload(child):
                continue
            # A method of a subclass may be the one that its base class documents.
            excused = inherits and not isinstance(child, ast.ClassDef)
            if ast.get_docstring(child) is None and not excused:
                yield f"{module.where}:{child.lineno} {prefix}{child.name}"
            if isinstance(child, ast.ClassDef):
                yield from visit(child, f"{prefix}{child.name}.", bool(child.bases))

    if ast.get_docstring(module.tree) is None and module.text.strip():
        yield f"{module.where}: the module"
    yield from visit(module.tree, "", False)


@pytest.mark.parametrize("module", PRODUCT, ids=lambda module: module.where)
def test_long_modules_say_why(module: Module) -> None:
    """A longer module's docstring has a sentence with "300 lines" that says why it is one."""
    if len(module.text.splitlines()) > MAX_LINES:
        assert f"{MAX_LINES} lines" in (ast.get_docstring(module.tree) or "")


@pytest.mark.parametrize("module", PRODUCT, ids=lambda module: module.where)
def test_public_things_are_documented(module: Module) -> None:
    if "migrations" not in module.path.parts:
        assert list(undocumented(module)) == []


def test_nothing_is_left_over() -> None:
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    ).stdout.split("\0")
    if names == [""]:
        pytest.skip("not a git checkout")
    found = []
    for name in names:
        path = REPOSITORY / name
        if not name or name == "tests/test_house.py" or not path.is_file():
            continue
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(lines, 1):
            if LEFTOVERS.search(line) or MACHINE_PATHS.search(line):
                found.append(f"{name}:{number}: {line.strip()}")
    assert found == []
