"""Imports go down only, and the store needs no Django."""

from __future__ import annotations

import graphlib

import pytest

from tests.source import PACKAGE, Module, imported_modules, imports, package_modules
from tests.support import run_python

LAYERS = (
    # The lowest first. A module imports from its own layer (never in a circle) and those before.
    ("__init__", "bell", "exceptions", "forks", "ids", "nesting", "shield"),
    ("deadlines", "limits_board", "logging_locks", "stacks", "thread_exceptions"),
    ("coroutine_guard", "guard", "thread_guard", "time_limit"),
    ("backends", "backends.failures", "backends.schedule", "backends.values"),
    ("backends.base",),
    ("backends.disk.*", "backends.none"),
    ("codec", "decoding", "references"),
    ("conf_wording",),
    ("backpressure_setting", "middleware_setting", "schedule_setting", "ticks", "timing"),
    ("conf_features",),
    (
        "conf",
        "current",
        "logs",
        "models",
        "migrations.*",
        "naming",
        "queue_choice",
        "retry",
        "signals",
    ),
    ("context", "schedule_plan"),
    ("backpressure", "queue_values"),
    ("queue",),
    ("registry",),
    (
        "bulk",
        "cancellation",
        "enqueue_call",
        "on_commit",
        "options",
        "signatures",
        "task",
        "task_call",
    ),
    ("attempt", "attempt_middleware", "connections", "event_loop", "execution", "hold"),
    ("scheduler",),
    ("frozen", "housekeeping", "local", "overdue", "pool"),
    ("fetcher_waits", "prefetch", "pulse", "quarantine", "recycling"),
    ("heartbeat_file", "worker", "worker_process"),
    ("autoreload", "stop_orders"),
    ("supervisor",),
    (
        "apps",
        "checks",
        "console.*",
        "event_log",
        "middleware",
        "management.*",
        "schedule_checks",
        "testing.*",
    ),
)
WITHOUT_DJANGO = ("exceptions", "forks", "ids", "nesting", "shield", "backends.*")
"""The store: usable, testable and fuzzable alone."""

MODULES = package_modules()


def matches(module: str, pattern: str) -> bool:
    """Whether ``pattern`` names the module; ``x.*`` is the module ``x`` and all below it."""
    name = module.removeprefix(PACKAGE).lstrip(".") or "__init__"
    stem = pattern.removesuffix(".*")
    return name == stem or (pattern.endswith(".*") and name.startswith(f"{stem}."))


def layer_of(module: str) -> int:
    """The one layer that has the module."""
    found = [n for n, layer in enumerate(LAYERS) if any(matches(module, p) for p in layer)]
    assert len(found) == 1, f"{module} must be in one of LAYERS, and is in {len(found)}"
    return found[0]


@pytest.mark.parametrize("module", MODULES.values(), ids=lambda module: module.name)
def test_imports_go_down_only(module: Module) -> None:
    own = layer_of(module.name)
    upwards = [
        f"{module.where}:{line} imports {target}"
        for line, target in imported_modules(module)
        if layer_of(target) > own
    ]
    assert upwards == []


def test_no_imports_go_in_a_circle() -> None:
    graph = {
        name: {target for _, target in imported_modules(module)} - {name, PACKAGE}
        for name, module in MODULES.items()
    }
    graphlib.TopologicalSorter(graph).prepare()  # CycleError names the circle


@pytest.mark.parametrize(
    "name", [name for name in MODULES if any(matches(name, p) for p in WITHOUT_DJANGO)]
)
def test_the_store_imports_no_django(name: str) -> None:
    module = MODULES[name]
    assert [line for line, source, _ in imports(module) if source.split(".")[0] == "django"] == []


def test_django_is_not_loaded_by_the_store() -> None:
    """The whole disk backend is imported and used in a process of its own."""
    store = [name for name in MODULES if any(matches(name, p) for p in WITHOUT_DJANGO)]
    run_python(
        """
        import importlib, pathlib, sys, tempfile

        import deferred_django

        for name in sys.argv[1:]:
            importlib.import_module(name)
        from deferred_django.backends.base import BackendConfig
        from deferred_django.backends.disk import DiskBackend

        with tempfile.TemporaryDirectory() as directory:
            backend = DiskBackend(BackendConfig(path=pathlib.Path(directory)))
            task_id = backend.add_task(b"context")
            (claim,) = backend.claim_tasks(1)
            backend.start_task(claim)
            backend.add_dead_task(
                task_id, b"context", ValueError("x"), task_class="app.task", attempts=1
            )
            backend.complete_task(claim)
            assert [record["id"] for record in backend.list_dead_tasks()] == [task_id]
            assert backend.pending_tasks() == []
            backend.close()
        loaded = [name for name in sys.modules if name.split(".")[0] == "django"]
        assert loaded == [], loaded
        """,
        *store,
    )


def test_every_public_name_is_there_and_lazy() -> None:
    run_python(
        """
        import sys

        import deferred_django

        assert set(deferred_django.__all__) <= set(dir(deferred_django))
        assert deferred_django.DeadTasksLockTimeout.__name__ == "DeadTasksLockTimeout"
        assert not any(name.split(".")[0] == "django" for name in sys.modules)
        for name in deferred_django.__all__:
            assert getattr(deferred_django, name) is getattr(deferred_django, name)
        from deferred_django import *
        try:
            deferred_django.nothing
        except AttributeError as error:
            assert "nothing" in str(error)
        else:
            raise AssertionError
        """
    )


def test_the_pytest_plugin_loads_no_django() -> None:
    """It is loaded in every project that has the package installed."""
    run_python(
        """
        import sys

        import deferred_django.testing.plugin

        assert not any(name.split(".")[0] == "django" for name in sys.modules)
        """
    )
