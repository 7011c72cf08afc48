"""Another process on the same store: what it can do at once tells which locks are held."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from tests.faults.world import PAST, context, open_backend
from tests.support import REPOSITORY, environment

ANSWER_SECONDS = 20.0


def look(path: Path) -> dict[str, object]:
    """Claim all that can be claimed and put it back; add and remove a task and a dead task."""
    backend = open_backend(path, 0.0)
    try:
        claims = backend.claim_tasks(1000)
        for claim in claims:
            backend.release_task(claim)
        backend.add_task(context("neighbour"), task_id="neighbour", publish_at=PAST)
        removed = backend.remove_task("neighbour")
        backend.add_dead_task(
            "neighbour", context("n"), ValueError("n"), task_class="app.tasks.x", attempts=1
        )
        removed_dead = backend.remove_dead_tasks("neighbour")
    finally:
        backend.close()
    return {
        "claimed": sorted(claim.id for claim in claims),
        "works": removed and removed_dead == 1,
    }


class Neighbour:
    """The process; asked by :meth:`look`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.neighbour"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
            cwd=REPOSITORY,
        )

    def look(self, path: Path) -> dict[str, object]:
        """What :func:`look` finds there; ``error`` if it failed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{path}\n")
        self._process.stdin.flush()
        answer: dict[str, object] = json.loads(self._process.stdout.readline())
        return answer

    def __enter__(self) -> Neighbour:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def main() -> None:
    """Answer one path a line."""
    for line in sys.stdin:
        try:
            answer = look(Path(line.strip()))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
