"""A report as one page that needs nothing else: no network, no other file.

The page, its style and its scripts are the files in ``templates``. Jinja2 escapes all texts; the
scripts draw the plots from JSON that is part of the page, and its content security policy lets
nothing else run.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import groupby
from typing import Any, get_args

import jinja2

import gflowout
from gflowout.core.text import duration
from gflowout.report import headline
from gflowout.report.build import Part, Report
from gflowout.studies.framework import content
from gflowout.studies.framework.arms import ARMS

SHOWN = 5
"""Classes of a picture that get a bar: the most probable, and the true one."""


def read_toml(name: str) -> dict[str, Any]:
    """The content of a file in ``templates``."""
    return tomllib.loads((files(__package__) / "templates" / name).read_text(encoding="utf-8"))


GLOSSARY = read_toml("glossary.toml")
"""Methods and measures in a line each, for readers who are new to them."""
_COLOURS = read_toml("colours.toml")
LIGHT, DARK = _COLOURS["light"], _COLOURS["dark"]
_MAIN = [arm for arm in ARMS.values() if not arm.variant_of]
_OWN = {name: slot for slot, arm in enumerate(_MAIN) for name in (arm.label, arm.title)}
"""Slots of the arms that are no variants of others."""


def page(report: Report, title: str = "") -> str:
    """The text of the page; its title is by default one that fits the studies."""
    names = [name for part in report.parts for name in drawn_names(part.section)]
    slots = slots_of([*names, *(headline.SHOWN.values() if report.headline else ())])
    plots: dict[str, Any] = {}
    sections = [_section(part, slots, plots) for part in report.parts]
    papers = any(part.study is not None for part in report.parts)
    folder = files(__package__) / "templates"
    scripts = [(folder / name).read_text("utf-8") for name in ("axes.js", "plots.js", "page.js")]
    script = "".join(scripts).strip()
    digest = base64.b64encode(hashlib.sha256(f"\n{script}\n".encode()).digest()).decode()
    tables = [block for block in report.blocks if isinstance(block, content.Table)]
    template = _environment().get_template("page.html.jinja")
    return template.render(
        version=gflowout.__version__,
        title=title or (headline.QUESTION if report.headline else "What came out"),
        report=report,
        facts=report.facts,
        papers=papers,
        glossary=_glossary(report, tables, slots),
        methods={
            row.title
            for table in tables
            for row in table.rows
            if table.head.lower() == "method" and row.source == content.OURS
        },
        data={name for part in report.parts for name in part.section.data},
        verdicts={
            verdict: [pair for pair in report.claims if pair[1].verdict == verdict]
            for verdict in get_args(content.Verdict)
        },
        pictures=_pictures(report, slots),
        sections=sections,
        plots=plots,
        script=script,
        digest=digest,
    )


def environment(filters: Mapping[str, Any], **options: Any) -> jinja2.Environment:
    """What renders the templates of a format."""
    result = jinja2.Environment(
        loader=jinja2.PackageLoader("gflowout.report", "templates"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        **options,
    )
    result.filters |= filters
    return result


@cache
def _environment() -> jinja2.Environment:
    filters = {
        "anchor": anchor,
        "answer": answer,
        "bars": bars,
        "css_class": lambda text: re.sub(r"[^a-z]+", "-", text.lower()),
        "duration": duration,
        "in_order": in_order,
    }
    html = environment(filters, autoescape=True, keep_trailing_newline=True)
    html.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}
    html.globals |= {"NOTE": headline.NOTE, "light": LIGHT, "dark": DARK}
    return html


# Parts of the page as data for the templates


def _section(part: Part, slots: Mapping[str, int], plots: dict[str, Any]) -> dict[str, Any]:
    """A study with its blocks in rows; the data of its plots are added to ``plots``."""
    sources = {
        series.source
        for block in part.section.blocks
        if isinstance(block, content.Curves | content.Points)
        for series in block.series
    }
    rows: list[dict[str, Any]] = []
    for row in side_by_side(part.section.blocks):
        figures = []
        for block in row:
            if not isinstance(block, content.PLOTS):
                rows.append({"kind": type(block).__name__.lower(), "block": block})
                continue
            own: Mapping[str, int] = {}
            if isinstance(block, content.Points):  # groups of its own, so colours of its own
                own = slots_of((series.title for series in block.series), slots)
            key = f"{anchor(part)}-{len(plots)}"
            plots[key] = plot_data(block, own or slots)
            figures.append({"key": key, "block": block, "chips": list(own.items())})
        if figures:
            rows.append({"kind": "plots", "figures": figures})
    chips = [(name, slots[name]) for name in drawn_names(part.section)]
    chips.sort(key=lambda chip: chip[1])
    return {"part": part, "chips": chips, "paper": content.PAPER in sources, "rows": rows}


def _pictures(report: Report, slots: Mapping[str, int]) -> list[dict[str, Any]]:
    """The pictures of the headline, with places from 0 to 100 % of the width of a row."""
    pictures = []
    for picture in report.headline.pictures if report.headline else ():
        low, high = picture.ends
        scale = 100 / ((high - low) or 1)
        rows = [
            {
                "label": label,
                "marks": [
                    {
                        "title": headline.SHOWN[arm],
                        "text": "{:+.1f} % ({:+.1f} to {:+.1f})".format(*row[arm][:3]),
                        "slot": slots[headline.SHOWN[arm]],
                        "at": scale * (row[arm].mean - low),
                        "start": scale * (row[arm].low - low),
                        "width": scale * (row[arm].high - row[arm].low),
                    }
                    for arm in picture.arms
                    if arm in row
                ],
            }
            for label, row in picture.rows.items()
        ]
        pictures.append({
            "where": picture.panel.where,
            "rows": rows,
            "names": [(headline.SHOWN[arm], slots[headline.SHOWN[arm]]) for arm in picture.arms],
            "ends": (low, high),
            "zero": -scale * low,
        })  # fmt: skip
    return pictures


def anchor(part: Part) -> str:
    """A name for links, from the study's name, which may be any text."""
    if part.study is not None:
        return part.study.name
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", part.name)
    return f"study-{plain}-{hashlib.sha256(part.name.encode()).hexdigest()[:4]}"


