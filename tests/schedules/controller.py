"""Runs one schedule: real processes that go on only when they are told to."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.schedules import child
from tests.schedules.schedule import DROP, KILL, TO_THE_END, Schedule, Script

HANG_SECONDS = 20.0
"""A process that does not report for so long hangs: no step takes a thousandth of it."""
STRIDES = (1, 1, 1, 2, 3, 5, 8, 13)
"""Calls at a time in a random walk: many changes at some places, and long stretches without."""
KILL_EACH = 0.03


class ViolationError(Exception):
    """Something that must not happen has happened."""


@dataclass(eq=False)
class Peer:
    """A process, as the controller sees it."""

    index: int
    connection: socket.socket
    pid: int
    state: str = "new"
    at: str = ""
    """Where it stands: the call and the file."""
    calls: int = 0
    """How many calls it has made."""
    passed: list[list[tuple[str, str]]] = field(default_factory=list)
    """Each call, in a traced run, with the looks that followed it; (what, file)."""

    @property
    def can_go_on(self) -> bool:
        """Whether it has something to do."""
        return self.state in ("ready", "call", "wait")


class Crew:
    """Processes that are used for one schedule after the other; a killed one is replaced."""

    def __init__(
        self, work: Callable[[child.Channel, Any], None], defect: Callable[[], None] | None = None
    ) -> None:
        """Each does ``work`` for each job, with the package spoiled by ``defect``."""
        self._work = work
        self._defect = defect
        self._members: dict[int, tuple[socket.socket, socket.socket, int]] = {}

    def member(self, index: int) -> tuple[socket.socket, socket.socket, int]:
        """The connection, the spare one, and the process id."""
        if index not in self._members:
            own, other = _pair()
            spare, spare_other = _pair()
            pid = os.fork()
            if pid == 0:
                self._forget_others()
                own.close()
                spare.close()
                try:
                    if self._defect is not None:
                        self._defect()
                    child.serve(other, spare_other, self._work)
                finally:
                    os._exit(1)  # whatever happens, it must not go on as the controller
            other.close()
            spare_other.close()
            self._members[index] = own, spare, pid
        return self._members[index]

    def _forget_others(self) -> None:
        for own, spare, _ in self._members.values():
            own.close()
            spare.close()
        self._members.clear()

    def kill(self, index: int) -> None:
        """End a process by SIGKILL; its locks are free when this returns."""
        own, _, pid = self._members.pop(index)  # what it forked may live on and use the spare one
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        own.close()

    def close(self) -> None:
        """End all."""
        for index in list(self._members):
            self.kill(index)


def _pair() -> tuple[socket.socket, socket.socket]:
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.settimeout(HANG_SECONDS)
    return one, other


@dataclass
class Event:
    """What a process told, in the order in which it happened."""

    who: int
    kind: str
    data: list[Any]


@dataclass
class Run:
    """One schedule, under way."""

    schedule: Schedule
    crew: Crew
    directory: str
    traced: bool = False
    events: list[Event] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    peers: list[Peer] = field(default_factory=list)
    states: list[str] = field(default_factory=list)
    """Those of the peers when the script was done."""

    def begin(self) -> None:
        """Let all prepare, one after the other."""
        for index, operation in enumerate(self.schedule.operations):
            connection, _, pid = self.crew.member(index)
            peer = Peer(index, connection, pid)
            self.peers.append(peer)
            job = {
                "operation": operation,
                "directory": self.directory,
                "name": "abc"[index],
                "place": index,
                "fine": self.schedule.fine,
                "traced": self.traced,
            }
            self._send(peer, job)
            self._listen(peer)

    def follow(self) -> list[int]:
        """Do as the script says, then let each end; how many calls each step of it really was."""
        done = [
            self._kill(who, count) if count in (KILL, DROP) else self._go(who, count)
            for who, count in self.schedule.script
        ]
        self.states = [peer.state for peer in self.peers]
        self._finish()
        return done

    def wander(self, dice: random.Random, kill_chance: float) -> Script:
        """Let one of those that can go on do so, by chance, until all have ended; what was done."""
        script: list[tuple[int, int]] = []
        stuck: set[int] = set()
        may_kill = dice.random() < kill_chance
        while active := [peer for peer in self.peers if peer.can_go_on]:
            if len(stuck) == len(active):
                raise ViolationError("nobody can go on")
            peer = dice.choice(active)
            if may_kill and dice.random() < KILL_EACH:
                may_kill = False
                script.append((peer.index, KILL))
                self._kill(peer.index, KILL)
                stuck.clear()
                continue
            count = self._go(peer.index, dice.choice(STRIDES))
            if count or peer.state != "wait":
                stuck.clear()
                script.append((peer.index, max(count, 1)))
            else:
                stuck.add(peer.index)
        return tuple(script)

    def _go(self, who: int, count: int) -> int:
        """Up to ``count`` calls; fewer if it ends or has to wait for another."""
        if who >= len(self.peers) or not self.peers[who].can_go_on:
            return 0
        before = self.peers[who].calls
        self.step(self.peers[who], count)
        return self.peers[who].calls - before

    def _kill(self, who: int, how: int) -> int:
        peer = self.peers[who]
        if peer.state == "killed":
            return 0
        self.trace.append(f"{who} is killed at {peer.at}")
        if how == DROP:
            self._send(peer, ["die"])
            if self._receive(peer) != ["idle"]:
                raise ViolationError(f"{who} does not end")
        elif who < len(self.schedule.operations):
            self.crew.kill(who)
        else:
            with _gone(peer.pid):
                os.kill(peer.pid, signal.SIGKILL)
        peer.state = "killed"
        self.events.append(Event(who, "killed", []))
        return 1

    def _finish(self) -> None:
        """Each in turn, to its end; while it waits for a lock, the next ones go on by a call."""
        while active := [peer for peer in self.peers if peer.can_go_on]:
            for peer in active:
                before = peer.calls
                self.step(peer, 1 if peer is not active[0] else TO_THE_END)
                if peer.state != "wait" or peer.calls > before:
                    break
            else:
                places = ", ".join(f"{peer.index} at {peer.at}" for peer in active)
                raise ViolationError(f"nobody can go on: {places}")

    def step(self, peer: Peer, count: int) -> None:
        """Let it make that many calls from where it stands."""
        self._send(peer, ["go", count])
        self._listen(peer)

    def _send(self, peer: Peer, message: Any) -> None:
        peer.connection.send(json.dumps(message).encode())

    def _listen(self, peer: Peer) -> None:
        """Take in what it tells, until it waits."""
        while True:
            kind, *data = self._receive(peer)
            if kind == "event":
                self.events.append(Event(peer.index, data[0], data[1:]))
                self.trace.append(f"{peer.index}     {' '.join(map(str, data))}")
            elif kind in ("passed", "looked"):
                if kind == "passed" or not peer.passed:
                    peer.passed.append([])
                peer.passed[-1].append((data[0], data[1]))
                self.trace.append(f"{peer.index} {' '.join(data)}")
            elif kind == "forked":
                self._born(peer, data[0])
            elif kind == "failed":
                peer.state = kind
                raise ViolationError(f"{peer.index} failed: {data[1]}")
            else:
                peer.state = kind
                peer.calls, *at = data
                peer.at = " ".join(at)
                self.trace.append(f"{peer.index} stops at {peer.at or kind}")
                return

    def _born(self, parent: Peer, pid: int) -> None:
        _, spare, _ = self.crew.member(parent.index)
        peer = Peer(len(self.peers), spare, pid)
        self.peers.append(peer)
        self._listen(peer)

    def _receive(self, peer: Peer) -> list[Any]:
        try:
            data = peer.connection.recv(1 << 20)
        except TimeoutError:
            raise ViolationError(f"{peer.index} hangs behind {peer.at}") from None
        except ConnectionError:
            data = b""
        if not data:
            raise ViolationError(f"{peer.index} died behind {peer.at}")
        message: list[Any] = json.loads(data)
        return message

    def end(self) -> None:
        """Let all processes drop what they hold; those that were forked meanwhile end."""
        for peer in reversed(self.peers):
            if peer.state == "killed":
                continue
            if peer.index >= len(self.schedule.operations):
                with _gone(peer.pid):
                    self._send(peer, ["end"])
            else:
                self._send(peer, ["end"])
                if self._receive(peer) != ["idle"]:
                    raise ViolationError(f"{peer.index} does not end")

    def abandon(self) -> None:
        """Kill all that may still run."""
        for peer in self.peers:
            if peer.index >= len(self.schedule.operations) and peer.state != "killed":
                with contextlib.suppress(ProcessLookupError):
                    os.kill(peer.pid, signal.SIGKILL)
        self.crew.close()


@contextlib.contextmanager
def _gone(pid: int) -> Iterator[None]:
    """A process that is no child of this one has ended, and has freed its locks, on leaving."""
    fd = os.pidfd_open(pid)
    try:
        yield
        if not select.select([fd], [], [], HANG_SECONDS)[0]:
            raise ViolationError(f"process {pid} does not end")
    finally:
        os.close(fd)


@contextlib.contextmanager
def running(run: Run) -> Iterator[Run]:
    """A run whose processes are idle again at the end, or gone."""
    try:
        yield run
    except BaseException:
        run.abandon()
        raise
