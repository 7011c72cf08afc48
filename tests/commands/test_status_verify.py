"""``deferred_status``, ``deferred_verify``, and every command where no task is kept."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings
from prometheus_client.parser import text_string_to_metric_families

from deferred_django.backends.base import Finding, QueueStatus, RunningTask, Status, WorkerInfo
from deferred_django.backends.schedule import TickRecord
from deferred_django.console.status import SHOWN_TASKS
from deferred_django.console.text import width
from deferred_django.registry import get_backend
from tests.commands.conftest import CommandLine
from tests.commands.fakes import FakeBackend

TORN = Finding(file="/s/seg", offset=40, kind="torn", detail="an unfinished write of 7 bytes")
DAMAGE = Finding(file="/s/seg", offset=90, kind="damage", detail="4096 bytes\x1b[31m")
UNREADABLE = Finding(file="/s/other", offset=None, kind="unreadable", detail="Permission denied")


@pytest.fixture
def busy(backend: FakeBackend) -> FakeBackend:
    common: dict[str, Any] = {"host": "web-1", "started_at": time.time() - 7200.0, "threads": 4}
    backend.now = Status(
        pending=12,
        delayed=3,
        running=2,
        dead=5,
        oldest_age=200.5,
        workers=[
            WorkerInfo(
                token="a",
                pid=42,
                heartbeat_at=time.time(),
                running=[RunningTask("1-2-a-3", "shop.tasks.send_receipt", 1e9)],
                **common,
            ),
            WorkerInfo(token="b", pid=43, queues=("mail", "slow"), stopped=True, **common),
        ],
        queues={
            "mail": QueueStatus(pending=12, running=2, oldest_age=200.5),
            "slow": QueueStatus(delayed=3),
        },
        problems=["/s/seg: Permission denied\x1b"],
    )
    return backend


def test_status_as_json(busy: FakeBackend, command_line: CommandLine) -> None:
    done = command_line("deferred_status", "--format", "json")
    assert (done.code, done.err) == (0, "")
    shown = json.loads(done.out)
    first, second = shown.pop("workers")
    assert shown == {
        "pending": 12,
        "delayed": 3,
        "running": 2,
        "dead": 5,
        "oldest_age": 200.5,
        "queues": {
            "mail": {"pending": 12, "delayed": 0, "running": 2, "oldest_age": 200.5},
            "slow": {"pending": 0, "delayed": 3, "running": 0, "oldest_age": None},
        },
        "problems": ["/s/seg: Permission denied\x1b"],
        "schedule": [],
    }
    assert first == {
        "pid": 42,
        "host": "web-1",
        "started": busy.now.workers[0].started_at,
        "threads": 4,
        "queues": None,
        "stopped": False,
        "heartbeat": busy.now.workers[0].heartbeat_at,
        "running": [{"id": "1-2-a-3", "task": "shop.tasks.send_receipt", "since": 1e9}],
    }
    assert (second["queues"], second["stopped"]) == (["mail", "slow"], True)


def test_status_as_a_table(busy: FakeBackend, command_line: CommandLine) -> None:
    lines = command_line("deferred_status").out.splitlines()
    assert lines[:5] == [
        "Pending       12  the oldest has been due for 3 min",
        "Delayed        3",
        "Running        2",
        "Dead           5",
        "Workers        2",
    ]
    assert [line.split() for line in lines[6:9]] == [
        ["QUEUE", "PENDING", "DELAYED", "RUNNING", "DUE", "FOR"],
        ["mail", "12", "0", "2", "3", "min"],
        ["slow", "0", "3", "0"],
    ]
    lines = lines[4:]
    assert lines[7].split() == ["42", "2", "h", "ago", "4", "running", "web-1", "all"]
    assert lines[8].split() == ["43", "2", "h", "ago", "4", "stopped", "web-1", "mail,slow"]
    assert lines[10].split() == ["FOR", "TASK", "ID", "PID"]
    assert lines[11].split()[-3:] == ["shop.tasks.send_receipt", "1-2-a-3", "42"]
    assert lines[-1] == "  /s/seg: Permission denied\\x1b"


def test_status_for_prometheus(busy: FakeBackend, command_line: CommandLine) -> None:
    done = command_line("deferred_status", "--format", "prometheus")
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("\n")
    families = list(text_string_to_metric_families(done.out))
    assert all(family.type == "gauge" and family.documentation for family in families)
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }
    longest = found.pop(("deferred_longest_running_seconds",))
    assert longest == pytest.approx(time.time() - 1e9, abs=60)
    queues = {"default": (0, 0, 0, 0), "mail": (12, 0, 2, 200.5), "slow": (0, 3, 0, 0)}
    names = ("pending", "delayed", "running", "oldest_age_seconds")
    for queue, numbers in queues.items():
        for name, number in zip(names, numbers, strict=True):
            assert found.pop((f"deferred_{name}", queue)) == number
    assert found == {
        ("deferred_dead",): 5,
        ("deferred_workers", "running"): 1,
        ("deferred_workers", "stopped"): 1,
        ("deferred_workers", "stuck"): 0,
        ("deferred_worker_threads",): 8,
        ("deferred_problems",): 1,
    }


def test_what_prometheus_reads_of_an_empty_store(
    backend: FakeBackend, command_line: CommandLine
) -> None:
    """A number for everything: an alert must not go by what is missing."""
    done = command_line("deferred_status", "--format", "prometheus")
    samples = [s for f in text_string_to_metric_families(done.out) for s in f.samples]
    assert len(samples) == 11
    assert {sample.value for sample in samples} == {0}


def test_names_that_would_break_the_format(backend: FakeBackend, command_line: CommandLine) -> None:
    odd = 'a"b\\c\nd\udcff"} 5\n# TYPE'
    backend.now = replace(backend.now, queues={odd: QueueStatus(pending=7)})
    done = command_line("deferred_status", "--format", "prometheus")
    families = {f.name: f for f in text_string_to_metric_families(done.out)}
    [sample] = [s for s in families["deferred_pending"].samples if s.labels["queue"] != "default"]
    assert (sample.labels["queue"], sample.value) == (odd.replace("\udcff", "?"), 7)


def test_a_worker_without_a_sign_of_life(busy: FakeBackend, command_line: CommandLine) -> None:
    silent = WorkerInfo(
        token="a", pid=42, host="h", started_at=time.time(), heartbeat_at=time.time() - 61
    )
    busy.now = replace(busy.now, workers=[silent], queues={})
    assert command_line("deferred_status").out.splitlines()[7].split()[-3:] == ["stuck", "h", "all"]


@pytest.mark.parametrize("columns", [200, 80, 60, 40])
def test_many_workers_and_long_names_fit(
    backend: FakeBackend,
    command_line: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    columns: int,
) -> None:
    now = time.time()
    workers = [
        WorkerInfo(
            token=str(n),
            pid=4_194_000 + n,
            host="web-1.eu-central.shop.example.com",
            started_at=now - 90_000,
            threads=4,
            queues=("mail", "newsletter-digest", "reports"),
            heartbeat_at=now,
            running=[
                RunningTask(
                    f"1796000000-4194000-abcdefghijklm-{n}{task}",
                    "shop.newsletter.tasks.deliver_the_monthly_letter_漢字_to_all_subscribers",
                    now - 4000 - n,
                )
                for task in range(3)
            ],
        )
        for n in range(9)
    ]
    backend.now = Status(pending=0, delayed=0, running=27, dead=0, oldest_age=None, workers=workers)
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = command_line("deferred_status").out.splitlines()
    assert max(map(width, lines)) <= max(columns, 44)
    shown = [line for line in lines if "-abcdefghijklm-" in line]
    assert len(shown) == SHOWN_TASKS
    assert lines[-1] == "and 7 more: --format json has them all"
    assert "-abcdefghijklm-80" in shown[0]
    assert all("subscribers" in line for line in lines if "4194" in line and "h " in line[:5])


def test_status_of_an_empty_store(backend: FakeBackend, command_line: CommandLine) -> None:
    assert json.loads(command_line("deferred_status", "--format", "json").out) == {
        "pending": 0,
        "delayed": 0,
        "running": 0,
        "dead": 0,
        "oldest_age": None,
        "workers": [],
        "queues": {},
        "problems": [],
        "schedule": [],
    }
    assert len(command_line("deferred_status").out.splitlines()) == 5


@pytest.mark.parametrize(
    ("findings", "code", "last"),
    [
        ([], 0, "0 findings: every record is as it was written"),
        ([TORN], 0, "1 finding: 1 torn"),
        ([TORN, DAMAGE], 1, "2 findings: 1 damage, 1 torn"),
        ([UNREADABLE, DAMAGE, DAMAGE], 1, "3 findings: 2 damage, 1 unreadable"),
    ],
)
def test_verify(
    backend: FakeBackend,
    command_line: CommandLine,
    findings: list[Finding],
    code: int,
    last: str,
) -> None:
    backend.findings = findings
    done = command_line("deferred_verify")
    lines = done.out.splitlines()
    assert (done.code, bool(done.err)) == (code, code == 1)
    assert lines[-1] == last
    assert len(lines) == len(findings) + 1
    for finding, line in zip(findings, lines, strict=False):
        place = finding.file if finding.offset is None else f"{finding.file}:{finding.offset}"
        detail = finding.detail.replace("\x1b", "\\x1b")
        assert line.split(maxsplit=2) == [finding.kind, place, detail]


def test_verify_as_json(backend: FakeBackend, command_line: CommandLine) -> None:
    backend.findings = [TORN, UNREADABLE]
    done = command_line("deferred_verify", "--format", "json")
    assert done.code == 1
    first, second = json.loads(done.out)
    assert first == {
        "file": "/s/seg",
        "offset": 40,
        "kind": "torn",
        "detail": "an unfinished write of 7 bytes",
    }
    assert second["offset"] is None
    with pytest.raises(CommandError) as raised:
        call_command("deferred_verify")
    assert raised.value.returncode == 1


@override_settings(DEFERRED={"BACKEND": None})
def test_a_backend_that_keeps_nothing(command_line: CommandLine) -> None:
    for name, arguments, out in (
        ("deadtasks", ["list"], "No dead tasks.\n"),
        ("deadtasks", ["list", "--format", "json"], "[]\n"),
        ("deadtasks", ["purge", "--all", "--noinput"], "No dead tasks match: there is"),
        ("deadtasks", ["retry", "--all", "--noinput"], "No dead tasks match: there is"),
        ("deferred_status", [], "Pending        0\n"),
        ("deferred_verify", [], "0 findings"),
    ):
        done = command_line(name, *arguments)
        assert done.code == 0
        assert done.out.startswith(out)
        assert "keeps no tasks" in done.err
    assert command_line("deadtasks", "show", "x").code == 1
    assert command_line("deadtasks", "purge", "x", "--noinput").code == 1


@pytest.mark.parametrize("command", ["deferred_status", "deferred_verify"])
def test_a_format_that_there_is_not_is_refused_in_code_too(
    backend: FakeBackend, command: str
) -> None:
    with pytest.raises(
        CommandError, match="format is 'xml': it must be one of table, json"
    ) as raised:
        call_command(command, format="xml")
    assert raised.value.returncode == 2


@override_settings(DEFERRED={"BACKEND": "disk", "PREFIXX": "oops-"})
def test_a_wrong_setting_is_named(command_line: CommandLine) -> None:
    for name, arguments in (
        ("deadtasks", ["list"]),
        ("deferred_status", []),
        ("deferred_verify", []),
    ):
        done = command_line(name, *arguments)
        assert (done.code, done.out) == (1, "")
        assert "PREFIXX" in done.err
        assert "Traceback" not in done.err


def test_status_shows_the_periodic_tasks(command_line: CommandLine) -> None:
    now = time.time()
    schedule = {
        "nightly": {"task": "shop.tasks.report", "cron": "0 3 * * *"},
        "new": {"task": "shop.tasks.new", "every": 60},
        "prices": {"task": "shop.tasks.prices", "every": 300},
    }
    dotted = "tests.commands.fakes.FakeBackend"
    with override_settings(DEFERRED={"BACKEND": dotted}):
        assert command_line("deferred_status").out.count("PERIODIC TASK") == 0
    with override_settings(DEFERRED={"BACKEND": dotted, "SCHEDULE": schedule}):
        made = get_backend()
        assert isinstance(made, FakeBackend)
        made.ticks = [
            TickRecord(name="nightly", next_at=now + 7300, last_at=now - 79_000),
            TickRecord(name="prices", next_at=now + 100.5),
            TickRecord(name="of others", next_at=now),
        ]
        done = command_line("deferred_status")
        shown = json.loads(command_line("deferred_status", "--format", "json").out)
    assert (done.code, done.err) == (0, "")
    for words in ("in 1 min", "in 2 h", "21 h ago", "never", "not seen by a worker", "every 300 s"):
        assert words in done.out
    assert done.out.index("prices") < done.out.index("nightly") < done.out.index("new")
    assert "of others" not in done.out
    assert shown["schedule"] == [
        {
            "name": "nightly",
            "task": "shop.tasks.report",
            "when": "cron 0 3 * * * UTC",
            "next": now + 7300,
            "last": now - 79_000,
        },
        {
            "name": "new",
            "task": "shop.tasks.new",
            "when": "every 60 s",
            "next": None,
            "last": None,
        },
        {
            "name": "prices",
            "task": "shop.tasks.prices",
            "when": "every 300 s",
            "next": now + 100.5,
            "last": None,
        },
    ]
