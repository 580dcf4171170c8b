"""What the masks are like: the analysis of masks in the paper's appendix.

On trained networks (those of the robustness study) it asks whether likelier masks have a higher
reward, how masks differ between data points, classes and shifted inputs, how many units they keep,
and how much they tell about the label. What comes out is said in
:mod:`gflowout.studies.masks_section`; the statistics are in
:mod:`gflowout.studies.mask_statistics`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gflowout.app.tasks import Part
from gflowout.core.model import MaskedModel
from gflowout.runs import Context, Result, Run
from gflowout.studies import images, robustness
from gflowout.studies import mask_statistics as statistics
from gflowout.studies.framework.study import TUNING, Chosen, Options, Study
from gflowout.studies.masks_section import section
from gflowout.studies.models import Fitted

NAME = "masks"
DATA = ("mnist", "cifar10")
ARMS = ("mc", "contextual", "id-gflowout", "gflowout", "combined", "control")
POSTERIOR = ("gflowout", "combined", "control")
"""Arms whose posterior sees the label; the others draw the same masks with and without it."""
SHARED = ("id-gflowout",)
"""Arms that draw one mask for all points."""

SIZES: dict[str, Options] = {
    "smoke": {"points": 40, "scored": 6, "masks": 10},
    "cpu": {"points": 500, "scored": 100, "masks": 100},
    "paper": {"points": 1000, "scored": 500, "masks": 200},
}
"""Points for distances and information; points and masks of each for the correlation. The draws of
the first are ``samples``, 20 as in the paper."""

NOISE = ("gaussian_noise", 3)
_AT_ONCE = 10  # draws in a pass
_SHOWN_POINTS, _SHOWN_MASKS, _SHOWN_UNITS = 6, 60, 40


def tuning(preset: str) -> list[Run]:
    """The trials of the robustness study, of the arms that have masks."""
    found = robustness.tuning(preset)
    return [run for run in found if run.data in DATA and run.method in ARMS]


def runs(preset: str, chosen: Chosen) -> list[Run]:
    """A run of each arm and seed, on the models of the robustness study."""
    found = images.runs(NAME, preset, chosen, DATA, dict.fromkeys(DATA, SIZES[preset]))
    return [run for run in found if run.method in ARMS]


def work(run: Run, context: Context) -> Result:
    """A trial, or the statistics of one trained network."""
    if run.study == TUNING:
        return images.trial(run, context)
    found = images.trained(run, context)
    assert isinstance(found.model, MaskedModel)
    metrics: dict[str, Any] = dict(found.facts)
    test = images.subset(found.task.part("test"), run.options["scored"], run.options["points"])
    context.progress(0, 3, "distances")
    masks, shown = _drawn(run, found, test, context)
    metrics |= shown
    context.progress(1, 3, "information")
    metrics |= _informed(run, found, test, masks)
    context.progress(2, 3, "correlation")
    metrics |= _rewarded(run, found, test)
    return {"metrics": metrics, "epochs": found.epochs, "data": found.task.fingerprints}


@dataclass(frozen=True)
class Scored:
    """Masks from the posterior with their log-probabilities, each [masks, points].

    Attributes:
        masks: Of all sites side by side, [masks, points, units].
        log_q: Under the posterior.
        log_p: Under the prior.
        log_likelihood: Of the label. For masks that all points share: of the training set.
    """

    masks: Tensor
    log_q: Tensor
    log_p: Tensor
    log_likelihood: Tensor

    @property
    def log_reward(self) -> Tensor:
        """Of equation 7: likelihood times prior."""
        return self.log_p + self.log_likelihood


def score(model: MaskedModel, x: Tensor, y: Tensor, count: int, seed: int) -> Scored:
    """Draw masks from the posterior, as it is without exploration, and score them.

    Args:
        model: Of a method with a mask posterior.
        x: Inputs.
        y: Labels.
        count: Masks of each point.
        seed: Of the draws.
    """
    shared = model.method.name in SHARED
    log_qs: list[Tensor] = []
    rewards: list[Tensor] = []
    drawn: list[list[Tensor]] = [[] for _ in model.sites]
    devices = [x.device] if x.is_cuda else []
    with _on_policy(model, min(count, _AT_ONCE)) as at_once, torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        for _ in range(-(-count // at_once)):
            losses = model(x, y=y)
            log_qs.append(losses.log_q.reshape(at_once, len(y)))
            rewards.append(losses.log_reward.reshape(at_once, len(y)))
            for site, mask in zip(drawn, losses.masks, strict=True):
                site.append(mask.reshape(at_once, len(y), -1))
    masks = [torch.cat(site)[:count] for site in drawn]
    log_q, reward = torch.cat(log_qs)[:count], torch.cat(rewards)[:count]
    logits = model.predict(x, masks=masks).outputs
    fit = -F.cross_entropy(logits.flatten(0, 1), y.repeat(count), reduction="none")
    fit = fit.reshape(count, len(y))
    if shared:
        fit = model.method.options.train_size * fit.mean(1, keepdim=True)
        log_q, reward = log_q[:, :1], reward[:, :1]
    beta = getattr(model.method.options, "beta", 1.0)
    log_p = reward - beta * fit
    return Scored(torch.cat(masks, -1).cpu(), log_q.cpu(), log_p.cpu(), fit.cpu())


@contextmanager
def _on_policy(model: MaskedModel, draws: int) -> Iterator[int]:
    """A model that draws without exploring, several masks at once if it can, and learns nothing."""
    has = {field.name for field in dataclasses.fields(model.method.options)}
    wanted = {"temperature": 1.0, "epsilon": 0.0, "draws": draws}
    wanted = {name: value for name, value in wanted.items() if name in has}
    before = {name: getattr(model.method.options, name) for name in wanted}
    training = model.training
    model.eval()
    model.set_options(**wanted)
    try:
        with torch.no_grad():
            yield int(wanted.get("draws", 1))
    finally:
        model.set_options(**before)
        model.train(training)


def _batch(found: Fitted, part: Part) -> tuple[Tensor, Tensor]:
    """All inputs and labels of a part, where the model is."""
    device = next(found.model.parameters()).device
    x, y = next(iter(part.batches(found.problem, len(part))))
    return x.to(device), y.to(device)


def _drawn(
    run: Run, found: Fitted, test: Part, context: Context
) -> tuple[Tensor, dict[str, float]]:
    """Masks of a prediction; how far apart they are, and how many units they keep."""
    turned = images.shifted(test.x, images.ROTATED, 0, found, context)
    noisy = images.shifted(test.x, *NOISE, found, context)
    # One call for all: masks that a method shares between points are then the same throughout.
    whole = Part(torch.cat([test.x, test.x, turned, noisy]), test.y.repeat(4))
    x, _ = _batch(found, whole)
    generator = torch.Generator().manual_seed(1000 * run.seed)
    samples = run.options["samples"]
    made = found.model.predict(x, samples=samples, generator=generator, return_masks=True)
    assert made.masks is not None
    drawn = [mask.cpu() for mask in made.masks]
    sites = [mask[:, : len(test)] for mask in drawn]
    masks = torch.cat(sites, -1)
    means = torch.cat([mask.mean(0) for mask in drawn], -1).chunk(4)
    within, between = statistics.pair_distances(means[0], test.y)
    metrics = {
        "distance/same": statistics.manhattan(means[0], means[1]),
        "distance/within": within,
        "distance/between": between,
        "distance/rotated": statistics.manhattan(means[0], means[2]),
        "distance/noise": statistics.manhattan(means[0], means[3]),
        "keep/sd_units": float(means[0].mean(0).std()),
    }
    assert isinstance(found.model, MaskedModel)
    for site, mask in zip(found.model.sites, sites, strict=True):
        metrics[f"site/{site.name}"] = float(mask.mean())
    return masks, metrics


def _informed(run: Run, found: Fitted, test: Part, masks: Tensor) -> dict[str, Any]:
    """How much masks tell about the label: those of a prediction, and those of the posterior."""
    assert isinstance(found.model, MaskedModel)
    drawn = {"prediction": masks}
    if run.method in POSTERIOR:
        x, y = _batch(found, test)
        drawn["posterior"] = score(
            found.model, x, y, run.options["samples"], 1000 * run.seed + 10
        ).masks
    classes = found.problem.target.classes
    metrics: dict[str, Any] = {}
    for name, each in drawn.items():
        known = statistics.beyond_chance(each, test.y, len(classes), seed=run.seed)
        metrics |= {
            f"information/{name}": float(known.bits.mean()),
            f"information/{name}_most": float(known.bits.max()),
            f"information/{name}_above": float(known.above.double().mean()),
            f"keep/{name}": float(each.double().mean()),
        }
        if run.seed == 0:
            units = known.bits.argsort(descending=True)[:_SHOWN_UNITS].sort().values
            rates = statistics.keep_by_class(each, test.y, len(classes))[:, units]
            metrics[f"heat/{name}"] = {
                "rows": list(classes),
                "columns": [_unit(found.model, int(unit)) for unit in units],
                "values": [_rounded(row, 3) for row in rates],
            }
    return metrics


def _rewarded(run: Run, found: Fitted, test: Part) -> dict[str, Any]:
    """Whether likelier masks have a higher reward."""
    if run.method == "mc":  # all its masks with as many units are alike
        return {}
    assert isinstance(found.model, MaskedModel)
    part = Part(test.x[: run.options["scored"]], test.y[: run.options["scored"]])
    if run.method in SHARED:  # their reward is that of the training set
        part = images.subset(found.task.train, 0, run.options["points"])
    x, y = _batch(found, part)
    scored = score(found.model, x, y, run.options["masks"], 1000 * run.seed + 20)
    metrics: dict[str, Any] = {
        "log_q/sd": float(scored.log_q.std(0).mean()),
        "log_likelihood/sd": float(scored.log_likelihood.std(0).mean()),
    }
    pairs = {
        "reward": (scored.log_q, scored.log_reward),
        "evidence": (scored.log_q - scored.log_p, scored.log_likelihood),
    }
    for name, pair in pairs.items():
        values = dataclasses.asdict(statistics.correlate(*pair))
        metrics |= {f"{name}/{key}": value for key, value in values.items()}
        if run.seed == 0:
            metrics[f"scatter/{name}"] = _scatter(*pair, y, found)
    return metrics


def _scatter(first: Tensor, second: Tensor, y: Tensor, found: Fitted) -> list[dict[str, Any]]:
    """Some points with the two values of some of their masks, each point's mean taken off."""
    classes = found.problem.target.classes
    first, second = first - first.mean(0), second - second.mean(0)
    shared = first.shape[1] == 1
    return [
        {
            "title": "all points" if shared else f"{classes[int(y[point])]} (point {point + 1})",
            "x": _rounded(first[:_SHOWN_MASKS, point], 3),
            "y": _rounded(second[:_SHOWN_MASKS, point], 4),
        }
        for point in range(min(_SHOWN_POINTS, first.shape[1]))
    ]


def _unit(model: MaskedModel, unit: int) -> str:
    """Name of a unit among those of all sites."""
    for site in model.sites:
        if unit < site.units:
            return f"{site.name}:{unit}"
        unit -= site.units
    raise IndexError(unit)


def _rounded(values: Tensor, digits: int) -> list[float]:
    return [round(float(value), digits) for value in values]


STUDY = Study(
    name=NAME,
    title="What the masks are like",
    question="Are masks drawn in proportion to their reward, do they differ between inputs, and "
    "what do they know about the label?",
    paper="appendix on dropout masks",
    work="gflowout.studies.masks:work",
    runs=runs,
    section=section,
    tuning=tuning,
)
