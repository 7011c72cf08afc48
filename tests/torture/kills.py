"""Producers, workers, purges and retries killed and stopped at random under load; then the books.

    python -m tests.torture.kills --seconds 60 --seed 1

Producers enqueue tasks that succeed, fail and are tried again, or die; ``deferred_worker``
commands and workers on the bare store run them; others purge dead tasks and run them again; an
operator removes lock files, temps and the files of workers. All the while one of these processes
after the other is killed (SIGKILL), stopped and let go on (SIGSTOP, SIGCONT, some for longer than
the fsync period), or killed while it is stopped, and replaced. Then all are told to stop, a drain
runs what is left, and the ledgers are compared with each other and with the store. Exit code 1 if
anything does not add up.

Only processes that this one started, or that a supervisor that it started did, get a signal.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import Any

from tests.harness import Project, children_of, is_alive, kill_quietly
from tests.torture import ledger
from tests.torture.books import Books, Disturbance

SETTINGS = """
INSTALLED_APPS = ["deferred_django", "tests.torture"]
# Small segments: each task that is killed is one that a rotation, a compaction or an unlink met.
from deferred_django.backends.disk import tidy, writer
writer.ROTATE_BYTES, tidy.COMPACT_BYTES, tidy.GROWN_BYTES = 60_000, 2_000, 100_000
"""
CREW = {"producer": 3, "store worker": 3, "purge": 1, "retry": 1, "operator": 1}
"""How many of each are at work at the same time."""
SUPERVISORS = (("--processes", "2", "--threads", "2"), ("--processes", "1", "--threads", "4"))
WEIGHTS = {
    "producer": 4,
    "store worker": 4,
    "purge": 2,
    "retry": 2,
    "operator": 1,
    "worker process": 4,
    "supervisor": 1,
}
END_SECONDS = 60.0
"""How long all may take to end once they are told to."""
DRAIN_SECONDS = 300.0
DELIVERY_SECONDS = 0.01
"""How long a process may run on after it was sent a signal: another processor has to be told."""
SABOTAGE = ("lose", "repeat", "return", "damage")


@dataclass(slots=True)
class Actor:
    """One process that may be disturbed."""

    pid: int
    role: str
    command: Popen[str] | None = None
    """Of a supervisor."""
    options: tuple[str, ...] = ()


@dataclass(slots=True)
class Torture:
    """The processes of one torture and what was done to them."""

    project: Project
    random: random.Random
    actors: list[Actor] = field(default_factory=list)
    disturbances: list[Disturbance] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    _stopped: dict[int, str] = field(default_factory=dict)
    _later: list[tuple[float, int, str, bool]] = field(default_factory=list)
    _children: dict[int, set[int]] = field(default_factory=dict)

    # -- starting --------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the whole crew."""
        for role, count in CREW.items():
            for _ in range(count):
                self._fork(role)
        for options in SUPERVISORS:
            self._supervise(options)

    def _fork(self, role: str) -> None:
        seed, fsync = self.random.getrandbits(64), self.random.choice(["0", "0.5", "0.5", "0.1"])
        pid = os.fork()
        if pid == 0:
            self._be(role, seed, fsync)
        self.actors.append(Actor(pid, role))

    def _be(self, role: str, seed: int, fsync: str) -> None:
        """In the forked child: play the role to its end, and leave as a process does."""
        code = 1
        try:
            from django.conf import settings

            from deferred_django import registry
            from tests.torture.actors import ROLES

            log = os.open(
                ledger.directory() / "actors.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600
            )
            os.dup2(log, 2)
            settings.DEFERRED["FSYNC_FREQUENCY"] = float(fsync)
            random.seed(seed)
            ROLES[role]()
            registry.reset()
            code = 0
        except BaseException:
            (ledger.directory() / f"failed-{os.getpid()}.txt").write_text(
                f"{role}: {traceback.format_exc()}"
            )
        finally:
            os._exit(code)

    def _supervise(self, options: tuple[str, ...]) -> None:
        command = self.project.worker(*options, "--shutdown-timeout", "20")
        self.actors.append(Actor(command.pid, "supervisor", command, options))

    # -- disturbing ------------------------------------------------------------------------------

    def disturb(self) -> None:
        """Kill or stop one process, chosen by chance; carry out what was put off."""
        self.carry_out(time.monotonic())
        role = self.random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        if role == "worker process":
            supervisors = [actor.pid for actor in self.actors if actor.command]
            pids = [pid for supervisor in supervisors for pid in self._workers_of(supervisor)]
        else:
            pids = [actor.pid for actor in self.actors if actor.role == role]
        pids = [pid for pid in pids if pid not in self._stopped]
        if not pids:
            return
        pid = self.random.choice(pids)
        if self.random.random() < 0.55:
            self._kill(pid, role)
            return
        self._signal(pid, role, signal.SIGSTOP, "stop")
        self._stopped[pid] = role
        length = self.random.choice([0.05, 0.3, 0.7, 1.5, 3.0]) * self.random.uniform(0.5, 1.5)
        end = (time.monotonic() + length, pid, role, self.random.random() < 0.35)
        heapq.heappush(self._later, end)

    def carry_out(self, until: float) -> None:
        """Let go on, or kill, those whose time of standing still is over at ``until``."""
        while self._later and self._later[0][0] <= until:
            _, pid, role, dies = heapq.heappop(self._later)
            if self._stopped.pop(pid, None) is None:
                continue  # killed with its supervisor
            if dies:
                self._kill(pid, role)
            else:
                self._signal(pid, role, signal.SIGCONT, "go on")

    def _workers_of(self, supervisor: int) -> list[int]:
        children = children_of(supervisor)
        self._children.setdefault(supervisor, set()).update(children)
        return children

    def _signal(self, pid: int, role: str, signum: int, action: str) -> None:
        at = time.monotonic()
        kill_quietly(pid, signum)
        until = time.monotonic() + DELIVERY_SECONDS
        self.disturbances.append(Disturbance(at, pid, role, action, until))

    def _kill(self, pid: int, role: str) -> None:
        actor = next((actor for actor in self.actors if actor.pid == pid), None)
        if actor is not None and actor.command:
            _hold_still(pid)  # a child that it makes between the look and the kill is an orphan too
        orphans = self._workers_of(pid) if actor is not None and actor.command else []
        for child in orphans:
            self.disturbances.append(Disturbance(time.monotonic(), child, "orphan", "orphan"))
        self._signal(pid, role, signal.SIGKILL, "kill")
        self._stopped.pop(pid, None)
        if actor is None:
            return  # its supervisor replaces it
        self.actors.remove(actor)
        if actor.command is None:
            os.waitpid(pid, 0)
            self._fork(actor.role)
        else:
            actor.command.wait()
            self._supervise(actor.options)

    def look(self) -> None:
        """Notice processes that ended though nobody killed them."""
        for actor in list(self.actors):
            if actor.command is not None:
                code = actor.command.poll()
            else:
                pid, status = os.waitpid(actor.pid, os.WNOHANG)
                code = os.waitstatus_to_exitcode(status) if pid else None
            if code is not None:
                self.failed.append(f"a {actor.role} ended by itself with {code}")
                self.actors.remove(actor)

    # -- ending ----------------------------------------------------------------------------------

    def end(self) -> None:
        """Stop all in good order."""
        self.carry_out(float("inf"))
        (ledger.directory() / "stop").touch()
        for actor in self.actors:
            if actor.command is not None:
                self._workers_of(actor.pid)
                actor.command.terminate()
        deadline = time.monotonic() + END_SECONDS
        orphans = {pid for pids in self._children.values() for pid in pids}
        for actor in self.actors:
            code = self._code_at_end(actor, deadline)
            begun = actor.command is None or self._children.get(actor.pid)
            if code != 0 and (begun or code != -signal.SIGTERM):  # its imports know no signal
                self.failed.append(f"a {actor.role} ended with {code}")
        while any(map(is_alive, orphans)):
            if time.monotonic() > deadline:
                self.failed.append("worker processes outlived their supervisor")
                break
            time.sleep(0.05)
        for path in sorted(ledger.directory().glob("failed-*.txt")):
            self.failed.append(path.read_text())

    def _code_at_end(self, actor: Actor, deadline: float) -> int | None:
        while time.monotonic() < deadline:
            if actor.command is not None:
                code = actor.command.poll()
            else:
                pid, status = os.waitpid(actor.pid, os.WNOHANG)
                code = os.waitstatus_to_exitcode(status) if pid else None
            if code is not None:
                return code
            time.sleep(0.02)
        kill_quietly(actor.pid)
        return None

    def counts(self) -> str:
        """Kills and stops by role."""
        counted: Counter[tuple[str, str]] = Counter()
        for disturbance in self.disturbances:
            if disturbance.action in ("kill", "stop"):
                counted[disturbance.action, disturbance.role] += 1
        words = []
        for action in ("kill", "stop"):
            roles = {role: count for (which, role), count in counted.items() if which == action}
            each = ", ".join(f"{role} {count}" for role, count in sorted(roles.items()))
            words.append(f"{action}s {sum(roles.values())} ({each})")
        return "; ".join(words)


