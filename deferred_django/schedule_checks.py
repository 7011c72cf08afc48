"""System checks of the periodic tasks: of what is not in the setting itself.

They are warnings: the settings may be checked where the code of the tasks is not, and what cannot
be imported there may be known to the workers.
"""

from __future__ import annotations

from typing import Any, Final

from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from deferred_django import conf
from deferred_django.conf_wording import named
from deferred_django.context import TaskContext
from deferred_django.exceptions import UnknownTask
from deferred_django.schedule_setting import KEY, PeriodicTask
from deferred_django.signatures import CallChecker
from deferred_django.task import resolve_task

TAG: Final = "deferred_django"
_FOR_OTHERS: Final = "It is enqueued all the same, for a worker that can run it."


def check_schedule(**kwargs: Any) -> list[checks.CheckMessage]:
    """Whether somebody keeps the ticks, and whether the tasks can be called as it is said."""
    try:
        loaded = conf.load()
    except ImproperlyConfigured:  # reported by check_setting
        return []
    schedule = loaded.features.schedule or ()
    found: list[checks.CheckMessage] = []
    if schedule and not loaded.backend_class.keeps_schedule:
        found.append(
            checks.Warning(
                f"{named(KEY)} is ignored: the backend "
                f"{'None' if loaded.backend is None else loaded.backend} keeps no periodic tasks.",
                hint=f'Set the backend to "disk", or take {KEY} out.',
                id=f"{TAG}.W003",
            )
        )
    for entry in schedule:
        problem = _problem(entry)
        if problem is not None:
            what, hint = problem
            message = f"{named(KEY, entry.name)} {what}."
            found.append(checks.Warning(message, hint=hint, id=f"{TAG}.W004"))
    return found


def _problem(entry: PeriodicTask) -> tuple[str, str] | None:
    """What is wrong, and what follows."""
    try:
        TaskContext.build(entry.task, entry.args, dict(entry.kwargs))
    except (TypeError, ValueError) as error:
        return (
            f"cannot be enqueued: {error}",
            "Ticks with such arguments are dropped, which is logged.",
        )
    try:
        task = resolve_task(entry.task)
        CallChecker(task.func).check(task.name, entry.args, dict(entry.kwargs))
    except (UnknownTask, TypeError, ValueError) as error:
        return f"cannot be run here: {error}", _FOR_OTHERS
    return None
