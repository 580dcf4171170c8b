"""Robustness to shifted images: Table 1, the top of Figure 2 and the curves of the appendix.

MNIST with an MLP, CIFAR-10 and CIFAR-100 with ResNet-18; clean, rotated by any angle, and with
snow, frost and Gaussian noise at severities 1 to 5. The paper corrupts CIFAR alone and gives
accuracy alone: corrupted MNIST, NLL and calibration are ours.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gflowout.app.sources import Part
from gflowout.core import optional
from gflowout.runs import Context, Run
from gflowout.studies import elbo, images, images_section
from gflowout.studies.framework import claims as judged
from gflowout.studies.framework import content, sections
from gflowout.studies.framework.claims import LEAST_SEEDS
from gflowout.studies.framework.content import Claim, Curves, Pictures, Section, Table
from gflowout.studies.framework.sections import Compared
from gflowout.studies.framework.statistics import Record, by_seed
from gflowout.studies.framework.study import TUNING, Chosen, Study, sources
from gflowout.studies.images import CIFAR, DATA, ROTATED, SAME, SEVERITIES, SHIFTS, TITLES, Fitted

NAME = "robustness"
TEXTS = judged.entry(f"{NAME}.texts")
PAPER = judged.paper(NAME)
"""Accuracy on clean and rotated images, Table 1 of the paper."""
_DATA = {"smoke": DATA[:1], "cpu": DATA, "paper": DATA}
METRICS = {
    "accuracy": ("accuracy", True), "nll": ("NLL", False), "ece": ("calibration error", True)
}  # fmt: skip
"""Titles, and whether they are shares."""


@images.after_training
def work(run: Run, fitted: Fitted, context: Context) -> dict[str, Any]:
    """Scores of clean, rotated and corrupted test images.

    Options: ``test`` and ``corrupted``, how many images are scored clean and rotated, and at each
    severity of each corruption.
    """
    few = run.options["corrupted"]
    part = images.subset(fitted.task.part("test"), few, run.options["test"])
    clean = images.answer(fitted, part, run)
    metrics: dict[str, Any] = images.scored(clean, fitted, "clean")
    bound = elbo.elbo(fitted.model, images.labelled(fitted, part), run.seed)
    if bound is not None:
        metrics["clean/elbo"] = bound
    metrics |= images.scored({name: values[:few] for name, values in clean.items()}, fitted, SAME)
    turned = replace(part, x=images.shifted(part.x, ROTATED, 0, fitted, context))
    metrics |= images.scored(images.answer(fitted, turned, run), fitted, ROTATED)
    kinds = [(shift, severity) for shift in SHIFTS for severity in SEVERITIES]
    for place, (shift, severity) in enumerate(kinds):
        context.progress(place, len(kinds), f"{shift} {severity}")
        x = images.shifted(part.x[:few], shift, severity, fitted, context)
        answers = images.answer(fitted, Part(x, part.y[:few]), run)
        metrics |= images.scored(answers, fitted, f"{shift}-{severity}")
    if run.method == "gflowout" and run.seed == 0:
        mixed = torch.cat([part.x[:60], turned.x[60:120]])
        metrics["pictures"] = pictures(fitted, Part(mixed, part.y[:120]), run)
        metrics["classes"] = list(fitted.problem.target.classes)
    return metrics


def pictures(fitted: Fitted, part: Part, run: Run, count: int = 12) -> list[dict[str, Any]]:
    """Some images with their predictions, at equal steps in the order of their entropy.

    Returns the fields of :class:`gflowout.studies.framework.content.Picture`.
    """
    x, y = images.whole_batch(fitted, part)
    generator = torch.Generator().manual_seed(run.seed)
    pred = fitted.model.predict(x, samples=run.options["samples"], generator=generator)
    mean, entropy = pred.mean.cpu(), pred.entropy().cpu()
    spread = pred.samples.std(0, correction=0).cpu()
    order = entropy.argsort()
    chosen = order[torch.linspace(0, len(order) - 1, min(count, len(order))).round().long()]
    classes = fitted.problem.target.classes
    return [
        {
            "png": png(part.x[row]),
            "title": classes[int(y[row])],
            "probabilities": images.rounded(mean[row]),
            "spread": images.rounded(spread[row]),
            "uncertainty": round(float(entropy[row]), 4),
        }
        for row in chosen.tolist()
    ]


def png(image: Tensor) -> str:
    """An image, uint8 [C, H, W], as base64 of a PNG."""
    pillow = optional.require("PIL.Image", extra="data", purpose="pictures of a report")
    picture = pillow.fromarray(image.permute(1, 2, 0).squeeze(-1).numpy())
    stream = io.BytesIO()
    picture.save(stream, "PNG", optimize=True)
    return base64.b64encode(stream.getvalue()).decode()


def runs(preset: str, chosen: Chosen) -> list[Run]:
    """Every arm on every data set; corrupted CIFAR-10 of "smoke" is in the study of block order."""
    data = _DATA[preset]
    sizes = images.scored_images(preset, data)
    return images.runs(NAME, preset, chosen, data, sizes, variants=True)


def tuning(preset: str) -> list[Run]:
    """Trials of every arm, which the other studies on images share; "smoke" has variants, too."""
    return images.tuning(preset, DATA, variants=True)


def with_frost(run: Run) -> list[str]:
    """Names of the data sets that a run of :func:`work` reads, or a trial."""
    return sources(run) if run.study == TUNING else [*sources(run), "frost"]


def section(records: Sequence[Record]) -> Section:
    """Tables beside the paper's, curves, comparisons and claims."""
    there = sections.present(records, DATA)
    if not there:
        return Section(claims=claims(records))
    settings = [images_section.setting(records, data) for data in there]
    blocks: list[content.Block] = [content.Text([*settings, *TEXTS["about"]])]
    compared = []
    for data in there:
        blocks += [table(records, data), *shown_pictures(records, data)]
        blocks += severity_curves(records, data)
        title = TITLES[data]
        compared += [
            Compared(data, "rotated/accuracy", f"accuracy on rotated {title}", percent=True),
            Compared(data, corrupted("accuracy"), f"accuracy on corrupted {title}", percent=True),
            Compared(data, corrupted("nll"), f"NLL on corrupted {title}", "low"),
            Compared(data, "clean/accuracy", f"accuracy on clean {title}", percent=True),
        ]
    columns = {data: TITLES[data] for data in there}
    blocks.append(sections.choices(records, columns, "Chosen on validation data"))
    findings, details = sections.against_others(records, compared)
    blocks += sections.pair_by_pair(details)
    blocks += sections.at_equal_rates(records, compared)
    return Section(findings, blocks, claims(records), tuple(there))


