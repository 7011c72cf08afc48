"""Every disk that a power cut may leave, opened and checked: prints what was found.

    python -m tests.crash --seed 7 --limit 3000 --seconds 600

Exits with 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import sys
import time

from tests.crash.enumeration import enumerate_states
from tests.crash.scenario import Limits
from tests.crash.scenarios import named

STATES_OF_A_MOMENT = 3000


def main() -> int:
    """Run the scenarios that the arguments choose."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--limit", type=int, default=STATES_OF_A_MOMENT)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("scenarios", nargs="*", default=[""], help="parts of their names")
    options = parser.parse_args()
    scenarios = named(*options.scenarios)
    print(f"seed {options.seed}, at most {options.limit:,} states of each moment")
    began = time.monotonic()
    limits = Limits(options.seed, options.limit, until=began + options.seconds)
    disks = states = violated = 0
    print(f"{'scenario':54} {'events':>6} {'moments':>7} {'disks':>7} {'states':>7} {'broken':>6}")
    check = functools.partial(enumerate_states, limits=limits)
    with multiprocessing.Pool(options.jobs) as pool:
        for report in pool.imap(check, scenarios):
            print(
                f"{report.scenario:54} {report.events:6} {report.points:7} {report.disks:7,}"
                f" {report.states:7,} {report.violated:6,}",
                flush=True,
            )
            for violation in report.violations[:1]:
                print(violation)
            disks, states = disks + report.disks, states + report.states
            violated += report.violated
    print(
        f"{len(scenarios)} scenarios, {disks:,} different disks ({states:,} with what was promised"
        f" then), {violated:,} violations, {time.monotonic() - began:.0f} s, seed {options.seed}"
    )
    return 1 if violated else 0


if __name__ == "__main__":
    sys.exit(main())
