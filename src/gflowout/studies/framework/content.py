"""What a report says: tables and their numbers as text, plots, pictures, sentences and claims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

Better = Literal["high", "low"]
OURS, PAPER = "ours", "paper"
ARROWS = {"high": "↑", "low": "↓", None: ""}
FOLDED = 6
"""Longer lists of details are folded."""
HEADINGS = {OURS: "Measured here", PAPER: "Numbers of the paper"}
"""Above the rows of a source."""


# Tables


@dataclass(frozen=True)
class Cell:
    """A number in a table."""

    mean: float | None = None  # over runs
    error: float | None = None  # standard error of the mean, if it is known
    runs: int = 0  # 0 for a number of the paper
    text: str = ""  # instead of a number
    interval: tuple[float, float] | None = None  # ends of a bar's whisker, instead of the error

    @property
    def comparable(self) -> bool:
        """Whether the cell shows a number."""
        return not self.text and self.mean is not None and not math.isnan(self.mean)

    @property
    def has_error(self) -> bool:
        """Whether the standard error is known."""
        return self.error is not None and not math.isnan(self.error)


@dataclass(frozen=True)
class Column:
    """A column of numbers."""

    title: str
    better: Better | None = None  # None marks no best
    digits: int = 3  # after the point
    percent: bool = False  # show fractions as percentages

    def heading(self, space: str = " ") -> str:
        """Title, unit and direction, with this space between them.

        Examples:
            >>> Column("accuracy", "high", percent=True).heading(), Column("seconds").heading()
            ('accuracy (%) ↑', 'seconds')
        """
        unit = "(%)" if self.percent and "%" not in self.title else ""
        return space.join(filter(None, [self.title, unit, ARROWS[self.better]]))

    def shown(self, cell: Cell) -> tuple[str, str]:
        """Mean and standard error of a cell as text; empty where there is none.

        Examples:
            >>> Column("accuracy", "high", digits=1, percent=True).shown(Cell(0.9712, 0.0021, 9))
            ('97.1', '0.2')
            >>> column = Column("nll")
            >>> column.shown(Cell(text="as above")), column.shown(Cell())
            (('as above', ''), ('-', ''))
            >>> column.shown(Cell(float("nan"), runs=3))
            ('NaN', '')
        """
        if cell.text or cell.mean is None:
            return cell.text or "-", ""
        if math.isnan(cell.mean):
            return "NaN", ""
        error = cell.error if cell.has_error else None
        return self._number(cell.mean), "" if error is None else self._number(error)

    def _number(self, value: float) -> str:
        text = f"{100 * value if self.percent else value:.{self.digits}f}"
        return "0" + text[2:] if text.startswith("-0") and not float(text) else text


@dataclass(frozen=True)
class Row:
    """A row: one method, measured by us or taken from the paper."""

    title: str
    cells: Sequence[Cell]
    source: str = OURS


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


@dataclass(frozen=True)
class Table:
    """A table; the best of each column is marked among rows of one source."""

    title: str
    head: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    caption: str = ""
    ties: frozenset[tuple[int, int]] | None = None
    """Places (row, column) of the best and those not significantly different, where known."""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row.cells) != len(self.columns):
                raise ValueError(
                    f"table {self.title!r}: row {row.title!r} has {len(row.cells)} cells for "
                    f"{len(self.columns)} columns"
                )

    @property
    def best(self) -> set[tuple[int, int]]:
        """Places (row, column) of the best numbers: the ties, or for each source the best as shown.

        A column is marked where at least two rows can be compared and do not all show the same.
        """
        if self.ties is not None:
            return set(self.ties)
        places: set[tuple[int, int]] = set()
        for source in dict.fromkeys(row.source for row in self.rows):
            for place, column in enumerate(self.columns):
                values = {
                    index: float(column.shown(row.cells[place])[0])
                    for index, row in enumerate(self.rows)
                    if column.better and row.source == source and row.cells[place].comparable
                }
                if len(set(values.values())) > 1:
                    top = (max if column.better == "high" else min)(values.values())
                    places |= {(index, place) for index, value in values.items() if value == top}
        return places

    @property
    def groups(self) -> list[Group]:
        """Rows as text, by source: ours first, the paper's last."""
        best, lines = self.best, dict[str, list[Line]]()
        for index, row in enumerate(self.rows):
            figures = [
                Figure(*column.shown(cell), cell.mean, (index, place) in best)
                for place, (cell, column) in enumerate(zip(row.cells, self.columns, strict=True))
            ]
            lines.setdefault(row.source, []).append(Line(index, row.title, figures))
        headings = HEADINGS if set(lines) != {OURS} else {OURS: ""}
        return [
            Group(source, headings.get(source, source), lines[source])
            for source in sorted(lines, key=lambda source: (source != OURS, source == PAPER))
        ]

    @property
    def note(self) -> str:
        """What the numbers are: means over how many runs, with errors or not, and what is marked.

        Examples:
            >>> rows = [Row("a", [Cell(1, 0.1, 3)]), Row("b", [Cell(2)])]
            >>> Table("", "", [Column("nll", "low")], rows).note
            'Mean ± standard error over 3 runs. Bold: best.'
        """
        cells = [cell for row in self.rows for cell in row.cells]
        runs = sorted({cell.runs for cell in cells if cell.runs and not cell.text})
        parts = []
        if runs:
            span = str(runs[0]) if len(runs) == 1 else f"{runs[0]} to {runs[-1]}"
            errors = " ± standard error" if any(cell.has_error for cell in cells) else ""
            parts.append("One run each." if runs == [1] else f"Mean{errors} over {span} runs.")
        if self.ties:
            parts.append("Bold: the best, and all that are not significantly different from it.")
        elif self.best:
            both = len({row.source for row in self.rows}) > 1
            which = " of our rows, and best of the paper's" if both else ""
            parts.append(f"Bold: best{which}.")
        return " ".join(parts)

    @property
    def full_caption(self) -> str:
        """The caption and the note on the numbers."""
        return " ".join(filter(None, [self.caption, self.note]))


