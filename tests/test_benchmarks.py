"""The benchmarks run, and measure what they say. Their numbers are not judged here."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from zlib import crc32

from benchmarks import floors
from tests.support import REPOSITORY, environment


def test_the_store_benchmark_measures_everything(tmp_path: Path) -> None:
    sizes = ["--rounds", "1", "--tasks", "200", "--dead-tasks", "3", "--latency-tasks", "3"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.store", *sizes, "--path", str(tmp_path)],
        cwd=REPOSITORY,
        env=environment(DJANGO_SETTINGS_MODULE="benchmarks.settings"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for name in ("enqueue", "claim-run-remove", "dead-task add"):
        assert re.search(rf"^{name} +[\d,]+ /s +[\d,]+ /s +\d+\.\d\d", done.stdout, re.MULTILINE)
    for name in ("idle latency p50", "idle latency p99"):
        assert re.search(rf"^{name} +\d+\.\d\d ms", done.stdout, re.MULTILINE)
    assert list(tmp_path.iterdir()) == []


def test_the_size_benchmark_measures_everything(tmp_path: Path) -> None:
    """At a size where no figure means anything but the bytes of the index itself."""
    sizes = ["--records", "2000", "--rounds", "1", "--command-rounds", "0", "--baseline", "0"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.size_dead", *sizes, "--path", str(tmp_path)],
        cwd=REPOSITORY,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stderr == ""
    assert done.returncode == (" LOW\n" in done.stdout)
    for name in (
        "first page, cold",
        "index built",
        "memory of the index, RSS",
        "find, warm",
        "purge of half, cold",
        "an add during the purge, the slowest",
    ):
        assert re.search(rf"^{name} +<= |^{name} +>= ", done.stdout, re.MULTILINE), name
    assert re.search(r"^memory of the index, traced .* \d+ B +ok$", done.stdout, re.MULTILINE)
    assert re.search(r"^adds that failed +0 +0 of \d+ +ok$", done.stdout, re.MULTILINE)
    assert re.search(r"^records after it as they should be .* ok$", done.stdout, re.MULTILINE)
    assert list(tmp_path.iterdir()) == []


def test_the_floor_writes_the_same_bytes(tmp_path: Path) -> None:
    body = b'add:1-2-a-3:a4:5:0:default:{"v":1,"args":[7,"\\u00fc"]}'
    source = tmp_path / "segment"
    source.write_bytes(b"\n%08x:%b\n" % (crc32(body), body))
    prefix, content = floors.first_record(source)
    assert prefix == b"add:1-2-a-3:a4:5:0:default:"
    assert content == {"v": 1, "args": [7, "ü"]}
    assert floors.line(prefix, content) == source.read_bytes()
    rate = floors.records_per_second(tmp_path / "floor", (prefix, content), 10, fsync=False)
    assert rate > 0
    assert not (tmp_path / "floor").exists()


def test_the_benchmark_of_pending_tasks_measures_everything(tmp_path: Path) -> None:
    sizes = ["--tasks", "6000", "--small-tasks", "1500", "--quick-tasks", "1500"]
    sizes += ["--rounds", "1", "--stretch", "0.3"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.size_pending", *sizes, "--path", str(tmp_path)],
        cwd=REPOSITORY,
        env=environment(DJANGO_SETTINGS_MODULE="benchmarks.settings"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in (0, 1), done.stderr  # 1: on this machine, in this moment
    for name in ("first task after", "largest RSS of the worker", "directory after --drain"):
        assert re.search(rf"^{name} +<= \d+ \w+ +\d+(\.\d\d)? \w+ +ok$", done.stdout, re.MULTILINE)
    assert re.search(
        r"^their ratio, median of rounds +>= 0\.8 +\d+\.\d\d", done.stdout, re.MULTILINE
    )
    assert list(tmp_path.iterdir()) == []
