"""Every disk that a power cut may leave, opened and checked: prints what was found.

    python -m tests.crash --seed 7 --limit 300 --seconds 1800

Exits with 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import sys
import time

from tests.crash.enumeration import Report, enumerate_states
from tests.crash.scenario import Limits
from tests.crash.scenarios import SCENARIOS, named

STATES_OF_A_MOMENT = 300


def _check(name: str, limits: Limits) -> Report:
    [scenario] = [each for each in SCENARIOS if each.name == name]
    return enumerate_states(scenario, limits)


def main() -> int:
    """Run the scenarios that the arguments choose."""
    parser = argparse.ArgumentParser(prog="python -m tests.crash")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--limit", type=int, default=STATES_OF_A_MOMENT)
    parser.add_argument("--thorough", type=float, default=1.0, help="part that is worked on")
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("scenarios", nargs="*", default=[""], help="parts of their names")
    options = parser.parse_args()
    scenarios = named(*options.scenarios)
    print(f"seed {options.seed}, at most {options.limit:,} states of each moment")
    began = time.monotonic()
    until = began + options.seconds
    limits = Limits(options.seed, options.limit, thorough=options.thorough, until=until)
    print(f"{'scenario':76} {'events':>6} {'moments':>7} {'disks':>7} {'states':>8} {'broken':>6}")
    check = functools.partial(_check, limits=limits)
    reports = []
    with multiprocessing.Pool(options.jobs) as pool:
        for report in pool.imap(check, [scenario.name for scenario in scenarios]):
            reports.append(report)
            how = "" if report.finished else " cut short"
            print(
                f"{report.scenario:76} {report.events:6,} {report.points:7,} {report.disks:7,}"
                f" {report.states:8,} {report.violated:6,}{how}",
                flush=True,
            )
            for violation in report.violations[:1]:
                print(violation)
    violated = sum(report.violated for report in reports)
    print(
        f"{len(reports)} scenarios, {sum(not report.finished for report in reports)} of them cut "
        f"short; {sum(report.disks for report in reports):,} different disks, "
        f"{sum(report.states for report in reports):,} with what was promised at the moment; "
        f"{violated:,} violations; {time.monotonic() - began:.0f} s; seed {options.seed}"
    )
    return 1 if violated else 0


if __name__ == "__main__":
    sys.exit(main())
