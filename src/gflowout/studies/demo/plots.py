"""The demo's pictures, as SVG text to put into a page.

Colours of text and lines are left to the page's style sheet, so that one picture serves light and
dark pages. Each picture is small enough for a phone; the page sets them side by side if it can.
"""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Sequence
from typing import Any

import matplotlib.image
import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from gflowout.studies.demo import metrics
from gflowout.studies.demo.data import CLASSES, SIDE, WHITE
from gflowout.studies.demo.study import ANGLES, METHODS, Run

# Okabe and Ito's palette, without the colours that vanish on white or on black, and two more.
_PALETTE = (
    *("#8c8c8c", "#e69f00", "#2484c6", "#009e73", "#cc79a7"),
    *("#d55e00", "#56b4e9", "#a08c00", "#9651c2", "#b3284f"),
)
_DASHES = ("-", "--", "-.", (0, (6, 1)), ":", (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 3)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
COLOURS = {name: _PALETTE[i % len(_PALETTE)] for i, name in enumerate(METHODS)}

FEW = 10
"""Bins with fewer predictions are not drawn: their accuracy would be noise."""

# Stand-ins that `_svg` turns into colours of the page.
_TEXT, _LINE = "#010203", "#040506"
_STYLE: Any = {  # matplotlib types its keys as literals of its own version
    "svg.fonttype": "none",
    "font.size": 10,
    "text.color": _TEXT,
    "axes.labelcolor": _TEXT,
    "axes.titlesize": 11,
    "xtick.color": _TEXT,
    "ytick.color": _TEXT,
    "axes.edgecolor": _LINE,
    "grid.color": _LINE,
    "grid.linewidth": 0.6,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}


def reliability(runs: Sequence[Run], method: str) -> str:
    """Accuracy against confidence in bins, all seeds together, with the share of each bin."""
    own = [run for run in runs if run.method == method]
    confidence = np.concatenate([run.probabilities.max(-1) for run in own])
    correct = np.concatenate([run.probabilities.argmax(-1) == run.labels for run in own])
    with rc_context(_STYLE):
        figure, axes = _panel(method)
        edges = np.linspace(0, 1, metrics.BINS + 1)
        which = np.clip(np.digitize(confidence, edges[1:-1]), 0, metrics.BINS - 1)
        count = np.bincount(which, minlength=metrics.BINS)
        used = count >= FEW
        centre = np.bincount(which, confidence, metrics.BINS)[used] / count[used]
        right = np.bincount(which, correct, metrics.BINS)[used] / count[used]
        share = count / count.sum()
        axes.bar(edges[:-1], share, 1 / metrics.BINS, align="edge", color=_LINE, alpha=0.6)
        axes.plot([0, 1], [0, 1], color=_TEXT, linewidth=0.8, linestyle=":")
        axes.plot(centre, right, color=COLOURS[method], linewidth=1)
        axes.scatter(centre, right, 12 + 150 * np.sqrt(share[used]), COLOURS[method], alpha=0.85)
        axes.set(xlim=(0, 1.03), ylim=(0, 1.05), xlabel="confidence", ylabel="accuracy")
        axes.tick_params(pad=5)
        return _svg(figure, f"Reliability diagram of {method}")


def entropies(runs: Sequence[Run], method: str) -> str:
    """Histograms of predictive entropy for the three kinds of data, one above the other."""
    own = [run for run in runs if run.method == method]
    edges = np.linspace(0, np.log(CLASSES), 25)
    with rc_context(_STYLE):
        figure = Figure(figsize=(3.3, 3.3), layout="constrained")
        figure.suptitle(method, color=COLOURS[method], fontweight="bold", fontsize=11)
        rows = figure.subplots(len(own[0].entropies), 1, sharex=True)
        for axes, kind in zip(rows, own[0].entropies, strict=True):
            values = np.concatenate([run.entropies[kind] for run in own])
            share = np.histogram(values, edges)[0] / len(values)
            axes.stairs(share, edges, fill=True, color=COLOURS[method], alpha=0.75)
            axes.axvline(values.mean(), color=_TEXT, linewidth=1, linestyle="--")
            axes.set_title(f"{kind}, mean {values.mean():.2f}", loc="left", fontsize=9, pad=2)
            axes.set(xlim=(0, edges[-1]), yticks=[])
        rows[-1].set_xlabel("entropy (0: sure, 2.3: no idea)")
        return _svg(figure, f"Entropy histograms of {method}")


def by_angle(runs: Sequence[Run], quantity: str) -> str:
    """Accuracy or entropy against the angle: mean over seeds, with a band of one deviation.

    Args:
        runs: All runs.
        quantity: ``"accuracy"`` or ``"entropy"``.
    """
    with rc_context(_STYLE):
        figure = Figure(figsize=(4.2, 4.0), layout="constrained")
        axes = figure.subplots()
        for number, method in enumerate(METHODS):
            curves = [getattr(run, f"angle_{quantity}") for run in runs if run.method == method]
            mean, deviation = np.mean(curves, 0), np.std(curves, 0)
            style: dict[str, Any] = {
                "linestyle": _DASHES[number % len(_DASHES)],
                "marker": _MARKERS[number % len(_MARKERS)],
            }
            colour = COLOURS[method]
            axes.plot(ANGLES, mean, color=colour, markersize=4, label=method, **style)
            axes.fill_between(
                ANGLES, mean - deviation, mean + deviation, color=colour, alpha=0.08, linewidth=0
            )
        axes.set(xlim=(0, 180), xticks=range(0, 181, 30), ylim=(0, None), xlabel="angle in degrees")
        if quantity == "accuracy":
            axes.axhline(1 / CLASSES, color=_TEXT, linewidth=0.8, linestyle=":")
            axes.text(2, 1 / CLASSES - 0.015, "guessing", va="top", fontsize=9)
        axes.set_title("accuracy" if quantity == "accuracy" else "mean entropy", loc="left")
        figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
        return _svg(figure, f"{quantity} against rotation angle")


def bars(runs: Sequence[Run], image: int) -> str:
    """What every method says of one test digit, with the spread over its draws.

    Args:
        runs: One per method, of the same seed.
        image: Row of the digit in the test part.
    """
    columns = 2
    lines = -(-len(runs) // columns)
    classes = np.arange(CLASSES)
    label = int(runs[0].labels[image])
    with rc_context({**_STYLE, "axes.grid": False, "font.size": 9, "axes.titlesize": 9}):
        figure = Figure(figsize=(3.4, 1.15 * lines), layout="constrained")
        grid = figure.subplots(lines, columns, sharey=True, squeeze=False)
        for axes in grid.flat[len(runs) :]:
            axes.set_visible(False)
        for run, axes in zip(runs, grid.flat, strict=False):
            mean, spread = run.probabilities[image], run.spread[:, image]
            colour = COLOURS[run.method]
            axes.bar(classes, mean, 0.8, color=colour, alpha=0.85)
            axes.vlines(classes, *spread, color=_TEXT, linewidth=1)
            axes.set_title(run.method, color=colour, fontweight="bold", loc="left", pad=2)
            axes.set(ylim=(0, 1.05), yticks=[0, 1])
            axes.set_xticks(classes, [str(one) for one in classes])
            axes.tick_params(pad=2)
            tick = axes.get_xticklabels()[label]
            tick.set_fontweight("bold")
            tick.set_bbox({"boxstyle": "round,pad=0.15", "facecolor": "none", "edgecolor": _TEXT})
        return _svg(figure, f"Predictions for test digit {image}, which is a {label}")


def least_certain(runs: Sequence[Run], count: int) -> list[int]:
    """Rows of the test digits with the highest entropy, averaged over methods of one seed."""
    entropy = np.mean([run.entropies["test digits"] for run in runs], 0)
    return [int(row) for row in np.argsort(-entropy)[:count]]


def png(images: NDArray[np.float32]) -> str:
    """Images side by side, one pixel apart, as the address of a PNG that carries its data.

    Args:
        images: [count, 64] from 0 to 16.
    """
    tiles = [
        np.pad(image.reshape(SIDE, SIDE), ((0, 0), (0, 1)), constant_values=np.nan)
        for image in images
    ]
    strip = np.concatenate(tiles, 1)[:, :-1] / WHITE
    alpha = np.where(np.isnan(strip), 0, 1)
    grey = np.nan_to_num(strip)
    buffer = io.BytesIO()
    matplotlib.image.imsave(buffer, np.stack([grey, grey, grey, alpha], -1).clip(0, 1))
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _panel(method: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(3.3, 3.0), layout="constrained")
    axes = figure.subplots()
    axes.set_title(method, color=COLOURS[method], fontweight="bold", loc="left")
    return figure, axes


def _svg(figure: Figure, title: str) -> str:
    buffer = io.StringIO()
    # Identifiers follow from the salt: pictures on one page must not share them.
    with rc_context({"svg.hashsalt": title}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = text.replace("<svg ", f'<svg role="img" aria-label="{title}" ', 1)
    return text.replace(_TEXT, "var(--text)").replace(_LINE, "var(--line)")
