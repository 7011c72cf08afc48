"""The disks that a power cut may leave, a sample of them by a seed (``make crash``: many more)."""

from __future__ import annotations

import pytest

from tests.crash.enumeration import enumerate_states
from tests.crash.scenario import Limits
from tests.crash.scenarios import SCENARIOS

SAMPLE = Limits(seed=1, per_point=28, plays=2, thorough=0.1)


PARTS = 5
"""Tests that can run side by side."""


@pytest.mark.parametrize("part", range(PARTS))
def test_a_power_cut_breaks_no_promise(part: int) -> None:
    reports = [enumerate_states(scenario, SAMPLE) for scenario in SCENARIOS[part::PARTS]]
    violations = [str(violation) for report in reports for violation in report.violations[:1]]
    assert not violations, "\n\n".join(violations)
    assert sum(report.disks for report in reports) >= 5_000 / PARTS
