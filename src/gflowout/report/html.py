"""A report as one page that needs nothing else: no network, no other file.

All texts are escaped here. The page's style and scripts are the files in ``page``; they draw the
plots from JSON that is part of the page, and its content security policy lets nothing else run.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any, get_args

import gflowout
from gflowout.core.text import duration
from gflowout.report import blocks, colours, plots, tables, words
from gflowout.report.build import Facts, Part, Report
from gflowout.studies.framework.content import OURS, Claim, Table, Verdict

_DARK = {
    "page": "#121519",
    "card": "#1a1f24",
    "sunk": "#262c33",
    "text": "#e8ebee",
    "soft": "#a3adb7",
    "line": "#353d46",
    "grid": "#2a3138",
    "accent": "#ff8f5a",
    "best": "#4a3310",
    "good": "#4fcf9f",
    "bad": "#ff8a80",
    "none": "#a3adb7",
    "shade": "#000000aa",
}
_LIGHT = {
    "page": "#ffffff",
    "card": "#ffffff",
    "sunk": "#eef0f3",
    "text": "#111111",
    "soft": "#4a525a",
    "line": "#d6dbe1",
    "grid": "#e4e8ec",
    "accent": "#111111",
    "best": "#fff0d9",
    "good": "#0b7a56",
    "bad": "#b3261e",
    "none": "#5b6570",
    "shade": "transparent",
}
_INTRO = (
    "Dropout switches off units of a network at random. Asked several times, such a network gives "
    "several answers, and where they differ it is in doubt. GFlowOut learns which units to switch "
    "off, for each input, instead of leaving that to chance. Is its doubt then worth more? Below "
    "are the studies of its paper, done again: what they ask, what came out here, and what the "
    "paper reports."
)


def page(report: Report, title: str = "") -> str:
    """The text of the page.

    Args:
        report: From :func:`gflowout.report.build.build`.
        title: Heading; default: one that fits the studies.
    """
    slots = colours.slots(name for part in report.parts for name in plots.names(part.section))
    drawn: dict[str, Any] = {}
    parts = [_part(part, slots, drawn) for part in report.parts]
    papers = any(part.study is not None for part in report.parts)
    title = title or ("GFlowOut, measured again" if papers else "What came out")
    script = "".join(map(_read, ("axes.js", "plots.js", "page.js"))).strip()
    digest = base64.b64encode(hashlib.sha256(f"\n{script}\n".encode()).digest()).decode()
    contents = [("summary", "Summary"), *((_id(part), part.title) for part in report.parts)]
    return Template(_read("page.html")).substitute(
        title=escape(title),
        version=escape(gflowout.__version__),
        policy=f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'",
        style=_style(),
        contents="\n".join(
            f'<li><a href="#{name}">{escape(text)}</a></li>'
            for name, text in [*contents, ("facts", "How it was made")]
        ),
        body="\n".join([_summary(report, title, papers, slots), *parts]),
        footer=_footer(report.facts),
        data=plots.to_json({"plots": drawn}),
        script=script,
    )


# Summary


def _summary(report: Report, title: str, papers: bool, slots: Mapping[str, int]) -> str:
    claims = [
        (part, claim)
        for part in report.parts
        if part.study is None or part.study.paper
        for claim in part.section.claims
    ]
    made = [
        '<section class="summary" id="summary">',
        f"<h1>{escape(title)}</h1>",
        f'<p class="warning">{escape(report.warning)}</p>' if report.warning else "",
        f'<p class="lead">{escape(_INTRO)}</p>' if papers else "",
        _words(report, slots),
        _key_figures(report),
    ]
    if claims:
        made += [
            "<h3>What the paper says, and what became of it here</h3>",
            _tally([claim for _, claim in claims]),
            *(_verdicts(verdict, claims) for verdict in get_args(Verdict)),
        ]
    if len(report.parts) == 1 and report.parts[0].study is None:
        return "\n".join([*filter(None, made), "</section>"])
    made += ["<h3>Study by study</h3>" if claims else "", '<ul class="cards">']
    for part in report.parts:
        question = f'<p class="question">{escape(part.study.question)}</p>' if part.study else ""
        made.append(
            f'<li class="card"><h3><a href="#{_id(part)}">{escape(part.title)}</a></h3>{question}'
            + "".join(f"<p>{escape(text)}</p>" for text in part.section.findings[:2])
            + f'<p class="soft small">{escape(_extent(part))}</p></li>'
        )
    return "\n".join([*filter(None, made), "</ul>", "</section>"])


def _verdicts(verdict: str, claims: Sequence[tuple[Part, Claim]]) -> str:
    """The claims of one verdict; many that cannot be tested are folded away."""
    found = [(part, claim) for part, claim in claims if claim.verdict == verdict]
    if not found:
        return ""
    items = "".join(
        f'<li><p>{escape(claim.claim)} <a class="small" href="#{_id(part)}">{escape(part.name)}</a>'
        "</p></li>"
        for part, claim in found
    )
    head = f'<span class="verdict {blocks.css_class(verdict)}">{escape(verdict)}</span>'
    listed = f'<ul class="claims">{items}</ul>'
    if verdict == "not testable here" and len(found) > tables.FOLDED:
        return f'<details class="more"><summary>{head}: {len(found)}</summary>{listed}</details>'
    return f'<div class="verdicts"><h4>{head}</h4>{listed}</div>'


def _key_figures(report: Report) -> str:
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
    figures = [
        (str(len(report.parts)), "study" if len(report.parts) == 1 else "studies"),
        (str(len(methods)), "methods"),
        (str(len(data)), "data set" if len(data) == 1 else "data sets"),
        (f"{facts.runs:,}", f"runs, {facts.trials:,} of them to tune" if facts.trials else "runs"),
        (duration(facts.seconds), "of computing"),
    ]
    cells = "".join(
        f"<li><b>{escape(value)}</b><span>{escape(what)}</span></li>"
        for value, what in figures
        if value != "0"
    )
    return f'<ul class="numbers">{cells}</ul>'


def _tally(claims: Sequence[Claim]) -> str:
    counts = Counter(claim.verdict for claim in claims)
    marks = " ".join(
        f'<span class="verdict {blocks.css_class(verdict)}">{counts[verdict]} '
        f"{escape(verdict)}</span>"
        for verdict in get_args(Verdict)
        if counts[verdict]
    )
    many = f"Of {len(claims)} claims of the paper" if len(claims) > 1 else "The paper's claim"
    return f'<p class="tally"><span>{many}:</span> {marks}</p>'


def _words(report: Report, slots: Mapping[str, int]) -> str:
    """Methods and measures of the page in a line each, folded."""
    names = dict.fromkeys(slots)
    texts: list[str] = []
    for part in report.parts:
        for block in part.section.blocks:
            if isinstance(block, Table):
                names |= dict.fromkeys(row.title for row in block.rows)
                texts += [column.title for column in block.columns]
            elif isinstance(block, plots.PLOTS):
                texts.append(block.y)
    known = [words.methods(names), words.measures(texts)]
    lists = "".join(
        "<dl>"
        + "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in each.items())
        + "</dl>"
        for each in known
        if each
    )
    head = "<summary>The methods and the measures, in a line each</summary>"
    return f'<details class="more words">{head}{lists}</details>' if lists else ""


def _verdict(claim: Claim) -> str:
    return f'<span class="verdict {blocks.css_class(claim.verdict)}">{escape(claim.verdict)}</span>'


def _extent(part: Part) -> str:
    if not part.runs:
        return ""
    seeds = len(part.seeds)
    data = f" on {', '.join(part.section.data)}" if part.section.data else ""
    return (
        f"{part.runs} run{'' if part.runs == 1 else 's'}, {seeds} seed{'' if seeds == 1 else 's'}"
        f"{data}"
    )


# Studies


def _part(part: Part, slots: Mapping[str, int], drawn: dict[str, Any]) -> str:
    section, study = part.section, part.study
    where = f"paper: {study.paper}" if study and study.paper else "not in the paper"
    tag = f' <span class="tag">{escape(where)}</span>' if study else ""
    made = [f'<section id="{_id(part)}">', f"<h2>{escape(part.title)}{tag}</h2>"]
    if study:
        made.append(f'<p class="question">{escape(study.question)}</p>')
    if section.findings:
        items = "".join(f"<li>{escape(text)}</li>" for text in section.findings)
        made.append(f'<ul class="findings">{items}</ul>')
    if section.claims:
        made += [
            '<ul class="claims">',
            *(
                f"<li>{_verdict(claim)}<div><p>{escape(claim.claim)}</p>"
                f'<p class="why">{escape(claim.why)}</p></div></li>'
                for claim in section.claims
            ),
            "</ul>",
        ]
    switches = blocks.switches(section, slots)
    for row in plots.rows(section.blocks):
        if isinstance(row[0], plots.PLOTS):
            made.append(switches)
            switches = ""
            figures = "".join(blocks.plot(block, slots, drawn, _id(part)) for block in row)
            kind = " one" if len(row) == 1 else " three" if len(row) % 3 == 0 else ""
            made.append(f'<div class="plots{kind}">{figures}</div>')
        else:
            made += [blocks.block(each) for each in row]
    extent = _extent(part)
    made.append(f'<p class="soft small">{escape(extent)}.</p>' if extent else "")
    return "\n".join([*filter(None, made), "</section>"])


# The rest


def _footer(facts: Facts) -> str:
    def code(text: str) -> str:
        return f"<code>{escape(text)}</code>"

    data = "<br>".join(
        f"{escape(name)} {code(text) if text else ''}".strip() for name, text in facts.data.items()
    )
    versions = ", ".join(f"{name} {' and '.join(found)}" for name, found in facts.versions.items())
    dates = facts.started if facts.started == facts.ended else f"{facts.started} to {facts.ended}"
    lines = [
        ("Data", data),
        ("Seeds", escape(", ".join(map(str, facts.seeds)))),
        ("Runs", escape(_runs(facts))),
        ("When", escape(dates)),
        ("Versions", escape(versions)),
        ("Code", "<br>".join(map(code, facts.commits))),
        ("Machine", "<br>".join(map(escape, facts.machines))),
        ("Make it again", f"<pre>{escape(chr(10).join(facts.commands))}</pre>"),
    ]
    told = "".join(f"<dt>{name}</dt><dd>{text}</dd>" for name, text in lines if text)
    return f'<div id="facts"><h2>How it was made</h2><dl>{told}</dl></div>'


def _runs(facts: Facts) -> str:
    if not facts.runs:
        return ""
    trials = f", {facts.trials} of them to tune" if facts.trials else ""
    failed = f"; {facts.failed} failed and are left out" if facts.failed else ""
    threads = " or ".join(map(str, facts.threads))
    each = f", {threads} thread{'' if threads == '1' else 's'} each" if threads else ""
    return f"{facts.runs} done{trials}{failed}; {duration(facts.seconds)} of computing{each}"


def _style() -> str:
    def variables(names: Mapping[str, str], series: Sequence[str], scheme: str) -> str:
        own = "".join(f"--{name}: {value}; " for name, value in names.items())
        return f"color-scheme: {scheme}; {own}" + "".join(
            f"--c{slot}: {value}; " for slot, value in enumerate(series)
        )

    slots = " ".join(f".s{slot} {{ --c: var(--c{slot}); }}" for slot in range(len(colours.LIGHT)))
    return Template(_read("style.css")).substitute(
        light=variables({}, colours.LIGHT, "light"),
        dim=variables(_DARK, colours.DARK, "dark"),
        paper=variables(_LIGHT, colours.LIGHT, "light"),
        slots=f"{slots} .ink {{ --c: var(--soft); }}",
    )


def _read(name: str) -> str:
    return (files("gflowout.report") / "page" / name).read_text(encoding="utf-8")


def _id(part: Part) -> str:
    """A name for links: letters of the study's name, which may be anything."""
    if part.study is not None:
        return part.study.name
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", part.name)
    return f"study-{plain}-{hashlib.sha256(part.name.encode()).hexdigest()[:4]}"
