"""Stores that last as long as a test."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.conf import settings
from django.test import override_settings

from deferred_django import conf, registry
from deferred_django.backends.base import Backend
from deferred_django.conf_wording import SETTING


@contextlib.contextmanager
def own_store(path: Path | str | None = None) -> Iterator[Backend]:
    """Let ``DEFERRED`` name a disk store in ``path`` inside the block; gives its backend.

    Without ``path`` it is a temporary directory, removed at the end. What else the project's
    setting says about the disk backend stays in force. In a ``unittest`` test case::

        def setUp(self):
            self.store = self.enterContext(own_store())
    """
    if path is None:
        with (
            tempfile.TemporaryDirectory(prefix="deferred-") as directory,
            own_store(directory) as backend,
        ):
            yield backend
        return
    with override_settings(**{SETTING: {**_disk_options(), "PATH": Path(path)}}):
        yield registry.get_backend()


def _disk_options() -> dict[str, Any]:
    setting = getattr(settings, SETTING, {})
    return {key: setting[key] for key in conf.KEYS if key in setting} | {"BACKEND": "disk"}
