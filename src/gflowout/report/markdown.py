"""A report as Markdown: sentences and tables, for documents and terminals. Plots are left out."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from gflowout.core.text import counted, duration, markdown_table
from gflowout.report import plots, tables
from gflowout.report.build import Part, Report
from gflowout.studies.framework import summary
from gflowout.studies.framework.content import OURS, Claim, Table, Text

_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~$])")
_INSIDE = re.compile(r"(?<=[A-Za-z0-9])\\_(?=[A-Za-z0-9])")


def document(report: Report) -> str:
    """The text of the document; only a table where all studies are the user's own.

    Args:
        report: From :func:`gflowout.report.build.build`.
    """
    if all(part.study is None for part in report.parts) and report.groups:
        return summary.markdown(list(report.groups)) + "\n"
    paragraphs = ["# Results"]
    if report.warning:
        paragraphs.append(f"**{_escape(report.warning)}**")
    paragraphs.append(_extent(report))
    if report.claims:
        paragraphs += [
            "## What the paper says, and what became of it here",
            _claims(report.claims),
        ]
    for part in report.parts:
        paragraphs += _part(part)
    return "\n\n".join([*paragraphs, *_facts(report)]) + "\n"


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
    heads = [_escape(tables.heading(column)) for column in content.columns]
    rows = [[_escape(content.head), *heads]]
    for group in tables.groups(content):
        source = "" if group.source == OURS else f", *{_escape(group.source)}*"
        rows += [
            [_escape(line.title) + source, *map(_figure, line.figures)] for line in group.lines
        ]
    return markdown_table(rows, right=True)


def _figure(figure: tables.Figure) -> str:
    text = _escape(figure.mean) + (f" ± {figure.error}" if figure.error else "")
    return f"**{text}**" if figure.best else text


def _extent(report: Report) -> str:
    facts = report.facts
    trials = f" ({facts.trials} of them to tune)" if facts.trials else ""
    return (
        f"{facts.runs} runs{trials}, {duration(facts.seconds)} of computing. Figures are means ± "
        "standard errors over seeds; rows marked *paper* are the paper's own figures, all others "
        "were measured. The same with plots: "
        f"`{facts.commands[-1] if facts.commands else 'gflowout report RESULTS -o report.html'}`."
    )


def _claims(claims: Sequence[tuple[Part, Claim]]) -> str:
    lines = ["| claim | study | here | why |", "|---|---|---|---|"]
    for part, claim in claims:
        texts = map(_escape, (claim.claim, part.name, claim.verdict, claim.why))
        lines.append("| {} | {} | **{}** | {} |".format(*texts))
    return "\n".join(lines)


def _part(part: Part) -> list[str]:
    section = part.section
    paragraphs = [f"## {_escape(part.title)}"]
    if part.study:
        where = f"{part.study.paper} of the paper" if part.study.paper else "not in the paper"
        paragraphs.append(f"{_escape(part.study.question)} ({_escape(where)})")
    if section.findings:
        paragraphs.append(_listed(section.findings))
    if section.claims and part.study and not part.study.paper:  # the paper's are at the top
        paragraphs.append(_claims([(part, claim) for claim in section.claims]))
    for block in section.blocks:
        if isinstance(block, Text):
            paragraphs += _text(block)
        elif isinstance(block, Table):
            caption = _escape(tables.caption(block))
            paragraphs += [f"**{_escape(block.title)}**", table(block)]
            paragraphs += [caption] if caption else []
    if part.runs:
        count = sum(isinstance(block, plots.PLOTS) for block in section.blocks)
        more = f" {counted(count, 'plot')} in the page." if count else ""
        paragraphs.append(f"{part.extent}.{more}")
    return paragraphs


def _text(block: Text) -> list[str]:
    folded = tables.folded(block)
    if folded is None:
        return [_escape(text) for text in block.paragraphs]
    summary_line = f"<details><summary>{html.escape(folded)}</summary>"
    return [summary_line, _listed(block.paragraphs), "</details>"]


def _facts(report: Report) -> list[str]:
    facts = report.facts
    lines = [
        ("Data", "; ".join(_by_name(facts.data))),
        ("Seeds", ", ".join(map(str, facts.seeds))),
        ("Versions", facts.packages),
        ("Code", "; ".join(facts.commits)),
        ("Machine", "; ".join(facts.machines)),
        ("Failed and left out", f"{facts.failed} of the runs" if facts.failed else ""),
    ]
    known = "\n".join(f"- {name}: {_escape(text)}" for name, text in lines if text)
    paragraphs = ["## How it was made", known] if known else []
    if facts.commands:
        paragraphs.append("```sh\n" + "\n".join(facts.commands) + "\n```")
    return paragraphs


def _listed(texts: Iterable[str]) -> str:
    return "\n".join(f"- {_escape(text)}" for text in texts)


def _escape(text: str) -> str:
    """Text that Markdown shows unchanged."""
    escaped = _SPECIAL.sub(r"\\\1", " ".join(str(text).split()))
    return _INSIDE.sub("_", escaped)  # an underscore inside a word is no emphasis


def _by_name(data: Iterable[str]) -> list[str]:
    """Names of data with their parts: "mnist (train, test)" for "mnist, train", "mnist, test"."""
    parts: dict[str, list[str]] = {}
    for name in data:
        own, _, part = name.partition(", ")
        parts.setdefault(own, []).extend([part] if part else [])
    return [f"{own} ({', '.join(names)})" if names else own for own, names in parts.items()]
