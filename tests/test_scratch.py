"""Test runs leave nothing behind in the system's directory for temporary files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

from tests import scratch
from tests.support import REPOSITORY, environment, run_python, start_python


def test_importing_the_settings_makes_nothing(tmp_path: Path) -> None:
    """A plugin of a type checker imports them, and leaves without running exit handlers."""
    env = {"TMPDIR": str(tmp_path), scratch.variable(): ""}
    code = """
        import os, sys
        del os.environ[sys.argv[1]]
        import tests.settings
        print(tests.settings.BASE_DIR)
        os._exit(0)
    """
    done = run_python(code, scratch.variable(), env={**env, "PYTHONUNBUFFERED": "1"})
    assert Path(done.stdout.strip()).parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_processes_side_by_side_have_each_their_own() -> None:
    """They inherit the environment of the process that started them, with its directory in it."""
    found = set()
    with mock.patch.dict(os.environ):
        for process in ("", "gw0", "gw1"):
            os.environ["PYTEST_XDIST_WORKER"] = process
            os.environ.pop(scratch.variable(), None)
            found.add(scratch.of_this_run())
            assert scratch.of_this_run() in found  # and so do the processes that it starts
    assert len(found) == 3


def test_a_run_removes_its_directory_and_what_killed_ones_left(tmp_path: Path) -> None:
    killed, fresh, foreign = (tmp_path / f"{scratch.PREFIX}{name}" for name in "abc")
    for directory in (killed, fresh, foreign):
        (directory / "inside").mkdir(parents=True)
    os.utime(killed, (1, 1))
    os.utime(foreign, (1, 1))
    holder = start_python(
        "import fcntl, os, sys\n"
        "fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_SH)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()",
        str(foreign),
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        env = environment(TMPDIR=str(tmp_path))
        del env[scratch.variable()]
        code = "import tests.conftest as run; print(run.BASE_DIR.is_dir())"
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=REPOSITORY,
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        holder.send_signal(signal.SIGKILL)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
    left = {path.name for path in tmp_path.iterdir() if path.name.startswith(scratch.PREFIX)}
    assert left == {fresh.name, foreign.name}
