"""Mutated files by the seed, for as many inputs as are asked for.

    python -m tests.fuzz --count 1000000 --seed 7

``log``: a segment on a file in memory, read at once and in steps. ``context``: a task's stored
bytes, decoded. ``dead``: a dead-tasks file, read in every way, added to and removed from.
``store``: a whole store, looked at and drained. The last lines say how many inputs each had and
what was found; a finding can be run again by its seed and number, and makes the exit code 1.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import django

from tests.fuzz.levels import DeadLevel, LogLevel, in_memory, quiet
from tests.fuzz.material import Material
from tests.fuzz.stores import StoreLevel

SHARES = {"log": 0.6, "context": 0.368, "dead": 0.03, "store": 0.002}
"""Of the inputs: the dear ones are few."""
MAX_SHOWN = 10

Try = Callable[[random.Random], None]


def levels(directory: Path) -> dict[str, Try]:
    """What one input is, for each level."""
    from tests.fuzz import contexts

    for name in ("real", "dead", "store"):
        (directory / name).mkdir()
    material = Material(directory / "real")
    log, dead = LogLevel(), DeadLevel(directory / "dead")
    store = StoreLevel(directory / "store", material)

    return {
        "log": lambda chance: log.attempt(material.segment(chance), chance),
        "context": lambda chance: contexts.check(contexts.mutated(chance)),
        "dead": lambda chance: dead.attempt(material.dead_tasks(chance), chance),
        "store": store.check,
    }


def run(name: str, attempt: Try, seed: int, first: int, count: int) -> int:
    """Try ``count`` inputs; how many of them found something."""
    found = 0
    began = time.monotonic()
    for number in range(first, first + count):
        try:
            attempt(random.Random(f"{name} {seed} {number}"))
        except Exception:
            found += 1
            if found <= MAX_SHOWN:
                print(f"--level {name} --seed {seed} --first {number} --count 1:")
                traceback.print_exc(file=sys.stdout)
    seconds = time.monotonic() - began
    rate = count / max(seconds, 0.001)
    print(f"{name}: {count:,} inputs in {seconds:.1f} s, {rate:,.0f} per second; {found} findings")
    sys.stdout.flush()
    return found


def main() -> int:
    """Run the levels one after the other; 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100_000, help="inputs in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    parser.add_argument("--level", choices=list(SHARES), help="only this one, with all the inputs")
    options = parser.parse_args()
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()
    counts = {name: max(1, round(options.count * share)) for name, share in SHARES.items()}
    if options.level:
        counts = {options.level: options.count}
    found = 0
    with tempfile.TemporaryDirectory(dir=in_memory()) as directory, quiet():
        tries = levels(Path(directory))
        for name, count in counts.items():
            found += run(name, tries[name], options.seed, options.first, count)
    total = sum(counts.values())
    print(f"seed {options.seed}: {total:,} inputs in all, {found} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
