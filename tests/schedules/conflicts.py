"""Which calls of two processes can be told apart by their order.

To stop before a call that touches nothing of the other's comes to the same as to stop before the
next one: such places are left out. Calls meet in the bytes of a file, its locks, its name, or the
list of the directory, and conflict there if one of them changes it.
"""

from __future__ import annotations

from collections.abc import Iterable

Access = tuple[str, str, bool]
"""The file, what of it, and whether it is changed."""
Call = tuple[str, str]
DIRECTORY = "the directory"

_OF_A_FILE: dict[str, tuple[tuple[str, bool], ...]] = {
    "open_file": (("name", False), ("bytes", False)),
    "read_at": (("bytes", False),),
    "status": (("bytes", False),),
    "fstat": (("bytes", False),),
    "stat": (("name", False), ("bytes", False)),
    "is_at_path": (("name", False),),
    "write": (("bytes", True),),
    "truncate": (("bytes", True),),
    "create_file": (("name", True), ("bytes", True)),
    "rename": (("name", True), ("bytes", True)),
    "unlink": (("name", True), ("bytes", True)),
    "make_directory": (("name", True),),
    "try_lock": (("locks", True),),
    "unlock": (("locks", True),),
    "lock_is_held": (("locks", False),),
    "try_flock": (("locks", True),),
    "wait_flock": (("locks", True),),
    "unlock_flock": (("locks", True),),
}
_ANYTHING = (("name", True), ("bytes", True), ("locks", True))
"""What is not known here."""
_OF_THE_DIRECTORY = {"create_file", "rename", "unlink", "make_directory"}
_NOTHING = {"fsync", "fsync_directory", "fork"}
"""Nobody but a power cut sees those; what follows a fork is the child's."""


def accesses(calls: Iterable[Call]) -> frozenset[Access]:
    """What these calls touch."""
    found: set[Access] = set()
    for call, file in calls:
        if call in _NOTHING:
            continue
        if call == "listdir":
            found.add((DIRECTORY, "names", False))
            continue
        if call in _OF_THE_DIRECTORY:
            found.add((DIRECTORY, "names", True))
        parts = _OF_A_FILE.get(call, _ANYTHING)
        # A rename is told by its source: it changes the target, and a name aside of that.
        files = {file, file.removesuffix(".tmp")} if call == "rename" else {file}
        found.update((name, part, changed) for name in files for part, changed in parts)
    return frozenset(found)


def locked(calls: Iterable[Call]) -> set[str]:
    """The files whose locks these calls deal with."""
    return {file for file, part, _ in accesses(calls) if part == "locks"}


def meet(one: frozenset[Access], other: frozenset[Access]) -> bool:
    """Whether their order matters."""
    return any(
        (file, part, True) in other or (changed and (file, part, False) in other)
        for file, part, changed in one
    )
