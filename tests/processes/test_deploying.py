"""The recipes of ``docs/deploying.md``: what runs their lines elsewhere is done here by the test.

The places that they name are others here, and the project is the example project; the command lines
are run as they are written.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import gunicorn.config
import pytest
import yaml
from django.http import HttpRequest
from prometheus_client.parser import text_string_to_metric_families

from deferred_django.worker_process import GRACE_SECONDS
from tests.harness import children_of, kill_quietly
from tests.support import REPOSITORY, environment, wait_until

TEXT = (REPOSITORY / "docs" / "deploying.md").read_text(encoding="utf-8")
UNSHARE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language."""
    found = re.findall(rf"^( *)```{language}\n(.*?)^\1```", TEXT, re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(code) for _, code in found]


class Site:
    """A machine on which the recipes' project is deployed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.places = {
            "/srv/shop/.venv/bin/python": sys.executable,
            "/srv/shop": str(REPOSITORY),
            "/bin/systemctl": "/bin/true",
            "shop.wsgi": "example_project.wsgi",
            "shop.settings": "example_project.settings",
        }
        for place in (
            "/run/shop-worker",
            "/tmp",
            "/var/backups",
            "/var/lib/node_exporter",
            "/var/lib/shop",
        ):
            self.places[place] = str(path / place.replace("/", "-").strip("-"))
            Path(self.places[place]).mkdir()
        self.storage = Path(self.places["/var/lib/shop"]) / "deferred"
        self.storage.mkdir()
        self.env = environment(
            DJANGO_SETTINGS_MODULE="example_project.settings",
            STORAGE=str(self.storage),
            PATH=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        )

    def here(self, text: str) -> str:
        """The text with this machine's places in it."""
        pattern = "|".join(map(re.escape, sorted(self.places, key=len, reverse=True)))
        return re.sub(rf"(?<![\w/.])(?:{pattern})\b", lambda found: self.places[found[0]], text)

    def run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        return subprocess.run(
            [self.here(word) for word in command],
            cwd=REPOSITORY,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


# -- what the recipes say ------------------------------------------------------------------------


@cache
def units() -> list[configparser.ConfigParser]:
    """The systemd units, in the order of the document."""
    found = []
    for code in blocks("ini"):
        unit = configparser.ConfigParser(interpolation=None, strict=True)
        unit.optionxform = str  # type: ignore[assignment, method-assign]
        unit.read_string(code)
        found.append(unit)
    return found


@cache
def dockerfile() -> dict[str, str]:
    """The instructions of the Dockerfile that say how the image is run."""
    [code] = blocks("dockerfile")
    return dict(line.split(" ", 1) for line in code.splitlines())


@cache
def documents() -> dict[str, Any]:
    """The YAML documents by a key that only one of them has."""
    found = [each for code in blocks("yaml") for each in yaml.safe_load_all(code)]
    [compose] = [each for each in found if "services" in each]
    [deployment] = [each for each in found if each.get("kind") == "Deployment"]
    [claim] = [each for each in found if each.get("kind") == "PersistentVolumeClaim"]
    [rules] = [each for each in found if "groups" in each]
    return {"compose": compose, "deployment": deployment, "claim": claim, "rules": rules}


def containers() -> dict[str, Any]:
    """The containers of the pod by name."""
    pod = documents()["deployment"]["spec"]["template"]["spec"]
    return {container["name"]: container for container in pod["containers"]}


def healthcheck() -> list[str]:
    """The command of the image's health check."""
    command: list[str] = json.loads(dockerfile()["HEALTHCHECK"].partition(" CMD ")[2])
    return command


def workers() -> dict[str, tuple[list[str], float]]:
    """Of each recipe: how the worker is started, and how long it may take to stop."""
    service = units()[0]["Service"]
    compose = documents()["compose"]["services"]["worker"]
    pod = documents()["deployment"]["spec"]["template"]["spec"]
    return {
        "systemd": (shlex.split(service["ExecStart"]), float(service["TimeoutStopSec"])),
        "image": (json.loads(dockerfile()["CMD"]), float("inf")),
        "compose": (compose["command"], float(compose["stop_grace_period"].removesuffix("s"))),
        "pod": (containers()["worker"]["command"], float(pod["terminationGracePeriodSeconds"])),
    }


def probes() -> dict[str, list[str]]:
    """The commands that ask whether the worker is at work."""
    worker = containers()["worker"]
    return {
        "systemd": shlex.split(units()[1]["Service"]["ExecStart"]),
        "image": healthcheck(),
        "pod lives": worker["livenessProbe"]["exec"]["command"],
        "pod has started": worker["startupProbe"]["exec"]["command"],
    }


def shell_lines() -> Iterator[str]:
    """The lines for a shell."""
    for code in blocks("sh"):
        yield from code.splitlines()


# -- workers and probes --------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", workers())
def test_a_worker_has_time_to_stop(recipe: str) -> None:
    command, stop_seconds = workers()[recipe]
    timeout = float(command[command.index("--shutdown-timeout") + 1])
    assert timeout + GRACE_SECONDS < stop_seconds


def test_the_recipes_start_the_same_worker() -> None:
    commands = [command for command, _ in workers().values()]
    assert commands[1] == commands[2] == commands[3]
    assert len(probes()["image"]) > 5
    assert probes()["image"] == probes()["pod lives"]


def is_first_process_possible() -> bool:
    """Whether this user may run a process as the first of a pid namespace."""
    if shutil.which(UNSHARE[0]) is None:
        return False
    return subprocess.run([*UNSHARE, "true"], check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize("recipe", ["systemd", "image"])
def test_a_worker_runs_is_probed_and_stops(site: Site, recipe: str) -> None:
    """In a container as its first process, where the kernel drops signals without a handler."""
    command, stop_seconds = workers()[recipe]
    alone = recipe == "image" and is_first_process_possible()
    command = [*(UNSHARE if alone else []), *map(site.here, command)]
    heartbeat = Path(command[command.index("--heartbeat-file") + 1])
    names = ["systemd"] if recipe == "systemd" else ["image", "pod has started"]
    asked = {name: probes()[name] for name in names}
    log = site.path / "worker.log"
    with log.open("wb") as out:
        worker = subprocess.Popen(
            command, cwd=REPOSITORY, env=site.env, stdout=out, stderr=out, start_new_session=True
        )
    pids = {worker.pid}
    try:
        if recipe == "systemd":
            done = site.run(shlex.split(units()[0]["Service"]["ExecStartPost"]))
            assert (done.returncode, heartbeat.exists()) == (0, True)
        else:
            wait_until(heartbeat.exists, timeout=30, what="a heartbeat")
        first = children_of(worker.pid)[0] if alone else worker.pid
        pids |= {first, *children_of(first)}
        assert len(children_of(first)) == int(command[command.index("--processes") + 1])
        for name, probe in asked.items():
            done = site.run(probe)
            assert done.returncode == 0, (name, done.stderr)
        os.kill(first, signal.SIGTERM)
        assert worker.wait(min(stop_seconds, 30)) == 0, log.read_text()
        assert site.run(asked[names[-1]]).returncode == 1
        assert not heartbeat.exists()
    finally:
        for pid in pids if worker.poll() is None else ():
            kill_quietly(pid)
        worker.wait()


def test_the_container_gets_the_signal() -> None:
    """Lists, which no shell comes between, and no other signal than the worker's."""
    assert dockerfile()["STOPSIGNAL"] == "SIGTERM"
    assert units()[0]["Service"]["KillSignal"] == "SIGTERM"
    assert "ENTRYPOINT" not in dockerfile()
    assert healthcheck()[0] == "python"


def test_web_and_worker_share_the_store() -> None:
    compose = documents()["compose"]
    services = compose["services"]
    assert services["web"]["volumes"] == services["worker"]["volumes"]
    [volume] = services["web"]["volumes"]
    assert volume == f"{next(iter(compose['volumes']))}:/var/lib/shop"
    mounts = [container["volumeMounts"] for container in containers().values()]
    assert mounts[0] == mounts[1]
    spec = documents()["deployment"]["spec"]
    [volume] = spec["template"]["spec"]["volumes"]
    assert mounts[0] == [{"name": volume["name"], "mountPath": "/var/lib/shop"}]
    claim = documents()["claim"]
    assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert claim["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (1, "Recreate")
    [settings] = [code for code in blocks("python") if code.startswith("DEFERRED")]
    assert '"/var/lib/shop/' in settings


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_reads_the_units(site: Site) -> None:
    names = re.findall(r"`/etc/systemd/system/([\w-]+\.service)`", TEXT)
    assert len(names) == 3
    names.insert(2, "shop-worker-check.timer")
    for name, code in zip(names, blocks("ini"), strict=True):
        (site.path / name).write_text(site.here(code))
    done = subprocess.run(
        ["systemd-analyze", "verify", *(str(site.path / name) for name in names)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = [line for line in (done.stdout + done.stderr).splitlines() if "shop" in line]
    assert said == []
    assert units()[1]["Unit"]["OnFailure"] in names


# -- everything else -----------------------------------------------------------------------------


def test_the_lines_for_a_shell(site: Site) -> None:
    """One after the other, as they are; those of ``gunicorn`` and ``systemctl`` are below."""
    ran = 0
    for line in shell_lines():
        if line.split()[0] in ("gunicorn", "systemctl"):
            continue
        done = site.run(["sh", "-ec", line])
        # Of tar, 1 says that a file changed while it was read.
        assert done.returncode in ((0, 1) if line.startswith("tar ") else (0,)), (line, done)
        ran += 1
    assert ran == len(list(shell_lines())) - 2
    collected = Path(site.places["/var/lib/node_exporter"])
    [file] = collected.iterdir()
    assert (file.name, bool(file.stat().st_size)) == ("deferred.prom", True)
    assert list(text_string_to_metric_families(file.read_text()))
    [backup] = Path(site.places["/var/backups"]).iterdir()
    assert "deferred/" in subprocess.check_output(["tar", "-tzf", backup], text=True)


def test_the_services_that_are_restarted_exist() -> None:
    names = set(re.findall(r"`/etc/systemd/system/([\w-]+)\.service`", TEXT))
    lines = [shlex.split(line) for line in shell_lines()]
    [restarted] = [line for line in lines if line[0] == "systemctl"]
    assert restarted[1] == "restart"
    assert set(restarted[2:]) <= names
    command = shlex.split(units()[3]["Service"]["ExecStart"])
    assert command[2].removesuffix(".service") in names


def test_the_web_servers_lines(site: Site) -> None:
    [line] = [shlex.split(line) for line in shell_lines() if line.startswith("gunicorn ")]
    done = site.run([*line, "--check-config"])
    assert done.returncode == 0, done.stderr
    parser = gunicorn.config.Config().parser()
    for line in (
        documents()["compose"]["services"]["web"]["command"],
        containers()["web"]["command"],
    ):
        assert line[0] == "gunicorn"
        options = parser.parse_args(line[1:])
        assert (options.args, options.bind) == (["shop.wsgi"], ["0.0.0.0:8000"])


def test_the_view_and_the_alerts_know_the_same_metrics(deferred_store: object) -> None:
    [code] = [code for code in blocks("python") if "def metrics" in code]
    names: dict[str, Any] = {}
    exec(code, names)
    response = names["metrics"](HttpRequest())
    assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    families = list(text_string_to_metric_families(response.content.decode()))
    there = {family.name: {tuple(s.labels.items()) for s in family.samples} for family in families}
    [group] = documents()["rules"]["groups"]
    used = set()
    for rule in group["rules"]:
        for name, label, value in re.findall(r'(deferred_\w+)(?:\{(\w+)="(\w+)"\})?', rule["expr"]):
            used.add(name)
            assert name in there
            assert not label or ((label, value),) in there[name]
    assert len(used) == 6
