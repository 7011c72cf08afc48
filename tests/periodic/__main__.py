"""``make periodic``: a year of schedulers in three time zones, and what was counted.

Exit code 1 if a tick was missed, came twice, or should not have come.
"""

from __future__ import annotations

import argparse
import os
import sys
from zoneinfo import ZoneInfo

import django

from tests.periodic.year import OF_A_DAY, RHYTHMS, ZONES, bounds, changes, simulate


def main() -> int:
    """Run what the options say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--year", type=int, default=2026)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    django.setup()  # the tasks are imported
    wrong = ticks = 0
    for key in ZONES:
        zone = ZoneInfo(key)
        start, end = bounds(key, options.year)
        for change in changes(zone, start, end):
            print(f"{key}: the clocks have changed by {change.astimezone(zone).isoformat()}")
        for result in simulate(key, (*OF_A_DAY, *RHYTHMS), start, end, seed=options.seed):
            ticks += result.ticks
            wrong += not result.is_right
            print(
                f"{result.zone:20} {result.name:20} {result.ticks:7,} ticks, expected by the "
                f"{result.source} {result.expected:7,}: missed {len(result.missed)}, "
                f"twice {len(result.twice)}, unexpected {len(result.unexpected)}",
                flush=True,
            )
            for each in (*result.missed[:5], *result.twice[:5], *result.unexpected[:5]):
                print(f"    {each}")
    print(f"{ticks:,} ticks in {len(ZONES)} zones, {wrong} periodic tasks wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
