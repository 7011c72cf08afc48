"""The ``DEFERRED`` setting, validated into typed objects.

:func:`problems` says everything that is wrong with the setting and never raises; :func:`load`
gives the validated setting or raises ``ImproperlyConfigured`` with the same sentences. Neither
touches a file: whether ``PATH`` can be used is found out by the checks and at first use.
"""

from __future__ import annotations

import inspect
import os
import threading
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from deferred_django.backends.base import Backend, BackendConfig
from deferred_django.backends.disk import ofd
from deferred_django.conf_features import FEATURE_KEYS, Features, read_features
from deferred_django.conf_wording import SETTING, did_you_mean, is_int, is_number, listed, shown

BACKENDS: Final[Mapping[str | None, str]] = {
    "disk": "deferred_django.backends.disk.DiskBackend",
    None: "deferred_django.backends.none.NoneBackend",
}
"""The backends that have a name, and where their classes are."""

KEYS: Final = (
    "BACKEND",
    "PATH",
    "PREFIX",
    "FSYNC_FREQUENCY",
    "FILE_PERMISSIONS",
    *FEATURE_KEYS,
)
"""What ``DEFERRED`` may hold. A backend named by a dotted path may have keys besides these."""

DEFAULTS: Final = BackendConfig(path=Path("storage"))
"""What is not set. The path is below BASE_DIR, as every relative one."""
MAX_PREFIX_BYTES: Final = 180
"""A file name has 255 bytes at most; the longest that follows a prefix needs fewer than 75."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with the setting."""

    code: str
    """``E001`` and so on: one code for each kind, stable."""
    message: str
    """Names the key and the value, and says what is allowed."""
    hint: str | None = None

    def __str__(self) -> str:
        return f"{self.message} {self.hint}" if self.hint else self.message


@dataclass(frozen=True, slots=True)
class DeferredSettings:
    """The validated setting."""

    backend: str | None
    """As it was given: a name of :data:`BACKENDS` or a dotted path."""
    backend_class: type[Backend]
    config: BackendConfig
    features: Features


def load() -> DeferredSettings:
    """The setting as it stands now; ``ImproperlyConfigured`` if anything is wrong with it."""
    reading = _Reading.of_settings()
    if reading.problems or reading.backend_class is None:
        raise ImproperlyConfigured("\n".join(str(problem) for problem in reading.problems))
    return DeferredSettings(
        reading.backend, reading.backend_class, reading.config, reading.features
    )


def problems() -> list[Problem]:
    """Everything that is wrong with the setting; empty where :func:`load` succeeds."""
    return _Reading.of_settings().problems


