"""Files of a store, mutated where that leads to code that was not reached before.

    python -m tests.fuzz.atheris_store FOUND tests/fuzz/corpus/log -max_total_time=60
    python -m tests.fuzz.atheris_store --dead FOUND tests/fuzz/corpus/dead -max_total_time=60

``FOUND`` is a directory for the inputs that reach something new. Needs the extra ``fuzz`` (there is
an atheris for some Pythons only). Further options are libFuzzer's; ``-seed=N`` repeats a run. A
finding ends the run with an exit code other than 0.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["deferred_django"]):
    from tests.fuzz.levels import DeadLevel, LogLevel, in_memory, quiet

from tests.fuzz.sealed import CHANGE, SMALL, unpack


def main() -> None:
    """Fuzz until libFuzzer's limits are met."""
    arguments = [argument for argument in sys.argv if argument != "--dead"]
    log, dead = LogLevel(), DeadLevel(Path(tempfile.mkdtemp(dir=in_memory())))

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
