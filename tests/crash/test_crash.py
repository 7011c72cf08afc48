"""The disks that a power cut may leave, a sample of them by a seed (``make crash``: many more)."""

from __future__ import annotations

import pytest

from tests.crash.enumeration import Playable, enumerate_states
from tests.crash.scenario import Limits
from tests.crash.scenarios import SCENARIOS

SEED = 1


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_a_power_cut_breaks_no_promise(scenario: Playable) -> None:
    report = enumerate_states(scenario, Limits(SEED, 20))
    assert report.violated == 0, report.violations[0]
    assert report.disks >= 10
