"""A report as Markdown: sentences and tables, for documents and terminals. Plots are left out."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from gflowout.core.text import duration, markdown_table
from gflowout.report import plots, tables
from gflowout.report.build import Part, Report
from gflowout.studies.framework import summary
from gflowout.studies.framework.content import Claim, Column, Row, Table, Text

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~$])")
_INSIDE = re.compile(r"(?<=[A-Za-z0-9])\\_(?=[A-Za-z0-9])")


def document(report: Report) -> str:
    """The text of the document; only a table where all studies are the user's own.

    Args:
        report: From :func:`gflowout.report.build.build`.
    """
    if all(part.study is None for part in report.parts) and report.groups:
        return summary.markdown(list(report.groups)) + "\n"
    claims = [
        (part, claim)
        for part in report.parts
        if part.study is None or part.study.paper
        for claim in part.section.claims
    ]
    warning = [f"**{_escape(report.warning)}**"] if report.warning else []
    made = ["# Results", *warning, _told(report)]
    if claims:
        made += ["## What the paper says, and what became of it here", _claims(claims)]
    for part in report.parts:
        made += _part(part)
    return "\n\n".join([*made, *_facts(report)]) + "\n"


def table(content: Table) -> str:
    """A table: the best figures bold, the paper's rows last and labelled.

    Examples:
        >>> from gflowout.studies.framework.content import Cell
        >>> print(table(Table("", "method", [Column("NLL", "low", 2)], [
        ...     Row("mc", [Cell(0.5, 0.1, 3)]), Row("none", [Cell(0.25, 0.1, 3)]),
        ...     Row("mc", [Cell(0.3)], "paper")])))
        | method      |           NLL ↓ |
        |-------------|----------------:|
        | mc          |     0.50 ± 0.10 |
        | none        | **0.25 ± 0.10** |
        | mc, *paper* |            0.30 |
    """
    marked = tables.best(content)
    rows = [[_escape(content.head), *(_head(column) for column in content.columns)]]
    for source, group in tables.groups(content):
        label = "" if source == "ours" else f", *{_escape(source)}*"
        rows += [
            [_escape(row.title) + label, *_cells(row, index, content.columns, marked)]
            for index, row in group
        ]
    return markdown_table(rows, right=True)


def _told(report: Report) -> str:
    facts = report.facts
    trials = f" ({facts.trials} of them to tune)" if facts.trials else ""
    return (
        f"{facts.runs} runs{trials}, {duration(facts.seconds)} of computing. Figures are means ± "
        "standard errors over seeds; rows marked *paper* are the paper's own figures, all others "
        "were measured. The same with plots: "
        f"`{facts.commands[-1] if facts.commands else 'gflowout report RESULTS -o report.html'}`."
    )


def _claims(claims: Sequence[tuple[Part, Claim]]) -> str:
    rows = [["claim", "study", "here", "why"]]
    for part, claim in claims:
        texts = (claim.claim, part.name, claim.verdict, claim.why)
        row = [_escape(text).replace("\n", " ") for text in texts]
        row[2] = f"**{row[2]}**"
        rows.append(row)
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|---|---|---|---|", *lines[1:]])


def _part(part: Part) -> list[str]:
    named = f"{part.study.paper} of the paper" if part.study and part.study.paper else ""
    where = f" ({_escape(named or 'not in the paper')})" if part.study else ""
    made = [f"## {_escape(part.title)}"]
    if part.study:
        made.append(f"{_escape(part.study.question)}{where}")
    if part.section.findings:
        made.append("\n".join(f"- {_escape(text)}" for text in part.section.findings))
    if part.section.claims and part.study and not part.study.paper:  # others stand at the top
        made.append(_claims([(part, claim) for claim in part.section.claims]))
    for block in part.section.blocks:
        if isinstance(block, Text):
            made += _text(block)
        elif isinstance(block, Table):
            told = " ".join(filter(None, [block.caption, tables.note([block])]))
            made += [
                f"**{_escape(block.title)}**",
                table(block),
                *([_escape(told)] if told else []),
            ]
    count = sum(isinstance(block, plots.PLOTS) for block in part.section.blocks)
    seeds = len(part.seeds)
    if part.runs:
        also = f" {count} plot{'' if count == 1 else 's'} in the page." if count else ""
        made.append(
            f"{part.runs} run{'' if part.runs == 1 else 's'}, {seeds} "
            f"seed{'' if seeds == 1 else 's'}.{also}"
        )
    return made


def _text(block: Text) -> list[str]:
    folded = tables.folded(block)
    if folded is None:
        return [_escape(text) for text in block.paragraphs]
    listed = "\n".join(f"- {_escape(text)}" for text in block.paragraphs)
    return [f"<details><summary>{html.escape(folded)}</summary>", listed, "</details>"]


def _facts(report: Report) -> list[str]:
    facts = report.facts
    versions = ", ".join(f"{name} {' and '.join(found)}" for name, found in facts.versions.items())
    lines = [
        ("Data", "; ".join(_by_name(facts.data))),
        ("Seeds", ", ".join(map(str, facts.seeds))),
        ("Versions", versions),
        ("Code", "; ".join(facts.commits)),
        ("Machine", "; ".join(facts.machines)),
        ("Failed and left out", f"{facts.failed} of the runs" if facts.failed else ""),
    ]
    told = "\n".join(f"- {name}: {_escape(text)}" for name, text in lines if text)
    made = ["## How it was made", told] if told else []
    if facts.commands:
        made.append("```sh\n" + "\n".join(facts.commands) + "\n```")
    return made


def _head(column: Column) -> str:
    unit = " (%)" if column.percent and "%" not in column.title else ""
    return f"{_escape(column.title)}{unit} {tables.ARROWS[column.better]}".strip()


def _cells(
    row: Row, index: int, columns: Sequence[Column], marked: set[tuple[int, int]]
) -> list[str]:
    made = []
    for place, (cell, column) in enumerate(zip(row.cells, columns, strict=True)):
        mean, error = tables.figure(cell, column)
        text = _escape(mean) + (f" ± {error}" if error else "")
        made.append(f"**{text}**" if (index, place) in marked else text)
    return made


def _escape(text: str) -> str:
    """Text that Markdown takes as it is."""
    found = _SPECIAL.sub(r"\\\1", " ".join(str(text).split()))
    return _INSIDE.sub("_", found)  # an underscore inside a word is no emphasis


def _by_name(data: Iterable[str]) -> list[str]:
    """Names of data, those of parts gathered: "mnist, train" and "mnist, test" are one."""
    parts: dict[str, list[str]] = {}
    for name in data:
        own, _, part = name.partition(", ")
        parts.setdefault(own, []).extend([part] if part else [])
    return [f"{own} ({', '.join(each)})" if each else own for own, each in parts.items()]
