"""Rows as aligned columns that fit the terminal.

A layout is a list of lines, each a list of columns: one line for a record where there is room,
several where there is not. The first layout whose columns all get what they need is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from deferred_django.console import text as texts
from deferred_django.console.output import Output

GAP = "  "
INDENT = "  "


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column; ``key`` is the cell's name in a row."""

    key: str
    title: str
    least: int | None = None
    """The columns it needs at least; what is longer may be cut. ``None``: it is never cut."""
    keep_end: bool = False
    """Leave out the beginning of a long text, not its end."""
    right: bool = False
    role: str | None = None
    """The role in Django's colour palette."""


Row = Mapping[str, str]
Layout = Sequence[Sequence[Column]]


def write_table(out: Output, rows: Sequence[Row], layouts: Sequence[Layout]) -> None:
    """Write the rows with a heading, in the first of ``layouts`` that fits."""
    safe = [{key: out.escape(cell) for key, cell in row.items()} for row in rows]
    layout = _choose(layouts, safe, out.columns)
    lines = [_Line(columns, safe, out.columns, _indent(n)) for n, columns in enumerate(layout)]
    titles = {column.key: column.title for columns in layout for column in columns}
    for line in lines:
        if line.heads:
            out.write(line.format(titles, out, heading=True) + "\n")
    for row in safe:
        if out.closed:
            return
        for line in lines:
            out.write(line.format(row, out) + "\n")


def _choose(layouts: Sequence[Layout], rows: Sequence[Row], columns: int | None) -> Layout:
    for layout in layouts[:-1]:
        if columns is None or all(
            len(_indent(n)) + _gaps(line) + sum(_need(column, rows) for column in line) <= columns
            for n, line in enumerate(layout)
        ):
            return layout
    return layouts[-1]


def _indent(line_number: int) -> str:
    return INDENT if line_number else ""


def _natural(column: Column, rows: Sequence[Row]) -> int:
    return max(texts.width(text) for text in [column.title, *(row[column.key] for row in rows)])


def _need(column: Column, rows: Sequence[Row]) -> int:
    natural = _natural(column, rows)
    return natural if column.least is None else min(natural, column.least)


def _gaps(line: Sequence[Column]) -> int:
    return len(GAP) * (len(line) - 1)


class _Line:
    """One line of a layout with its columns' widths."""

    def __init__(
        self, columns: Sequence[Column], rows: Sequence[Row], room: int | None, indent: str
    ) -> None:
        self.columns = columns
        self.heads = not indent or len(columns) > 1
        self.indent = indent
        self.widths = {column.key: _natural(column, rows) for column in columns}
        if room is not None:
            self._shrink(room - len(self.indent) - _gaps(columns))

    def _shrink(self, room: int) -> None:
        # Room is shared in proportion to the least widths. Columns that want less than their part
        # come first, so that what they leave goes to the others.
        least = {column.key: column.least for column in self.columns if column.least is not None}
        room -= sum(width for key, width in self.widths.items() if key not in least)
        rest = sum(least.values())
        for key in sorted(least, key=lambda key: self.widths[key] / least[key]):
            self.widths[key] = min(self.widths[key], max(room * least[key] // rest, 1))
            room -= self.widths[key]
            rest -= least[key]

    def format(self, cells: Row, out: Output, *, heading: bool = False) -> str:
        return self.indent + GAP.join(self._cells(cells, out, heading))

    def _cells(self, cells: Row, out: Output, heading: bool) -> Iterator[str]:
        for column in self.columns:
            columns, text = self.widths[column.key], cells[column.key]
            if column.least is not None:
                keep_end = column.keep_end and not heading
                text = texts.cut(text, columns, ellipsis=out.ellipsis, keep_end=keep_end)
            filling = " " * (columns - texts.width(text))
            styled = out.styled(text, "MIGRATE_HEADING" if heading else column.role)
            if column.right:
                yield filling + styled
            else:
                yield styled if column is self.columns[-1] else styled + filling