def _hold_still(pid: int) -> None:
    kill_quietly(pid, signal.SIGSTOP)
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "TZ":
        time.sleep(0.001)


def sabotage(kinds: list[str], *, before: bool, kept: dict[str, Any]) -> None:
    """Do on purpose what the books are to notice, ``before`` the drain or after it."""
    from deferred_django import get_backend
    from tests.torture import tasks

    backend = get_backend()
    if before:
        for kind in kinds:
            task_id = tasks.fine.enqueue(0.0, b"")
            ledger.write(ledger.ACKS, "ack", task_id)
            kept[kind] = next(task for task in backend.pending_tasks() if task.id == task_id)
            if kind in ("lose", "return"):
                if kind == "return":
                    ledger.write(ledger.ACKS, "removing", task_id)
                assert backend.remove_task(task_id)
                if kind == "return":
                    ledger.write(ledger.ACKS, "removed", task_id)
        return
    for kind, task in kept.items():
        if kind in ("repeat", "return"):
            backend.add_task(task.context, task_id=task.id)
        elif kind == "damage":
            path = Path(str(backend.config.path)) / f"{backend.config.prefix}dead_tasks-0"
            with path.open("ab") as file:
                file.write(b"bytes that nobody of this package wrote\n")
    backend.sync()


def drain(project: Project) -> None:
    """Run what is left, delayed tasks included."""
    from deferred_django import get_backend

    worker = project.worker("--threads", "2")
    deadline = time.monotonic() + DRAIN_SECONDS
    while True:
        status = get_backend().status()
        if not (status.pending or status.delayed or status.running):
            break
        if time.monotonic() > deadline:
            raise AssertionError(f"not drained: {status}")
        time.sleep(0.1)
    while not get_backend().status().workers:  # by then it knows what SIGTERM means
        time.sleep(0.1)
    worker.terminate()
    if worker.wait(END_SECONDS):
        raise AssertionError(f"the last worker ended with {worker.returncode}")


