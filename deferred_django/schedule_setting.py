"""The key ``SCHEDULE`` of the ``DEFERRED`` setting: the periodic tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

from django.conf import settings

from deferred_django.backends.base import MAX_PRIORITY, MIN_PRIORITY, QUEUE_PATTERN
from deferred_django.conf_wording import (
    Reject,
    did_you_mean,
    is_int,
    is_number,
    listed,
    named,
    shown,
)
from deferred_django.timing import INSTALL_HINT, Cron, Every, Timing

KEY: Final = "SCHEDULE"
OPTIONS: Final = ("task", "every", "cron", "args", "kwargs", "queue", "priority")
MAX_NAME_LENGTH: Final = 100
LEAST_SECONDS: Final = 0.1
MOST_SECONDS: Final = 100 * 365.25 * 86400


@dataclass(frozen=True, slots=True)
class PeriodicTask:
    """One entry of the schedule."""

    name: str
    task: str
    """The task's dotted name."""
    timing: Timing
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    queue: str | None = None
    """That of the task, if ``None``."""
    priority: int | None = None
    """That of the task, if ``None``."""


Schedule = tuple[PeriodicTask, ...]


def read_schedule(value: object, reject: Reject) -> Schedule | None:
    """A dict of dicts, by the names of the periodic tasks."""
    if not isinstance(value, Mapping):
        reject(
            f"{named(KEY)} is {shown(value)}; it must be a dict that has, for each periodic task, "
            "its name and a dict.",
            None,
        )
        return None
    found = (_Entry(name, entry, reject).read() for name, entry in value.items())
    return tuple(entry for entry in found if entry is not None)


class _Entry:
    """Reads one entry; what is wrong with it is noted with its name."""

    def __init__(self, name: object, value: object, reject: Reject) -> None:
        self._name = name
        self._value = value
        self._note = reject
        self._is_right = True

    def _reject(self, message: str, hint: str | None = None) -> None:
        self._is_right = False
        self._note(message, hint)

    def _where(self, *keys: str) -> str:
        return named(KEY, str(self._name), *keys)

    def read(self) -> PeriodicTask | None:
        name, value = self._name, self._value
        if not isinstance(name, str) or not _is_name(name):
            self._reject(
                f"{named(KEY)} has the name {shown(name)}; a name must be a str of 1 to "
                f"{MAX_NAME_LENGTH} characters that can be printed."
            )
            return None
        if not isinstance(value, Mapping):
            self._reject(f"{self._where()} is {shown(value)}; it must be a dict.")
            return None
        for key in value:
            if key not in OPTIONS:
                self._reject(
                    f"{self._where()} has the unknown key {shown(key)}; it may have "
                    f"{listed(OPTIONS)}.",
                    did_you_mean(str(key).lower(), OPTIONS),
                )
        task, timing = self._read_task(value), self._read_timing(value)
        args, kwargs = self._read_args(value), self._read_kwargs(value)
        queue, priority = self._read_queue(value), self._read_priority(value)
        if not self._is_right or timing is None:
            return None
        return PeriodicTask(str.__str__(name), task, timing, args, kwargs, queue, priority)

    def _read_task(self, value: Mapping[Any, Any]) -> str:
        task = value.get("task")
        if isinstance(task, str) and "." in task and all(map(str.isidentifier, task.split("."))):
            return str.__str__(task)
        what = f"is {shown(task)}" if "task" in value else "is missing"
        self._reject(
            f"{self._where('task')} {what}; it must be the dotted name of a task, such as "
            '"shop.tasks.send_report".'
        )
        return ""

    def _read_timing(self, value: Mapping[Any, Any]) -> Timing | None:
        given = [key for key in ("every", "cron") if key in value]
        if len(given) != 1:
            have = 'both "every" and "cron"' if given else 'neither "every" nor "cron"'
            self._reject(f"{self._where()} has {have}; it must have one of them.")
            return None
        return self._read_every(value) if given == ["every"] else self._read_cron(value)

    def _read_every(self, value: Mapping[Any, Any]) -> Timing | None:
        every = value["every"]
        seconds = every.total_seconds() if isinstance(every, timedelta) else every
        if is_number(seconds) and LEAST_SECONDS <= seconds <= MOST_SECONDS:  # NaN neither
            return Every(float(seconds))
        self._reject(
            f"{self._where('every')} is {shown(every)}; it must be a number of seconds or a "
            f"timedelta, from {LEAST_SECONDS} seconds to 100 years."
        )
        return None

    def _read_cron(self, value: Mapping[Any, Any]) -> Timing | None:
        cron = value["cron"]
        if not isinstance(cron, str):
            self._reject(
                f"{self._where('cron')} is {shown(cron)}; it must be a str, such as "
                '"0 3 * * *" (minute, hour, day of the month, month, day of the week).'
            )
            return None
        zone = self._zone()
        if zone is None:
            return None
        try:
            return Cron.parse(cron, zone)
        except ImportError as error:
            self._reject(
                f"{self._where('cron')} needs cronsim, which cannot be imported ({error}).",
                INSTALL_HINT,
            )
        except ValueError as error:
            self._reject(
                f"{self._where('cron')} is {shown(cron)}, which is no cron expression ({error}); "
                "it must be minute, hour, day of the month, month, day of the week, or six fields "
                "with the seconds in front."
            )
        return None

    def _zone(self) -> ZoneInfo | None:
        name: Any = getattr(settings, "TIME_ZONE", None)
        try:
            return ZoneInfo(name)
        except Exception as error:  # not only what is not found: it may be any value
            self._reject(
                f"{self._where('cron')} is in the time zone of the project, and TIME_ZONE is "
                f"{shown(name)} ({type(error).__name__}).",
                'Set TIME_ZONE to the name of a time zone, such as "Europe/Paris".',
            )
            return None

    def _read_args(self, value: Mapping[Any, Any]) -> tuple[Any, ...]:
        args = value.get("args", ())
        if isinstance(args, list | tuple):
            return tuple(args)
        self._reject(f"{self._where('args')} is {shown(args)}; it must be a list or a tuple.")
        return ()

    def _read_kwargs(self, value: Mapping[Any, Any]) -> dict[str, Any]:
        kwargs = value.get("kwargs", {})
        if isinstance(kwargs, Mapping) and all(isinstance(key, str) for key in kwargs):
            return dict(kwargs)
        self._reject(f"{self._where('kwargs')} is {shown(kwargs)}; it must be a dict by names.")
        return {}

    def _read_queue(self, value: Mapping[Any, Any]) -> str | None:
        queue = value.get("queue")
        if queue is None or (isinstance(queue, str) and QUEUE_PATTERN.fullmatch(queue)):
            return queue
        self._reject(
            f"{self._where('queue')} is {shown(queue)}; it must be 1 to 100 characters of "
            "[A-Za-z0-9_.-]."
        )
        return None

    def _read_priority(self, value: Mapping[Any, Any]) -> int | None:
        priority = value.get("priority")
        if priority is None or (is_int(priority) and MIN_PRIORITY <= priority <= MAX_PRIORITY):
            return priority
        self._reject(
            f"{self._where('priority')} is {shown(priority)}; it must be an int from "
            f"{MIN_PRIORITY} to {MAX_PRIORITY}."
        )
        return None


def _is_name(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME_LENGTH and name.isprintable()
