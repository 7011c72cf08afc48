"""The commands on the disk backend, in processes of their own."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.test import override_settings

from deferred_django import get_backend
from deferred_django.context import TaskContext
from tests.commands.conftest import CommandLine
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

Snapshot = dict[str, tuple[bytes, int, int]]


def snapshot(directory: Path, names: set[str] | None = None) -> Snapshot:
    """The bytes, time and inode of the files (those of ``names``, if given)."""
    files = {}
    for path in sorted(directory.iterdir()):
        if names is None or path.name in names:
            stat = path.stat()
            files[path.name] = (path.read_bytes(), stat.st_mtime_ns, stat.st_ino)
    return files


def add_dead(*ids: str) -> None:
    context = TaskContext.build("app.tasks.broken", (), {}).to_bytes()
    for id in ids:
        get_backend().add_dead_task(
            id, context, ValueError(f"no {id}"), task_class="app.tasks.broken", attempts=1
        )


def dead_ids() -> list[str]:
    return [record["id"] for record in get_backend().list_dead_tasks()]


def counts() -> tuple[int, int, int]:
    status = get_backend().status()
    return status.pending, status.delayed, status.dead


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """A project in whose store this process looks, too."""
    with Project(tmp_path, tasks=TASKS) as made, override_settings(DEFERRED={"PATH": made.storage}):
        yield made


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Path]:
    """A directory for a store that nobody has used."""
    path = tmp_path / "storage"
    with override_settings(DEFERRED={"PATH": path}):
        yield path


def test_read_only_commands_create_nothing(store: Path, command_line: CommandLine) -> None:
    for name, *arguments in (
        ["deadtasks", "list"],
        ["deadtasks", "list", "--format", "json"],
        ["deadtasks", "purge", "--all", "--noinput"],
        ["deadtasks", "retry", "--all", "--noinput"],
        ["deferred_status", "--format", "json"],
        ["deferred_verify"],
    ):
        assert command_line(name, *arguments).code == 0
        assert not store.exists()
    for arguments in (["show", "1-7-a-1"], ["purge", "1-7-a-1"], ["retry", "1-7-a-1"]):
        assert command_line("deadtasks", *arguments).code == 1
        assert not store.exists()
    shown = json.loads(command_line("deferred_status", "--format", "json").out)
    assert not any(shown.values())
    assert [shown[name] for name in ("pending", "delayed", "running", "dead")] == [0] * 4


def test_from_the_death_to_the_second_life(project: Project, command_line: CommandLine) -> None:
    project.run("broken.enqueue('why')")
    project.drain()
    assert counts() == (0, 0, 1)
    (id,) = dead_ids()
    shown = command_line("deadtasks", "show", id).out
    assert "app.tasks.broken" in shown
    assert "ValueError: why" in shown
    assert 'raise ValueError(args[0] if args else "broken")' in shown
    done = command_line("deadtasks", "retry", id, "--noinput")
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("Enqueued again: 1 dead task.\n")
    assert counts() == (1, 0, 0)
    project.write_tasks("@deferred\ndef broken(text):\n    note('mended', text)\n")
    project.drain()
    assert project.notes() == ["mended why"]
    assert counts() == (0, 0, 0)


def test_text_that_no_terminal_can_show(project: Project, command_line: CommandLine) -> None:
    """C28, C41: looked at where the task's code cannot be imported."""
    project.run(
        r"""
        name = os.fsdecode(b"\xff.txt")
        fine.enqueue(name)
        broken.enqueue("\udcff\x1b[2J", name, when=float("nan"))
        """
    )
    project.drain()
    assert project.notes() == [r"fine '\udcff.txt'"]
    done = command_line("deadtasks", "list", "--format", "json")
    assert (done.code, done.err) == (0, "")
    (record,) = json.loads(done.out, parse_constant=pytest.fail)
    assert record["exception_message"] == "\udcff\x1b[2J"
    assert record["context"]["args"] == ["\udcff\x1b[2J", "\udcff.txt"]
    for arguments in (["list"], ["show", record["id"]]):
        done = command_line("deadtasks", *arguments)
        assert (done.code, done.err) == (0, "")
        assert r"\udcff\x1b[2J" in done.out
    assert "app" not in sys.modules


def test_only_what_is_named_is_purged(store: Path, command_line: CommandLine) -> None:
    """C60"""
    add_dead("1-7-a-1", "1-7-a-11", "1-7-a-2", "1-7-a-1")
    assert dead_ids() == ["1-7-a-1", "1-7-a-2", "1-7-a-11"]
    before = snapshot(store)
    done = command_line("deadtasks", "purge", "--older-than", "0d", "--dry-run")
    assert done.code == 0
    assert "3 dead tasks would be purged" in done.out
    assert command_line("deadtasks", "purge", "--all").code == 2
    assert command_line("deadtasks", "purge", "1-7", "--noinput").code == 1
    assert snapshot(store) == before
    done = command_line("deadtasks", "purge", "1-7-a-1", "1-7-a-1", "nope", "--noinput")
    assert done.code == 1
    assert "nope" in done.err
    assert "Purged: 1 dead task." in done.out
    assert dead_ids() == ["1-7-a-2", "1-7-a-11"]