@dataclass(slots=True)
class _Reading:
    """One pass over the setting: each method reads one key, or notes what is wrong with it."""

    values: Mapping[Any, Any]
    problems: list[Problem] = field(default_factory=list)
    backend: str | None = "disk"
    backend_class: type[Backend] | None = None
    config: BackendConfig = field(default=DEFAULTS)
    features: Features = field(default_factory=Features)

    @classmethod
    def of_settings(cls) -> _Reading:
        value = getattr(settings, SETTING, {})
        if not isinstance(value, Mapping):
            reading = cls({})
            reading.reject("E001", f"{SETTING} must be a dict, not {shown(value)}.")
            return reading
        reading = cls(value)
        reading.read_backend()
        options = reading.read_other_keys()
        reading.config = BackendConfig(
            path=reading.read_path(),
            prefix=reading.read_prefix(),
            fsync_frequency=reading.read_fsync_frequency(),
            file_permissions=reading.read_file_permissions(),
            options=options,
        )
        reading.features = read_features(reading.values, reading.reject)
        return reading

    def reject(self, code: str, message: str, hint: str | None = None) -> None:
        self.problems.append(Problem(code, message, hint))

    def read_other_keys(self) -> dict[str, Any]:
        others = [key for key in self.values if key not in KEYS]
        if self.backend not in BACKENDS:  # another's backend knows its own keys
            return {key: self.values[key] for key in others}
        for key in others:
            self.reject(
                "E002",
                f"{SETTING} has the unknown key {shown(key)}; it may have {listed(KEYS)}.",
                did_you_mean(str(key).upper(), KEYS),
            )
        return {}

    def read_backend(self) -> None:
        value = self.values.get("BACKEND", "disk")
        allowed = f"allowed are {listed(BACKENDS)} and the dotted path of a Backend class"
        if (value is None or isinstance(value, str)) and value in BACKENDS:
            self.backend = None if value is None else _plain(value)
            path = BACKENDS[self.backend]
        elif isinstance(value, str) and "." in value:
            self.backend = path = _plain(value)
        else:
            names = [name for name in BACKENDS if name is not None]
            self.reject(
                "E003",
                f'{SETTING}["BACKEND"] is {shown(value)}; {allowed}.',
                did_you_mean(value.lower(), names) if isinstance(value, str) else None,
            )
            return
        if self.backend == "disk" and not ofd.locks_are_supported():
            self.reject(
                "E008",
                "The disk backend needs open-file-description locks (Linux, macOS), which this "
                "platform does not have.",
                f'Set {SETTING}["BACKEND"] to {other_backends()}.',
            )
            return
        try:
            found = import_string(path)
        except Exception as error:  # the module is the project's: its import may raise anything
            self.reject(
                "E003",
                f'{SETTING}["BACKEND"] is {shown(value)}, which could not be imported '
                f"({type(error).__name__}: {error}); {allowed}.",
            )
            return
        if not isinstance(found, type) or not issubclass(found, Backend):
            wrong = "is not a subclass of deferred_django.backends.base.Backend"
        elif inspect.isabstract(found):
            missing = listed(sorted(found.__abstractmethods__))
            wrong = f"does not define {missing}"
        else:
            self.backend_class = found
            return
        self.reject("E003", f'{SETTING}["BACKEND"] is {shown(value)}, which {wrong}; {allowed}.')

    def read_path(self) -> Path:
        if "PATH" not in self.values:
            # A relative path, the default too, is taken from BASE_DIR, here and once. A backend
            # that keeps no files must not make a project set BASE_DIR.
            needed = self.backend == "disk"
            return self.below_base_dir(str(DEFAULTS.path), "is not set", needed=needed)
        value = self.values["PATH"]
        text = os.fspath(value) if isinstance(value, str | os.PathLike) else None
        if not isinstance(text, str) or not text or "\0" in text:
            self.reject(
                "E004",
                f'{SETTING}["PATH"] is {shown(value)}; it must be the path of a directory, '
                "a str or a pathlib.Path.",
            )
            return Path()
        text = _plain(text)
        if text.startswith("~"):
            self.reject(
                "E004",
                f'{SETTING}["PATH"] is {shown(text)}; the "~" of a shell is not expanded here.',
                "Write the home directory out, as in Path.home() / …",
            )
            return Path()
        if os.path.isabs(text):
            return Path(text)
        return self.below_base_dir(text, f"is the relative path {shown(text)}", needed=True)

    def below_base_dir(self, relative: str, what: str, *, needed: bool) -> Path:
        base = getattr(settings, "BASE_DIR", None)
        if isinstance(base, str | Path) and str(base):
            return Path(base, relative).absolute()
        if needed:
            self.reject(
                "E004",
                f'{SETTING}["PATH"] {what}, and the settings have no BASE_DIR to take it from.',
                "Set it to an absolute path.",
            )
        return Path(relative).absolute()

    def read_prefix(self) -> str:
        value = self.values.get("PREFIX", DEFAULTS.prefix)
        if not isinstance(value, str):
            wrong = f"is {shown(value)}; it must be a str"
        elif "/" in value or ".." in value:
            wrong = f'is {shown(value)}; it begins file names and must not hold "/" or ".."'
        elif not all(map(_may_be_in_a_name, value)):
            wrong = f"is {shown(value)}; it must not hold control characters"
        elif len(value.encode()) > MAX_PREFIX_BYTES:
            wrong = f"is {len(value.encode())} bytes long; {MAX_PREFIX_BYTES} are allowed"
        else:
            return _plain(value)
        self.reject("E005", f'{SETTING}["PREFIX"] {wrong}.')
        return DEFAULTS.prefix

    def read_fsync_frequency(self) -> float:
        value = self.values.get("FSYNC_FREQUENCY", DEFAULTS.fsync_frequency)
        # No thread can wait for longer, and NaN is neither above nor below anything.
        if is_number(value) and 0 <= value <= threading.TIMEOUT_MAX:
            return float(value)
        self.reject(
            "E006",
            f'{SETTING}["FSYNC_FREQUENCY"] is {shown(value)}; it must be a finite number of '
            "seconds, 0 (sync before enqueue returns) or more.",
        )
        return DEFAULTS.fsync_frequency

    def read_file_permissions(self) -> int:
        value = self.values.get("FILE_PERMISSIONS", DEFAULTS.file_permissions)
        if is_int(value):
            if value & 0o600 == 0o600 and value & ~0o666 == 0:
                return int(value)
            # Where the hint is for decimal digits, they are what stands in the settings.
            text = f"0o{value:o}" if value >= 0 and not _octal_hint(value) else str(value)
        else:
            text = shown(value)
        self.reject(
            "E007",
            f'{SETTING}["FILE_PERMISSIONS"] is {text}; it must be an int in which the owner may '
            "read and write and nobody may execute, such as 0o600, 0o640 or 0o660.",
            _octal_hint(value),
        )
        return DEFAULTS.file_permissions


def other_backends() -> str:
    """The backends besides ``disk``, for a sentence."""
    return f"{listed(name for name in BACKENDS if name != 'disk')} or the dotted path of another"


def _plain(text: str) -> str:
    """The characters of a ``str`` or a subclass (``str(SafeString)`` is a SafeString again)."""
    return str.__str__(text)


def _may_be_in_a_name(char: str) -> bool:
    # Cc: control characters; Cs: what no file name can encode; Zl, Zp: line ends to some readers.
    return unicodedata.category(char) not in ("Cc", "Cs", "Zl", "Zp")


def _octal_hint(value: object) -> str | None:
    # 600 and "0600" are what is written by those who know modes from chmod.
    digits = str(value).removeprefix("0o") if isinstance(value, str | int) else ""
    if len(digits.lstrip("0")) == 3 and set(digits) <= set("0246"):
        return f"Did you mean 0o{digits.lstrip('0')}?"
    return None
