"""The keys of ``DEFERRED`` that concern the queue and the worker: valid with every backend.

Each key has a reader beside its feature, a field of :class:`Features` and the code of the check
that reports what is wrong with it. A feature is reached at run time as ``queue.features`` where
there is a queue, and by ``registry.get_features()`` where there is none: both are of the setting
as it stands, also inside of ``override_settings``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from deferred_django import backpressure_setting, middleware_setting, schedule_setting
from deferred_django.backpressure_setting import Backpressure
from deferred_django.conf_wording import Reject
from deferred_django.middleware_setting import LogContextVars, Middleware
from deferred_django.schedule_setting import Schedule


@dataclass(frozen=True, slots=True)
class Features:
    """What the setting says about the queue and the worker; a field for each key."""

    backpressure: Backpressure | None = None
    enqueue_middleware: Middleware = ()
    perform_middleware: Middleware = ()
    log_context_vars: LogContextVars = ()
    schedule: Schedule | None = None
    """``None`` where the key is not set; empty is what ends the last periodic task."""


@dataclass(frozen=True, slots=True)
class FeatureKey:
    """How one key is read."""

    field: str
    """The field of :class:`Features`, which keeps its default where the key is not set."""
    code: str
    """Of the check that reports what is wrong."""
    read: Callable[[object, Reject], object]
    """Gives the field's value. What is wrong is noted by ``reject(message, hint)``, and then the
    value that is returned does not matter. It must not raise, and no other setting that it reads
    may be missing from the registry's ``RESETTING``."""


FEATURE_KEYS: Final[Mapping[str, FeatureKey]] = {
    backpressure_setting.KEY: FeatureKey(
        "backpressure", "E009", backpressure_setting.read_backpressure
    ),
    middleware_setting.ENQUEUE_KEY: FeatureKey(
        "enqueue_middleware", "E010", middleware_setting.read_enqueue_middleware
    ),
    middleware_setting.PERFORM_KEY: FeatureKey(
        "perform_middleware", "E011", middleware_setting.read_perform_middleware
    ),
    middleware_setting.LOG_CONTEXT_KEY: FeatureKey(
        "log_context_vars", "E013", middleware_setting.read_log_context_vars
    ),
    schedule_setting.KEY: FeatureKey("schedule", "E012", schedule_setting.read_schedule),
}


def read_features(
    values: Mapping[Any, Any], reject: Callable[[str, str, str | None], None]
) -> Features:
    """The features of a setting; ``reject(code, message, hint)`` notes what is wrong."""
    found = {
        key.field: key.read(values[name], partial(reject, key.code))
        for name, key in FEATURE_KEYS.items()
        if name in values
    }
    return Features(**found)  # type: ignore[arg-type]  # each reader gives its field's type
