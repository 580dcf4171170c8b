"""The first screen of a report: its question, the answer in one sentence, and the picture of it.

The picture compares methods with tuned MC dropout on every problem of :data:`PANELS` that has
records: differences of the test NLL, paired by seed, in % of MC dropout's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from gflowout.core.text import counted
from gflowout.studies.framework.statistics import (
    Comparison,
    Record,
    Verdict,
    by_seed,
    holm,
    pair,
)

QUESTION = "Do learned dropout masks predict better than random ones?"
NOTE = (
    "Test NLL less that of tuned MC dropout, in % of it: left of 0 is better. Bars are 95 % "
    "intervals, paired by seed. The sentence above counts differences that remain significant "
    "after Holm correction over the problems of a panel."
)
BASELINE = "mc"
SHOWN = {
    "id-gflowout": "ID-GFlowOut",
    "gflowout": "GFlowOut",
    "gflowout-bound": "GFlowOut, marginal bound",
    "cvae": "CVAE",
    "gates": "Stochastic gates",
    "boosting": "Gradient boosting",
    "ensemble": "Deep ensemble",
}
"""Titles of the methods in the picture, by arm."""


class Problem(NamedTuple):
    """Where the records of a problem are, and its name in the picture."""

    study: str
    data: str
    metric: str  # an NLL, or a log-likelihood with ``sign`` -1
    label: str
    sign: int = 1


class Panel(NamedTuple):
    """Problems that are shown together, and the two arms that the answer is about."""

    where: str
    ours: str
    rival: str
    problems: Sequence[Problem]


PANELS = (
    Panel("labels with many parts", "gflowout-bound", "ensemble", (
        Problem("joint", "digits", "test/joint", "lower halves of digits", -1),
        Problem("joint", "drugs", "test/joint", "drugs of a patient", -1),
        Problem("joint", "drugs-hospitals", "test/joint", "drugs, other hospitals", -1),
        Problem("joint", "home-drugs", "test/joint", "drugs taken at home", -1),
        Problem("joint", "tags", "test/joint", "tags that follow each other", -1),
        Problem("joint", "arm", "test/joint", "angles of an arm", -1),
    )),
    Panel("inputs", "id-gflowout", "gates", (
        Problem("features", "independent", "test/nll", "60 inputs, 5 matter"),
        Problem("features", "copies", "test/nll", "60 inputs with near-copies"),
        Problem("features", "interactions", "test/nll", "only products matter"),
        Problem("features", "wide", "test/nll", "400 inputs, 200 rows"),
        Problem("features", "breast-cancer", "test/nll", "breast cancer + noise"),
        Problem("features", "digits", "test/nll", "digits + noise"),
        Problem("features", "eicu", "test/nll", "eICU demo, drugs"),
        Problem("features", "eicu-noise", "test/nll", "eICU demo, drugs + noise"),
    )),
    Panel("hidden units", "gflowout", "ensemble", (
        Problem("robustness", "mnist", "clean/nll", "MNIST"),
        Problem("robustness", "mnist", "rotated/nll", "MNIST, rotated"),
        Problem("robustness", "cifar10", "clean/nll", "CIFAR-10, small network"),
        Problem("robustness", "cifar10", "rotated/nll", "CIFAR-10, rotated"),
        Problem("robustness", "cifar100", "clean/nll", "CIFAR-100, small network"),
        Problem("robustness", "cifar100", "rotated/nll", "CIFAR-100, rotated"),
        Problem("vqa", "vqa-rad", "clean/nll", "VQA-RAD"),
        Problem("vqa", "vqa-rad", "noisy/nll", "VQA-RAD, noisy features"),
        Problem("clinical", "eicu-demo", "test/nll", "eICU demo, other hospitals"),
    )),
)  # fmt: skip


class Difference(NamedTuple):
    """A mean difference from the baseline with its 95 % interval, in % of the baseline."""

    mean: float
    low: float
    high: float
    verdict: Verdict  # after Holm correction over the problems of the panel


@dataclass(frozen=True)
class Picture:
    """A panel with its numbers: by label of the problem, then by arm."""

    panel: Panel
    rows: Mapping[str, Mapping[str, Difference]]

    @property
    def arms(self) -> list[str]:
        """Arms that have a number."""
        return [arm for arm in SHOWN if any(arm in row for row in self.rows.values())]

    @property
    def ends(self) -> tuple[float, float]:
        """Ends of the axis: the least and the largest number, and 0 in between."""
        numbers = [number for row in self.rows.values() for number in row.values()]
        return (
            min(0.0, *(number.low for number in numbers)),
            max(0.0, *(number.high for number in numbers)),
        )

    def counts(self, arm: str) -> Counter[Verdict]:
        """How often an arm is better than the baseline, worse, or neither."""
        return Counter(row[arm].verdict for row in self.rows.values() if arm in row)


@dataclass(frozen=True)
class Headline:
    """What a reader should know after the first screen."""

    answer: str
    pictures: Sequence[Picture]


def headline(records: Iterable[Record]) -> Headline | None:
    """The answer and its picture, from records; ``None`` if they compare nothing."""
    records = list(records)
    pictures = [picture for panel in PANELS if (picture := _picture(records, panel)).rows]
    parts = [_words(picture) for picture in pictures if picture.counts(picture.panel.ours)]
    if not parts:
        return None
    answer = "; ".join(parts)
    return Headline(f"{answer[0].upper()}{answer[1:]}.", pictures)


def _picture(records: Sequence[Record], panel: Panel) -> Picture:
    rows: dict[str, dict[str, Difference]] = {problem.label: {} for problem in panel.problems}
    for arm in SHOWN:
        tests, units = dict[str, Comparison](), dict[str, float]()
        for study, data, metric, label, sign in panel.problems:
            own = [record for record in records if record["study"] == study]
            base, ours = (
                {seed: sign * value for seed, value in by_seed(own, data, name, metric).items()}
                for name in (BASELINE, arm)
            )
            common = [base[seed] for seed in base if seed in ours]
            test = pair(ours, base, "low")
            if test.verdict != "not comparable":
                tests[label], units[label] = test, fmean(common) / 100
        for label, test in holm(tests).items():
            unit = units[label]
            rows[label][arm] = Difference(
                test.difference / unit, test.low / unit, test.high / unit, test.firm
            )
    return Picture(panel, {label: row for label, row in rows.items() if row})


def _words(picture: Picture) -> str:
    """The answer for one panel: yes, no or sometimes, and how often.

    Examples:
        >>> rows = {"a": {"gflowout": Difference(-2.0, -3.0, -1.0, "better")}}
        >>> _words(Picture(PANELS[2], rows))
        'on hidden units, yes: GFlowOut has a lower NLL than tuned MC dropout on 1 of 1 problem'
    """
    panel, counts = picture.panel, picture.counts(picture.panel.ours)
    rival = picture.counts(panel.rival)
    better, total = counts["better"], counts.total()
    answer = "no" if not better else "yes" if better == total else "sometimes"
    ours = SHOWN[panel.ours].replace(", ", " with the ")
    text = (
        f"on {panel.where}, {answer}: {ours} has a lower NLL than tuned MC dropout "
        f"on {better} of {counted(total, 'problem')}"
    )
    if counts["worse"]:
        text += f" and a higher one on {counts['worse']}"
    return f"{text} ({SHOWN[panel.rival].lower()}: on {rival['better']})" if rival else text
