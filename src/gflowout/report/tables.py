"""What tables and texts of all formats have in common: figures as text, which are best, what folds.

Knows nothing of any format.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from gflowout.studies.framework.content import OURS, PAPER, Cell, Column, Row, Table, Text

ARROWS = {"high": "↑", "low": "↓", None: ""}
FOLDED = 6
"""Longer lists of details are folded away."""
PAPERS = "Figures of the paper"
"""Heading above rows that were taken from it."""


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
    return _number(cell.mean, column), (
        "" if cell.error is None or math.isnan(cell.error) else _number(cell.error, column)
    )


def best(table: Table) -> set[tuple[int, int]]:
    """Places (row, column) of the best figures: for each source and column the best as shown.

    A column is marked where at least two rows can be compared and they do not all show the same.
    """
    found: set[tuple[int, int]] = set()
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
            found |= {(index, place) for index, value in values.items() if value == top}
    return found


def groups(table: Table) -> list[tuple[str, list[tuple[int, Row]]]]:
    """Rows with their index, by source: ours first, the paper's last."""
    rows = list(enumerate(table.rows))
    sources = sorted(
        dict.fromkeys(row.source for row in table.rows),
        key=lambda source: (source != OURS, source == PAPER),
    )
    return [(name, [pair for pair in rows if pair[1].source == name]) for name in sources]


def heading(source: str) -> str:
    """What stands above the rows of a source.

    Examples:
        >>> heading("paper")
        'Figures of the paper'
    """
    return {OURS: "Measured here", PAPER: PAPERS}.get(source, source)


def note(tables: Iterable[Table]) -> str:
    """What figures are: means over how many runs, whether there are errors, what is marked.

    Examples:
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


def folded(text: Text) -> str | None:
    """What stands for a text that is folded away; ``None`` for one that is not.

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


def check(table: Table) -> Table:
    """Return a table whose rows fit its columns.

    Raises:
        ValueError: If one does not.
    """
    for row in table.rows:
        if len(row.cells) != len(table.columns):
            raise ValueError(
                f"table {table.title!r}: row {row.title!r} has {len(row.cells)} cells for "
                f"{len(table.columns)} columns"
            )
    return table


def _comparable(cell: Cell) -> bool:
    return not cell.text and cell.mean is not None and not math.isnan(cell.mean)


def _number(value: float, column: Column) -> str:
    shown = f"{100 * value if column.percent else value:.{column.digits}f}"
    return "0" + shown[2:] if shown.startswith("-0") and not float(shown) else shown
