"""Files of a store, mutated where that leads to code that was not reached before.

    python -m tests.fuzz.atheris_store FOUND tests/fuzz/corpus/log -max_total_time=60
    python -m tests.fuzz.atheris_store --dead FOUND tests/fuzz/corpus/dead -max_total_time=60

``FOUND`` is a directory for the inputs that reach something new; beside it a store is made for the
dead tasks (libFuzzer ends the process without a word, so that nothing could remove it). Needs the
extra ``fuzz`` (there is an atheris for some Pythons only). Further options are libFuzzer's;
``-seed=N`` repeats a run. A finding ends the run with an exit code other than 0.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["deferred_django"]):
    from tests.fuzz.levels import DeadLevel, LogLevel, quiet

from tests.fuzz.sealed import CHANGE, SMALL, unpack


def main() -> None:
    """Fuzz until libFuzzer's limits are met."""
    arguments = [argument for argument in sys.argv if argument != "--dead"]
    store = Path(arguments[1]).resolve().parent / "store"
    store.mkdir(exist_ok=True)
    log, dead = LogLevel(), DeadLevel(store)
    vars(os)["fsync"] = lambda fd: None  # it is looked at what is written, not at when

    def one_log(data: bytes) -> None:
        bits, cuts, content = unpack(data)
        log.check(content, cuts, small=bool(bits & SMALL))

    def one_dead(data: bytes) -> None:
        bits, cuts, content = unpack(data)
        dead.check(content, cuts, small=bool(bits & SMALL), change=bool(bits & CHANGE))

    with quiet():
        atheris.Setup(arguments, one_dead if "--dead" in sys.argv else one_log)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
