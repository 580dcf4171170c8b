"""``python docs/img/results.py`` makes the picture and the table of results in the README.

Reads the records in ``results/cpu``. In the picture, results.svg, the negative log-likelihood of
each method is compared with that of tuned MC dropout, seed by seed; a bar is the 95 % interval. The
table, between two marks in README.md, has the measures of the paper's tables and its own numbers.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from gflowout.report.headline import headline
from gflowout.runs import read
from gflowout.studies import clinical, robustness, vqa
from gflowout.studies.framework.arms import ARMS
from gflowout.studies.framework.statistics import by_seed, mean_error

ROOT = Path(__file__).parents[2]
INK, PAPER = "#1b1b1b", "#fcfcfa"
SHOWN = {  # arm: title, colour, marker
    "id-gflowout": ("ID-GFlowOut", "#d95f02", "o"),
    "gflowout": ("GFlowOut", "#2166ac", "D"),
    "gflowout-bound": ("GFlowOut, marginal bound", "#00838f", "P"),
    "cvae": ("CVAE", "#b8860b", "X"),
    "gates": ("stochastic gates", "#8e44ad", "v"),
    "boosting": ("gradient boosting", "#1b7837", "^"),
    "ensemble": ("five plain networks", "#7a7f87", "s"),
}
MARKS = ("<!-- table of docs/img/results.py -->", "<!-- end of the table -->")
_ROTATED = {
    data: {arm: 100 * rotated for arm, (_, rotated) in figures.items()}
    for data, figures in robustness.PAPER.items()
}
COLUMNS = (  # title, study, data, metric, factor, digits, the paper's numbers by arm
    ("MNIST, rotated, %", "robustness", "mnist", "rotated/accuracy", 100, 1, _ROTATED["mnist"]),
    ("CIFAR-10, rotated, %", "robustness", "cifar10", "rotated/accuracy", 100, 1,
     _ROTATED["cifar10"]),
    ("CIFAR-100, rotated, %", "robustness", "cifar100", "rotated/accuracy", 100, 1,
     _ROTATED["cifar100"]),
    ("VQA, noisy, %", "vqa", "vqa-rad", "noisy/all", 100, 1,
     {arm: figures[0] for arm, figures in vqa.PUBLISHED["noisy"].items()}),
    ("eICU, macro F1", "clinical", "eicu-demo", "chosen/f1", 1, 3,
     {arm: figures[0] for arm, figures in clinical.PUBLISHED.items()}),
)  # fmt: skip


def main() -> None:
    """Draw all problems that there are records of, and put the table into the README."""
    records = read(ROOT / "results" / "cpu", "done")
    picture(records)
    readme = ROOT / "README.md"
    before, rest = readme.read_text().split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    readme.write_text(f"{before}{MARKS[0]}\n{table(records)}\n{MARKS[1]}{after}")


def table(records: list) -> str:
    """Markdown: a line per method; in brackets the paper's own numbers."""
    lines = ["| method | " + " | ".join(column[0] for column in COLUMNS) + " |",
             "|---|" + "---|" * len(COLUMNS)]  # fmt: skip
    counts: dict[str, set[int]] = {}
    run = {record["method"] for record in records}
    for arm in (arm for arm in ARMS.values() if arm.label in run):
        cells = []
        for title, study, data, metric, factor, digits, paper in COLUMNS:
            own = [record for record in records if record["study"] == study]
            values = list(by_seed(own, data, arm.label, metric).values())
            counts.setdefault(title, set()).add(len(values))
            if len(counts[title]) > 1 or len(values) < 2:
                raise ValueError(f"{title}: arms have {counts[title]} seeds; do what is missing")
            mean, error = mean_error([factor * value for value in values])
            said = f" ({paper[arm.label]:.{digits}f})" if arm.label in paper else ""
            cells.append(f"{mean:.{digits}f} ± {error:.{digits}f}{said}")
        lines.append(f"| {arm.title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def picture(records: list) -> None:
    """A panel for labels with many parts, for masks on inputs and for masks on hidden units."""
    first = headline(records)
    panels = {made.panel.where.capitalize(): made.rows for made in first.pictures} if first else {}
    heights = [len(rows) for rows in panels.values()]
    figure, axes = plt.subplots(
        len(panels), 1, figsize=(8, 1.6 + 0.5 * sum(heights)), height_ratios=heights,
        layout="constrained", facecolor=PAPER, squeeze=False,
    )  # fmt: skip
    for axis, (title, rows) in zip(axes[:, 0], panels.items(), strict=True):
        draw(axis, title, rows)
    entries = {}
    for axis in axes[:, 0]:
        entries |= {
            name: handle for handle, name in zip(*axis.get_legend_handles_labels(), strict=True)
        }
    figure.legend(
        entries.values(), entries.keys(), loc="outside upper center", ncols=3, frameon=False
    )
    figure.supxlabel(
        "test NLL less that of tuned MC dropout, in % of it (left is better)", fontsize=10
    )
    figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})


def draw(axis: plt.Axes, title: str, rows: dict) -> None:
    """One line per problem, one point per method."""
    axis.set_facecolor(PAPER)
    axis.set_title(title, loc="left", fontsize=10, color=INK)
    axis.axvline(0, color=INK, linewidth=0.8)
    axis.text(0, 1.0, " MC dropout", transform=axis.get_xaxis_transform(), fontsize=8, va="bottom")
    arms = [arm for arm in SHOWN if any(arm in row for row in rows.values())]
    for number, arm in enumerate(arms):
        label, colour, marker = SHOWN[arm]
        there = [(place, row[arm]) for place, row in enumerate(rows.values()) if arm in row]
        heights = [place + 0.75 * ((number + 0.5) / len(arms) - 0.5) for place, _ in there]
        middle = [each.mean for _, each in there]
        reach = [[each.mean - each.low for _, each in there],
                 [each.high - each.mean for _, each in there]]  # fmt: skip
        axis.errorbar(
            middle, heights, xerr=reach, fmt=marker, color=colour, label=label, markersize=5,
            linewidth=1.6,
        )  # fmt: skip
    axis.set_yticks(range(len(rows)), list(rows), fontsize=9)
    axis.set_ylim(len(rows) - 0.5, -0.5)
    axis.grid(axis="x", color="#e3e4e0")
    axis.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.tick_params(axis="y", length=0)


if __name__ == "__main__":
    main()
