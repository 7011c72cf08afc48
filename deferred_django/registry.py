"""The facade and the queue that the ``DEFERRED`` setting asks for: one of each per process."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from deferred_django import conf, forks
from deferred_django.backends.base import Backend
from deferred_django.conf_features import Features
from deferred_django.conf_wording import SETTING
from deferred_django.queue import Queue
from deferred_django.queue_values import LocalRunner
from deferred_django.shield import shield

RESETTING = frozenset({SETTING, "BASE_DIR", "TIME_ZONE"})
"""The settings that what is kept here was made of: ``override_settings`` of one takes effect at
once."""

logger = logging.getLogger("deferred_django")

_lock = threading.RLock()
_settings: conf.DeferredSettings | None = None
_backend: Backend | None = None
_queue: Queue | None = None
_runner: LocalRunner | None = None
_make_runner: Callable[[Features], LocalRunner] | None = None


def get_backend() -> Backend:
    """The backend of the ``DEFERRED`` setting; ``ImproperlyConfigured`` if that is wrong.

    Built at the first call, without touching a file, and the same object until the setting
    changes (``override_settings``).
    """
    global _backend
    if _backend is not None:
        return _backend
    with shield(), _lock:
        if _backend is None:
            loaded = _load()
            try:
                _backend = loaded.backend_class(loaded.config)
            except TypeError as error:
                name = loaded.backend_class.__qualname__
                raise ImproperlyConfigured(
                    f"the backend {name} cannot be built from a BackendConfig alone: {error}"
                ) from error
        return _backend


def get_features() -> Features:
    """What the ``DEFERRED`` setting says about the queue and the worker.

    The same object as ``get_queue().features``, with the same life and the same errors as
    :func:`get_backend`, which it does not build.
    """
    return _load().features


def _load() -> conf.DeferredSettings:
    global _settings
    if (loaded := _settings) is not None:
        return loaded
    with shield(), _lock:
        if _settings is None:
            _settings = conf.load()
        return _settings


def get_queue() -> Queue:
    """The queue on :func:`get_backend`, with the same life and the same errors.

    Its ``features`` are those of :func:`get_features`.
    """
    global _queue, _runner
    if _queue is not None:
        return _queue
    with shield(), _lock:
        if _queue is None:
            backend = get_backend()
            if not backend.keeps_tasks:
                if _make_runner is None:
                    raise ImproperlyConfigured(
                        "This backend keeps no tasks, and what runs them in this process starts "
                        'with the app: "deferred_django" must be in INSTALLED_APPS.'
                    )
                _runner = _make_runner(get_features())
            _queue = Queue(backend, local_runner=_runner, features=get_features())
        return _queue


def set_local_runner(factory: Callable[[Features], LocalRunner]) -> None:
    """Name what makes the runner of a backend that keeps no tasks.

    The runner executes tasks and so stands above this module, which therefore cannot import it.
    """
    global _make_runner
    _make_runner = factory


def reset() -> None:
    """Close the backend and forget it; the next call builds one of the setting as it is then."""
    global _settings, _backend, _queue, _runner
    with shield(), _lock:
        backend, runner = _backend, _runner
        _settings = _backend = _queue = _runner = None
    try:
        if runner is not None:
            runner.close()
        if backend is not None:
            backend.close()
    except Exception:  # whoever changes a setting or exits can do nothing about it
        logger.exception("The backend could not be closed cleanly.")


def _on_setting_changed(*, setting: str, **kwargs: Any) -> None:
    if setting in RESETTING:
        reset()


def _after_fork_in_child() -> None:
    # Another thread of the parent may have held it. The facade itself takes care of its forks.
    global _lock
    _lock = threading.RLock()


setting_changed.connect(_on_setting_changed, dispatch_uid="deferred_django.registry")
forks.after_in_child(_after_fork_in_child)
atexit.register(reset)