def in_order(block: content.Pictures) -> list[content.Picture]:
    """Pictures from certain to uncertain; as they are where that is not known."""
    for picture in block.pictures:
        if not re.fullmatch(r"[A-Za-z0-9+/=\s]+", picture.png):
            raise ValueError(f"picture {picture.title!r}: png must be base64 of a PNG")
    if any(picture.uncertainty is None for picture in block.pictures):
        return list(block.pictures)
    return sorted(block.pictures, key=lambda picture: picture.uncertainty or 0.0)


def truth(picture: content.Picture, classes: Sequence[str]) -> int | None:
    """The true class of a picture, if its title names one."""
    title = picture.title.strip().lower().removeprefix("true: ")
    names = [str(name).lower() for name in classes]
    return names.index(title) if title in names else None


def answer(picture: content.Picture, classes: Sequence[str]) -> dict[str, Any]:
    """What a card says: what is true, what was predicted, and whether it is right if that is known.

    Examples:
        >>> answer(content.Picture("", "true: b", [0.7, 0.3]), ["a", "b"])
        {'title': 'true: b', 'predicted': 'a', 'right': False}
        >>> answer(content.Picture("", "a photo", [0.7, 0.3]), ["a", "b"])
        {'title': 'a photo', 'predicted': 'a', 'right': None}
    """
    true, shares = truth(picture, classes), picture.probabilities
    if not shares:
        return {"title": picture.title, "predicted": None, "right": None}
    most = max(range(len(shares)), key=shares.__getitem__)
    name = str(classes[most]) if most < len(classes) else str(most)
    title = picture.title if true is None else f"true: {classes[true]}"
    return {"title": title, "predicted": name, "right": None if true is None else most == true}


def bars(picture: content.Picture, classes: Sequence[str]) -> list[dict[str, Any]]:
    """The most probable classes and the true one; the last bar is the sum of all others.

    A bar has a share, and the ends of a whisker if the spread is known.
    """
    names = [str(name) for name in classes]
    true = truth(picture, classes)
    shares = picture.probabilities
    order = sorted(range(len(shares)), key=lambda index: -shares[index])
    shown = order[:SHOWN]
    if true is not None and true < len(order) and true not in shown:
        shown[-1] = true
    rows = []
    for index in shown:
        share = min(1.0, max(0.0, shares[index]))
        spread = picture.spread[index] if index < len(picture.spread) else 0.0
        whisker = (max(0.0, share - spread), min(1.0, share + spread)) if spread > 0 else None
        name = names[index] if index < len(names) else str(index)
        row = {"name": name, "share": share, "whisker": whisker, "true": index == true}
        rows.append(row)
    if len(shown) < len(order):
        rest = 1 - sum(shares[index] for index in shown)
        rows.append({"name": "others", "share": rest, "true": False, "rest": True})
    return rows


def _glossary(
    report: Report, tables: Sequence[content.Table], slots: Mapping[str, int]
) -> list[dict[str, str]]:
    """Methods and measures of the page in a line each."""
    names = [*slots, *(row.title for table in tables for row in table.rows)]
    texts = [column.title for table in tables for column in table.columns]
    texts += [block.y for block in report.blocks if isinstance(block, content.PLOTS)]
    return [words for words in (methods(names), measures(texts)) if words]


