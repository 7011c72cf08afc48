"""The books: what was promised, what became of it, and whether each repeat has a cause."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.torture.ledger import Line

OUTCOME_SECONDS = 2.0
"""So long after its last line a run's outcome may not be written yet, on a busy machine."""
DEAD_OUTCOME_SECONDS = 30.0
"""The same where it needs the dead tasks' lock, which a stopped process may hold."""
CRASHES = 3
"""So many crashes in a row make a task a dead one."""


@dataclass(slots=True)
class Run:
    """One run of a task, from its first line in the ledger to its last."""

    attempt: int
    pid: int
    start: float
    end: float | None = None
    outcome: str = ""
    """``ok``, ``fail`` (to be tried again), ``die``; empty if it has no last line."""
    cause: str = ""
    """Why it began: ``enqueued``, ``retried``, ``killed`` (the run before), ``revived``."""
    led_to_retry: bool = False
    led_to_restart: bool = False


@dataclass(frozen=True, slots=True)
class Disturbance:
    """A signal that a process was sent."""

    at: float
    pid: int
    role: str
    action: str
    """``kill``, ``orphan`` (its supervisor was killed), ``stop`` or ``go on``."""
    until: float = 0.0
    """When it was certain that the process had got it; ``at`` is before it was sent."""


@dataclass(slots=True)
class Task:
    """All that the ledgers say about one id."""

    acked: bool = False
    runs: list[Run] = field(default_factory=list)
    removing: list[float] = field(default_factory=list)
    removed: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    purging: list[float] = field(default_factory=list)
    purged: list[float] = field(default_factory=list)
    retrying: list[float] = field(default_factory=list)
    retried: list[float] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether a run succeeded."""
        return any(run.outcome == "ok" for run in self.runs)

    def ran_after(self, moment: float) -> bool:
        """Whether a run began after it."""
        return any(run.start > moment for run in self.runs)


class Books:
    """Makes the books of one torture; :attr:`wrong` says what does not add up."""

    def __init__(
        self,
        *,
        acks: Iterable[Line],
        runs: Iterable[Line],
        hands: Iterable[Line],
        disturbances: Iterable[Disturbance],
        dead: dict[str, str],
    ) -> None:
        """``dead`` are the dead tasks at the end, when nothing was pending: exceptions by id."""
        self.tasks: defaultdict[str, Task] = defaultdict(Task)
        self.dead = dead
        self.wrong: list[str] = []
        self.figures: Counter[str] = Counter()
        self._by_pid: defaultdict[int, list[Disturbance]] = defaultdict(list)
        for disturbance in disturbances:
            self._by_pid[disturbance.pid].append(disturbance)
        self._read(acks, runs, hands)
        for task_id, task in self.tasks.items():
            self._explain(task_id, task)
            self._check(task_id, task)

    def _read(self, acks: Iterable[Line], runs: Iterable[Line], hands: Iterable[Line]) -> None:
        for line in [*acks, *hands]:
            for task_id in line.words:
                if line.what == "ack":
                    self.tasks[task_id].acked = True
                else:
                    getattr(self.tasks[task_id], line.what).append(line.at)
            if line.what in ("timeout", "deleted", "disturbed"):
                self.figures[line.what] += 1
        for line in runs:
            task_id, attempt, pid, *rest = line.words
            found = self.tasks[task_id].runs
            if line.what == "start":
                found.append(Run(int(attempt), int(pid), line.at))
                continue
            for run in reversed(found):
                if (run.pid, run.attempt, run.end) == (int(pid), int(attempt), None):
                    run.end, run.outcome = line.at, rest[0]
                    break
            else:
                self.wrong.append(f"{task_id}: a last line of a run without a first one")

    # -- why each run began ----------------------------------------------------------------------

    def _explain(self, task_id: str, task: Task) -> None:
        revivals = sorted(task.retrying)
        for number, run in enumerate(task.runs):
            run.cause = self._cause(task, number, run, revivals)
            if not run.cause:
                self.wrong.append(
                    f"{task_id}: attempt {run.attempt} in {run.pid} at {run.start:.3f} "
                    f"has no cause; before it: {task.runs[:number]}"
                )
            elif number:
                self.figures[run.cause] += 1

    def _cause(self, task: Task, number: int, run: Run, revivals: list[float]) -> str:
        if number == 0:
            return "enqueued"
        for before in task.runs[:number]:
            follows = before.attempt == run.attempt - 1 and not before.led_to_retry
            if follows and before.outcome == "fail" and (before.end or 0.0) <= run.start:
                before.led_to_retry = True
                return "retried"
        for before in task.runs[:number]:
            if before.attempt == run.attempt and not before.led_to_restart:
                killed_at = self._killed_before_outcome(before)
                if killed_at is not None and killed_at <= run.start:
                    before.led_to_restart = True
                    return "killed"
        if run.attempt == 1 and revivals and revivals[0] <= run.start:
            revivals.pop(0)
            return "revived"
        return ""

    def _killed_before_outcome(self, run: Run) -> float | None:
        """When the run's process was killed, if that can have been before its outcome was there."""
        patience = DEAD_OUTCOME_SECONDS if run.outcome == "die" else OUTCOME_SECONDS
        stopped_at = None
        for disturbance in self._by_pid[run.pid]:
            if disturbance.action == "stop":
                stopped_at = disturbance.at
            elif disturbance.action == "go on" and stopped_at is not None:
                if disturbance.at > run.start:
                    patience += disturbance.at - stopped_at
                stopped_at = None
            elif disturbance.action == "orphan":
                # It ends by itself, soon, and may begin with something until then.
                if run.end is None or disturbance.at <= run.end + patience:
                    return max(disturbance.at, run.start)
            elif disturbance.action == "kill" and disturbance.until >= run.start:
                if stopped_at is not None:
                    patience += disturbance.at - stopped_at
                if run.end is None or disturbance.at <= run.end + patience:
                    return disturbance.at
        return None

    # -- what became of each task ----------------------------------------------------------------

    def _check(self, task_id: str, task: Task) -> None:
        is_dead = task_id in self.dead
        fates = {
            "done": task.done,
            "dead": is_dead,
            "purged": bool(task.purging),
            "removed": len(task.removing) > len(task.refused),
        }
        if task.acked:
            self.figures["acknowledged"] += 1
            fate = next((name for name, holds in fates.items() if holds), "lost")
            self.figures[fate] += 1
            if fate == "lost":
                self.wrong.append(f"{task_id}: lost; its runs: {task.runs}")
        elif task.runs:
            self.figures["run without an acknowledgement"] += 1
        if is_dead:
            self._check_dead(task_id, task)
        for moment in task.removed:
            self.figures["removals confirmed"] += 1
            if task.ran_after(moment) and not any(at < moment for at in task.retrying):
                self._came_back(task_id, "removed", moment, task)
        for moment in task.retried:
            self.figures["retries of dead tasks confirmed"] += 1
            began = max(at for at in task.retrying if at <= moment)
            if not task.ran_after(began) and not task.removing:
                self.wrong.append(f"{task_id}: was retried at {moment:.3f} and did not run")

    def _check_dead(self, task_id: str, task: Task) -> None:
        if self.dead[task_id].endswith("WorkerLost"):
            self.figures["dead by deaths of workers"] += 1
            crashes = sum(self._killed_before_outcome(run) is not None for run in task.runs)
            if crashes < CRASHES:
                self.wrong.append(f"{task_id}: WorkerLost after {crashes} kills: {task.runs}")
        for moment in (*task.purged, *task.retried):
            # A run that was disturbed may have written its death late, or once more.
            late = [run for run in task.runs if run.start > moment or self._by_pid[run.pid]]
            if not late:
                self._came_back(task_id, "purged", moment, task)

    def _came_back(self, task_id: str, how: str, moment: float, task: Task) -> None:
        self.figures["came back"] += 1
        self.wrong.append(f"{task_id}: was {how} at {moment:.3f} and came back: {task.runs}")

    # -- for people ------------------------------------------------------------------------------

    def lines(self) -> list[str]:
        """The figures in words."""
        figures = self.figures
        again = sum(figures[name] for name in ("retried", "killed", "revived"))
        without = sum(not run.cause for task in self.tasks.values() for run in task.runs)
        fates = ", ".join(
            f"{name} {figures[name]:,}" for name in ("done", "dead", "purged", "removed", "lost")
        )
        confirmed_purges = sum(len(task.purged) for task in self.tasks.values())
        return [
            f"acknowledged {figures['acknowledged']:,}: {fates}",
            (
                f"started again {again + without:,}: {figures['retried']:,} failed before, "
                f"{figures['killed']:,} were killed between their first line and their record, "
                f"{figures['revived']:,} dead tasks retried, {without} without cause"
            ),
            (
                f"confirmed: {figures['removals confirmed']:,} pending tasks removed, "
                f"{confirmed_purges:,} dead tasks purged, "
                f"{figures['retries of dead tasks confirmed']:,} retried; "
                f"came back {figures['came back']}"
            ),
            (
                f"dead by three deaths of their workers {figures['dead by deaths of workers']}, "
                f"run though never acknowledged {figures['run without an acknowledgement']}, "
                f"purges and retries that gave up waiting for the lock {figures['timeout']}"
            ),
            (
                f"locks, temps and files of workers that an operator removed {figures['deleted']}, "
                f"purges and retries that he spoiled {figures['disturbed']}"
            ),
        ]
