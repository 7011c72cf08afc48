"""What was wanted and what was measured, as a table."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """One figure."""

    name: str
    wanted: str
    measured: str
    reached: bool | None = None
    """``None`` for a figure that is only told."""

    def row(self) -> tuple[str, ...]:
        """The cells of its line in the table."""
        verdict = {None: "", True: "ok", False: "LOW"}[self.reached]
        return self.name, self.wanted, self.measured, verdict


def print_targets(targets: list[Target]) -> bool:
    """Print the table; whether all was reached."""
    rows = [("", "wanted", "measured", ""), *(target.row() for target in targets)]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join(cells).rstrip())
    return all(target.reached is not False for target in targets)
