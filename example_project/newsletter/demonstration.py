"""The steps of ``manage.py demo`` and what it counts."""

from __future__ import annotations

import csv
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from django.core.management import call_command
from django.core.management.base import CommandError, OutputWrapper
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from deferred_django import get_backend
from deferred_django.backends.base import WorkerInfo
from example_project.newsletter.mail_server import MailServer
from example_project.newsletter.models import Subscriber
from example_project.newsletter.tasks import send_newsletter
from example_project.newsletter.worker_process import WorkerProcess

T = TypeVar("T")

CSV_FILE = Path(__file__).resolve().parent / "fixtures" / "subscribers.csv"
CORRECTIONS = {
    "maria.garcai@example.com": "maria.garcia@example.com",
    "peter.jansne@example.com": "peter.jansen@example.com",
    "aisha.okafro@example.com": "aisha.okafor@example.com",
    "emma.thomspon@example.com": "emma.thompson@example.com",
    "hirsohi.tanaka@example.com": "hiroshi.tanaka@example.com",
}
"""Addresses in the CSV that are mistyped, so that their mailboxes do not exist."""
GREYLISTED = "example.net"
GREYLIST_SECONDS = 2.0
SECONDS_PER_MESSAGE = 0.15
PROCESSES = 2
KILL_AFTER = 150
"""How many subscribers have their mail when a worker process is killed."""
TIME_LIMIT = 120.0
SHOWN = 10
"""How many missing addresses are named."""


def mail_server() -> MailServer:
    """The server that the newsletter goes to, not started yet."""
    return MailServer(
        unknown=CORRECTIONS,
        greylisted=GREYLISTED,
        greylist_seconds=GREYLIST_SECONDS,
        seconds_per_message=SECONDS_PER_MESSAGE,
    )