def corrupted(metric: str, shift: str | None = None) -> list[str]:
    """Names of a metric at severities 1 to 5 of a corruption, or of all of them."""
    kinds = SHIFTS if shift is None else (shift,)
    return [f"{kind}-{severity}/{metric}" for kind in kinds for severity in SEVERITIES]


def table(records: Sequence[Record], data: str, paper: bool = True) -> Table:
    """Clean, rotated and corrupted scores of every arm, with the paper's."""
    columns = list(judged.columns(NAME)["shifts"].values())
    clean = [f"clean/{name}" for name in METRICS]
    metrics = [*clean, "rotated/accuracy", "rotated/nll", *map(corrupted, METRICS)]
    rows = sections.arm_rows(records, data, metrics)
    if paper:
        none = [None] * 4
        rows += sections.paper_rows(
            {arm: [clean, *none[:2], turned, *none] for arm, (clean, turned) in PAPER[data].items()}
        )
    caption = "Corrupted: mean over snow, frost and Gaussian noise at severities 1 to 5."
    return Table(TITLES[data], "Method", columns, rows, caption)


def severity_curves(records: Sequence[Record], data: str) -> list[Curves]:
    """A plot for each corruption and metric: the metric against the severity, a curve per arm."""
    plots = []
    for shift, name in SHIFTS.items():
        severities = {0: SAME, **{severity: f"{shift}-{severity}" for severity in SEVERITIES}}
        about = f"{TITLES[data]}, {name}"
        plots += metric_curves(records, data, about, "severity", severities)
    return plots


