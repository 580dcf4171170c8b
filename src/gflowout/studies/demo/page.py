"""The demo's page: one HTML file that needs nothing else."""

from __future__ import annotations

import html
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import version

import numpy as np
import torch

import gflowout
from gflowout.studies.demo import data, metrics, plots
from gflowout.studies.demo.study import BASELINE, DRAWS, METHODS, Run

CARDS = 6
STRIP = 10

_CSS = """
:root { color-scheme: light dark; --page: #fff; --card: #f5f6f8; --text: #1c2126;
  --soft: #59626b; --line: #ccd2d8; }
@media (prefers-color-scheme: dark) { :root { --page: #14171a; --card: #1e2327; --text: #e6e9ec;
  --soft: #a2abb3; --line: #444c54; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1080px; padding: 1rem; background: var(--page);
  color: var(--text); font: 16px/1.55 system-ui, "Segoe UI", Roboto, Helvetica, Arial, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 1rem 0 .5rem; }
h2 { font-size: 1.25rem; margin: 2.2rem 0 .4rem; }
p, li { max-width: 44rem; }
ul { padding-left: 1.2rem; }
.soft, footer { color: var(--soft); font-size: .9rem; }
.grid { display: grid; gap: .8rem; grid-template-columns: repeat(auto-fill, minmax(240px, 1fr)); }
.wide { grid-template-columns: repeat(auto-fill, minmax(min(320px, 100%), 1fr)); }
.two { grid-template-columns: repeat(auto-fit, minmax(min(360px, 100%), 1fr)); }
.card { background: var(--card); border-radius: 10px; padding: .6rem; min-width: 0; margin: 0; }
.card svg { display: block; width: 100%; height: auto; max-width: 460px; margin: auto; }
.two svg { max-width: 560px; }
svg text { font-family: inherit !important; }
img { image-rendering: pixelated; display: block; border-radius: 4px; }
.strip img { width: 100%; height: auto; }
.digit { display: flex; gap: .8rem; align-items: center; margin-bottom: .4rem; }
.digit img { width: 72px; height: 72px; }
figcaption { font-size: .9rem; margin-bottom: .3rem; }
.scroll { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; white-space: nowrap; }
th, td { padding: .4rem .65rem; text-align: right; border-bottom: 1px solid var(--line); }
thead th { font-size: .85rem; color: var(--soft); font-weight: 600; }
thead tr:first-child th { text-align: left; border: 0; padding-bottom: 0; }
th:first-child { position: sticky; left: 0; background: var(--page); text-align: left; }
td { line-height: 1.25; }
td small { color: var(--soft); font-weight: 400; }
.clear { font-weight: 700; }
.named { white-space: nowrap; }
.dot { display: inline-block; width: .7em; height: .7em; border-radius: 50%; margin-right: .4em; }
code { background: var(--card); padding: .1em .35em; border-radius: 4px; overflow-wrap: anywhere; }
"""

_GROUPS = {
    "test": "test digits",
    "rotated": "rotated digits",
    "photos": "digits or photo patches?",
}


def build(
    runs: Sequence[Run],
    scores: metrics.Table,
    findings: Sequence[str],
    notes: Sequence[str],
    command: str,
) -> str:
    """Write the page's text.

    Args:
        runs: All runs.
        scores: Their scores by method and metric.
        findings: What differs from the baseline.
        notes: What the numbers are numbers of.
        command: What gives the same numbers.
    """
    first = [run for run in runs if run.seed == runs[0].seed]
    seeds = sorted({run.seed for run in runs})
    sections = [
        _intro(),
        _section("The numbers", _numbers(scores, findings, notes, len(seeds))),
        _section("What the networks saw", _strips(first[0])),
        _section(
            "When it says 90 %, is it right 90 % of the time?",
            "<p>Predictions are sorted by how confident they are. On the dotted line, confidence "
            "and accuracy agree; above it the network is too modest, below it too bold. Large dots "
            "hold many predictions, and the grey bars show their share; bins with fewer than "
            f"{plots.FEW} predictions are left out.</p>"
            + _grid(plots.reliability(runs, method) for method in METHODS),
        ),
        _section(
            "Does it notice what it has never seen?",
            "<p>Entropy measures doubt: 0 if all probability is on one class, 2.3 if all ten are "
            "equally likely. Digits like those of the training should lie on the left, photographs "
            "and rotated digits further right. The dashed line is the mean.</p>"
            + _grid(plots.entropies(runs, method) for method in METHODS),
        ),
        _section(
            "Turning the digits",
            "<p>Every test digit is turned further and further. A network that knows its limits "
            "gets less certain (second picture) where it gets less accurate (first). Lines are "
            f"means over {_count(len(seeds), 'seed')}, bands one standard deviation "
            "between seeds.</p>"
            + _grid((plots.by_angle(runs, name) for name in ("accuracy", "entropy")), "two"),
        ),
        _section(
            "The hardest digits",
            "<p>The test digits that all methods together were least certain of (seed "
            f"{first[0].seed}). Bars are the predicted probabilities of the classes 0 to 9, thin "
            f"lines the range of {DRAWS} draws (5&nbsp;% to 95&nbsp;%); the true class is "
            "framed.</p>" + _hardest(first),
        ),
        _footer(seeds, command),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>gflowout demo</title><style>{_CSS}</style></head>\n<body>\n"
        + "\n".join(sections)
        + "\n</body></html>\n"
    )


