"""Numbers and tables as plain text."""

from __future__ import annotations

import re
from collections.abc import Sequence

_MARKDOWN = re.compile(r"([\\`*_\[\]<>|#~$]|&(?=#?\w+;))")
_INSIDE = re.compile(r"(?<=[A-Za-z0-9])\\_(?=[A-Za-z0-9])")


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines, with columns of equal width.

    Examples:
        >>> aligned([["method", "nll"], ["mc", "0.21"]])
        ['method  nll', 'mc      0.21']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def markdown(text: str) -> str:
    r"""Text in one line that Markdown shows unchanged.

    Examples:
        >>> print(markdown("log_z = <b>|z|</b>"))
        log_z = \<b\>\|z\|\</b\>
    """
    escaped = _MARKDOWN.sub(r"\\\1", " ".join(str(text).split()))
    return _INSIDE.sub("_", escaped)  # an underscore inside a word is no emphasis


def inert(cell: str) -> str:
    """A cell of a CSV file that no spreadsheet runs as a formula: with an apostrophe before it.

    Numbers and all other texts stay as they are, but for carriage returns, which become spaces:
    they are not quoted, and what follows one would be a cell of its own.

    Examples:
        >>> inert("=1+1"), inert("-0.5"), inert("cat")
        ("'=1+1", '-0.5', 'cat')
    """
    line = cell.replace("\r", " ")
    if not cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return line
    try:
        float(cell)
    except ValueError:
        return f"'{line}"
    return line


def markdown_table(rows: Sequence[Sequence[str]], right: bool = False) -> str:
    """Rows, the first of them a heading, as a Markdown table with columns of equal width.

    Cells are escaped already. ``right`` aligns all columns but the first to the right.

    Examples:
        >>> print(markdown_table([["method", "nll"], ["mc", "0.2"]], right=True))
        | method | nll |
        |--------|----:|
        | mc     | 0.2 |
    """
    columns = []
    for place, column in enumerate(zip(*rows, strict=True)):
        width, numeric = max(map(len, column)), right and place > 0
        cells = [cell.rjust(width) if numeric else cell.ljust(width) for cell in column]
        rule = "-" * (width + 1) + (":" if numeric else "-")
        columns.append([f" {cells[0]} ", rule, *(f" {cell} " for cell in cells[1:])])
    return "\n".join(f"|{'|'.join(line)}|" for line in zip(*columns, strict=True))


def duration(seconds: float) -> str:
    """A length of time for people.

    Examples:
        >>> [duration(seconds) for seconds in (0.0042, 3.21, 75, 7322)]
        ['4.2 ms', '3.2 s', '1:15', '2:02:02']
    """
    if 0 < seconds < 0.95:
        return f"{1000 * seconds:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    hours, rest = divmod(round(seconds), 3600)
    minutes, rest = divmod(rest, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def counted(number: int, noun: str) -> str:
    """A number with its noun in the singular or plural.

    Examples:
        >>> counted(1, "run"), counted(2, "run")
        ('1 run', '2 runs')
    """
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
