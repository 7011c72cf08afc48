"""What the tests of the house read: the repository's own modules and what they import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from tests.support import REPOSITORY

PACKAGE = "deferred_django"


@dataclass(frozen=True)
class Module:
    """One Python file of the repository."""

    path: Path

    @property
    def where(self) -> str:
        """The path from the repository's root."""
        return str(self.path.relative_to(REPOSITORY))

    @property
    def name(self) -> str:
        """The dotted name that it is imported by."""
        parts = self.path.relative_to(REPOSITORY).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @cached_property
    def text(self) -> str:
        """The source."""
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        """The syntax tree."""
        return ast.parse(self.text, self.where)


def modules(*folders: str) -> list[Module]:
    """The Python files below folders of the repository."""
    paths = [path for folder in folders for path in (REPOSITORY / folder).rglob("*.py")]
    return [Module(path) for path in sorted(paths)]


@cache
def package_modules() -> dict[str, Module]:
    """The modules of the package by their dotted names."""
    return {module.name: module for module in modules(PACKAGE)}


def imports(module: Module) -> Iterator[tuple[int, str, str | None]]:
    """Every import anywhere in a module: (line, module named, name taken from it or ``None``).

    Imports for type checkers alone count too where the module is not an ``__init__``: what a
    layer may not know, it may not know by type either.
    """
    skipped: set[ast.AST] = set()
    if module.path.name == "__init__.py":
        for node in ast.walk(module.tree):
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                skipped.update(inner for part in node.body for inner in ast.walk(part))
    for node in ast.walk(module.tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, None
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, node.module or "", alias.name


def imported_modules(module: Module) -> Iterator[tuple[int, str]]:
    """The modules of the package that a module imports, lazily exported names followed home."""
    import deferred_django

    known = package_modules()
    for line, source, name in imports(module):
        if source.split(".")[0] != PACKAGE:
            continue
        if name is None:
            yield line, source
        elif f"{source}.{name}" in known:
            yield line, f"{source}.{name}"
        elif source == PACKAGE and name in deferred_django._MODULES:
            yield line, f"{PACKAGE}.{deferred_django._MODULES[name]}"
        else:
            yield line, source
