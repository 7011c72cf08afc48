"""The enumeration can fail: each deliberate defect is found.

The same scenarios, by the same seed, show nothing in ``test_crash.py``, where there is none.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.crash.defect import Defect
from tests.crash.defects import DEFECTS
from tests.crash.enumeration import enumerate_states
from tests.crash.scenarios import SCENARIOS
from tests.crash.test_crash import SAMPLE

LIMITS = replace(SAMPLE, plays=1000, thorough=1.0, first_only=True)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


@pytest.mark.parametrize(
    ("defect", "scenario"), DEFECTS, ids=[f"{defect.__name__}-{name}" for defect, name in DEFECTS]
)
def test_the_defect_is_found(defect: Defect, scenario: str) -> None:
    with defect():
        report = enumerate_states(BY_NAME[scenario], LIMITS)
    assert report.violated > 0