class Demonstration:
    """One run. Every number is from what the server received or from the store."""

    def __init__(
        self,
        out: OutputWrapper,
        server: MailServer,
        directory: Path,
        environment: dict[str, str],
        *,
        no_color: bool = False,
    ) -> None:
        self._out = out
        self._console = Console(no_color=no_color or None)
        self._no_color = no_color
        self._server = server
        self._worker = WorkerProcess(PROCESSES, environment, directory / "worker.log")
        self._backend = get_backend()
        self._deadline = time.monotonic() + TIME_LIMIT
        self._addresses: dict[str, str] = {}
        """The address that each task was enqueued for."""
        self._killed_at: float | None = None
        self._dead_before = 0
        self._bar: Progress | None = None
        self._said = 0

    def run(self) -> None:
        """Run all steps and print the summary; ``CommandError`` if anything is missing."""
        try:
            self._steps()
        finally:
            if self._addresses:
                self._say(self._summary())
        self._check()

    def _steps(self) -> None:
        self._load()
        self._enqueue()
        with self._worker:
            with self._progress("Delivering"):
                self._wait(lambda: self._delivered() >= KILL_AFTER, "half-way")
                self._kill_a_process()
                self._wait(self._is_idle, "done")
            refused = len(self._server.greylisted_addresses)
            self._say(f"{refused} addresses were refused for a while and tried again.")
            self._retry_dead_tasks()
            with self._progress("Delivering again"):
                self._wait(self._is_idle, "done")
            self._worker.stop()
            self._say("The worker stopped at SIGTERM, exit code 0.")

    # -- the steps ---------------------------------------------------------------------------

    def _load(self) -> None:
        with CSV_FILE.open(newline="", encoding="utf-8") as file:
            rows = [Subscriber(**row) for row in csv.DictReader(file)]
        Subscriber.objects.bulk_create(rows)
        self._say(
            f"SMTP server on {self._server.host}:{self._server.port}. It does not know "
            f"{len(CORRECTIONS)} of the\naddresses (550) and refuses those at {GREYLISTED} "
            "for a while (451)."
        )
        self._say(f"{len(rows)} subscribers loaded from {CSV_FILE.name}.")

    def _enqueue(self) -> None:
        subscribers = list(Subscriber.objects.all())
        start = time.perf_counter()
        for subscriber in subscribers:
            self._addresses[send_newsletter.enqueue(subscriber)] = subscriber.email
        seconds = time.perf_counter() - start
        self._say(f"{len(self._addresses)} deliveries enqueued in {seconds * 1000:.0f} ms.")
        self._say(f"Starting: python manage.py deferred_worker --processes {PROCESSES}")

    def _kill_a_process(self) -> None:
        workers = self._wait(self._all_workers, f"with {PROCESSES} worker processes")
        victim = workers[0]
        # More messages under way than the other processes have threads: some are the victim's.
        others = sum(worker.threads for worker in workers) - victim.threads
        self._wait(lambda: self._server.in_progress(0.05) > others, "half-way", pause=0.002)
        self._killed_at = time.monotonic()
        os.kill(victim.pid, signal.SIGKILL)
        known = {worker.token for worker in workers}
        new = self._wait(
            lambda: [w for w in self._backend.status().workers if w.token not in known],
            "with a process in place of the killed one",
        )
        count = len(self._server.cut_off)
        self._say(
            f"Killed worker process {victim.pid} (SIGKILL), which cut off {count} "
            f"{'delivery' if count == 1 else 'deliveries'}.\n"
            f"Worker process {new[0].pid} took its place."
        )

    def _all_workers(self) -> Sequence[WorkerInfo] | None:
        workers = self._backend.status().workers
        return workers if len(workers) == PROCESSES else None

    def _retry_dead_tasks(self) -> None:
        dead = [record["id"] for record in self._backend.list_dead_tasks()]
        self._dead_before = len(dead)
        self._say("\n$ python manage.py deadtasks list")
        call_command("deadtasks", "list", stdout=self._out, no_color=self._no_color)
        for mistyped, email in CORRECTIONS.items():
            Subscriber.objects.filter(email=mistyped).update(email=email)
        self._say(f"\n{len(CORRECTIONS)} addresses corrected.")
        if dead:
            self._say("$ python manage.py deadtasks retry --noinput ID ...")
            call_command(
                "deadtasks",
                "retry",
                "--noinput",
                *dead,
                stdout=self._out,
                no_color=self._no_color,
            )

    # -- what is counted ---------------------------------------------------------------------

    def _delivered(self) -> int:
        return len({message.task_id for message in self._server.received})

    def _is_idle(self) -> bool:
        status = self._backend.status()
        waiting = status.pending + status.delayed + status.running
        # A task that is claimed and not yet started is in none of the three.
        return waiting == 0 and not self._backend.pending_tasks()

    def _seconds_until_again(self) -> float | None:
        """From the kill to the next attempt of a delivery that it cut off, as the server saw it."""
        if self._killed_at is None:
            return None
        starts = [
            attempt.started_at
            for attempt in self._server.attempts
            if attempt.task_id in self._server.cut_off and attempt.greeted_at > self._killed_at
        ]
        return min(starts) - self._killed_at if starts else None

    def _summary(self) -> str:
        times = Counter(message.task_id for message in self._server.received)
        delivered = sum(1 for task_id in self._addresses if times[task_id])
        twice = sum(1 for count in times.values() if count > 1)
        seconds = self._seconds_until_again()
        return (
            f"enqueued {len(self._addresses)}, delivered {delivered}, "
            f"lost {len(self._addresses) - delivered}, delivered twice {twice}, "
            f"dead {self._backend.count_dead_tasks()} ({self._dead_before} before the retry), "
            f"workers killed {0 if self._killed_at is None else 1}, "
            f"their tasks ran again after {'?' if seconds is None else f'{seconds:.1f}'} s"
        )

    def _check(self) -> None:
        reached = {message.recipient for message in self._server.received}
        emails = Subscriber.objects.values_list("email", flat=True)
        missing = [email for email in emails if email not in reached]
        if missing:
            more = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
            raise CommandError(f"no mail for {', '.join(missing[:SHOWN])}{more}")
        if self._seconds_until_again() is None:
            raise CommandError("no task of the killed process was seen to start again")

    # -- waiting and showing -------------------------------------------------------------------

    def _wait(self, condition: Callable[[], T | None], what: str, *, pause: float = 0.05) -> T:
        """The condition's first true answer; ``CommandError`` if the worker ends or time is up."""
        while not (answer := condition()):
            self._worker.check()
            if time.monotonic() > self._deadline:
                status = self._backend.status()
                raise CommandError(
                    f"not {what} after {TIME_LIMIT:g} s: {status.pending} deliveries are due, "
                    f"{status.delayed} wait for their next attempt, {status.running} run"
                )
            self._show_progress()
            time.sleep(pause)
        self._show_progress()
        return answer

    @contextmanager
    def _progress(self, title: str) -> Iterator[None]:
        """A bar of the subscribers reached; a line now and then where there is no terminal."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        if not self._console.is_terminal or self._console.is_dumb_terminal:
            yield
            return
        with Progress(*columns, console=self._console) as bar:
            bar.add_task(title, total=len(self._addresses), completed=self._delivered())
            self._bar = bar
            try:
                yield
            finally:
                self._bar = None

    def _show_progress(self) -> None:
        delivered = self._delivered()
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=delivered)
        elif delivered >= self._said + 100:
            self._said = delivered - delivered % 100
            self._say(f"{self._said} delivered.")

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
