"""What the demo prints and what its page shows: scores, comparisons, plots and pictures."""

from __future__ import annotations

import base64
import io
import math
import os
import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as Grid

from gflowout.core.metrics import BINS
from gflowout.core.optional import require
from gflowout.core.text import counted
from gflowout.studies import demo
from gflowout.studies.demo import BASELINE, Run, Settings
from gflowout.studies.framework import content, statistics
from gflowout.studies.framework.claims import columns, entry
from gflowout.studies.framework.content import Block, Cell, Column, Curves, Row, Section, Series
from gflowout.studies.framework.sections import cell
from gflowout.studies.framework.statistics import mean_error

require("torchmetrics", extra="demo", purpose="gflowout demo")
image_file = require("matplotlib.image", extra="demo", purpose="gflowout demo")

METRICS = columns("demo")["scores"]
"""Columns of the table, by key of a run's scores."""

TITLE = "How sure is the network?"
TEXTS = entry("demo.texts")
INTRO = (TEXTS["intro"],)
CARDS = 6
"""Digits on the page, the hardest."""
SHOWN = "gflowout"
"""The method whose predictions are the first picture."""
CONCLUDED = ("nll", "rotated_nll", "auroc")
"""Scores that the conclusion is about."""
FEW = 10
"""Bins with fewer predictions are not drawn: their accuracy would be noise."""
BARS = 5
"""Classes of a digit that get bars."""

Scores = Mapping[str, Mapping[str, Sequence[float]]]
"""``scores[method][key of METRICS]``: one value per seed, seeds in the same order for all."""


def run(settings: Settings, console: Console | None = None) -> dict[str, Section]:
    """Train every method with every seed, print a table, and return the page's sections."""
    console = console or Console()
    start = time.perf_counter()
    runs = train_all(settings, console)
    scores = {
        name: {key: [run.scores[key] for run in runs if run.method == name] for key in METRICS}
        for name in demo.METHODS
    }
    notes = describe(settings, time.perf_counter() - start)
    sentences = findings(scores, settings.seeds)
    last = conclusion(scores)
    console.print(grid(scores))
    for line in (*notes, "", last):
        console.print(line, highlight=False)
    pairs = content.Text(sentences, f"Each method against {BASELINE}")
    page = sections(runs)
    first, *others = page
    return {
        first: page[first],
        "The numbers": Section([last], [table(scores), content.Text(notes), pairs]),
        **{title: page[title] for title in others},
    }


def train_all(settings: Settings, console: Console) -> list[Run]:
    """Run every method with every seed behind a progress bar; in the order of the table."""
    runs: dict[tuple[str, int], Run] = {}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task("training", total=len(demo.METHODS) * settings.seeds)
        for run in demo.results(settings):
            runs[run.method, run.seed] = run
            progress.update(task, advance=1, description=f"training ({run.method} done)")
    return [runs[name, seed] for name in demo.METHODS for seed in range(settings.seeds)]


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


def table(scores: Scores) -> content.Table:
    """The same table for the page."""
    rows = [Row(name, [cell(values[key]) for key in METRICS]) for name, values in scores.items()]
    columns, names = list(METRICS.values()), list(scores)
    ties = {
        (names.index(name), place)
        for place, key in enumerate(METRICS)
        for name in best(scores, key)
    }
    title = "All methods on three kinds of images"
    return content.Table(title, "method", columns, rows, ties=frozenset(ties))


def best(scores: Scores, key: str) -> list[str]:
    """The method with the best mean, and then those that are not significantly different from it.

    Differences are paired by seed, with Holm correction. With one seed only the best is given; none
    where all are the same.
    """
    means = {name: mean_error(list(values[key]))[0] for name, values in scores.items()}
    means = {name: mean for name, mean in means.items() if not math.isnan(mean)}
    if len(set(means.values())) < 2:
        return []
    better = METRICS[key].better or "high"
    top = (max if better == "high" else min)(means, key=means.__getitem__)
    tests = statistics.holm(
        {
            name: statistics.paired(scores[name][key], scores[top][key], better)
            for name in means
            if name != top
        }
    )
    return [top, *(name for name, test in tests.items() if test.firm == "no difference seen")]


