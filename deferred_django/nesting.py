"""How deep values stand inside each other, for JSON that anybody may have written.

What could just be parsed may be too deep for whatever walks it next, with a fuller stack: it would
fail where nobody expects a ``RecursionError``.
"""

from __future__ import annotations

from typing import Any

MAX_LEVELS = 320
"""Of JSON's lists and objects in each other: a task's arguments take up to three for each of a
hundred containers."""


def is_too_deep(value: Any, data: bytes) -> bool:
    """Whether ``value``, parsed from ``data``, has more than :data:`MAX_LEVELS` levels."""
    # Each level begins with a bracket: as a rule there are too few to look any further.
    if data.count(b"[") + data.count(b"{") <= MAX_LEVELS:
        return False
    containers: list[Any] = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_LEVELS):
        if not containers:
            return False
        containers = [
            item
            for each in containers
            for item in (each.values() if isinstance(each, dict) else each)
            if isinstance(item, dict | list)
        ]
    return bool(containers)
