"""The DEFERRED setting: what is taken, what is refused, and in which words."""

from __future__ import annotations

import contextlib
import decimal
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings
from django.utils.safestring import SafeString

from deferred_django import conf, get_backend, get_queue
from deferred_django.backends.base import Backend, BackendConfig
from deferred_django.backends.disk import DiskBackend
from deferred_django.backends.disk.names import StoreNames
from deferred_django.backends.none import NoneBackend

UNSET = object()


class OtherBackend(NoneBackend):
    """A project's own backend."""


class ClosableBackend(NoneBackend):
    """Notes that it was closed."""

    closed = 0

    def close(self) -> None:
        type(self).closed += 1


class BreakingBackend(NoneBackend):
    """Cannot be closed."""

    def close(self) -> None:
        raise OSError("the disk is gone")


class HungryBackend(NoneBackend):
    def __init__(self, config: BackendConfig, more: str) -> None:
        super().__init__(config)


class UnfinishedBackend(Backend):
    """Lacks nearly everything."""


def not_a_class() -> None:
    """Not a backend at all."""


@contextlib.contextmanager
def setting(value: Any) -> Iterator[None]:
    """DEFERRED as ``value``, or not set at all."""
    if value is not UNSET:
        with override_settings(DEFERRED=value):
            yield
        return
    with override_settings():
        del settings.DEFERRED
        yield


def only_problem(value: Any) -> conf.Problem:
    """The one thing that is wrong with ``value``."""
    with setting(value):
        (problem,) = conf.problems()
        with pytest.raises(ImproperlyConfigured) as raised:
            get_backend()
        with pytest.raises(ImproperlyConfigured):
            get_queue()
    assert str(raised.value) == str(problem)
    return problem


# -- defaults --------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [UNSET, {}])
def test_no_setting_is_the_disk_backend_with_the_defaults(value: Any, tmp_path: Path) -> None:
    with override_settings(BASE_DIR=tmp_path), setting(value):
        loaded = conf.load()
    assert loaded.backend == "disk"
    assert loaded.backend_class is DiskBackend
    assert loaded.config.path == tmp_path / "storage"
    assert loaded.config.prefix == "deferred-"
    assert loaded.config.fsync_frequency == 0.5
    assert loaded.config.file_permissions == 0o600
    assert loaded.config.options == {}
    assert not (tmp_path / "storage").exists()


def test_every_problem_is_found_at_once() -> None:
    with override_settings(DEFERRED={"PATH": 1, "PREFIX": 2, "FSYNC_FREQUENCY": "x", "NEW": 1}):
        found = conf.problems()
        with pytest.raises(ImproperlyConfigured) as raised:
            conf.load()
    assert [problem.code for problem in found] == ["E002", "E004", "E005", "E006"]
    assert str(raised.value).splitlines() == [str(problem) for problem in found]


@pytest.mark.parametrize("value", [None, [], "disk", 1, {"disk"}])
def test_a_setting_that_is_no_dict(value: Any) -> None:
    problem = only_problem(value)
    assert problem.code == "E001"
    assert "DEFERRED must be a dict" in problem.message


# -- keys ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("PATHS", 'Did you mean "PATH"?'),
        ("prefix", 'Did you mean "PREFIX"?'),
        ("FSYNC_FREQUENZY", 'Did you mean "FSYNC_FREQUENCY"?'),
        ("DLQ_PATH", None),
        ("backpressure", 'Did you mean "BACKPRESSURE"?'),
        (7, None),
        (None, None),
    ],
)
def test_an_unknown_key(key: Any, hint: str | None) -> None:
    problem = only_problem({key: 1})
    assert problem.code == "E002"
    assert repr(key) in problem.message
    assert all(f'"{known}"' in problem.message for known in conf.KEYS)
    if hint:
        assert problem.hint == hint


def test_another_backend_may_have_keys_of_its_own() -> None:
    with override_settings(DEFERRED={"BACKEND": "tests.test_conf.OtherBackend", "URL": "x:1"}):
        backend = get_backend()
        assert type(backend) is OtherBackend
        assert backend.config.options == {"URL": "x:1"}


# -- BACKEND ---------------------------------------------------------------------------------------


def test_the_named_backends() -> None:
    with override_settings(DEFERRED={"BACKEND": None}):
        assert type(get_backend()) is NoneBackend
    with override_settings(DEFERRED={"BACKEND": SafeString("disk")}):
        assert type(get_backend()) is DiskBackend
        assert type(conf.load().backend) is str


