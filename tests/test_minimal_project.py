"""A project with this app alone, and without a database, in processes of its own."""

from __future__ import annotations

import json
from pathlib import Path

from tests.harness import Project

SETTINGS = """
INSTALLED_APPS = ["deferred_django"]
DATABASES = {}
del DEFERRED, LOGGING
"""
TASKS = """
@deferred
def greet(name, *, times=1):
    note(*["hello", name] * times)

@deferred(max_retries=0)
def die():
    raise ValueError("for good")
"""


def test_check_enqueue_drain_and_list(tmp_path: Path) -> None:
    """Nothing is installed but the app; there is no database and no DEFERRED setting."""
    with Project(tmp_path, settings=SETTINGS, tasks=TASKS) as project:

        def manage(*arguments: str) -> str:
            done = project.manage(*arguments)
            assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
            return done.stdout

        assert "no issues" in manage("check")
        assert json.loads(manage("deadtasks", "list", "--format", "json")) == []
        assert not project.storage.exists()  # neither command has a reason to make it

        project.run(
            "greet.enqueue('world', times=2); die.enqueue(); greet.using(delay=600).enqueue('x')"
        )
        # The project's task module is in no installed app: it is imported by the tasks' names.
        project.drain()
        assert project.notes() == ["hello world hello world"]
        (dead,) = json.loads(manage("deadtasks", "list", "--format", "json"))
        assert dead["task_class"] == "app.tasks.die"
        assert dead["exception_class"] == "ValueError"
        assert dead["context"] == {"args": [], "kwargs": {}}

        project.run(
            """
            import io, json, sys
            from django.core.management import call_command

            def manage(*arguments):
                out = io.StringIO()
                call_command(*arguments, stdout=out)
                return out.getvalue()

            def counts():
                status = json.loads(manage("deferred_status", "--format", "json"))
                return status["pending"], status["delayed"], status["running"], status["dead"]

            assert counts() == (0, 1, 0, 1), counts()
            assert "app.tasks.die" in manage("deadtasks", "list")
            (dead,) = json.loads(manage("deadtasks", "list", "--format", "json"))
            assert "for good" in manage("deadtasks", "show", dead["id"])
            manage("deadtasks", "purge", "--all", "--noinput")
            assert counts() == (0, 1, 0, 0), counts()
            assert manage("deferred_verify")
            """
        )
