"""Run the proofs that are named, or all; exit code 1 if one of them fails.

python -m tests.endurance [stops] [memory] [database] [idle] [--rounds N] [--tasks N] [--seed N]
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import django


def main() -> int:
    """Run the proofs."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    from tests.endurance import database, idle, memory, stops

    parser = argparse.ArgumentParser(prog="python -m tests.endurance")
    parser.add_argument("names", nargs="*", metavar="NAME", help="stops, memory, database or idle")
    parser.add_argument(
        "--rounds", type=int, default=200, help="how many times a worker is stopped"
    )
    parser.add_argument(
        "--tasks", type=int, default=1_000_000, help="how many tasks one process runs"
    )
    parser.add_argument(
        "--seconds", type=float, default=30.0, help="how long idle workers are watched"
    )
    parser.add_argument("--seed", type=int, default=None, help="of the stops")
    options = parser.parse_args()
    seed = random.randrange(1_000_000) if options.seed is None else options.seed
    proofs: dict[str, Callable[[Path], list[str]]] = {
        "idle": lambda path: idle.run(path, options.seconds),
        "database": database.run,
        "stops": lambda path: stops.run(path, options.rounds, seed),
        "memory": lambda path: memory.run(path, options.tasks),
    }
    unknown = set(options.names) - set(proofs)
    if unknown:
        parser.error(f"no such proof: {', '.join(sorted(unknown))}")
    failed = False
    for name in options.names or proofs:
        print(f"== {name}", flush=True)
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="deferred-endurance-") as directory:
            violations = proofs[name](Path(directory))
        for violation in violations:
            print(f"VIOLATED: {violation}")
        failed = failed or bool(violations)
        verdict = f"{len(violations)} violations" if violations else "holds"
        print(f"-- {name}: {verdict}, {time.monotonic() - began:.0f} s", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
