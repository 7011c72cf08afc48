"""The commands as a person or a shell runs them: real terminals, pipes and locales."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deferred_django.console.text import width
from tests.commands.terminal import on_terminal
from tests.harness import Project

STORE = '''
import time

from deferred_django.backends.base import Finding, Status, WorkerInfo
from tests.commands.fakes import FakeBackend, dead_task

class Store(FakeBackend):
    """A store with something in it, whose removals are slow."""

    def __init__(self, config):
        super().__init__(config)
        self.dead = [
            dead_task(
                f"1796000000-4242-abcdefghijklm-{n}",
                task_class="newsletter.tasks.deliver_the_monthly_letter",
                exception_class="smtplib.SMTPRecipientsRefused",
                exception_message="\\x1b[2J\\u202e\\udcff 漢字漢字漢字 no such user " * 9,
            )
            for n in range(300)
        ]
        worker = WorkerInfo(
            token="w", pid=4242, host="web-1.example.com", started_at=time.time(), threads=4
        )
        self.now = Status(
            pending=1, delayed=2, running=3, dead=300, oldest_age=9.0, workers=[worker],
            problems=["/store/ü\\x1b: Permission denied"],
        )
        torn = Finding(file="/store/ü", offset=12, kind="torn", detail="an unfinished write")
        self.findings = [torn]

    def remove_dead_tasks(self, ids, *, progress=None):
        self._work(ids, progress)
        return super().remove_dead_tasks(ids)

    def take_dead_tasks(self, ids, handover, *, progress=None):
        self._work(ids, progress)
        return super().take_dead_tasks(ids, handover)

    def _work(self, ids, progress):
        if progress is not None:
            progress(0, len(ids))
            time.sleep(0.55)
            for done in range(0, len(ids) + 1, 50):
                progress(done, len(ids))
'''


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    settings = 'DEFERRED = {"BACKEND": "app.store.Store"}\n'
    with Project(tmp_path_factory.mktemp("terminal"), settings=settings) as made:
        (made.path / "app" / "store.py").write_text(STORE)
        yield made


def shell(project: Project, line: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in the project; ``manage`` in it is ``manage.py``."""
    manage = f'manage() {{ "{sys.executable}" manage.py "$@"; }}\n'
    return subprocess.run(
        ["bash", "-c", manage + line],
        cwd=project.path,
        env={**project.env, **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_table_at_80_columns(project: Project) -> None:
    done = on_terminal(project, ["deadtasks", "list"])
    lines = done.text.splitlines()
    assert done.code == 0
    assert b"\x1b[1m" in done.written
    assert max(map(width, lines)) <= 80
    assert lines[-1].startswith("250 more of 300")
    assert len(lines) == 2 + 2 * 50 + 1
    assert lines[2].startswith("1796000000-4242-abcdefghijklm-299  20")
    assert "SMTPRecipientsRefused: \\x1b[2J" in lines[3]


@pytest.mark.parametrize("columns", [20, 80])
def test_every_command_on_an_ascii_terminal(project: Project, columns: int) -> None:
    commands = [
        ["deadtasks", "list"],
        ["deadtasks", "list", "--format", "json"],
        ["deadtasks", "show", "1796000000-4242-abcdefghijklm-7"],
        ["deadtasks", "purge", "--all", "--dry-run"],
        ["deferred_status"],
        ["deferred_verify"],
        ["deadtasks", "retry", "--all", "--noinput"],
        ["deadtasks", "list", "--no-color"],
    ]
    env = {"LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    done = on_terminal(project, *commands, columns=columns, env=env)
    assert done.code == 0
    assert done.written.isascii()
    assert done.text.rstrip().endswith("No dead tasks.")
    assert "\\u202e" in done.text
    assert "/store/\\xfc:12" in done.text


@pytest.mark.parametrize(
    ("key", "code", "answer"),
    [(b"y\n", 0, "Purged: 300 dead tasks."), (b"\x03", 130, "Nothing was changed.")],
    ids=["yes", "Ctrl-C"],
)
def test_the_question(project: Project, key: bytes, code: int, answer: str) -> None:
    keys = [("Purge 300 dead tasks? [y/N] ", key)]
    done = on_terminal(project, ["deadtasks", "purge", "--all"], keys=keys)
    assert done.code == code
    assert answer in done.text
    assert "Traceback" not in done.text
    assert max(map(width, done.text.splitlines()[:6])) <= 80


@pytest.mark.parametrize(("action", "columns"), [("retry", 80), ("purge", 20)])
def test_a_progress_bar_for_long_work(project: Project, action: str, columns: int) -> None:
    command = ["deadtasks", action, "--all", "--noinput"]
    done = on_terminal(project, command, columns=columns, env={"LC_ALL": "C.UTF-8"})
    assert done.code == 0
    assert "━" in done.text
    assert columns < 80 or "150/300" in done.text
    assert done.text.rstrip().endswith("300 dead tasks.")


def test_no_progress_bar_where_nobody_watches(project: Project) -> None:
    done = shell(project, "manage deadtasks purge --all --noinput")
    assert (done.returncode, done.stderr) == (0, "")
    assert "━" not in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    "command",
    ["deadtasks list --format json", "deadtasks purge --all --noinput"],
)
def test_a_reader_that_goes_away(project: Project, command: str) -> None:
    done = shell(project, f"manage {command} | head -1; exit ${{PIPESTATUS[0]}}")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_cannot_be_written(project: Project) -> None:
    done = shell(project, "manage deadtasks list --format json > /dev/full")
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["CommandError: [Errno 28] No space left on device"]


def test_closed_streams(project: Project) -> None:
    assert shell(project, "manage deadtasks list >&- 2>&-").returncode == 0
    assert shell(project, "manage deadtasks purge --all <&-").returncode == 2
