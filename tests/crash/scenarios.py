"""All scenarios."""

from __future__ import annotations

from tests.crash import scenarios_both, scenarios_dead, scenarios_log, scenarios_log_failing
from tests.crash.enumeration import Playable

SCENARIOS: tuple[Playable, ...] = (
    *scenarios_log.SCENARIOS,
    *scenarios_log_failing.SCENARIOS,
    *scenarios_dead.SCENARIOS,
    *scenarios_both.SCENARIOS,
)


def named(*parts: str) -> list[Playable]:
    """Those that have one of the parts in their name."""
    return [each for each in SCENARIOS if any(part in each.name for part in parts)]
