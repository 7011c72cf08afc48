"""The names of tasks: which functions have one, and what a name leads to.

A task's name is its module's and its own, joined by a dot. Attributes are looked up in the
module's dict and nothing that is found is called.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from types import FunctionType
from typing import Any, cast

from deferred_django.backends import failures

MAIN = "__main__"


def find_imported(module_name: str, attribute: str) -> object:
    """What an imported module has by that name; ``None`` if there is nothing.

    ``__main__`` has nothing: in another process it is another module.
    """
    module = sys.modules.get(module_name)
    return None if module is None or module_name == MAIN else module.__dict__.get(attribute)


def find(name: str) -> object:
    """What a module, imported if need be, has by the dotted ``name``.

    Raises ``LookupError`` with the reason if the module is missing, fails to import or has no
    such attribute.
    """
    module_name, _, attribute = name.rpartition(".")
    found = find_imported(module_name, attribute)
    if found is not None:
        return found
    if module_name in ("", MAIN) or not all(map(str.isidentifier, name.split("."))):
        raise LookupError(f"{name!r} is not the dotted name of a function in a module")
    # Imported by another thread just now, it is in sys.modules already: this waits for the end.
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            raise LookupError(f"{name}: there is no module {missing!r}") from error
        reason = f"{type(error).__name__}: {failures.safe_str(error)}"
        raise LookupError(f"{name}: importing {module_name} raised {reason}") from error
    if attribute not in vars(module):
        raise LookupError(f"{name}: the module {module_name} has no {attribute!r}")
    return cast(object, vars(module)[attribute])


def why_not_found(name: str) -> str:
    """Why :func:`find_imported` found nothing."""
    module_name, _, attribute = name.rpartition(".")
    if module_name == MAIN:
        return "it is defined in __main__, which is another module in a worker: move it to one"
    return f"{module_name} has no {attribute!r} by which a worker could find it"


def module_level_function(func: Any) -> FunctionType:
    """``func``, if it is one that can be found by a name. ``TypeError`` that says why not."""
    problem = _problem_of(func)
    if problem:
        raise TypeError(f"@deferred takes a function at module level; {func!r} is {problem}")
    return cast(FunctionType, func)


def _problem_of(func: Any) -> str | None:
    if isinstance(func, staticmethod | classmethod):
        return f"a {type(func).__name__}: a worker has no class to find it in"
    if isinstance(func, functools.partial):
        return "a functools.partial, which has no name: decorate a function that calls it"
    if inspect.ismethod(func):
        return "a bound method, whose object no worker has"
    if inspect.isclass(func):
        return "a class"
    if not isinstance(func, FunctionType):
        return f"not a function written in Python, but of type {type(func).__name__}"
    qualname = func.__qualname__
    if func.__name__ == "<lambda>" or qualname.endswith("<lambda>"):
        return "a lambda, which has no name by which a worker could find it"
    if "<locals>" in qualname:
        return (
            "defined inside another function, where no worker can find it (if a decorator made "
            "it, that lacks functools.wraps)"
        )
    if "." in qualname:
        return "a method, and a worker has no object to call it on"
    if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        return "a generator function, whose body does not run when it is called"
    if not func.__module__ or func.__name__ != qualname:
        return "without a module and a name by which a worker could find it"
    return None
