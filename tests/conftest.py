"""Settings for the whole suite."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import scratch
from tests.settings import BASE_DIR

if not BASE_DIR.exists():
    scratch.remove_stale(Path(tempfile.gettempdir()))
    scratch.make(BASE_DIR)

# How long an example takes says more about what else the machine does than about the code.
settings.register_profile(
    "suite", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("suite")


@pytest.fixture(scope="session")
def django_db_modify_db_settings() -> None:
    """Keep the names of the databases where tests run side by side (pytest-django would change
    them): the directory is another one in each process, and the processes that tests start find
    the tests' databases there."""