def metric_curves(
    records: Sequence[Record], data: str, about: str, x: str, scored: Mapping[int, str]
) -> list[Curves]:
    """A plot for each metric, a curve per arm; ``scored`` has the name of what was scored by x."""
    plots = []
    for metric, (title, percent) in METRICS.items():
        names = {place: f"{name}/{metric}" for place, name in scored.items()}
        lines = sections.lines(records, data, names)
        plots.append(Curves(f"{about}: {title}", x, title, lines, percent=percent))
    return [plot for plot in plots if plot.series]


def shown_pictures(records: Iterable[Record], data: str) -> list[Pictures]:
    """Pictures of the first record of these data that has some."""
    for record in records:
        metrics = record["metrics"]
        if record["data"] == data and metrics.get("pictures"):
            arm = sections.TITLES[record["method"]]
            caption = TEXTS["pictures"].format(title=arm, seed=record["seed"])
            pictures = [content.Picture(**fields) for fields in metrics["pictures"]]
            title = f"{TITLES[data]}: from certain to uncertain"
            return [Pictures(title, metrics["classes"], pictures, caption)]
    return []


def claims(records: Sequence[Record]) -> list[Claim]:
    """What the paper says of robustness, and what was found."""
    rotated = {TITLES[data]: (data, "rotated/accuracy") for data in DATA}
    margins = {
        TITLES[data]: {arm: PAPER[data]["gflowout"][1] - turned for arm, (_, turned) in own.items()}
        for data, own in PAPER.items()
    }
    weak = images_section.weak(records, DATA)
    reason = weak["mnist"] or f"Fewer than {LEAST_SEEDS} seeds of MNIST have been run."
    learned, random = (_mean(records, arm, "clean") for arm in ("gflowout", "mc"))
    ahead = None
    if learned is not None and random is not None and not weak["mnist"]:
        ahead = learned - random >= 5
    mean = _mean(records, "gflowout", "rotated")
    close = None
    if mean is not None and not weak["mnist"]:
        close = abs(mean / 100 - PAPER["mnist"]["gflowout"][1]) <= 0.05
    most, best = max(
        (_mean(records, arm, "rotated", 1) or 0.0, title) for arm, title in sections.TITLES.items()
    )
    return [
        judged.judge(
            "robustness.rotations",
            records,
            rotated,
            margins,
            images_section.scale(records),
            weak=weak,
        ),
        matching("robustness.corruptions", records, CIFAR),
        judged.template(
            "robustness.random_dropout", ahead, learned=learned, random=random, reason=reason
        ),
        judged.template("robustness.digits", close, mean=mean, best=best, most=most, reason=reason),
    ]


def matching(name: str, records: Sequence[Record], data: Sequence[str]) -> Claim:
    """The claim that we match all baselines under nearly every corruption."""
    experiments = {
        f"{TITLES[source]} {title}": (source, corrupted("accuracy", shift))
        for source in data
        for shift, title in SHIFTS.items()
    }
    note, weak = images_section.scale(records), images_section.weak(records, data)
    return judged.judge(name, records, experiments, note=note, weak=weak)


def _mean(records: Sequence[Record], arm: str, part: str, least: int = LEAST_SEEDS) -> float | None:
    """Mean accuracy on MNIST in %, over enough seeds."""
    values = by_seed(records, "mnist", arm, f"{part}/accuracy").values()
    return 100 * sum(values) / len(values) if len(values) >= least else None


STUDY = Study(
    name=NAME,
    **judged.entry(f"{NAME}.study"),
    work="gflowout.studies.robustness:work",
    runs=runs,
    section=section,
    tuning=tuning,
    needs=with_frost,
)
