"""A report as Markdown: sentences and tables, for documents and terminals.

Plots and folded details are left out: the page has them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

import jinja2

from gflowout.core.text import counted, duration, markdown_table
from gflowout.core.text import markdown as _escape
from gflowout.report import summary
from gflowout.report.build import Report
from gflowout.report.headline import QUESTION
from gflowout.report.html import environment
from gflowout.studies.framework.content import OURS, PLOTS, Figure, Table, Text


def document(report: Report) -> str:
    """The text of the document; only a table where all studies are the user's own."""
    if all(part.study is None for part in report.parts) and report.groups:
        return summary.markdown(report.groups) + "\n"
    return _template().render(report=report, facts=report.facts).rstrip() + "\n"


@cache
def _template() -> jinja2.Template:
    filters = {
        "counted": counted, "duration": duration, "fenced": _fenced,
        "md": _escape, "table": table,
    }  # fmt: skip
    markdown = environment(filters)
    markdown.tests |= {
        "plot": lambda block: isinstance(block, PLOTS),
        "table": lambda block: isinstance(block, Table),
        "text": lambda block: isinstance(block, Text),
    }
    markdown.globals["QUESTION"] = QUESTION
    return markdown.get_template("report.md.jinja")


def table(content: Table) -> str:
    """A table: the best numbers bold, the paper's rows last and labelled.

    Examples:
        >>> from gflowout.studies.framework.content import Cell, Column, Row
        >>> print(table(Table("", "method", [Column("NLL", "low", 2)], [
        ...     Row("mc", [Cell(0.5, 0.1, 3)]), Row("none", [Cell(0.25, 0.1, 3)]),
        ...     Row("mc", [Cell(0.3)], "paper")])))
        | method      |           NLL ↓ |
        |-------------|----------------:|
        | mc          |     0.50 ± 0.10 |
        | none        | **0.25 ± 0.10** |
        | mc, *paper* |            0.30 |
    """
    rows = [[_escape(content.head), *(_escape(column.heading()) for column in content.columns)]]
    for group in content.groups:
        source = "" if group.source == OURS else f", *{_escape(group.source)}*"
        rows += [
            [_escape(line.title) + source, *map(_figure, line.figures)] for line in group.lines
        ]
    return markdown_table(rows, right=True)


def _figure(figure: Figure) -> str:
    text = _escape(figure.mean) + (f" ± {figure.error}" if figure.error else "")
    return f"**{text}**" if figure.best else text


def _fenced(lines: Iterable[str], language: str = "") -> str:
    """Lines of code as a block that no text in them can end."""
    code = "\n".join(lines)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", code)), default=0))
    return f"{fence}{language}\n{code}\n{fence}"
