"""A report as one page that needs nothing else: no network, no other file.

The page, its style and its scripts are the files in ``templates``. Jinja2 escapes all texts; the
scripts draw the plots from JSON that is part of the page, and its content security policy lets
nothing else run.
"""

from __future__ import annotations

import base64
import hashlib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple, get_args

import jinja2

import gflowout
from gflowout.core.text import duration
from gflowout.report import plots, tables
from gflowout.report.build import Facts, Part, Report
from gflowout.studies.framework.arms import ARMS
from gflowout.studies.framework.content import OURS, Picture, Pictures, Points, Table, Verdict

SHOWN = 5
"""Classes of a picture that get a bar: the most probable, and the true one."""

GLOSSARY: dict[str, dict[str, str]] = tomllib.loads(
    (files("gflowout.report") / "templates" / "glossary.toml").read_text(encoding="utf-8")
)
"""Methods and measures in a line each, for readers who are new to them."""


class Bar(NamedTuple):
    """A class of a picture: its probability, and the ends of the whisker if there is one."""

    name: str
    share: float
    whisker: tuple[float, float] | None = None
    true: bool = False
    rest: bool = False


def page(report: Report, title: str = "") -> str:
    """The text of the page.

    Args:
        report: From :func:`gflowout.report.build.build`.
        title: Heading; default: one that fits the studies.
    """
    slots = plots.slots(name for part in report.parts for name in plots.names(part.section))
    drawn: dict[str, Any] = {}
    sections = [_section(part, slots, drawn) for part in report.parts]
    papers = any(part.study is not None for part in report.parts)
    environment = _environment()
    assert environment.loader is not None
    scripts = [
        environment.loader.get_source(environment, name)[0]
        for name in ("axes.js", "plots.js", "page.js")
    ]
    script = "".join(scripts).strip()
    digest = base64.b64encode(hashlib.sha256(f"\n{script}\n".encode()).digest()).decode()
    return environment.get_template("page.html.jinja").render(
        version=gflowout.__version__,
        title=title or ("GFlowOut, measured again" if papers else "What came out"),
        report=report,
        papers=papers,
        single=len(report.parts) == 1 and not papers,
        glossary=_glossary(report, slots),
        numbers=_numbers(report),
        verdicts={
            verdict: [pair for pair in report.claims if pair[1].verdict == verdict]
            for verdict in get_args(Verdict)
        },
        sections=sections,
        facts=report.facts,
        runs=_runs(report.facts),
        plots=drawn,
        light=plots.LIGHT,
        dark=plots.DARK,
        script=script,
        digest=digest,
    )


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gflowout.report", "templates"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    environment.filters |= {
        "anchor": anchor,
        "bars": bars,
        "css_class": lambda text: re.sub(r"[^a-z]+", "-", text.lower()),
        "heading": lambda column: tables.heading(column, "\N{NO-BREAK SPACE}"),
        "in_order": in_order,
    }
    environment.globals["tables"] = tables
    return environment


# Parts of the page as data for the templates


def _section(part: Part, slots: Mapping[str, int], drawn: dict[str, Any]) -> dict[str, Any]:
    """A study with its blocks in rows; data of its plots are added to those drawn so far."""
    names = sorted(plots.names(part.section), key=lambda name: slots[name])
    section: dict[str, Any] = {
        "part": part,
        "chips": [(name, slots[name]) for name in names],
        "paper": plots.has_paper(part.section),
        "rows": [],
    }
    for row in plots.rows(part.section.blocks):
        kind = type(row[0]).__name__.lower()
        if not isinstance(row[0], plots.PLOTS):
            section["rows"].append({"kind": kind, "block": row[0]})
            continue
        figures = []
        for block in row:
            assert isinstance(block, plots.PLOTS)
            own: Mapping[str, int] = {}
            if isinstance(block, Points):  # groups of its own, so colours of its own
                own = plots.slots((series.title for series in block.series), slots)
            key = f"{anchor(part)}-{len(drawn)}"
            drawn[key] = plots.data(block, own or slots)
            figures.append({"key": key, "block": block, "chips": list(own.items())})
        section["rows"].append({"kind": "plots", "figures": figures})
    return section


def anchor(part: Part) -> str:
    """A name for links, from the study's name, which may be any text."""
    if part.study is not None:
        return part.study.name
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", part.name)
    return f"study-{plain}-{hashlib.sha256(part.name.encode()).hexdigest()[:4]}"


