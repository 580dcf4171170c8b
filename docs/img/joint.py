"""``python docs/img/joint.py`` makes joint.png, the picture of labels with many parts.

Reads the records of the study ``joint`` in ``results/cpu``, or in a folder that is named. Left: the
joint log-likelihood of test labels compared with that of tuned MC dropout, seed by seed, with 95 %
intervals. Right: lower halves of digits as three arms draw them.
"""

from __future__ import annotations

import base64
import io
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib import image

from gflowout.runs import read
from gflowout.studies.framework.statistics import by_seed, pair

ROOT = Path(__file__).parents[2]
INK, PAPER, SCORE = "#1b1b1b", "#fcfcfa", "test/joint"
CELL = 15  # pixels of a digit in the pictures of the records, with the line beside it
ARMS = {  # title, colour, marker
    "ensemble": ("five plain networks", "#7a7f87", "s"),
    "mixture": ("mixture head", "#1b7837", "^"),
    "cvae": ("CVAE", "#8e44ad", "v"),
    "mc-bound": ("MC dropout, marginal bound", "#d95f02", "o"),
    "gflowout-bound": ("GFlowOut, marginal bound", "#2166ac", "D"),
}
PROBLEMS = {
    "digits": "lower halves of digits (98 pixels)",
    "drugs": "drugs of a patient (60)",
    "drugs-hospitals": "... in other hospitals",
    "home-drugs": "drugs taken at home (60)",
    "tags": "tags that follow each other (10)",
    "arm": "angles of an arm (2)",
}
DRAWN = {"ensemble": "five plain networks", "mc": "MC dropout", "gflowout-bound": "GFlowOut"}


def draw(folder: Path) -> plt.Figure:
    """The picture from the records of a folder."""
    records = [record for record in read(folder, "done") if record["study"] == "joint"]
    problems = [data for data in PROBLEMS if any(record["data"] == data for record in records)]
    figure = plt.figure(figsize=(11, 4.4), facecolor=PAPER)
    spaces = figure.add_gridspec(
        len(DRAWN), 2, width_ratios=(1.1, 1), hspace=0.4, wspace=0.1,
        left=0.2, right=0.985, top=0.84, bottom=0.2,
    )  # fmt: skip
    left = figure.add_subplot(spaces[:, 0], facecolor=PAPER)
    for place, (arm, (title, colour, marker)) in enumerate(ARMS.items()):
        for row, data in enumerate(problems):
            ours, plain = (by_seed(records, data, label, SCORE) for label in (arm, "mc"))
            if len(ours.keys() & plain.keys()) < 2:
                continue
            gap = pair(ours, plain, "high")
            y = row + (place - (len(ARMS) - 1) / 2) * 0.14
            left.plot([gap.low, gap.high], [y, y], color=colour, lw=1.6)
            left.plot(
                gap.difference, y, marker, color=colour, ms=5.5, label=title if row == 0 else None
            )
    left.axvline(0, color=INK, lw=0.8)
    left.set_yticks(range(len(problems)), [PROBLEMS[data] for data in problems])
    left.set_ylim(len(problems) - 0.5, -0.5)
    left.set_xlabel(
        "joint log-likelihood of a test label minus that of MC dropout, nats (right is better)"
    )
    left.set_title("Labels with many parts", loc="left", fontsize=11, fontweight="bold")
    left.spines[["top", "right", "left"]].set_visible(False)
    left.tick_params(axis="y", length=0)
    left.grid(axis="x", color="#dddddd", lw=0.6)
    left.set_axisbelow(True)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(
        handles, labels, ncol=5, loc="lower left", frameon=False, bbox_to_anchor=(0.01, 0.0)
    )
    for row, (arm, title) in enumerate(DRAWN.items()):
        axis = figure.add_subplot(spaces[row, 1])
        axis.axis("off")
        own = [r for r in records if (r["data"], r["method"], r["seed"]) == ("digits", arm, 0)]
        if own:
            picture = image.imread(io.BytesIO(base64.b64decode(own[0]["metrics"]["pictures"])))
            shown = picture[: 2 * CELL - 1, : 8 * CELL - 1, :3]
            axis.imshow(1 - shown, interpolation="nearest")
        axis.set_title(title, loc="center", fontsize=9)
    heading = "A test digit, then lower halves that are drawn for it"
    figure.text(0.985, 0.94, heading, fontsize=11, fontweight="bold", ha="right")
    return figure


def main() -> None:
    """Write the picture."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "results" / "cpu"
    plt.rcParams.update({"font.size": 9, "text.color": INK, "axes.labelcolor": INK})
    draw(folder).savefig(ROOT / "docs" / "img" / "joint.png", dpi=130)


if __name__ == "__main__":
    main()