# Plots and pictures


@dataclass(frozen=True)
class Series:
    """A curve, with standard errors where they are known."""

    title: str
    x: Sequence[float]
    y: Sequence[float]
    error: Sequence[float] | None = None
    source: str = OURS


@dataclass(frozen=True)
class Curves:
    """Curves in one plot; each can be switched off."""

    title: str
    x: str
    y: str
    series: Sequence[Series]
    caption: str = ""
    percent: bool = False


@dataclass(frozen=True)
class Points:
    """Points in a plane, such as log q against log R, in groups that can be switched off."""

    title: str
    x: str
    y: str
    series: Sequence[Series]
    caption: str = ""


@dataclass(frozen=True)
class Bars:
    """Bars in groups: one group for each label, one bar in it for each series."""

    title: str
    y: str
    labels: Sequence[str]
    series: Sequence[tuple[str, Sequence[Cell]]]
    caption: str = ""


@dataclass(frozen=True)
class Heat:
    """A heat map, such as keep rates of units by class."""

    title: str
    x: str
    y: str
    values: Sequence[Sequence[float]]
    columns: Sequence[str] = ()
    rows: Sequence[str] = ()
    low: float | None = None
    high: float | None = None
    caption: str = ""


@dataclass(frozen=True)
class Picture:
    """An input and what a model says of it."""

    png: str  # base64 of a PNG
    title: str  # such as its true class
    probabilities: Sequence[float]  # mean over draws, by class
    spread: Sequence[float] = ()  # standard deviation over draws, by class
    uncertainty: float | None = None  # the score by which pictures are sorted


@dataclass(frozen=True)
class Pictures:
    """Pictures from certain to uncertain."""

    title: str
    classes: Sequence[str]
    pictures: Sequence[Picture]
    caption: str = ""


# Sentences


@dataclass(frozen=True)
class Text:
    """Sentences, a paragraph each; those with a title are details that a page folds."""

    paragraphs: Sequence[str]
    title: str = ""

    @property
    def folded(self) -> str | None:
        """The visible line of a text that is folded; ``None`` for one that is not.

        Examples:
            >>> Text(["One.", "Two."]).folded, Text(["One."], "Details").folded
            (None, 'Details')
            >>> Text(["The first of many sentences."] * 9).folded
            '9 sentences: The first of many sentences. ...'
        """
        if self.title or len(self.paragraphs) <= FOLDED:
            return self.title or None
        first = " ".join(self.paragraphs[0].split())
        start = first if len(first) <= 60 else first[:60].rsplit(" ", 1)[0]
        return f"{len(self.paragraphs)} sentences: {start} ..."


Verdict = Literal[
    "reproduced", "not reproduced", "tested on a stand-in", "not testable here",
    "holds", "does not hold", "open",
]  # fmt: skip
"""On the paper's claims the first four, on our own the others."""


@dataclass(frozen=True)
class Claim:
    """Something that the paper says, or that we do, and what was found here."""

    claim: str
    verdict: Verdict
    why: str


Plot = Curves | Points | Bars | Heat
PLOTS = (Curves, Points, Bars, Heat)
Block = Table | Plot | Pictures | Text


@dataclass(frozen=True)
class Section:
    """What a study says."""

    findings: Sequence[str] = ()  # plain sentences for the summary, the most important first
    blocks: Sequence[Block] = ()  # tables, plots and texts in the order of reading
    claims: Sequence[Claim] = ()
    data: Sequence[str] = ()  # names of the data that were used