def in_order(block: Pictures) -> list[Picture]:
    """Pictures from certain to uncertain; as they are where that is not known."""
    for picture in block.pictures:
        if not re.fullmatch(r"[A-Za-z0-9+/=\s]+", picture.png):
            raise ValueError(f"picture {picture.title!r}: png must be base64 of a PNG")
    if any(picture.uncertainty is None for picture in block.pictures):
        return list(block.pictures)
    return sorted(block.pictures, key=lambda picture: picture.uncertainty or 0.0)


def bars(picture: Picture, classes: Sequence[str]) -> list[Bar]:
    """The most probable classes and the true one; the last bar is the sum of all others."""
    title = picture.title.strip().lower()
    names = [str(name) for name in classes]
    truth = [i for i, name in enumerate(names) if title in (name.lower(), f"true: {name.lower()}")]
    shares = picture.probabilities
    order = sorted(range(len(shares)), key=lambda index: -shares[index])
    shown = order[:SHOWN]
    if truth and truth[0] < len(order) and truth[0] not in shown:
        shown[-1] = truth[0]
    rows = []
    for index in shown:
        share = min(1.0, max(0.0, shares[index]))
        spread = picture.spread[index] if index < len(picture.spread) else 0.0
        whisker = (max(0.0, share - spread), min(1.0, share + spread)) if spread > 0 else None
        name = names[index] if index < len(names) else str(index)
        rows.append(Bar(name, share, whisker, true=index in truth[:1]))
    if len(shown) < len(order):
        rows.append(Bar("others", 1 - sum(shares[index] for index in shown), rest=True))
    return rows


def _numbers(report: Report) -> list[tuple[str, str]]:
    """Key numbers of a report, each with its noun."""
    facts = report.facts
    methods = {
        row.title
        for part in report.parts
        for block in part.section.blocks
        if isinstance(block, Table) and block.head.lower() == "method"
        for row in block.rows
        if row.source == OURS
    }
    data = {name for part in report.parts for name in part.section.data}
    numbers = [
        (str(len(report.parts)), "study" if len(report.parts) == 1 else "studies"),
        (str(len(methods)), "methods"),
        (str(len(data)), "data set" if len(data) == 1 else "data sets"),
        (f"{facts.runs:,}", f"runs, {facts.trials:,} of them to tune" if facts.trials else "runs"),
        (duration(facts.seconds), "of computing"),
    ]
    return [pair for pair in numbers if pair[0] != "0"]


def _runs(facts: Facts) -> str:
    if not facts.runs:
        return ""
    trials = f", {facts.trials} of them to tune" if facts.trials else ""
    failed = f"; {facts.failed} failed and are left out" if facts.failed else ""
    threads = " or ".join(map(str, facts.threads))
    each = f", {threads} thread{'' if threads == '1' else 's'} each" if threads else ""
    return f"{facts.runs} done{trials}{failed}; {duration(facts.seconds)} of computing{each}"


def _glossary(report: Report, slots: Mapping[str, int]) -> list[dict[str, str]]:
    """Methods and measures of the page in a line each."""
    names = dict.fromkeys(slots)
    texts: list[str] = []
    for part in report.parts:
        for block in part.section.blocks:
            if isinstance(block, Table):
                names |= dict.fromkeys(row.title for row in block.rows)
                texts += [column.title for column in block.columns]
            elif isinstance(block, plots.PLOTS):
                texts.append(block.y)
    return [words for words in (methods(names), measures(texts)) if words]


def methods(names: Iterable[str]) -> dict[str, str]:
    """Those of some names that are labels or titles of methods, by title, with a line on each.

    Examples:
        >>> list(methods(["mc", "GFlowOut", "mine"]))
        ['MC dropout (mc)', 'GFlowOut']
    """
    names = set(names)
    words = {}
    for label, text in GLOSSARY["methods"].items():
        title = ARMS[label].title if label in ARMS else label
        if title in names:
            words[title] = text
        elif label in names:
            words[f"{title} ({label})"] = text
    return words


def measures(texts: Iterable[str]) -> dict[str, str]:
    """Measures that some headings and labels name, with a line on each.

    Examples:
        >>> list(measures(["Accuracy, rotated", "snow: NLL", "test/ece"]))
        ['accuracy', 'NLL', 'ECE']
    """
    text = "\n".join(texts)
    return {
        name: line
        for name, line in GLOSSARY["measures"].items()
        if re.search(rf"\b({name}|{GLOSSARY['patterns'].get(name, name)})\b", text, re.IGNORECASE)
    }
