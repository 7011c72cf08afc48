"""Settings for the whole suite."""

from __future__ import annotations

import tempfile
from pathlib import Path

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
