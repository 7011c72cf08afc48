"""Schedules of two and three processes on one store, searched for one that breaks a promise.

    python -m tests.schedules --seconds 720 --jobs 2
    python -m tests.schedules --only complete+maintain
    python -m tests.schedules --replay 'live:complete+maintain:0x3,1x5'

Real processes do one operation each and stop before each call that matters for durability or
exclusion. For two of them every place is tried at which the one can come between two calls of the
other and stop itself, and every place to kill the one. For three it is left to chance, and they
stop at looks at the directory too. After each schedule the books are checked: see ``books``.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import multiprocessing.util
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.schedules.enumeration import Tally, pairs, run_pair, run_walks
from tests.schedules.laboratory import Laboratory
from tests.schedules.schedule import Schedule

WALKS_AT_A_TIME = 50
MAX_PRINTED = 20
PAIRS_PART = 0.85
"""Of the time; what the pairs leave of it is the triples'."""
_laboratory: Laboratory


def _open_laboratory() -> None:
    global _laboratory
    _laboratory = Laboratory()
    multiprocessing.util.Finalize(None, _laboratory.close, exitpriority=1)


def _pair(pair: tuple[str, str, str]) -> Tally:
    return run_pair(_laboratory, pair)


def _walks(job: tuple[int, int]) -> Tally:
    seed, size = job
    return run_walks(_laboratory, seed, WALKS_AT_A_TIME, size)


def replay(text: str) -> int:
    """Run one schedule and print each call."""
    laboratory = Laboratory()
    try:
        outcome = laboratory.run(Schedule.parse(text), traced=True)
    finally:
        laboratory.close()
    print("\n".join(outcome.trace))
    print(outcome.violation or "nothing is wrong")
    return 1 if outcome.violation else 0


class Search:
    """What is run, and what was found."""

    def __init__(self, jobs: int, seconds: float, verbose: bool) -> None:
        self._jobs = jobs
        self._began, self._seconds = time.monotonic(), seconds
        self._end = self._began
        self._verbose = verbose
        self.violations = 0

    def run(
        self, what: str, work: Callable[[Any], Tally], jobs: Iterator[Any], part: float = 1.0
    ) -> int:
        """Do the jobs until that part of the time is up; how many were done."""
        self._end = self._began + part * self._seconds
        began, done, schedules, kills = time.monotonic(), 0, 0, 0
        context = multiprocessing.get_context("fork")
        room = threading.Semaphore(2 * self._jobs)
        with context.Pool(self._jobs, _open_laboratory) as pool:
            for tally in pool.imap_unordered(work, self._while_there_is_time(jobs, room)):
                room.release()
                done += 1
                schedules += tally.schedules
                kills += tally.kills
                self._tell(tally)
            pool.close()
            pool.join()  # they clean up
        print(
            f"{what}: {schedules:,} schedules ({kills:,} with a kill) "
            f"in {time.monotonic() - began:.0f} s",
            flush=True,
        )
        return done

    def _while_there_is_time(self, jobs: Iterator[Any], room: threading.Semaphore) -> Iterator[Any]:
        """The jobs, each when there is somebody to do it soon: the pool would take all at once."""
        for job in jobs:
            room.acquire()
            if time.monotonic() > self._end:
                return
            yield job

    def _tell(self, tally: Tally) -> None:
        if self._verbose:
            print(f"{tally.what}: {tally.schedules:,}", flush=True)
        for outcome in tally.violations:
            self.violations += 1
            if self.violations <= MAX_PRINTED:
                print(f"VIOLATION in {outcome.schedule}\n{outcome.violation}\n", flush=True)


def main() -> int:
    """Search; 1 if there was a violation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=720.0, help="for all of it")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", help="pairs of these operations, as A+B, or A with all others")
    parser.add_argument("--no-pairs", action="store_true")
    parser.add_argument("--no-triples", action="store_true")
    parser.add_argument("--sample", action="store_true", help="walks of two and three alone")
    parser.add_argument("--quiet", action="store_true", help="no figure for each pair")
    parser.add_argument("--replay", metavar="SCHEDULE", help="run this one and print its calls")
    options = parser.parse_args()
    if options.replay:
        return replay(options.replay)
    print(f"seed {options.seed}", flush=True)
    search = Search(options.jobs, options.seconds, not options.quiet)
    dice = random.Random(options.seed)
    if options.sample:
        jobs = ((dice.randrange(1 << 30), 2 + number % 2) for number in itertools.count())
        search.run("walks of two and three", _walks, jobs)
    elif not options.no_pairs:
        chosen = pairs()
        if options.only:
            wanted = options.only.split("+")
            chosen = [p for p in chosen if all(p[1:].count(w) >= wanted.count(w) for w in wanted)]
        dice.shuffle(chosen)
        part = 1.0 if options.no_triples else PAIRS_PART
        done = search.run(f"{len(chosen)} pairs", _pair, iter(chosen), part)
        if done < len(chosen):
            print(f"there was no time for {len(chosen) - done} pairs")
    if not (options.no_triples or options.sample):
        jobs = ((dice.randrange(1 << 30), 3) for _ in itertools.count())
        search.run("triples", _walks, jobs)
    print(f"violations: {search.violations}")
    return 1 if search.violations else 0


if __name__ == "__main__":
    sys.exit(main())
