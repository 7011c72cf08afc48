"""The commands on the disk backend, in processes of their own."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commands.terminal import on_terminal
from tests.harness import Project

TASKS = """
@deferred
def fine(text):
    note("fine", ascii(text))

@deferred(max_retries=0)
def broken(*args, **kwargs):
    raise ValueError(args[0] if args else "broken")
"""
ADD_DEAD = """
from deferred_django import get_backend
for id in {ids}:
    get_backend().add_dead_task(
        id, broken_context(), ValueError("no " + id), task_class="app.tasks.broken", attempts=1
    )
"""
CONTEXT = """
def broken_context():
    from deferred_django.context import TaskContext
    return TaskContext.build("app.tasks.broken", (), {}).to_bytes()
"""

Snapshot = dict[str, tuple[bytes, int, int]]


def snapshot(directory: Path, names: set[str] | None = None) -> Snapshot:
    """The bytes, time and inode of the files (those of ``names``, if given)."""
    files = {}
    for path in sorted(directory.iterdir()):
        if names is None or path.name in names:
            stat = path.stat()
            files[path.name] = (path.read_bytes(), stat.st_mtime_ns, stat.st_ino)
    return files


def listed(project: Project, *arguments: str) -> list[str]:
    done = project.manage("deadtasks", "list", "--format", "json", *arguments)
    assert done.returncode == 0, done.stderr
    return [record["id"] for record in json.loads(done.stdout)]


def status(project: Project) -> tuple[int, int, int]:
    done = project.manage("deferred_status", "--format", "json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    return shown["pending"], shown["delayed"], shown["dead"]


def add_dead(project: Project, *ids: str) -> None:
    project.run(CONTEXT + ADD_DEAD.format(ids=list(ids)))


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    with Project(tmp_path, tasks=TASKS) as made:
        yield made


def test_read_only_commands_create_nothing(project: Project) -> None:
    for arguments, code in (
        (["deadtasks", "list"], 0),
        (["deadtasks", "list", "--format", "json"], 0),
        (["deadtasks", "show", "1-7-a-1"], 1),
        (["deadtasks", "purge", "--all", "--noinput"], 0),
        (["deadtasks", "retry", "1-7-a-1", "--noinput"], 1),
        (["deferred_verify"], 0),
    ):
        done = project.manage(*arguments)
        assert done.returncode == code, done.stderr
        assert not project.storage.exists()
    assert status(project) == (0, 0, 0)
    assert not project.storage.exists()


def test_from_the_death_to_the_second_life(project: Project) -> None:
    project.run("broken.enqueue('why')")
    project.drain()
    assert status(project) == (0, 0, 1)
    (id,) = listed(project)
    shown = project.manage("deadtasks", "show", id)
    assert "app.tasks.broken" in shown.stdout
    assert "ValueError: why" in shown.stdout
    assert 'raise ValueError(args[0] if args else "broken")' in shown.stdout
    done = project.manage("deadtasks", "retry", id, "--noinput")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("Enqueued again: 1 dead task.\n")
    assert status(project) == (1, 0, 0)
    project.write_tasks("@deferred\ndef broken(text):\n    note('mended', text)\n")
    project.drain()
    assert project.notes() == ["mended why"]
    assert status(project) == (0, 0, 0)


def test_text_that_no_terminal_can_show(project: Project) -> None:
    """C28, C41: and the task's code is gone meanwhile."""
    project.run(
        r"""
        name = os.fsdecode(b"\xff.txt")
        fine.enqueue(name)
        broken.enqueue("\udcff\x1b[2J", name, when=float("nan"))
        """
    )
    project.drain()
    assert project.notes() == [r"fine '\udcff.txt'"]
    project.write_tasks("raise ImportError('half of a deploy')")
    done = project.manage("deadtasks", "list", "--format", "json")
    assert done.returncode == 0
    (record,) = json.loads(done.stdout, parse_constant=pytest.fail)
    assert record["exception_message"] == "\udcff\x1b[2J"
    assert record["context"]["args"] == ["\udcff\x1b[2J", "\udcff.txt"]
    for arguments in (["list"], ["show", record["id"]]):
        done = project.manage("deadtasks", *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        assert r"\udcff\x1b[2J" in done.stdout


def test_only_what_is_named_is_purged(project: Project) -> None:
    """C60"""
    add_dead(project, "1-7-a-1", "1-7-a-11", "1-7-a-2", "1-7-a-1")
    assert listed(project) == ["1-7-a-1", "1-7-a-2", "1-7-a-11"]
    before = snapshot(project.storage)
    done = project.manage("deadtasks", "purge", "--older-than", "0d", "--dry-run")
    assert done.returncode == 0
    assert "3 dead tasks would be purged" in done.stdout
    assert project.manage("deadtasks", "purge", "--all").returncode == 2
    assert project.manage("deadtasks", "purge", "1-7", "--noinput").returncode == 1
    assert snapshot(project.storage) == before
    done = project.manage("deadtasks", "purge", "1-7-a-1", "1-7-a-1", "nope", "--noinput")
    assert done.returncode == 1
    assert "nope" in done.stderr
    assert "Purged: 1 dead task." in done.stdout
    assert listed(project) == ["1-7-a-2", "1-7-a-11"]


def test_what_dies_while_it_asks_stays(project: Project) -> None:
    """C60: also a second death under an id that was seen."""
    add_dead(project, "1-7-a-1", "1-7-a-2")

    def answer() -> bytes:
        add_dead(project, "1-7-a-3", "1-7-a-2")
        return b"y\n"

    keys = [("Purge 2 dead tasks? [y/N] ", answer)]
    done = on_terminal(project, "deadtasks", "purge", "--all", keys=keys)
    assert done.code == 0
    assert "Purged: 1 dead task." in done.text
    assert listed(project) == ["1-7-a-2", "1-7-a-3"]


def test_a_lock_that_is_not_had_changes_nothing(project: Project) -> None:
    add_dead(project, "1-7-a-1")
    before = snapshot(project.storage)
    lock = os.open(project.storage / "deferred-dead_tasks.lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        for action in ("purge", "retry"):
            done = project.manage("deadtasks", action, "--all", "--noinput")
            assert done.returncode == 1
            assert "try again" in done.stderr
            assert "Traceback" not in done.stderr
        assert listed(project) == ["1-7-a-1"]
    finally:
        os.close(lock)
    after = snapshot(project.storage)
    assert {name: after[name] for name in before} == before


def test_damage_is_reported_with_its_place(project: Project) -> None:
    add_dead(project, "1-7-a-1", "1-7-a-2")
    file = project.storage / "deferred-dead_tasks-0"
    data = bytearray(file.read_bytes())
    data[20] ^= 1
    file.write_bytes(data)
    before = snapshot(project.storage)
    done = project.manage("deferred_verify")
    assert done.returncode == 1
    assert "damage" in done.stdout
    assert f"{file.name}:0" in done.stdout
    assert listed(project) == ["1-7-a-2"]
    file.write_bytes(file.read_bytes() + b"deadbeef:dead_task:1-7-a-3:{")
    done = project.manage("deferred_verify")
    assert "torn" in done.stdout
    assert {*snapshot(project.storage)} == {*before}


PREFIXES = [("app-", "app-0-"), ("app-0-", "app-"), ("shop", "shop0-"), ("", "x-"), ("a*-", "abc-")]
IN_ONE_PROCESS = """
from django.core.management import CommandError, call_command
for arguments in {commands}:
    try:
        call_command(*arguments)
    except CommandError as error:
        raise SystemExit(f"{{arguments}}: {{error}}")
"""


@pytest.mark.parametrize(("ours", "theirs"), PREFIXES)
def test_stores_side_by_side_never_touch(tmp_path: Path, ours: str, theirs: str) -> None:
    """C13, C14: every command of the one leaves each file of the other as it was."""
    shared = tmp_path / "storage"
    settings = 'DEFERRED = {{"PATH": {path!r}, "PREFIX": {prefix!r}}}\n'
    with (
        Project(
            tmp_path / "a", tasks=TASKS, settings=settings.format(path=str(shared), prefix=ours)
        ) as a,
        Project(
            tmp_path / "b", tasks=TASKS, settings=settings.format(path=str(shared), prefix=theirs)
        ) as b,
    ):
        fill = "fine.enqueue('due')\nfine.using(delay=3600).enqueue('delayed')\n"
        b.run(fill)
        add_dead(b, "1-7-b-1")
        before = snapshot(shared)
        a.run(fill)
        add_dead(a, "1-7-a-1", "1-7-a-2")
        dead = ["deadtasks", "list"], ["deadtasks", "show", "1-7-a-1"]
        commands = [
            *dead,
            ["deadtasks", "list", "--format", "json"],
            ["deferred_status"],
            ["deferred_verify"],
            ["deadtasks", "purge", "--all", "--dry-run"],
            ["deadtasks", "retry", "1-7-a-1", "--noinput"],
            ["deadtasks", "purge", "--all", "--noinput"],
        ]
        if ours == PREFIXES[0][0]:
            for command in commands:
                done = a.manage(*command)
                assert done.returncode == 0, done.stderr
                assert "1-7-b-1" not in done.stdout + done.stderr
                assert snapshot(shared, {*before}) == before
        else:
            a.run(IN_ONE_PROCESS.format(commands=commands))
        a.drain()
        assert snapshot(shared, {*before}) == before
        assert a.notes() == ["fine 'due'"]
        assert status(a) == (0, 1, 1)  # the retried one died once more
        assert listed(b) == ["1-7-b-1"]
        assert status(b) == (1, 1, 1)
        b.drain()
        assert b.notes() == ["fine 'due'"]
        assert status(b) == (0, 1, 1)
