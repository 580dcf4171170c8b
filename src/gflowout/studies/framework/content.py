"""What a report says, apart from how it looks: tables, curves, pictures and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

Better = Literal["high", "low"]
OURS, PAPER = "ours", "paper"


@dataclass(frozen=True)
class Cell:
    """A number in a table.

    Attributes:
        mean: Over runs.
        error: Standard error of the mean; ``None`` if it is not known.
        runs: How many; 0 for a number that was taken from the paper.
        text: Instead of a number.
        interval: Both ends of an interval, for bars; overrides ``error``.
    """

    mean: float | None = None
    error: float | None = None
    runs: int = 0
    text: str = ""
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Column:
    """A column of numbers.

    Attributes:
        title: Heading.
        better: Whether high or low numbers are good; ``None`` marks no best.
        digits: After the point.
        percent: Show fractions as percentages.
    """

    title: str
    better: Better | None = None
    digits: int = 3
    percent: bool = False


@dataclass(frozen=True)
class Row:
    """A row: one method, measured by us or taken from the paper."""

    title: str
    cells: Sequence[Cell]
    source: str = OURS


@dataclass(frozen=True)
class Table:
    """A table; the best of each column is marked among rows of one source."""

    title: str
    head: str
    columns: Sequence[Column]
    rows: Sequence[Row]
    caption: str = ""


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
    """An input and what a model says of it.

    Attributes:
        png: The image as base64 of a PNG.
        title: Such as its true class.
        probabilities: Mean over draws, by class.
        spread: Standard deviation over draws, by class.
        uncertainty: The score by which pictures are sorted.
    """

    png: str
    title: str
    probabilities: Sequence[float]
    spread: Sequence[float] = ()
    uncertainty: float | None = None


@dataclass(frozen=True)
class Pictures:
    """Pictures from certain to uncertain."""

    title: str
    classes: Sequence[str]
    pictures: Sequence[Picture]
    caption: str = ""


@dataclass(frozen=True)
class Text:
    """Sentences, a paragraph each.

    Attributes:
        title: Of a long list of details that not everyone reads: pages fold it away.
    """

    paragraphs: Sequence[str]
    title: str = ""


Verdict = Literal[
    "reproduced", "not reproduced", "not testable here", "holds", "does not hold", "open"
]


@dataclass(frozen=True)
class Claim:
    """Something that the paper says, or that we do, and what became of it here.

    Verdicts on the paper's claims say "reproduced", those on our own "holds".
    """

    claim: str
    verdict: Verdict
    why: str


Block = Table | Curves | Points | Bars | Heat | Pictures | Text


@dataclass(frozen=True)
class Section:
    """What a study says.

    Attributes:
        findings: Plain sentences for the summary, the most important first.
        blocks: Tables, plots and texts in the order in which they are read.
        claims: What the paper says, and whether it holds here.
        data: Names of the data that were used.
    """

    findings: Sequence[str] = ()
    blocks: Sequence[Block] = ()
    claims: Sequence[Claim] = ()
    data: Sequence[str] = field(default_factory=tuple)