def test_what_dies_while_it_asks_stays(project: Project) -> None:
    """C60: also a second death under an id that was seen."""
    add_dead("1-7-a-1", "1-7-a-2")

    def answer() -> bytes:
        add_dead("1-7-a-3", "1-7-a-2")
        return b"y\n"

    keys = [("Purge 2 dead tasks? [y/N] ", answer)]
    done = on_terminal(project, ["deadtasks", "purge", "--all"], keys=keys)
    assert done.code == 0
    assert "Purged: 1 dead task." in done.text
    assert dead_ids() == ["1-7-a-2", "1-7-a-3"]


def test_a_lock_that_is_not_had_changes_nothing(store: Path, command_line: CommandLine) -> None:
    add_dead("1-7-a-1")
    before = snapshot(store)
    lock = os.open(store / "deferred-dead_tasks.lock", os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        done = command_line("deadtasks", "purge", "--all", "--noinput")
        assert done.code == 1
        assert "try again" in done.err
        assert "Traceback" not in done.err
        assert dead_ids() == ["1-7-a-1"]
    finally:
        os.close(lock)
    after = snapshot(store)
    assert {name: after[name] for name in before} == before


def test_damage_is_reported_with_its_place(store: Path, command_line: CommandLine) -> None:
    """C03"""
    add_dead("1-7-a-1", "1-7-a-2")
    file = store / "deferred-dead_tasks-0"
    data = bytearray(file.read_bytes())
    data[20] ^= 1
    file.write_bytes(data + b"deadbeef:dead_task:1-7-a-3:{")
    before = snapshot(store)
    done = command_line("deferred_verify")
    assert done.code == 1
    assert f"{file.name}:0  " in done.out
    assert done.out.endswith("2 findings: 1 damage, 1 torn\n")
    skipped = f"{file}: 1 damaged line is skipped, the first at byte 0\n"
    done = command_line("deadtasks", "list")
    assert (done.code, done.err) == (0, skipped)
    done = command_line("deadtasks", "list", "--format", "json")
    assert (done.code, done.err) == (0, skipped)
    assert [record["id"] for record in json.loads(done.out)] == dead_ids() == ["1-7-a-2"]
    assert snapshot(store) == before


PREFIXES = [("app-", "app-0-"), ("app-0-", "app-"), ("shop", "shop0-"), ("", "x-"), ("a*-", "abc-")]


@pytest.mark.parametrize(("ours", "theirs"), PREFIXES)
def test_no_command_touches_the_store_beside_it(
    store: Path, command_line: CommandLine, ours: str, theirs: str
) -> None:
    """C13, C14"""

    def fill(name: str) -> None:
        context = TaskContext.build("app.tasks.fine", (name,), {}).to_bytes()
        get_backend().add_task(context)
        get_backend().add_task(context, publish_at=time.time() + 3600)
        add_dead(f"1-7-{name}-1", f"1-7-{name}-2")

    with override_settings(DEFERRED={"PATH": store, "PREFIX": theirs}):
        fill("theirs")
    before = snapshot(store)
    with override_settings(DEFERRED={"PATH": store, "PREFIX": ours}):
        fill("ours")
        for name, *arguments in (
            ["deadtasks", "list"],
            ["deadtasks", "list", "--format", "json"],
            ["deadtasks", "show", "1-7-ours-1"],
            ["deferred_status"],
            ["deferred_verify"],
            ["deadtasks", "purge", "--all", "--dry-run"],
            ["deadtasks", "retry", "1-7-ours-1", "--noinput"],
            ["deadtasks", "purge", "--all", "--noinput"],
        ):
            done = command_line(name, *arguments)
            assert (done.code, done.err) == (0, "")
            assert "theirs" not in done.out
            assert snapshot(store, {*before}) == before
        assert command_line("deadtasks", "show", "1-7-theirs-1").code == 1
        assert counts() == (2, 1, 0)
    with override_settings(DEFERRED={"PATH": store, "PREFIX": theirs}):
        assert counts() == (1, 1, 2)


def test_no_worker_touches_the_store_beside_it(tmp_path: Path) -> None:
    """C14"""
    shared = tmp_path / "storage"
    ours, theirs = [{"PATH": str(shared), "PREFIX": prefix} for prefix in PREFIXES[0]]
    with (
        Project(tmp_path / "a", tasks=TASKS, settings=f"DEFERRED = {ours}\n") as a,
        Project(tmp_path / "b", tasks=TASKS, settings=f"DEFERRED = {theirs}\n") as b,
    ):
        fill = "fine.enqueue('due')\nfine.using(delay=3600).enqueue('delayed')\n"
        b.run(fill)
        with override_settings(DEFERRED=theirs):
            add_dead("1-7-b-1")
        before = snapshot(shared)
        a.run(fill + "broken.enqueue()")
        a.drain()
        assert snapshot(shared, {*before}) == before
        b.drain()
        assert a.notes() == b.notes() == ["fine 'due'"]
        with override_settings(DEFERRED=ours):
            assert counts() == (0, 1, 1)
        with override_settings(DEFERRED=theirs):
            assert counts() == (0, 1, 1)
            assert dead_ids() == ["1-7-b-1"]
