"""Blocks of a report as HTML: switches, tables, pictures, places for plots.

Every text goes through :func:`html.escape`. Knows nothing of the page around them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from gflowout.report import colours, plots, tables
from gflowout.studies.framework.content import (
    OURS,
    Block,
    Column,
    Picture,
    Pictures,
    Points,
    Section,
    Table,
    Text,
)

SHOWN = 5
"""Classes of a picture that get a bar: the most probable, and the true one."""


def switches(section: Section, slots: Mapping[str, int]) -> str:
    """One switch for each method that the plots of a section show."""
    found = sorted(plots.names(section), key=lambda name: slots[name])
    if not found:
        return ""
    chips = [_chip(name, slots[name]) for name in found]
    if plots.has_paper(section):
        chips.append(
            '<button type="button" class="chip ink" data-slot="0" data-paper '
            'aria-pressed="true">figures of the paper</button>'
        )
    if len(chips) > 1:
        chips += [
            f'<button type="button" class="chip act" data-act="{act}" hidden>{act}</button>'
            for act in ("all", "none")
        ]
    return _group("Shown in the plots of this section", chips)


def _chip(name: str, slot: int) -> str:
    return (
        f'<button type="button" class="chip s{slot}" data-slot="{slot}" '
        f'data-name="{escape(name)}" aria-pressed="true">{escape(name)}</button>'
    )


def _group(label: str, chips: Sequence[str]) -> str:
    return f'<div class="switches" role="group" aria-label="{label}">{"".join(chips)}</div>'


def plot(block: Block, slots: Mapping[str, int], drawn: dict[str, Any], prefix: str) -> str:
    """The place where the page's script draws a plot; one of points has its own switches.

    Args:
        block: The plot.
        slots: Colours of methods.
        drawn: Data of all plots by name; this one is added.
        prefix: Start of its name.
    """
    assert isinstance(block, plots.PLOTS)
    name = f"{prefix}-{len(drawn)}"
    legend = ""
    if isinstance(block, Points):
        slots = colours.slots((series.title for series in block.series), slots)
        chips = [_chip(title, slot) for title, slot in slots.items()]
        legend = _group("Shown in this plot", chips) if chips else ""
    drawn[name] = plots.data(block, slots)
    caption = f"<p>{escape(block.caption)}</p>" if block.caption else ""
    return (
        f'<figure class="plot"><figcaption>{escape(block.title)}</figcaption>{legend}'
        f'<div class="area" data-plot="{name}"><noscript>Plots need JavaScript.</noscript></div>'
        f'{caption}<details data-figures="{name}"><summary>The figures as a table</summary>'
        "</details></figure>"
    )


def block(content: Block) -> str:
    """Any block but a plot."""
    if isinstance(content, Text):
        folded = tables.folded(content)
        if folded is not None:
            items = "".join(f"<li>{escape(text)}</li>" for text in content.paragraphs)
            head = f"<summary>{escape(folded)}</summary>"
            return f'<details class="more">{head}<ul>{items}</ul></details>'
        return "".join(f"<p>{escape(text)}</p>" for text in content.paragraphs)
    if isinstance(content, Table):
        return _table(content)
    assert isinstance(content, Pictures)
    return _pictures(content)


def _table(table: Table) -> str:
    marked = tables.best(table)
    groups = tables.groups(table)
    heads = "".join(_head(column) for column in table.columns)
    bodies = []
    for source, rows in groups:
        lines = []
        if len(groups) > 1 or source != OURS:
            wide = len(table.columns)
            lines.append(
                f'<tr class="source"><th scope="rowgroup">{escape(tables.heading(source))}</th>'
                f'<td colspan="{wide}"></td></tr>'
            )
        for index, row in rows:
            cells = "".join(
                _cell(*tables.figure(cell, column), cell.mean, (index, place) in marked)
                for place, (cell, column) in enumerate(zip(row.cells, table.columns, strict=True))
            )
            lines.append(
                f'<tr data-index="{index}"><th scope="row">{escape(row.title)}</th>{cells}</tr>'
            )
        bodies.append(f'<tbody class="{css_class(source)}">{"".join(lines)}</tbody>')
    told = " ".join(filter(None, [table.caption, tables.note([table])]))
    return (
        '<div class="block"><div class="scroll" tabindex="0" role="region" '
        f'aria-label="{escape(table.title)}"><table class="sorted">'
        f"<caption>{escape(table.title)}</caption>"
        f'<thead><tr><th scope="col">{escape(table.head)}</th>{heads}</tr></thead>'
        f'{"".join(bodies)}</table></div><p class="soft small">{escape(told)}</p></div>'
    )


def _head(column: Column) -> str:
    arrow = f"&nbsp;{tables.ARROWS[column.better]}" if column.better else ""
    unit = "&nbsp;(%)" if column.percent and "%" not in column.title else ""
    better = f' data-better="{column.better}"' if column.better else ""
    return f'<th scope="col"{better}>{escape(column.title)}{unit}{arrow}</th>'


def _cell(mean: str, error: str, value: float | None, best: bool) -> str:
    key = f' data-value="{value!r}"' if isinstance(value, int | float) else ""
    spread = f" <small>± {escape(error)}</small>" if error else ""
    mark = ' class="best"' if best else ""
    unseen = '<span class="unseen"> best</span>' if best else ""
    return f"<td{mark}{key}>{escape(mean)}{spread}{unseen}</td>"


def _pictures(block: Pictures) -> str:
    pictures = list(block.pictures)
    keys = [picture.uncertainty for picture in pictures]
    if all(key is not None for key in keys):
        pictures.sort(key=lambda picture: picture.uncertainty or 0.0)
    ends = '<div class="span"><span>certain</span><span>uncertain</span></div>'
    caption = f'<p class="soft small">{escape(block.caption)}</p>' if block.caption else ""
    cards = "".join(_picture(picture, block.classes) for picture in pictures)
    return (
        f'<div class="block"><h3>{escape(block.title)}</h3>{ends}'
        f'<div class="pictures">{cards}</div>{caption}</div>'
    )


def _picture(picture: Picture, classes: Sequence[str]) -> str:
    if not re.fullmatch(r"[A-Za-z0-9+/=\s]+", picture.png):
        raise ValueError(f"picture {picture.title!r}: png must be base64 of a PNG")
    known = [str(each) for each in classes]
    truth = next((i for i, name in enumerate(known) if _same(name, picture.title)), None)
    order = sorted(
        range(len(picture.probabilities)), key=lambda index: -picture.probabilities[index]
    )
    shown = order[:SHOWN]
    if truth is not None and truth < len(order) and truth not in shown:
        shown[-1] = truth
    bars = []
    for index in shown:
        share = min(1.0, max(0.0, picture.probabilities[index]))
        wide = picture.spread[index] if index < len(picture.spread) else 0.0
        low, high = max(0.0, share - wide), min(1.0, share + wide)
        name = known[index] if index < len(known) else str(index)
        true = " true" if index == truth else ""
        whisker = (
            f'<span class="wide" style="left:{100 * low:.1f}%;width:{100 * (high - low):.1f}%">'
            "</span>"
            if wide > 0
            else ""
        )
        bars.append(
            f'<span class="who{true}" title="{escape(name)}">{escape(name)}</span>'
            f'<span class="box"><span class="fill" style="width:{100 * share:.1f}%"></span>'
            f'{whisker}</span><span class="many">{100 * share:.0f} %</span>'
        )
    rest = 1 - sum(picture.probabilities[index] for index in shown)
    if len(shown) < len(order):
        bars.append(
            f'<span class="who">others</span><span></span><span class="many">{100 * rest:.0f} %'
            "</span>"
        )
    score = (
        f'<span class="soft">uncertainty {picture.uncertainty:.3g}</span>'
        if picture.uncertainty is not None
        else ""
    )
    return (
        '<figure class="picture"><div class="face">'
        f'<img alt="{escape(picture.title)}" src="data:image/png;base64,{picture.png.strip()}">'
        f"<div><b>{escape(picture.title)}</b>{score}</div></div>"
        f'<div class="bars">{"".join(bars)}</div></figure>'
    )


def _same(name: str, title: str) -> bool:
    """Whether a picture's title names a class as the true one."""
    return title.strip().lower() in (name.lower(), f"true: {name}".lower())


def css_class(text: str) -> str:
    """Letters of a text as the name of a class."""
    return re.sub(r"[^a-z]+", "-", text.lower())