def check(project: Project, torture: Torture) -> int:
    """Print the books; 0 if all adds up."""
    from deferred_django import get_backend

    backend = get_backend()
    books = Books(
        acks=ledger.read(ledger.ACKS),
        runs=ledger.read(ledger.RUNS),
        hands=ledger.read(ledger.HANDS),
        disturbances=torture.disturbances,
        dead={record["id"]: record["exception_class"] for record in backend.list_dead_tasks()},
    )
    findings = backend.verify()
    damage = [finding for finding in findings if finding.kind != "torn"]
    status = backend.status()
    wrong = [*torture.failed, *books.wrong, *map(str, damage), *status.problems]
    if status.workers:
        wrong.append(f"workers are listed that are gone: {status.workers}")
    verified = project.manage("deferred_verify")
    if verified.returncode != (1 if damage else 0):
        wrong.append(f"deferred_verify exits with {verified.returncode}: {verified.stdout}")
    for sentence in wrong[:20]:
        print(f"WRONG: {sentence}")
    print(torture.counts())
    for line in books.lines():
        print(line)
    print(f"deferred_verify: damage {len(damage)}, torn {len(findings) - len(damage)}")
    print(f"wrong: {len(wrong)}", flush=True)
    return 1 if wrong else 0


def run(options: argparse.Namespace, directory: Path, project: Project) -> int:
    """The whole torture, in a project that is set up."""
    os.environ.update(project.env, **{ledger.DIRECTORY: str(directory)})
    project.env[ledger.DIRECTORY] = str(directory)
    (directory / "reprieves").mkdir()
    sys.path.insert(0, str(project.path))
    import django

    django.setup()
    from deferred_django import get_backend

    torture = Torture(project, random.Random(options.seed))
    torture.start()
    end = time.monotonic() + options.seconds
    try:
        while time.monotonic() < end:
            time.sleep(torture.random.uniform(0.0, 2.0 / options.rate))
            torture.disturb()
            torture.look()
    finally:
        torture.end()
    kinds = list(filter(None, options.sabotage.split(",")))
    kept: dict[str, Any] = {}
    sabotage(kinds, before=True, kept=kept)
    began = time.monotonic()
    drain(project)
    if kinds:
        sabotage(kinds, before=False, kept=kept)
        drain(project)
    print(f"drained in {time.monotonic() - began:.1f} s")
    try:
        return check(project, torture)
    finally:
        with contextlib.suppress(OSError):
            get_backend().close()


def main() -> int:
    """Torture, drain, check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--rate", type=float, default=6.0, help="processes disturbed in a second")
    parser.add_argument(
        "--sabotage", default="", help=f"do on purpose, to see it noticed: {', '.join(SABOTAGE)}"
    )
    parser.add_argument("--keep", help="a directory to leave the store and the ledgers in")
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.seconds:g} s", flush=True)
    with contextlib.ExitStack() as stack:
        directory = Path(options.keep or stack.enter_context(tempfile.TemporaryDirectory()))
        project = stack.enter_context(Project(directory, settings=SETTINGS))
        return run(options, directory, project)


if __name__ == "__main__":
    sys.exit(main())