def conclusion(scores: Scores) -> str:
    """Which methods are best at the three kinds of images, and which are never behind the best.

    Examples:
        >>> mc = {key: [0.5, 0.6, 0.7] for key in METRICS}
        >>> none = {key: [0.1, 0.2, 0.3] for key in METRICS}
        >>> conclusion({"mc": mc, "none": none})
        '"none" has the lowest NLL on test and on rotated digits, and "mc" is best at detecting
        photographs. Not significantly behind the best in any of the three: no method.'
    """
    ranked = {key: best(scores, key) for key in CONCLUDED}
    test, rotated, photos = (f'"{names[0]}"' if names else "no method" for names in ranked.values())
    where = "and" if rotated == test else f"digits, {rotated}"
    every = [
        f'"{name}"' for name in scores if all(name in names for names in ranked.values() if names)
    ]
    first = (
        f"{test} has the lowest NLL on test {where} on rotated digits, and {photos} is best at "
        "detecting photographs."
    )
    if len(next(iter(scores.values()))[CONCLUDED[0]]) == 1:
        return f"{first} With one seed this may be chance."
    return (
        f"{first} Not significantly behind the best in any of the three: "
        f"{', '.join(every) or 'no method'}."
    )


def findings(scores: Scores, seeds: int) -> list[str]:
    """Say where each method differs from the baseline on the same seeds, and how sure that is."""
    if seeds == 1:
        return [f"One seed has no standard error: differences from {BASELINE} cannot be judged."]
    others = [method for method in scores if method != BASELINE]
    comparisons = statistics.holm(
        {
            f"{method} {key}": statistics.paired(
                scores[method][key], scores[BASELINE][key], column.better or "high"
            )
            for method in others
            for key, column in METRICS.items()
        }
    )
    lines = []
    for method in others:
        own = [(comparisons[f"{method} {key}"], column) for key, column in METRICS.items()]
        phrases = [_phrase(*pair) for pair in own if pair[0].verdict in ("better", "worse")]
        lines.append(
            f"{method} against {BASELINE}: {'; '.join(phrases) or 'no significant difference'}."
        )
    verdicts = [comparison.firm for comparison in comparisons.values()]
    count = len(verdicts) - verdicts.count("not comparable")
    firm = verdicts.count("better") + verdicts.count("worse")
    return [
        *lines,
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
    seeds, cores = counted(settings.seeds, "seed"), os.cpu_count()
    values = {
        "draws": demo.DRAWS,
        "bins": BINS,
        "seeds": seeds,
        "epochs": counted(settings.epochs, "epoch"),
    }
    lines = [line.format(**values, seconds=seconds, cores=cores) for line in TEXTS["notes"]]
    if settings.quick:
        lines.append(TEXTS["quick"])
    return lines


# Plots and pictures


def sections(runs: Sequence[Run]) -> dict[str, Section]:
    """The page's plots and pictures, by title of the section."""
    first = [run for run in runs if run.seed == runs[0].seed]
    seeds = counted(len({run.seed for run in runs}), "seed")
    values = {"few": FEW, "seeds": seeds, "seed": first[0].seed, "others": BARS - 1, "shown": SHOWN}
    blocks: dict[str, Sequence[Block]] = {
        "examples": _examples(next(run for run in first if run.method == SHOWN)),
        "reliability": [_reliability(runs, method) for method in demo.METHODS],
        "entropy": [_entropies(runs, method) for method in demo.METHODS],
        "angles": [_by_angle(runs, "accuracy"), _by_angle(runs, "entropy")],
        "hardest": _hardest(first),
    }
    page = {}
    for name, (title, *texts) in entry("demo.sections").items():
        paragraphs = [content.Text([text.format(**values, draws=demo.DRAWS)]) for text in texts]
        page[title] = Section(blocks=[*paragraphs, *blocks[name]])
    return page


def _examples(run: Run) -> list[Block]:
    """A few images of each kind, and what one method says of them."""
    count = demo.EXAMPLES
    turned = demo.rotated(torch.as_tensor(run.images), run.seed).numpy()
    images = {
        "test digits": run.images,
        "rotated digits": turned,
        "photo patches": demo.photo_patches(count, run.seed).numpy(),
    }
    classes = [str(name) for name in range(demo.CLASSES)]
    blocks: list[Block] = []
    for kind, title in TEXTS["kinds"].items():
        pictures = [
            content.Picture(
                png(images[kind][row : row + 1]),
                "no digit" if kind == "photo patches" else f"true: {run.labels[row]}",
                run.examples[kind][row].tolist(),
                uncertainty=float(run.entropies[kind][row]),
            )
            for row in range(count)
        ]
        blocks.append(content.Pictures(title, classes, pictures))
    return blocks


def _reliability(runs: Sequence[Run], method: str) -> Curves:
    """Accuracy against confidence in bins, all seeds together, with the share of each bin."""
    own = [run for run in runs if run.method == method]
    confidence = np.concatenate([run.probabilities.max(-1) for run in own])
    correct = np.concatenate([run.probabilities.argmax(-1) == run.labels for run in own])
    edges = np.linspace(0, 1, BINS + 1)
    count = np.histogram(confidence, edges)[0]
    used = count >= FEW
    centres, accuracy = (
        np.histogram(confidence, edges, weights=values.astype(float))[0][used] / count[used]
        for values in (confidence, correct)
    )
    middles = (edges[:-1] + edges[1:]) / 2
    series = [
        Series(method, centres.tolist(), accuracy.tolist()),
        Series("calibrated", [0.0, 1.0], [0.0, 1.0]),
        Series("share of predictions", middles.tolist(), (count / count.sum()).tolist()),
    ]
    title = f"Reliability diagram of {method}"
    return Curves(title, "confidence", "accuracy", series, percent=True)


def _entropies(runs: Sequence[Run], method: str) -> Curves:
    """Histograms of predictive entropy for the three kinds of data."""
    own = [run for run in runs if run.method == method]
    edges = np.linspace(0, np.log(demo.CLASSES), 25)
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
    for method in demo.METHODS:
        curves = [getattr(run, f"angle_{quantity}") for run in runs if run.method == method]
        pairs = [mean_error(list(values)) for values in zip(*curves, strict=True)]
        means, errors = zip(*pairs, strict=True)
        series.append(Series(method, demo.ANGLES, means, errors if len(curves) > 1 else None))
    percent = quantity == "accuracy"
    title = "Accuracy" if percent else "Mean entropy"
    return Curves(title, "angle in degrees", quantity, series, percent=percent)


def _hardest(runs: Sequence[Run]) -> list[Block]:
    """The test digits with the highest entropy, averaged over methods of one seed."""
    entropy = np.mean([run.entropies["test digits"] for run in runs], 0)
    probabilities = np.stack([run.probabilities for run in runs])
    classes = [str(name) for name in range(demo.CLASSES)]
    pictures, bars = [], []
    for place, row in enumerate(np.argsort(-entropy)[:CARDS][::-1], 1):
        label = int(runs[0].labels[row])
        mean, spread = probabilities[:, row].mean(0), probabilities[:, row].std(0)
        image, doubt = png(runs[0].images[row : row + 1]), float(entropy[row])
        picture = content.Picture(image, f"true: {label}", mean.tolist(), spread.tolist(), doubt)
        pictures.append(picture)
        likeliest = [name for name in np.argsort(-mean).tolist() if name != label]
        shown = sorted([label, *likeliest[: BARS - 1]])
        series = [(run.method, [_bar(run, row, name) for name in shown]) for run in runs]
        right = [run.method for run in runs if int(run.probabilities[row].argmax()) == label]
        caption = f"Right: {', '.join(right)}." if right else "No method is right."
        title, names = f"Digit {place}, true class {label}", [classes[name] for name in shown]
        bars.append(content.Bars(title, "probability", names, series, caption))
    caption = "Bars: mean over methods. Lines: standard deviation between methods."
    return [content.Pictures("The digits", classes, pictures, caption), *bars]


def _bar(run: Run, row: int, label: int) -> Cell:
    low, high = run.spread[:, row, label].tolist()
    return Cell(float(run.probabilities[row, label]), interval=(low, high))


def png(images: NDArray[np.float32]) -> str:
    """Images [count, 64], from 0 to 16, side by side, one pixel apart, as base64 of a PNG."""
    squares = images.reshape(-1, demo.SIDE, demo.SIDE) / demo.WHITE
    tiles = np.pad(squares, ((0, 0), (0, 0), (0, 1)), constant_values=np.nan)
    strip = np.concatenate(list(tiles), 1)[:, :-1]
    grey, alpha = np.nan_to_num(strip), ~np.isnan(strip)
    buffer = io.BytesIO()
    image_file.imsave(buffer, np.stack([grey, grey, grey, alpha], -1).clip(0, 1))
    return base64.b64encode(buffer.getvalue()).decode()
