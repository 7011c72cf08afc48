"""A database and a task store of one's own, for this process and for the worker it starts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import environ
from django.conf import settings
from django.core.management import call_command
from django.db import connections
from django.test.utils import override_settings


@contextmanager
def own_surroundings(directory: Path, mail_host: str, mail_port: int) -> Iterator[dict[str, str]]:
    """Let this process work in ``directory``; yields the environment for a process that does too.

    The project reads its settings from the environment, so that is all another process needs.
    The database is made and migrated here.
    """
    environment = {
        "DJANGO_SETTINGS_MODULE": os.environ["DJANGO_SETTINGS_MODULE"],
        "STORAGE": str(directory),
        "DATABASE_URL": f"sqlite:///{directory}/newsletter.db",
        "EMAIL_HOST": mail_host,
        "EMAIL_PORT": str(mail_port),
        "EMAIL_HOST_USER": "",
        "EMAIL_HOST_PASSWORD": "",
        "EMAIL_USE_TLS": "off",
    }
    database = {"default": environ.Env.db_url_config(environment["DATABASE_URL"])}
    usual = connections.databases["default"]
    _use_database(connections.configure_settings(database)["default"])
    try:
        with override_settings(DEFERRED={**settings.DEFERRED, "PATH": directory}):
            call_command("migrate", verbosity=0, interactive=False)
            yield {**os.environ, **environment}
    finally:
        _use_database(usual)


def _use_database(database: dict[str, Any]) -> None:
    connections.close_all()
    with suppress(AttributeError):  # not connected yet
        del connections["default"]
    connections.databases["default"] = database
