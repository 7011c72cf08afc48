"""Settings for the whole suite."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How long an example takes says more about what else the machine does than about the code.
settings.register_profile(
    "suite", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("suite")
