"""``deferred_worker`` under ``call_command``: options, refusals, threads, signals."""

from __future__ import annotations

import io
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.test import override_settings

from deferred_django import get_backend, get_queue
from deferred_django.backends.base import Backend
from deferred_django.console import worker_options
from deferred_django.context import TaskContext
from tests.support import wait_until
from tests.worker import tasks


@pytest.fixture(autouse=True)
def no_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("forked"))


def run(*args: str, **options: Any) -> str:
    """What the command prints."""
    out = io.StringIO()
    call_command("deferred_worker", *args, stdout=out, **options)
    return out.getvalue()


def test_it_drains_in_this_process(deferred_store: Backend) -> None:
    for number in range(20):
        tasks.note.enqueue(number)
    tasks.fail_with.enqueue("exit")
    before = signal.getsignal(signal.SIGTERM)
    printed = run("--drain", "--max-tasks", "6").splitlines()
    assert sorted(note for note in tasks.ran if isinstance(note, int)) == list(range(20))
    assert deferred_store.count_dead_tasks() == 1
    assert deferred_store.pending_tasks() == []
    assert signal.getsignal(signal.SIGTERM) is before
    assert len(printed) == 2
    assert str(settings.DEFERRED["PATH"]) in printed[0]
    assert "1 process with 4 threads, all queues" in printed[0]
    assert printed[1] == "deferred_worker: stopped"


def test_it_works_in_a_thread_and_sets_no_signal_handler(deferred_store: Backend) -> None:
    before = signal.getsignal(signal.SIGTERM)
    tasks.wait_for.enqueue("door")
    printed: list[str] = []
    thread = threading.Thread(target=lambda: printed.append(run(drain=True, threads=1)))
    thread.start()
    wait_until(lambda: ("begun", "door") in tasks.ran)
    assert signal.getsignal(signal.SIGTERM) is before
    tasks.gate("door").set()
    thread.join(10)
    assert len(printed) == 1
    assert "1 thread" in printed[0]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_in_the_main_thread_a_signal_stops_it(deferred_store: Backend, signum: int) -> None:
    before = signal.getsignal(signum)
    tasks.note.enqueue(1)

    def stop() -> None:
        wait_until(lambda: tasks.ran == [1])
        assert signal.getsignal(signum) is not before
        os.kill(os.getpid(), signum)

    thread = threading.Thread(target=stop)
    thread.start()
    run(queues="default")
    thread.join()
    assert signal.getsignal(signum) is before
    # The facade goes on working for the process that called.
    tasks.note.enqueue(2)
    assert len(get_backend().pending_tasks()) == 1


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--processes", "0"),
        ("--threads", "-1"),
        ("--threads", "two"),
        ("--max-tasks", "0"),
        ("--shutdown-timeout", "-1"),
        ("--shutdown-timeout", "nan"),
        ("--queues", "a,,b"),
        ("--queues", "a/b"),
        ("--queues", "*,mail"),
        ("--exclude-queues", "a,*"),
        ("--exclude-queues", ""),
        ("--max-memory", "0"),
        ("--max-memory", "12 apples"),
    ],
)
def test_wrong_options_are_refused(deferred_store: Backend, option: str, value: str) -> None:
    with pytest.raises(CommandError, match=option):
        run(f"{option}={value}")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("processes", 0),
        ("processes", 100_000),
        ("threads", 1_000_000),
        ("threads", True),
        ("threads", 1.5),
        ("max_tasks", "many"),
        ("shutdown_timeout", None),
        ("queues", ["a b"]),
        ("queues", []),
        ("exclude_queues", ["*"]),
        ("max_memory", 1.5),
        ("max_memory", True),
    ],
)
def test_wrong_values_are_refused(deferred_store: Backend, option: str, value: object) -> None:
    with pytest.raises(CommandError, match=option) as raised:
        run(**{option: value})
    assert raised.value.returncode == 2


def test_queue_names() -> None:
    assert worker_options.queue_names("mail, slow,mail") == ["mail", "slow"]
    assert worker_options.queue_names("mail,*") == ["mail", "*"]


def test_queues_that_are_wanted_and_excluded_are_refused(deferred_store: Backend) -> None:
    with pytest.raises(
        CommandError, match="^--queues and --exclude-queues: mail is wanted"
    ) as raised:
        run("--queues", "mail,slow", "--exclude-queues", "bulk,mail")
    assert raised.value.returncode == 2


def test_queues_in_an_order_and_others_left_out(deferred_store: Backend) -> None:
    for name in ("default", "bulk", "mail"):
        tasks.note.using(queue=name).enqueue(name)
    printed = run("--drain", "--threads", "1", "--queues", "mail,*", "--exclude-queues", "bulk")
    assert tasks.ran == ["mail", "default"]
    assert "all queues but bulk, mail first" in printed
    assert [task.queue for task in deferred_store.pending_tasks()] == ["bulk"]


@pytest.mark.parametrize(
    ("text", "size"),
    [("512M", 512 << 20), ("1g", 1 << 30), ("1GiB", 1 << 30), ("4096", 4096), ("8kB", 8192)],
)
def test_memory_sizes(text: str, size: int) -> None:
    assert worker_options.memory_size(text) == size


def test_a_limit_of_memory_needs_a_process_that_can_be_replaced(deferred_store: Backend) -> None:
    with pytest.raises(CommandError, match="processes=2") as raised:
        run("--drain", max_memory="4G")
    assert raised.value.returncode == 2


def test_a_limit_of_memory_that_is_reached_from_the_start_is_refused(
    deferred_store: Backend,
) -> None:
    with pytest.raises(
        CommandError, match="^--max-memory is .* in use before the first task"
    ) as raised:
        run("--drain", "--processes", "2", max_memory="1M")
    assert raised.value.returncode == 2


def test_a_path_that_is_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "taken"
    path.touch()
    with override_settings(DEFERRED={"PATH": path}), pytest.raises(CommandError, match=str(path)):
        run("--drain")


def test_a_wrong_setting_is_refused() -> None:
    with override_settings(DEFERRED={"PTH": "/tmp"}), pytest.raises(CommandError, match="PTH"):
        run("--drain")


@pytest.mark.parametrize(
    ("app", "line"),
    [("broken_app", "import a_module_that_is_missing"), ("exiting_app", "raise SystemExit(3)")],
)
def test_an_error_in_a_tasks_module_is_logged_and_holds_up_nobody_else(
    deferred_store: Backend,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    app: str,
    line: str,
) -> None:
    """C41: its tasks wait for a worker that can import it."""
    package = tmp_path / app
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "tasks.py").write_text(f"{line}\n")
    monkeypatch.syspath_prepend(tmp_path)
    context = TaskContext.build(f"{app}.tasks.old", (1,), {})
    get_queue().enqueue(context, task_id="old")
    tasks.note.enqueue(1)
    with override_settings(INSTALLED_APPS=[*settings.INSTALLED_APPS, app]):
        run("--drain")
    assert f"{app}.tasks could not be imported" in caplog.text
    assert line in caplog.text
    assert tasks.ran == [1]
    [old] = get_backend().pending_tasks()
    assert (old.id, old.status) == ("old", "delayed")
    assert TaskContext.from_bytes(old.context).attempts == 0
