"""The enumeration can fail: each deliberate defect is found, and nothing where there is none."""

from __future__ import annotations

import pytest

from tests.crash.defects import DEFECTS
from tests.crash.enumeration import enumerate_states
from tests.crash.scenario import Limits
from tests.crash.scenarios import SCENARIOS

LIMITS = Limits(seed=1, per_point=20, first_only=True)


@pytest.mark.parametrize("name", DEFECTS)
def test_the_defect_is_found(name: str) -> None:
    defect, scenario_name = DEFECTS[name]
    [scenario] = [each for each in SCENARIOS if each.name == scenario_name]
    assert enumerate_states(scenario, LIMITS).violated == 0
    with defect():
        report = enumerate_states(scenario, LIMITS)
    assert report.violated > 0
