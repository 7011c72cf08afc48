"""A schedule: all that is needed to repeat what several processes did."""

from __future__ import annotations

import re
from dataclasses import dataclass

KILL, DROP = -1, -2
TO_THE_END = 1 << 30
Script = tuple[tuple[int, int], ...]
"""Who goes on for how many calls, or is killed by a SIGKILL (:data:`KILL`) or by what comes to the
same (:data:`DROP`, see ``child``); then each to its end in turn."""


@dataclass(frozen=True)
class Schedule:
    """All that is needed to repeat it."""

    store: str
    operations: tuple[str, ...]
    script: Script
    fine: bool = False
    """Stop at looks at the directory too."""

    def __str__(self) -> str:
        forms = {KILL: "k{}", DROP: "d{}", TO_THE_END: "{}x*"}
        steps = (forms.get(count, "{}x{}").format(who, count) for who, count in self.script)
        fine = "~" if self.fine else ":"
        return f"{self.store}:{'+'.join(self.operations)}{fine}{','.join(steps)}"

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """The schedule that was printed as ``text``; ``ValueError`` if it is none."""
        match = re.fullmatch(r"([a-z]+):([a-z+-]+)([:~])([0-9xkd*,]*)", text)
        if match is None:
            raise ValueError(f"{text!r} is no schedule")
        script = []
        for step in filter(None, match[4].split(",")):
            if step[0] in "kd":
                script.append((int(step[1:]), KILL if step[0] == "k" else DROP))
            else:
                who, _, count = step.partition("x")
                script.append((int(who), TO_THE_END if count == "*" else int(count)))
        return cls(match[1], tuple(match[2].split("+")), tuple(script), match[3] == "~")
