"""What the demo prints and what its page shows: scores, comparisons, plots and pictures."""

from __future__ import annotations

import base64
import io
import math
import os
import time
from collections.abc import Mapping, Sequence

import matplotlib.image
import numpy as np
import torch
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table as Grid

from gflowout.core.metrics import BINS
from gflowout.core.text import counted
from gflowout.studies import demo_data as data
from gflowout.studies.demo import ANGLES, BASELINE, DRAWS, METHODS, Run, Settings, train_all
from gflowout.studies.framework import statistics
from gflowout.studies.framework.content import (
    Bars,
    Block,
    Cell,
    Column,
    Curves,
    Picture,
    Pictures,
    Row,
    Section,
    Series,
    Table,
    Text,
)
from gflowout.studies.framework.sections import cell
from gflowout.studies.framework.statistics import mean_error

METRICS = {
    "accuracy": Column("test acc. %", "high", 1, percent=True),
    "nll": Column("test NLL", "low"),
    "ece": Column("test ECE", "low"),
    "brier": Column("test Brier", "low"),
    "rotated_accuracy": Column("rotated acc. %", "high", 1, percent=True),
    "rotated_nll": Column("rotated NLL", "low"),
    "auroc": Column("photos AUROC", "high"),
    "aupr": Column("photos AUPR", "high"),
    "auroc_mi": Column("photos by MI", "high"),
}
"""Columns of the table, by key of a run's scores."""

TITLE = "How sure is the network?"
INTRO = (
    "A small network learned to read handwritten digits, once for each way of dropping units. To "
    "predict, it answers several times with different units dropped; where the answers disagree, "
    "it is not sure. (An ensemble asks several networks instead.) This page shows how far that "
    "doubt can be trusted.",
)
CARDS = 6
"""Digits on the page, the hardest."""
STRIP = 10
"""Images in a row of examples."""
FEW = 10
"""Bins with fewer predictions are not drawn: their accuracy would be noise."""
BARS = 5
"""Classes of a digit that get bars."""

Scores = Mapping[str, Mapping[str, Sequence[float]]]
"""``scores[method][key of METRICS]``: one value per seed, seeds in the same order for all."""


def run(settings: Settings, console: Console | None = None) -> dict[str, Section]:
    """Train every method with every seed and print a table.

    Returns:
        The sections of the page by title.
    """
    console = console or Console()
    start = time.perf_counter()
    runs = train_all(settings, console)
    scores = {
        name: {key: [run.scores[key] for run in runs if run.method == name] for key in METRICS}
        for name in METHODS
    }
    notes = describe(settings, time.perf_counter() - start)
    sentences = findings(scores, settings.seeds)
    console.print(grid(scores))
    for line in notes:
        console.print(line, highlight=False)
    console.print()
    for line in sentences:
        console.print(f"- {line}", highlight=False)
    return {
        "The numbers": Section(sentences, [table(scores), Text(notes)]),
        **sections(runs),
    }


# Numbers and sentences


def show(value: float, column: Column, sign: str = "") -> str:
    """A number as the table shows it; a dash for NaN."""
    if math.isnan(value):
        return "-"
    return f"{100 * value if column.percent else value:{sign}.{column.digits}f}"


def grid(scores: Scores) -> Grid:
    """The table for a terminal of 80 columns: means with standard errors below them."""
    result = Grid(box=box.SIMPLE_HEAD, padding=0, title="mean ± standard error over seeds")
    result.add_column("\nmethod", no_wrap=True)
    for column in METRICS.values():
        result.add_column(column.title.replace(" ", "\n", 1), justify="right", no_wrap=True)
    for method, values in scores.items():
        cells = []
        for key, column in METRICS.items():
            mean, error = mean_error(list(values[key]))
            below = "" if math.isnan(error) else f"\n[dim]±{show(error, column)}[/dim]"
            cells.append(show(mean, column) + below)
        result.add_row(method, *cells)
    return result


def table(scores: Scores) -> Table:
    """The same table for the page."""
    rows = [Row(name, [cell(values[key]) for key in METRICS]) for name, values in scores.items()]
    return Table("All methods on three kinds of images", "method", list(METRICS.values()), rows)


