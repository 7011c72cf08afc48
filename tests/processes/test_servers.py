"""Process models of real deployments: a preforking server, pid namespaces, outliving children."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.harness import Project, children_of, kill_quietly
from tests.support import wait_until

TASKS = """
    @deferred
    def work(name):
        note("ran", name, current_task().id)

    @deferred
    def long(seconds):
        note("start", os.getpid(), time.monotonic())
        time.sleep(seconds)

    @deferred
    def fork_and_sleep():
        if os.fork() == 0:
            note("child", os.getpid())
            time.sleep(60)
            os._exit(0)
        note("start", os.getpid())
        time.sleep(60)
"""

WSGI = """
import os
import django
django.setup()
from app.tasks import work

FIRST = work.enqueue("preloaded")

def application(environ, start_response):
    task_id = work.enqueue(environ["PATH_INFO"].strip("/"))
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [f"{os.getpid()} {task_id}".encode()]
"""


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    with Project(tmp_path, tasks=TASKS) as made:
        yield made


def segments(project: Project) -> list[str]:
    return [path.name for path in project.storage.iterdir() if "-0-2" in path.name]


def ran(project: Project) -> list[str]:
    return [line.split()[1] for line in project.notes() if line.startswith("ran ")]


def test_a_preforking_web_server(project: Project) -> None:
    """gunicorn --preload with four workers, all enqueueing; the master did so before it forked."""
    (project.path / "wsgi.py").write_text(WSGI)
    with socket.socket() as listener:  # nobody else gets the port before the server has it
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        bind = f"fd://{listener.fileno()}"
        command = ["gunicorn", "--preload", "-w", "4", "-b", bind, "wsgi:application"]
        server = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=project.path,
            env=project.env,
            pass_fds=[listener.fileno()],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    try:

        def get(name: str) -> list[str]:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/{name}", timeout=30) as answer:
                words: list[str] = answer.read().decode().split()
                return words

        def is_up() -> bool:
            try:
                get("probe")
            except OSError:
                return False
            return True

        wait_until(is_up, timeout=30)
        asked: list[str] = ["probe"]
        answers: list[list[str]] = []
        with ThreadPoolExecutor(16) as threads:
            deadline = time.monotonic() + 30
            while len({pid for pid, _ in answers}) < 4 and time.monotonic() < deadline:
                batch = [f"r{len(asked) + number}" for number in range(64)]
                answers += threads.map(get, batch)
                asked += batch
        pids = {pid for pid, _ in answers}
        assert len(pids) == 4
        assert len({task_id for _, task_id in answers}) == len(answers)
        assert {task_id.split("-")[1] for _, task_id in answers} == pids
        assert len({task_id.split("-")[2] for _, task_id in answers}) == 4  # a token each
        # One segment each, and the master's, whose ownership no worker took along.
        assert {name.split("-")[3] for name in segments(project)} == pids | {str(server.pid)}
        assert len(segments(project)) == 5
    finally:
        server.terminate()
        server.wait(30)
    project.drain()
    assert sorted(ran(project)) == sorted(["preloaded", *asked])
    assert segments(project) == []


@pytest.mark.skipif(shutil.which("unshare") is None, reason="there is no unshare command")
def test_processes_of_one_pid_in_two_namespaces(project: Project) -> None:
    """Two containers on one volume: the same pid, other ids, other segments."""
    unshare = ["unshare", "--user", "--map-root-user", "--pid", "--fork"]
    if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode:
        unshare = ["unshare", "--pid", "--fork"]
        if subprocess.run([*unshare, "true"], check=False, capture_output=True).returncode:
            pytest.skip("this user may not make a pid namespace")
    code = """
        import sys
        ids = [work.enqueue("x") for _ in range(50)]
        print(os.getpid(), *ids, flush=True)
        sys.stdin.readline()
    """
    containers = [
        subprocess.Popen(
            [*unshare, *project.python_command(code)],
            cwd=project.path,
            env=project.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    outputs = []
    for container in containers:
        assert container.stdout is not None
        outputs.append(container.stdout.readline().split())
    for container in containers:
        container.communicate("\n", timeout=30)
    assert outputs[0][0] == outputs[1][0] == "1"
    ids = outputs[0][1:] + outputs[1][1:]
    assert len(set(ids)) == 100
    assert {task_id.split("-")[1] for task_id in ids} == {"1"}
    assert len(segments(project)) == 2
    project.drain()
    assert len(ran(project)) == 100


def started(project: Project) -> list[list[str]]:
    return [line.split() for line in project.notes() if line.startswith("start")]


def test_a_killed_workers_task_starts_again_at_once(project: Project) -> None:
    """While another worker idles: no heartbeat has to run out first."""
    project.run("long.enqueue(60)")
    for _ in range(2):
        project.worker("--processes", "1", "--threads", "1")
    [[_, pid, _]] = wait_until(lambda: started(project), timeout=30)
    wait_until(lambda: project.status()["workers"][1:], timeout=30, what="two workers")
    killed_at = time.monotonic()
    kill_quietly(int(pid))
    again = wait_until(lambda: started(project)[1:])
    assert float(again[0][2]) - killed_at < 1.0
    assert again[0][1] != pid


def test_a_child_that_outlives_its_worker_keeps_no_claim(project: Project) -> None:
    """C48 (b): the task forked a process, as multiprocessing does; its worker is killed."""
    project.run("fork_and_sleep.enqueue()")
    first = project.worker("--processes", "1")
    [[_, pid]] = wait_until(lambda: started(project), timeout=30)
    forked = [
        int(line.split()[1])
        for line in wait_until(lambda: [n for n in project.notes() if n.startswith("child")])
    ]
    try:
        children = children_of(first.pid)
        first.kill()
        for child in children:
            kill_quietly(child)
        assert int(pid) in children
        killed_at = time.monotonic()
        assert project.status()["pending"] == 1
        assert time.monotonic() - killed_at < 5.0
    finally:
        for child in forked:
            kill_quietly(child)