def _intro() -> str:
    rows = "".join(
        f"<li><b>{_named(name)}</b>: {html.escape(entry.text)}</li>"
        for name, entry in METHODS.items()
    )
    return (
        "<h1>How sure is the network?</h1>"
        "<p>A small network learned to read handwritten digits, once for each way of "
        "dropping units. To predict, it answers several times with different units dropped; where "
        "the answers disagree, it is not sure. (An ensemble asks several networks instead.) This "
        "page shows how far that doubt can be trusted."
        f"</p><ul>{rows}</ul>"
    )


def _numbers(
    scores: metrics.Table, findings: Sequence[str], notes: Sequence[str], seeds: int
) -> str:
    clear = (
        {(one.method, one.metric.key) for one in metrics.differences(scores, BASELINE) if one.clear}
        if seeds > 1
        else set()
    )
    spans = "".join(
        f'<th colspan="{sum(metric.data == key for metric in metrics.METRICS)}">{title}</th>'
        for key, title in _GROUPS.items()
    )
    heads = "".join(
        f"<th>{metric.name} {'↑' if metric.higher else '↓'}</th>" for metric in metrics.METRICS
    )
    rows = ""
    for method, values in scores.items():
        rows += f"<tr><th>{_named(method)}</th>"
        for metric in metrics.METRICS:
            mean, error = metrics.mean_and_error(values[metric.key])
            spread = "" if np.isnan(error) else f"<br><small>± {metric.show(error)}</small>"
            mark = ' class="clear"' if (method, metric.key) in clear else ""
            rows += f"<td{mark}>{metric.show(mean)}{spread}</td>"
        rows += "</tr>"
    listed = "".join(f"<li>{html.escape(line)}</li>" for line in findings)
    told = "".join(f'<p class="soft">{html.escape(line)}</p>' for line in notes)
    bold = f" Bold: outside two standard errors of {BASELINE}." if seeds > 1 else ""
    return (
        f'<p class="soft">Mean ± standard error over {_count(seeds, "seed")}. ↑ more is better, '
        f"↓ less is better.{bold}</p>"
        f'<div class="scroll" tabindex="0"><table><thead><tr><th></th>{spans}</tr>'
        f"<tr><th>method</th>{heads}</tr></thead><tbody>{rows}</tbody></table></div>"
        f"<ul>{listed}</ul>{told}"
        '<p class="soft">NLL: how surprised the network is by the right answer. ECE: distance '
        "between confidence and accuracy. Brier: squared error of the probabilities. AUROC: chance "
        "that a photo patch gets more doubt than a digit. AUPR: precision averaged over all "
        "thresholds of doubt. MI: mutual information, how much the draws disagree.</p>"
    )


def _strips(run: Run) -> str:
    images = torch.as_tensor(run.images)
    kinds = {
        "Test digits: like those of the training.": images,
        "Rotated digits: the same ones, by up to 90° either way.": data.rotated(images, run.seed),
        "Photo patches: not digits at all.": data.photo_patches(STRIP, run.seed),
    }
    return (
        '<div class="grid wide">'
        + "".join(
            f'<figure class="card strip"><figcaption>{text}</figcaption>'
            f'<img alt="{text}" src="{plots.png(some[:STRIP].numpy())}"></figure>'
            for text, some in kinds.items()
        )
        + "</div>"
    )


def _hardest(runs: Sequence[Run]) -> str:
    cards = ""
    for row in plots.least_certain(runs, CARDS):
        label = int(runs[0].labels[row])
        right = [run.method for run in runs if int(run.probabilities[row].argmax()) == label]
        said = "right: " + " ".join(_named(name) for name in right)
        said = said if right else "no method is right"
        picture = plots.png(runs[0].images[row : row + 1])
        cards += (
            '<figure class="card"><figcaption class="digit">'
            f'<img alt="test digit, label {label}" src="{picture}">'
            f"<span>True class <b>{label}</b><br>{said}</span></figcaption>"
            f"{plots.bars(runs, row)}</figure>"
        )
    return f'<div class="grid wide">{cards}</div>'


def _footer(seeds: Sequence[int], command: str) -> str:
    packages = ("torch", "scikit-learn", "torchmetrics", "matplotlib", "numpy")
    versions = ", ".join(f"{name} {version(name)}" for name in packages)
    return (
        f"<footer><hr><p>gflowout {gflowout.__version__}; Python {platform.python_version()}; "
        f"{html.escape(versions)}. Seeds: {', '.join(map(str, seeds))}. Again: "
        f"<code>{html.escape(command)}</code></p></footer>"
    )


def _section(title: str, body: str) -> str:
    return f"<section><h2>{title}</h2>{body}</section>"


def _grid(pictures: Iterable[str], kind: str = "") -> str:
    cards = "".join(f'<figure class="card">{picture}</figure>' for picture in pictures)
    return f'<div class="grid {kind}">{cards}</div>'


def _named(method: str) -> str:
    colour = plots.COLOURS[method]
    dot = f'<span class="dot" style="background:{colour}"></span>'
    return f'<span class="named">{dot}{html.escape(method)}</span>'


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
