"""Every operation of the disk store with every fault at every call.

``make faults``, or ``python -m tests.faults``. Prints how many faults were injected and what was
violated, exactly; exit code 1 if anything was.
"""

from __future__ import annotations

import argparse
import collections
import random
import sys
import time

from tests.faults.cases import plan
from tests.faults.checks import Checker
from tests.faults.injector import Level
from tests.faults.neighbour import Neighbour
from tests.faults.operations import OPERATIONS


def main() -> int:
    """Run what the options say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operation", action="append", help="a part of an operation's name")
    parser.add_argument("--level", choices=[level.value for level in Level])
    parser.add_argument("--error", action="append", help="only these, as EIO; or interrupt")
    parser.add_argument("--sample", type=int, help="so many cases, by chance")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--show", type=int, default=50, help="violations to print")
    parser.add_argument("--every", action="store_true", help="not only the first of each call")
    options = parser.parse_args()
    operations = [
        operation
        for name, operation in OPERATIONS.items()
        if not options.operation or any(part in name for part in options.operation)
    ]
    levels = [level for level in Level if options.level in (None, level.value)]
    began = time.monotonic()
    with Neighbour() as neighbour:
        checker = Checker(neighbour)
        cases = [
            planned
            for planned in plan(checker.expect, operations, levels)
            if not options.error or planned[2].kind in options.error
        ]
        places = len({(operation.name, level, fault.at) for operation, level, fault in cases})
        if options.sample:
            print(f"seed {options.seed}", flush=True)
            cases = random.Random(options.seed).sample(cases, min(options.sample, len(cases)))
        violated = 0
        last: tuple[object, ...] = ()
        by_operation: collections.Counter[str] = collections.Counter()
        for planned in cases:
            case = checker.run(*planned)
            by_operation[case.operation.name] += 1
            if case.violations:
                violated += 1
                same = (case.operation.name, case.level, case.call, case.fault.at)
                if violated <= options.show and (options.every or last != same):
                    print(f"VIOLATION {case}", flush=True)
                    for violation in case.violations:
                        print(f"    {violation}", flush=True)
                last = same
    for name, count in by_operation.items():
        print(f"{count:7,}  {name}")
    print(
        f"{len(operations)} operations, {places:,} calls, {len(cases):,} faults injected, "
        f"{violated} violations, {time.monotonic() - began:.0f} s"
    )
    return 1 if violated else 0


if __name__ == "__main__":
    sys.exit(main())
