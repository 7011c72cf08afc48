"""Values that travel by name: Enum members and model instances.

A member is found again by its class's module and name, an instance by its model, database and
primary key. What is found must be of the expected kind: nothing else is called, and attributes
are looked up in the module's and the classes' own dicts, so that no ``__getattr__`` runs either.
"""

from __future__ import annotations

import importlib
import sys
from enum import Enum, Flag
from types import ModuleType
from typing import Any

from django.apps import apps
from django.db.models import Model

MAX_STEPS = 20
"""So many of the steps to a value stand in a message: what contains itself has no last one."""


class NotCarriedError(Exception):
    """A value that no argument can be or contain.

    ``path`` leads to it from the argument, innermost step first. ``error`` is the class of the
    exception that the caller gets.
    """

    def __init__(self, reason: str, error: type[Exception] = TypeError) -> None:
        super().__init__(reason)
        self.reason = reason
        self.error = error
        self.path: list[str] = []
        self.in_key = False

    def for_argument(self, name: str, task: str) -> Exception:
        """The exception for the caller: which argument of which task, where in it, and why."""
        steps = self.path[::-1]
        where = "".join(steps[:MAX_STEPS]) + ("…" if len(steps) > MAX_STEPS else "")
        found = f"{name}{where}: {self.reason}" if where else self.reason
        return self.error(f"argument {name!r} of {task}: {found}")


def short(value: object) -> str:
    """A short text for a key in a message; never fails."""
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 60 else text[:57] + "..."


# -- Enum members ----------------------------------------------------------------------------


def describe_member(member: Enum) -> list[Any]:
    """``[module, class, name]``, or the number in the name's place for a combination of flags."""
    kind = type(member)
    module, qualname = kind.__module__, kind.__qualname__
    if module == "__main__":
        raise NotCarriedError(
            f"{qualname} is defined in __main__, which is another module in a worker"
        )
    if _walk(sys.modules.get(module), qualname) is not kind:
        raise NotCarriedError(f"{module}.{qualname} cannot be found again by that name")
    key: Any = member._name_
    if key not in kind.__members__ and isinstance(member, Flag):
        key = member._value_
        if type(key) is not int:
            raise NotCarriedError(f"a combination of {module}.{qualname} that is not a number")
    try:
        found: Enum | None = _look_up(kind, key)
    except LookupError:
        found = None
    # Some releases of Python 3.11 make a new object for each combination with bits of no name.
    if found is not member and not (
        isinstance(found, Flag) and type(found) is kind and found._value_ == key
    ):
        raise NotCarriedError(
            f"this member of {module}.{qualname} cannot be found again by its name"
        )
    return [module, qualname, key]


def find_member(module: object, qualname: object, key: object) -> Enum:
    """The member that :func:`describe_member` described; imports the module.

    Raises ``ValueError`` if there is no such Enum class, ``KeyError`` if it lacks the member.
    """
    if not isinstance(module, str) or not all(map(str.isidentifier, module.split("."))):
        raise ValueError(f"{module!r:.200} is no module's name")
    if not isinstance(qualname, str) or not isinstance(key, str | int):
        raise ValueError(f"{qualname!r:.200} and {key!r:.200} are no names of a member")
    kind = _walk(importlib.import_module(module), qualname)
    if not (isinstance(kind, type) and issubclass(kind, Enum)):
        raise ValueError(f"{module}.{qualname} is not an Enum class")
    return _look_up(kind, key)


def _look_up(kind: type[Enum], key: str | int) -> Enum:
    if isinstance(key, int) and issubclass(kind, Flag):
        return kind(key)
    return kind[str(key)]


def _walk(module: ModuleType | None, qualname: str) -> object:
    found: object = module
    for name in qualname.split("."):
        if not isinstance(found, ModuleType | type):
            return None
        found = vars(found).get(name)
    return found


# -- model instances -------------------------------------------------------------------------


def describe_instance(instance: Model) -> tuple[str, str, str, Any]:
    """App label, model name, database alias and primary key (as it is) of a saved instance."""
    model = instance.__class__
    options, alias, pk = model._meta, instance._state.db, instance.pk
    try:
        registered = apps.get_model(options.app_label, options.model_name)
    except LookupError:
        registered = None
    if registered is not model:
        raise NotCarriedError(
            f"{model.__module__}.{model.__qualname__} is not a model of this project"
        )
    missing = None in pk if isinstance(pk, tuple) else pk is None
    if missing or alias is None or instance._state.adding:
        raise NotCarriedError(f"this {options.label} is not saved", ValueError)
    return options.app_label, str(options.model_name), alias, pk


def find_instance(app_label: str, model_name: str, alias: str, pk: Any) -> Model:
    """The instance as it is in the database now.

    Raises ``ValueError`` for what names no model, ``LookupError`` if the project has no such
    model, the model's ``DoesNotExist`` if the row is gone, and whatever the database raises.
    """
    if not all(isinstance(name, str) for name in (app_label, model_name, alias)):
        raise ValueError(f"{app_label!r:.60}, {model_name!r:.60} is no model")
    model = apps.get_model(app_label, model_name)
    instance: Model = model._base_manager.using(alias).get(pk=pk)
    return instance