def findings(scores: Scores, seeds: int) -> list[str]:
    """Say where a method differs from the baseline on the same seeds.

    Returns:
        A sentence per method, and one on how much to trust them.
    """
    if seeds == 1:
        return [f"One seed has no standard error: differences from {BASELINE} cannot be judged."]
    comparisons = statistics.holm(
        {
            f"{method} {key}": statistics.paired(
                scores[method][key], scores[BASELINE][key], column.better or "high"
            )
            for method in scores
            for key, column in METRICS.items()
            if method != BASELINE
        }
    )
    phrases: dict[str, list[str]] = {method: [] for method in scores if method != BASELINE}
    for method in phrases:
        for key, column in METRICS.items():
            comparison = comparisons[f"{method} {key}"]
            if comparison.verdict in ("better", "worse"):
                phrases[method].append(_phrase(comparison, column))
    verdicts = [comparison.firm for comparison in comparisons.values()]
    count = len(verdicts) - verdicts.count("not comparable")
    firm = verdicts.count("better") + verdicts.count("worse")
    return [
        *(
            f"{method} against {BASELINE}: {'; '.join(own) or 'no significant difference'}."
            for method, own in phrases.items()
        ),
        f"Paired by seed, with 95 % intervals. Of {count} comparisons with {seeds} seeds, about "
        f"{(1 - statistics.LEVEL) * count:.0f} would differ by chance alone; {firm} remain "
        "significant after Holm correction.",
    ]


def _phrase(comparison: statistics.Comparison, column: Column) -> str:
    mean, low, high = (
        show(value, column, "+")
        for value in (comparison.difference, comparison.low, comparison.high)
    )
    return f"{column.title} {comparison.verdict} ({mean}, {low} to {high})"


def describe(settings: Settings, seconds: float) -> list[str]:
    """What was measured, how, and with how many runs."""
    lines = [
        "Data: scikit-learn's 1,797 digits; 1,000 to train, 297 to choose the epoch by NLL, 500 to "
        "test. rotated: test digits turned by up to 90° either way. photos: telling test digits "
        "from as many 8x8 patches of two photographs, which are the positive class.",
        f"Scores: from the average of {DRAWS} draws' probabilities. ECE with {BINS} bins. "
        "AUROC and AUPR score by predictive entropy; by MI: AUROC by mutual information.",
        f"Runs: {counted(settings.seeds, 'seed')} (split, weights and masks), {settings.epochs} "
        f"epochs each, library defaults, nothing tuned on test; {seconds:.0f} s on a "
        f"{os.cpu_count()}-core CPU.",
    ]
    if settings.quick:
        lines.append(
            "This is a quick run: the models are hardly trained, the numbers mean nothing."
        )
    return lines


# Plots and pictures


def sections(runs: Sequence[Run]) -> dict[str, Section]:
    """The page's plots and pictures, by title of the section."""
    first = [run for run in runs if run.seed == runs[0].seed]
    seeds = len({run.seed for run in runs})
    texts = {
        "What the networks saw": "",
        "When it says 90 %, is it right 90 % of the time?": (
            "Predictions are sorted by how confident they are. Where accuracy equals confidence "
            "the network is calibrated; above that line it is too modest, below it too bold. Bins "
            f"with fewer than {FEW} predictions are left out."
        ),
        "Does it notice what it has never seen?": (
            "Entropy measures doubt: 0 if all probability is on one class, 2.3 if all ten are "
            "equally likely. Digits like those of the training should lie on the left, photographs "
            "and rotated digits further right."
        ),
        "Turning the digits": (
            "Every test digit is turned further and further. A network that knows its limits gets "
            "less certain (second plot) where it gets less accurate (first). Lines are means over "
            f"{counted(seeds, 'seed')}, bands their standard errors. Guessing is right 10 % of the "
            "time."
        ),
        "The hardest digits": (
            "The test digits that all methods together were least certain of (seed "
            f"{first[0].seed}). The plots show the same digits from left to right: bars are the "
            f"predicted probabilities of the true class and the {BARS - 1} likeliest others, thin "
            f"lines the range of {DRAWS} draws (5 % to 95 %)."
        ),
    }
    blocks: list[list[Block]] = [
        [_examples(first[0])],
        [_reliability(runs, method) for method in METHODS],
        [_entropies(runs, method) for method in METHODS],
        [_by_angle(runs, "accuracy"), _by_angle(runs, "entropy")],
        _hardest(first),
    ]
    return {
        title: Section(blocks=[*([Text([text])] if text else []), *own])
        for (title, text), own in zip(texts.items(), blocks, strict=True)
    }


def _examples(run: Run) -> Pictures:
    images = torch.as_tensor(run.images)
    turned = data.rotated(images, run.seed)
    kinds = {
        "Test digits: like those of the training.": images,
        "Rotated digits: the same ones, by up to 90° either way.": turned,
        "Photo patches: not digits at all.": data.photo_patches(STRIP, run.seed),
    }
    pictures = [Picture(png(some[:STRIP].numpy()), text, ()) for text, some in kinds.items()]
    return Pictures("Three kinds of images", (), pictures)


