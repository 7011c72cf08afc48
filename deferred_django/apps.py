"""The Django app."""

from __future__ import annotations

import contextlib

from django.apps import AppConfig


class DeferredConfig(AppConfig):
    """Registers checks and the log's receivers, builds the backend's facade; touches no file."""

    name = "deferred_django"
    verbose_name = "Deferred tasks"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Never raises for a wrong setting: commands that mend it must still start."""
        from deferred_django import checks, event_log, local, registry

        checks.register()
        event_log.connect()
        registry.set_local_runner(local.LocalRunner)
        # Whatever is wrong is said by the checks, and by get_backend() to whoever needs it.
        with contextlib.suppress(Exception):
            registry.get_backend()
