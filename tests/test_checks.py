"""The system checks, the app's start and the model that carries the permissions."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import Permission
from django.core import checks, management
from django.test import override_settings

from deferred_django import checks as deferred_checks
from deferred_django import conf, registry
from deferred_django.backends.disk import ofd
from deferred_django.models import DeadTask
from tests.support import run_python


def run() -> list[tuple[str | None, str]]:
    """What the registered checks say: (id, message)."""
    messages = checks.run_checks(tags=[deferred_checks.TAG])
    return [(message.id, message.msg) for message in messages]


def test_the_defaults_pass(tmp_path: Path) -> None:
    with override_settings(BASE_DIR=tmp_path, DEFERRED={}):
        assert run() == []
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (7, "E001"),
        ({"PATHS": "x"}, "E002"),
        ({"BACKEND": "redis"}, "E003"),
        ({"PATH": 7}, "E004"),
        ({"PREFIX": "a/b"}, "E005"),
        ({"FSYNC_FREQUENCY": -1}, "E006"),
        ({"FILE_PERMISSIONS": 0o777}, "E007"),
    ],
)
def test_what_is_wrong_with_the_setting_is_an_error_by_the_same_words(
    value: Any, code: str
) -> None:
    with override_settings(DEFERRED=value):
        (problem,) = conf.problems()
        assert run() == [(f"deferred_django.{code}", problem.message)]
        with pytest.raises(management.CommandError, match=f"deferred_django.{code}"):
            management.call_command("check")


CARRY = ["deferred_django.middleware.carry_log_context"]
SET = ["deferred_django.middleware.log_context"]


@pytest.mark.parametrize(
    ("lists", "missing"),
    [
        ({}, "no ENQUEUE_MIDDLEWARE and no PERFORM_MIDDLEWARE."),
        ({"PERFORM_MIDDLEWARE": SET}, "no ENQUEUE_MIDDLEWARE."),
        ({"ENQUEUE_MIDDLEWARE": CARRY}, "no PERFORM_MIDDLEWARE."),
        ({"ENQUEUE_MIDDLEWARE": CARRY, "PERFORM_MIDDLEWARE": SET}, None),
    ],
)
def test_a_log_context_that_nothing_carries_is_a_warning(
    lists: dict[str, Any], missing: str | None
) -> None:
    variables = {"LOG_CONTEXT_VARS": ["tests.testapp.middleware.tenant"]}
    with override_settings(DEFERRED={"BACKEND": None, **variables, **lists}):
        found = run()
    with override_settings(DEFERRED={"BACKEND": None, **lists}):
        assert run() == []
    if missing is None:
        assert found == []
    else:
        [(code, message)] = found
        assert code == "deferred_django.W005"
        assert message == f'DEFERRED["LOG_CONTEXT_VARS"] has no effect: there is {missing}'


def test_a_platform_without_the_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ofd, "locks_are_supported", lambda: False)
    with override_settings(DEFERRED={}):
        (message,) = checks.run_checks(tags=[deferred_checks.TAG])
    assert message.id == "deferred_django.E008"
    assert message.hint is not None
    assert "None" in message.hint
    with override_settings(DEFERRED={"BACKEND": None}):
        assert run() == []


def test_the_check_on_a_platform_that_is_not_posix() -> None:
    """The package is importable there, says what does not work, and the None backend works."""
    run_python(
        """
        import os, sys, threading

        import django
        from django.conf import settings
        from django.core import checks
        from django.core.exceptions import ImproperlyConfigured
        from django.test import override_settings

        sys.modules["fcntl"] = None
        del os.register_at_fork
        settings.configure(INSTALLED_APPS=["deferred_django"], DATABASES={}, BASE_DIR="/x")
        django.setup()
        from deferred_django import get_backend

        (error,) = checks.run_checks(tags=["deferred_django"])
        assert error.id == "deferred_django.E008", error
        assert "None" in error.hint, error.hint
        try:
            get_backend()
        except ImproperlyConfigured:
            pass
        else:
            raise AssertionError
        with override_settings(DEFERRED={"BACKEND": None}):
            assert checks.run_checks(tags=["deferred_django"]) == []
            get_backend()
        """
    )


def test_a_path_that_is_a_file_or_below_one(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "store"):
        with override_settings(DEFERRED={"PATH": path}):
            ((code, message),) = run()
        assert code == "deferred_django.W001"
        assert f"{tmp_path}/file is not a directory" in message


def test_a_path_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # For root everything is writable, so the answer is the system call's, not the mode's.
    asked: list[Any] = []

    def refuse(path: Any, mode: int) -> bool:
        asked.append(path)
        return False

    monkeypatch.setattr(os, "access", refuse)
    with override_settings(DEFERRED={"PATH": tmp_path / "new" / "store"}):
        ((code, message),) = run()
    assert code == "deferred_django.W001"
    assert "not writable" in message
    assert asked == [tmp_path]
    assert os.listdir(tmp_path) == []


def test_a_dangling_link_is_not_a_place(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert deferred_checks.cannot_be_written(tmp_path / "link") is not None
    (tmp_path / "nowhere").mkdir()
    assert deferred_checks.cannot_be_written(tmp_path / "link") is None


MOUNTINFO = r"""
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
23 22 0:40 / {root}/share rw,relatime shared:5 - nfs4 host:/export rw
24 22 0:41 / {root}/share/local rw - tmpfs tmpfs rw
25 22 0:42 / {root}/my\040disk rw - fuse.sshfs host:/ rw
26 22 0:43 / {root}/twice rw - ext4 /dev/sdb rw
27 22 0:44 / {root}/twice rw - cifs //host/x rw
not a line of mountinfo
"""


@pytest.mark.parametrize(
    ("place", "file_system"),
    [
        ("elsewhere", "ext4"),
        ("share", "nfs4"),
        ("share/store", "nfs4"),
        ("share-not", "ext4"),
        ("share/local/store", "tmpfs"),
        ("my disk/store", "fuse.sshfs"),
        ("twice", "cifs"),
        ("link", "nfs4"),
    ],
)
def test_the_file_system_of_a_path(tmp_path: Path, place: str, file_system: str) -> None:
    for name in ("share/local", "my disk", "twice", "share-not"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to("share")
    mounts = tmp_path / "mountinfo"
    mounts.write_text(MOUNTINFO.format(root=tmp_path))
    assert deferred_checks.file_system_of(tmp_path / place, str(mounts)) == file_system


def test_a_network_file_system_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deferred_checks, "file_system_of", lambda path: "nfs4")
    with override_settings(DEFERRED={"PATH": tmp_path}):
        ((code, message),) = run()
    assert code == "deferred_django.W002"
    assert str(tmp_path) in message
    assert "nfs4" in message


def test_a_system_without_mountinfo(tmp_path: Path) -> None:
    assert deferred_checks.file_system_of(tmp_path, str(tmp_path / "absent")) is None


# -- the app ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [7, {"BACKEND": "redis"}, {"PATH": "/proc/nowhere"}])
def test_ready_never_raises_and_touches_no_file(value: Any) -> None:
    with override_settings(DEFERRED=value):
        apps.get_app_config("deferred_django").ready()


def test_ready_builds_the_facade(tmp_path: Path) -> None:
    with override_settings(DEFERRED={"PATH": tmp_path / "store"}):
        apps.get_app_config("deferred_django").ready()
        assert registry._backend is registry.get_backend()
    assert os.listdir(tmp_path) == []


# -- permissions -----------------------------------------------------------------------------------


@pytest.mark.django_db
def test_the_permissions() -> None:
    """C59"""
    found = Permission.objects.filter(content_type__app_label="deferred_django")
    names = {permission.codename for permission in found}
    assert names == {"view_deadtask", "delete_deadtask", "retry_deadtask"}


@pytest.mark.django_db
def test_the_model_without_a_table_is_in_nobodys_way(
    capsys: pytest.CaptureFixture[str], django_assert_num_queries: Any
) -> None:
    with django_assert_num_queries(0):
        assert list(DeadTask.objects.all()) == []
        assert DeadTask._base_manager.count() == 0
    for options in ((), ("--all",)):
        management.call_command("dumpdata", "deferred_django", *options)
        assert capsys.readouterr().out.strip() == "[]"


@pytest.mark.django_db(databases=["default", "other"])
def test_no_migration_is_missing() -> None:
    management.call_command("makemigrations", "--check", "--dry-run", "-v", "0")