def methods(names: Iterable[str]) -> dict[str, str]:
    """Those of some names that are labels or titles of methods, by title, with a line on each."""
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
    """Measures that some headings and labels name, with a line on each."""
    text = "\n".join(texts)
    return {
        name: line
        for name, line in GLOSSARY["measures"].items()
        if re.search(rf"\b({name}|{GLOSSARY['patterns'].get(name, name)})\b", text, re.IGNORECASE)
    }


# Plots


def slots_of(names: Iterable[str], beside: Iterable[str] = ()) -> dict[str, int]:
    """The slot (colour and marker) of every name: arms have their own, others take the rest.

    If an arm is ``beside`` these names on the page, its colour stays free.

    Examples:
        >>> slots_of(["mc", "MC dropout", "mine", "GFlowOut", "yours"])
        {'mc': 1, 'MC dropout': 1, 'mine': 9, 'GFlowOut': 5, 'yours': 10}
    """
    names = list(dict.fromkeys(names))
    free = list(range(len(_MAIN), len(LIGHT)))
    if _OWN.keys().isdisjoint([*names, *beside]):  # without arms, others get the best colours
        free = [5, 6, 1, 3, 4, 2, 7, 0, 8, *free]
    others = [name for name in names if name not in _OWN]
    return {
        name: _OWN[name] if name in _OWN else free[others.index(name) % len(free)] for name in names
    }


def drawn_names(section: content.Section) -> list[str]:
    """What the plots of a section draw, mostly methods, without duplicates.

    Groups of points are left out: they are different things in every plot.
    """
    titles: list[str] = []
    for block in section.blocks:
        if isinstance(block, content.Curves):
            titles += [series.title for series in block.series]
        elif isinstance(block, content.Bars):
            titles += [title for title, _ in block.series]
    return list(dict.fromkeys(titles))


def side_by_side(blocks: Sequence[content.Block]) -> list[list[content.Block]]:
    """Blocks in groups: consecutive plots, which are shown in one row, and all else."""
    return [list(row) for _, row in groupby(blocks, lambda block: isinstance(block, content.PLOTS))]


def plot_data(plot: content.Plot, slots: Mapping[str, int]) -> dict[str, Any]:
    """A plot as JSON for the page's script, with slots from :func:`slots_of`."""
    common = {"kind": type(plot).__name__.lower(), "title": plot.title, "y": plot.y}
    if isinstance(plot, content.Heat):
        low, high = _rounded([plot.low, plot.high])
        return {
            **common,
            "x": plot.x,
            "values": [_rounded(row) for row in plot.values],
            "columns": [str(name) for name in plot.columns],
            "rows": [str(name) for name in plot.rows],
            "low": low,
            "high": high,
        }
    if isinstance(plot, content.Bars):
        labels = [str(label) for label in plot.labels]
        series = [_bars(title, cells, slots) for title, cells in plot.series]
        return {**common, "x": "", "labels": labels, "series": series}
    return {
        **common,
        "x": plot.x,
        "percent": isinstance(plot, content.Curves) and plot.percent,
        "series": [_series(series, slots) for series in plot.series],
    }


def _bars(title: str, cells: Sequence[content.Cell], slots: Mapping[str, int]) -> dict[str, Any]:
    ends = [_whisker(cell) for cell in cells]
    return {
        "name": title,
        "label": title,
        "slot": slots[title],
        "y": _rounded(cell.mean for cell in cells),
        "low": _rounded(low for low, _ in ends),
        "high": _rounded(high for _, high in ends),
        "error": _rounded(None if cell.interval else cell.error for cell in cells),
    }


def _series(series: content.Series, slots: Mapping[str, int]) -> dict[str, Any]:
    paper = series.source == content.PAPER
    return {
        "name": series.title,
        "label": f"{series.title} (paper)" if paper else series.title,
        "slot": slots[series.title],
        "paper": paper,
        "x": _rounded(series.x),
        "y": _rounded(series.y),
        "error": None if series.error is None else _rounded(series.error),
    }


def _whisker(cell: content.Cell) -> tuple[float | None, float | None]:
    """Lower and upper end of a bar's whisker."""
    if cell.interval is not None:
        return cell.interval
    if cell.mean is None or cell.error is None:
        return None, None
    return cell.mean - cell.error, cell.mean + cell.error


def _rounded(values: Iterable[float | None]) -> list[float | None]:
    """Six digits of each number; ``None`` for what JSON lacks."""
    return [
        None if value is None or not math.isfinite(value) else float(f"{value:.6g}")
        for value in values
    ]
