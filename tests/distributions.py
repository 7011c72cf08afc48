"""What the built wheel and sdist must hold: ``python -m tests.distributions DIRECTORY``.

The directory has one wheel and one sdist. Prints what is wrong and exits 1, or a line for each.
"""

from __future__ import annotations

import configparser
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.support import REPOSITORY

PACKAGE = "deferred_django"
SDIST_NEEDS = (
    "CHANGELOG.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "docs/storage-format.md",
    "example_project/settings.py",
    "manage.py",
    "pyproject.toml",
    "tests/conftest.py",
)


def package_files() -> set[str]:
    """What git has, or would take, of the package."""
    folder = REPOSITORY / PACKAGE
    return {
        str(path.relative_to(REPOSITORY))
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def check_wheel(path: Path) -> list[str]:
    """What is wrong with the wheel."""
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        info = next(name for name in names if name.endswith(".dist-info/METADATA")).split("/")[0]
        metadata = wheel.read(f"{info}/METADATA").decode()
        entry_points = configparser.ConfigParser()
        entry_points.read_string(wheel.read(f"{info}/entry_points.txt").decode())
    wrong = [f"{name} is missing" for name in sorted(package_files() - set(names))]
    wrong += [
        f"{name} does not belong here"
        for name in names
        if not name.startswith((f"{PACKAGE}/", f"{info}/"))
        or "/__pycache__/" in name
        or "/tests/" in name
    ]
    for needed in (f"{PACKAGE}/py.typed", f"{PACKAGE}/migrations/0001_initial.py"):
        if needed not in names:
            wrong.append(f"{needed} is missing")
    if not any(name.startswith(f"{info}/licenses/") for name in names):
        wrong.append("the licence is missing")
    for extra in ("sql", "cron"):
        if f"Provides-Extra: {extra}\n" not in metadata:
            wrong.append(f"the extra {extra} is missing")
    if dict(entry_points["pytest11"]) != {PACKAGE: f"{PACKAGE}.testing.plugin"}:
        wrong.append("the pytest plugin is not announced")
    return wrong


def check_sdist(path: Path) -> list[str]:
    """What is wrong with the source distribution."""
    with tarfile.open(path) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    needed = {*SDIST_NEEDS, *package_files()}
    wrong = [f"{name} is missing" for name in sorted(needed - names)]
    wrong += [
        f"{name} does not belong here"
        for name in sorted(names)
        if name.endswith((".pyc", ".sqlite3")) or name.startswith((".venv", ".ci"))
    ]
    return wrong


def check(directory: Path) -> Iterable[tuple[str, list[str]]]:
    """Each distribution in the directory with what is wrong with it."""
    checks: dict[str, Callable[[Path], list[str]]] = {
        "*.whl": check_wheel,
        "*.tar.gz": check_sdist,
    }
    for pattern, function in checks.items():
        (path,) = directory.glob(pattern)
        yield path.name, function(path)


def main() -> int:
    """Check the directory named on the command line."""
    failed = False
    for name, wrong in check(Path(sys.argv[1])):
        failed = failed or bool(wrong)
        print(f"{name}: {'; '.join(wrong) or 'as it should be'}")  # noqa: T201 - a command
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