@pytest.mark.parametrize(
    "value", ["", "none", "Disk", "redis", "sql", 0, False, DiskBackend, b"disk", ["disk"]]
)
def test_a_backend_that_is_none(value: Any) -> None:
    problem = only_problem({"BACKEND": value})
    assert problem.code == "E003"
    assert 'DEFERRED["BACKEND"]' in problem.message
    assert 'allowed are "disk", None and the dotted path' in problem.message
    assert problem.hint == ('Did you mean "disk"?' if value == "Disk" else None)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("shop.backends.Redis", "could not be imported (ModuleNotFoundError"),
        ("tests.test_conf.Missing", "could not be imported (ImportError"),
        ("tests.test_conf.not_a_class", "is not a subclass"),
        ("tests.test_conf.Path", "is not a subclass"),
        ("tests.test_conf.UnfinishedBackend", 'does not define "_store_dead_task", "add_task"'),
        (".x", "could not be imported"),
    ],
)
def test_a_dotted_path_that_leads_to_no_backend(value: str, reason: str) -> None:
    problem = only_problem({"BACKEND": value})
    assert problem.code == "E003"
    assert repr(value) in problem.message
    assert reason in problem.message


# -- PATH ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [str, Path])
def test_a_relative_path_is_taken_from_base_dir_once(
    base: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with override_settings(BASE_DIR=base(tmp_path), DEFERRED={"PATH": "var/queue"}):
        backend = get_backend()
        monkeypatch.chdir("/")
        assert get_backend() is backend
        assert backend.config.path == tmp_path / "var" / "queue"


def test_a_relative_base_dir_is_where_the_process_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with override_settings(BASE_DIR=".", DEFERRED={}):
        path = get_backend().config.path
    assert path == tmp_path / "storage"


@pytest.mark.parametrize("value", ["/tmp/app [v2]/q s", SafeString("/srv/x"), Path("/srv/../x")])
def test_an_absolute_path_is_taken_as_it_is(value: Any) -> None:
    with override_settings(DEFERRED={"PATH": value}):
        assert conf.load().config.path == Path(value)


@pytest.mark.parametrize("value", ["", None, 7, b"/tmp/x", "/tmp/\0x", ["/tmp"], True])
def test_a_path_that_is_none(value: Any) -> None:
    problem = only_problem({"PATH": value})
    assert problem.code == "E004"
    assert f'DEFERRED["PATH"] is {value!r}' in problem.message


@pytest.mark.parametrize("value", ["~/storage", "~shop/storage", Path("~/storage")])
def test_a_home_directory_is_not_guessed(value: Any) -> None:
    problem = only_problem({"PATH": value})
    assert problem.code == "E004"
    assert "not expanded" in problem.message


@pytest.mark.parametrize("value", [{}, {"PATH": "var"}])
def test_a_relative_path_without_a_base_dir(value: Any) -> None:
    with override_settings():
        del settings.BASE_DIR
        problem = only_problem(value)
        assert problem.code == "E004"
        assert "no BASE_DIR" in problem.message
        assert problem.hint == "Set it to an absolute path."
        with override_settings(DEFERRED={"PATH": "/srv/queue"}):
            assert conf.problems() == []
        with override_settings(DEFERRED={"BACKEND": None}):
            assert conf.problems() == []


# -- PREFIX ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["", "shop[1]-", "a*-", "app-0-", "ü-", ".hidden", "a b?", "x."])
def test_prefixes_of_any_ordinary_characters(value: str) -> None:
    """C13, C14: names are compared, never globbed, so no character is special."""
    with override_settings(DEFERRED={"PREFIX": value}):
        assert conf.load().config.prefix == value


@pytest.mark.parametrize(
    "value",
    [
        "a/b",
        "/",
        "..",
        "../x",
        "a..b",
        "a\0",
        "a\nb",
        "a\x7f",
        "a\x85",
        "a\u2028",
        "\udcff",
        "é" * 91,
        None,
        7,
        b"app-",
        Path("app-"),
    ],
)
def test_prefixes_that_cannot_begin_a_file_name(value: Any) -> None:
    """C14"""
    problem = only_problem({"PREFIX": value})
    assert problem.code == "E005"
    assert 'DEFERRED["PREFIX"]' in problem.message


def test_the_longest_prefix_leaves_room_for_every_name() -> None:
    with override_settings(DEFERRED={"PREFIX": "x" * conf.MAX_PREFIX_BYTES}):
        assert conf.problems() == []
    assert only_problem({"PREFIX": "x" * (conf.MAX_PREFIX_BYTES + 1)}).code == "E005"


# -- FSYNC_FREQUENCY and FILE_PERMISSIONS ----------------------------------------------------------


@pytest.mark.parametrize("value", [0, 0.0, 0.25, 5, 86400, 10**9])
def test_frequencies(value: float) -> None:
    with override_settings(DEFERRED={"FSYNC_FREQUENCY": value}):
        read = conf.load().config.fsync_frequency
    assert (read, type(read)) == (value, float)


@pytest.mark.parametrize(
    "value",
    [-1, -0.1, math.nan, math.inf, 10**400, True, False, None, "0.5", decimal.Decimal(1)],
)
def test_frequencies_that_are_none(value: Any) -> None:
    problem = only_problem({"FSYNC_FREQUENCY": value})
    assert problem.code == "E006"
    assert 'DEFERRED["FSYNC_FREQUENCY"]' in problem.message


@pytest.mark.parametrize("value", [0o600, 0o640, 0o644, 0o660, 0o664, 0o666])
def test_permissions(value: int) -> None:
    with override_settings(DEFERRED={"FILE_PERMISSIONS": value}):
        assert conf.load().config.file_permissions == value


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (600, "Did you mean 0o600?"),
        (660, "Did you mean 0o660?"),
        ("0600", "Did you mean 0o600?"),
        ("0o640", "Did you mean 0o640?"),
        (0o400, None),
        (0o200, None),
        (0o700, None),
        (0o1600, None),
        (-1, None),
        (0, None),
        (True, None),
        (None, None),
        (0o600 + 0.0, None),
        ("rw-------", None),
    ],
)
def test_permissions_that_are_none(value: Any, hint: str | None) -> None:
    problem = only_problem({"FILE_PERMISSIONS": value})
    assert problem.code == "E007"
    assert 'DEFERRED["FILE_PERMISSIONS"]' in problem.message
    if hint:  # in the words of the settings
        assert f" is {value!r};" in problem.message
    assert problem.hint == hint


