"""What tables and texts of all formats share: numbers as text, the best of a column, folding."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from gflowout.studies.framework.content import OURS, PAPER, Cell, Column, Table, Text

ARROWS = {"high": "↑", "low": "↓", None: ""}
FOLDED = 6
"""Longer lists of details are folded."""
HEADINGS = {OURS: "Measured here", PAPER: "Figures of the paper"}
"""Above the rows of a source."""


class Figure(NamedTuple):
    """A cell as text, its value to sort by, and whether it is the best of its column."""

    mean: str
    error: str
    value: float | None
    best: bool


class Line(NamedTuple):
    """A row as text, with its position in the table."""

    position: int
    title: str
    figures: list[Figure]


class Group(NamedTuple):
    """Rows of one source; the heading is empty where all rows are ours."""

    source: str
    heading: str
    lines: list[Line]


def groups(table: Table) -> list[Group]:
    """Rows as text, by source: ours first, the paper's last."""
    marked = best(table)
    sources = sorted(
        dict.fromkeys(row.source for row in table.rows),
        key=lambda source: (source != OURS, source == PAPER),
    )
    lines: dict[str, list[Line]] = {source: [] for source in sources}
    for index, row in enumerate(table.rows):
        figures = [
            Figure(*figure(cell, column), cell.mean, (index, place) in marked)
            for place, (cell, column) in enumerate(zip(row.cells, table.columns, strict=True))
        ]
        lines[row.source].append(Line(index, row.title, figures))
    return [
        Group(source, "" if sources == [OURS] else HEADINGS.get(source, source), lines[source])
        for source in sources
    ]


def figure(cell: Cell, column: Column) -> tuple[str, str]:
    """Mean and standard error as text; empty where there is none.

    Examples:
        >>> figure(Cell(0.9712, 0.0021, 9), Column("accuracy", "high", digits=1, percent=True))
        ('97.1', '0.2')
        >>> figure(Cell(text="as above"), Column("setting"))
        ('as above', '')
        >>> figure(Cell(), Column("nll"))
        ('-', '')
        >>> figure(Cell(float("nan"), runs=3), Column("nll"))
        ('NaN', '')
    """
    if cell.text:
        return cell.text, ""
    if cell.mean is None:
        return "-", ""
    if math.isnan(cell.mean):
        return "NaN", ""
    error = None if cell.error is None or math.isnan(cell.error) else cell.error
    return _number(cell.mean, column), "" if error is None else _number(error, column)


def heading(column: Column, space: str = " ") -> str:
    """Title, unit and direction of a column, with this space between them.

    Examples:
        >>> heading(Column("accuracy", "high", percent=True)), heading(Column("seconds"))
        ('accuracy (%) ↑', 'seconds')
    """
    unit = "(%)" if column.percent and "%" not in column.title else ""
    return space.join(filter(None, [column.title, unit, ARROWS[column.better]]))


def best(table: Table) -> set[tuple[int, int]]:
    """Places (row, column) of the best numbers: for each source and column the best as shown.

    A column is marked where at least two rows can be compared and they do not all show the same.
    """
    places: set[tuple[int, int]] = set()
    for source in dict.fromkeys(row.source for row in table.rows):
        for place, column in enumerate(table.columns):
            if column.better is None:
                continue
            values = {
                index: float(figure(row.cells[place], column)[0])
                for index, row in enumerate(table.rows)
                if row.source == source and _comparable(row.cells[place])
            }
            if len(set(values.values())) < 2:
                continue
            top = max(values.values()) if column.better == "high" else min(values.values())
            places |= {(index, place) for index, value in values.items() if value == top}
    return places


def note(tables: Iterable[Table]) -> str:
    """What the numbers are: means over how many runs, whether there are errors, what is marked.

    Examples:
        >>> from gflowout.studies.framework.content import Row
        >>> column = Column("nll", "low")
        >>> note([Table("", "", [column], [Row("a", [Cell(1, 0.1, 3)]), Row("b", [Cell(2)])])])
        'Mean ± standard error over 3 runs. Bold: best.'
    """
    tables = list(tables)
    cells = [cell for table in tables for row in table.rows for cell in row.cells]
    runs = sorted({cell.runs for cell in cells if cell.runs and not cell.text})
    parts = []
    if runs:
        span = str(runs[0]) if len(runs) == 1 else f"{runs[0]} to {runs[-1]}"
        errors = any(cell.error is not None and not math.isnan(cell.error) for cell in cells)
        what = "Mean ± standard error over" if errors else "Mean over"
        parts.append("One run each." if runs == [1] else f"{what} {span} runs.")
    if any(best(table) for table in tables):
        both = any(len({row.source for row in table.rows}) > 1 for table in tables)
        parts.append("Bold: best, the paper's rows apart." if both else "Bold: best.")
    return " ".join(parts)


def caption(table: Table) -> str:
    """The table's own caption and the note on its numbers."""
    return " ".join(filter(None, [table.caption, note([table])]))


def folded(text: Text) -> str | None:
    """The visible line of a text that is folded; ``None`` for one that is not.

    Examples:
        >>> folded(Text(["One.", "Two."])), folded(Text(["One."], "Details"))
        (None, 'Details')
        >>> folded(Text(["The first of many sentences."] * 9))
        '9 sentences: The first of many sentences. ...'
    """
    if text.title or len(text.paragraphs) <= FOLDED:
        return text.title or None
    first = " ".join(text.paragraphs[0].split())
    start = first if len(first) <= 60 else first[:60].rsplit(" ", 1)[0]
    return f"{len(text.paragraphs)} sentences: {start} ..."


def check(table: Table) -> None:
    """Refuse a table whose rows do not fit its columns."""
    for row in table.rows:
        if len(row.cells) != len(table.columns):
            raise ValueError(
                f"table {table.title!r}: row {row.title!r} has {len(row.cells)} cells for "
                f"{len(table.columns)} columns"
            )


def _comparable(cell: Cell) -> bool:
    return not cell.text and cell.mean is not None and not math.isnan(cell.mean)


def _number(value: float, column: Column) -> str:
    text = f"{100 * value if column.percent else value:.{column.digits}f}"
    return "0" + text[2:] if text.startswith("-0") and not float(text) else text