def _reliability(runs: Sequence[Run], method: str) -> Curves:
    """Accuracy against confidence in bins, all seeds together, with the share of each bin."""
    own = [run for run in runs if run.method == method]
    confidence = np.concatenate([run.probabilities.max(-1) for run in own])
    correct = np.concatenate([run.probabilities.argmax(-1) == run.labels for run in own])
    edges = np.linspace(0, 1, BINS + 1)
    bins = np.clip(np.digitize(confidence, edges[1:-1]), 0, BINS - 1)
    count = np.bincount(bins, minlength=BINS)
    used = count >= FEW
    centres = np.bincount(bins, confidence, BINS)[used] / count[used]
    accuracy = np.bincount(bins, correct, BINS)[used] / count[used]
    middles = (edges[:-1] + edges[1:]) / 2
    series = [
        Series(method, centres.tolist(), accuracy.tolist()),
        Series("calibrated", [0.0, 1.0], [0.0, 1.0]),
        Series("share of predictions", middles.tolist(), (count / count.sum()).tolist()),
    ]
    return Curves(
        f"Reliability diagram of {method}", "confidence", "accuracy", series, percent=True
    )


def _entropies(runs: Sequence[Run], method: str) -> Curves:
    """Histograms of predictive entropy for the three kinds of data."""
    own = [run for run in runs if run.method == method]
    edges = np.linspace(0, np.log(data.CLASSES), 25)
    middles = ((edges[:-1] + edges[1:]) / 2).tolist()
    series, means = [], []
    for kind in own[0].entropies:
        values = np.concatenate([run.entropies[kind] for run in own])
        share = np.histogram(values, edges)[0] / len(values)
        series.append(Series(kind, middles, share.tolist()))
        means.append(f"{kind} {values.mean():.2f}")
    caption = f"Mean entropy: {', '.join(means)}."
    title = f"Entropy histograms of {method}"
    return Curves(title, "entropy", "share of images", series, caption, percent=True)


def _by_angle(runs: Sequence[Run], quantity: str) -> Curves:
    """Accuracy or entropy against the angle: mean and standard error over seeds."""
    series = []
    for method in METHODS:
        curves = [getattr(run, f"angle_{quantity}") for run in runs if run.method == method]
        pairs = [mean_error(list(values)) for values in zip(*curves, strict=True)]
        means, errors = zip(*pairs, strict=True)
        series.append(Series(method, ANGLES, means, errors if len(curves) > 1 else None))
    percent = quantity == "accuracy"
    title = "Accuracy" if percent else "Mean entropy"
    return Curves(title, "angle in degrees", quantity, series, percent=percent)


def _hardest(runs: Sequence[Run]) -> list[Block]:
    """The test digits with the highest entropy, averaged over methods of one seed."""
    entropy = np.mean([run.entropies["test digits"] for run in runs], 0)
    probabilities = np.stack([run.probabilities for run in runs])
    classes = [str(name) for name in range(data.CLASSES)]
    pictures, bars = [], []
    for place, row in enumerate(np.argsort(-entropy)[:CARDS][::-1], 1):
        label = int(runs[0].labels[row])
        mean, spread = probabilities[:, row].mean(0), probabilities[:, row].std(0)
        image = png(runs[0].images[row : row + 1])
        pictures.append(
            Picture(image, f"true: {label}", mean.tolist(), spread.tolist(), float(entropy[row]))
        )
        likeliest = [name for name in np.argsort(-mean).tolist() if name != label]
        shown = sorted([label, *likeliest[: BARS - 1]])
        series = [(run.method, [_bar(run, row, name) for name in shown]) for run in runs]
        right = [run.method for run in runs if int(run.probabilities[row].argmax()) == label]
        caption = f"Right: {', '.join(right)}." if right else "No method is right."
        title = f"Digit {place}, true class {label}"
        bars.append(Bars(title, "probability", [classes[name] for name in shown], series, caption))
    caption = "Bars: mean over methods. Lines: standard deviation between methods."
    return [Pictures("The digits", classes, pictures, caption), *bars]


def _bar(run: Run, row: int, label: int) -> Cell:
    low, high = run.spread[:, row, label].tolist()
    return Cell(float(run.probabilities[row, label]), interval=(low, high))


def png(images: NDArray[np.float32]) -> str:
    """Images [count, 64], from 0 to 16, side by side, one pixel apart, as base64 of a PNG."""
    squares = images.reshape(-1, data.SIDE, data.SIDE) / data.WHITE
    tiles = np.pad(squares, ((0, 0), (0, 0), (0, 1)), constant_values=np.nan)
    strip = np.concatenate(list(tiles), 1)[:, :-1]
    grey, alpha = np.nan_to_num(strip), ~np.isnan(strip)
    buffer = io.BytesIO()
    matplotlib.image.imsave(buffer, np.stack([grey, grey, grey, alpha], -1).clip(0, 1))
    return base64.b64encode(buffer.getvalue()).decode()