def test_values_that_cannot_be_shown() -> None:
    class Unshowable:
        def __repr__(self) -> str:
            raise RuntimeError

    assert "<Unshowable>" in only_problem({"PREFIX": Unshowable()}).message
    assert len(only_problem({"PREFIX": ["x" * 5000]}).message) < 300


# -- one facade per setting ------------------------------------------------------------------------


def test_override_settings_takes_effect_at_once_and_closes_the_old_backend() -> None:
    before = get_backend()
    assert get_backend() is before
    assert get_queue() is get_queue()
    ClosableBackend.closed = 0
    with override_settings(DEFERRED={"BACKEND": "tests.test_conf.ClosableBackend"}):
        inside = get_backend()
        queue = get_queue()
        assert type(inside) is ClosableBackend
        assert ClosableBackend.closed == 0
    assert ClosableBackend.closed == 1
    assert get_backend() is not inside
    assert get_queue() is not queue
    assert type(get_backend()) is type(before)


def test_a_backend_that_cannot_be_closed_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with override_settings(DEFERRED={"BACKEND": "tests.test_conf.BreakingBackend"}):
        get_backend()
    assert "could not be closed" in caplog.text
    assert "the disk is gone" in caplog.text


def test_two_backends_are_never_built_at_once() -> None:
    from concurrent.futures import ThreadPoolExecutor

    with override_settings(DEFERRED={"BACKEND": None}), ThreadPoolExecutor(8) as pool:
        assert len({id(backend) for backend in pool.map(lambda _: get_backend(), range(64))}) == 1


def test_every_file_name_fits_behind_the_longest_prefix(tmp_path: Path) -> None:
    names = StoreNames(str(tmp_path), "x" * conf.MAX_PREFIX_BYTES)
    longest = f"{names.new_segment()}.damaged.99999"
    assert len(longest.encode()) < 240  # with room for a longer pid
    assert names.is_segment(names.new_segment())


def test_a_backend_that_wants_more_than_a_config() -> None:
    with (
        override_settings(DEFERRED={"BACKEND": f"{__name__}.HungryBackend"}),
        pytest.raises(ImproperlyConfigured, match=r"HungryBackend cannot be built .* 'more'"),
    ):
        get_backend()
