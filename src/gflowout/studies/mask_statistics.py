"""Statistics of the masks of a trained network: reward, distances, information on the label.

Masks are [draws, points, units] of 0 and 1.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from gflowout.app.sources import Part
from gflowout.core.model import MaskedModel
from gflowout.core.optional import require
from gflowout.runs import Context, Run
from gflowout.studies import images
from gflowout.studies.elbo import AT_ONCE, SHARED, on_policy
from gflowout.studies.framework.statistics import prefixed
from gflowout.studies.images import Fitted

POSTERIOR = ("gflowout", "combined", "control")
"""Arms whose posterior sees the label; the others draw the same masks with and without it."""
NOISE = ("gaussian_noise", 3)
_SHOWN_POINTS, _SHOWN_MASKS, _SHOWN_UNITS = 6, 60, 40


@dataclass(frozen=True)
class Scored:
    """Masks of all sites side by side, [masks, points, units], and log-probabilities.

    Those are [masks, points]: under posterior and prior, and the likelihood of the label; for masks
    that all points share, of the training set.
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
    """Draw masks of each point from the posterior, without exploration, and score them."""
    drawn: list[tuple[Tensor, ...]] = []
    devices = [x.device] if x.is_cuda else []
    with on_policy(model, min(count, AT_ONCE)) as at_once, torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        for _ in range(-(-count // at_once)):
            losses = model(x, y=y)
            values = (losses.log_q, losses.log_reward, *losses.masks)
            drawn.append(tuple(value.reshape(at_once, len(y), -1) for value in values))
    log_q, reward, *masks = (torch.cat(parts)[:count] for parts in zip(*drawn, strict=True))
    log_q, reward = log_q.squeeze(-1), reward.squeeze(-1)
    logits = model.predict(x, masks=masks).outputs.flatten(0, 1)
    fit = -F.cross_entropy(logits, y.repeat(count), reduction="none").reshape(count, len(y))
    if model.method.name in SHARED:
        fit = model.method.options.train_size * fit.mean(1, keepdim=True)
        log_q, reward = log_q[:, :1], reward[:, :1]
    log_p = reward - getattr(model.method.options, "beta", 1.0) * fit
    return Scored(torch.cat(masks, -1).cpu(), log_q.cpu(), log_p.cpu(), fit.cpu())


@dataclass(frozen=True)
class Correlation:
    """Correlations of two values of masks.

    ``pearson`` and ``spearman`` are taken over the masks of each point and averaged over the
    ``points`` in which both values vary; ``significant`` is the share of these points whose Pearson
    correlation is positive with p <= 0.05. ``pooled`` is the Pearson correlation of all masks after
    subtracting each point's mean, ``p`` its two-sided p-value.
    """

    pearson: float
    spearman: float
    significant: float
    pooled: float
    p: float
    points: int
    masks: int


def correlate(first: Tensor, second: Tensor) -> Correlation:
    """Correlate two values of masks, each [masks, points], within each point.

    Values of different points are never compared: each has its own normalising constant.
    """
    both = torch.stack([first, second]).double()
    both = both[:, :, (both.amax(1) > both.amin(1)).all(0)]
    _, masks, points = both.shape
    if masks < 3 or not points:
        nan = math.nan
        return Correlation(nan, nan, nan, nan, nan, points, masks)
    stats = require("scipy.stats", extra="studies", purpose="a correlation")
    r = _pearson(*both)
    rho = _pearson(*torch.from_numpy(stats.rankdata(both.numpy(), axis=1)))
    pooled = float(_pearson(*(both - both.mean(1, keepdim=True)).flatten(1).unsqueeze(-1)))
    hits = [value > 0 and p_value(value, masks - 2) <= 0.05 for value in r.tolist()]
    # Every point has spent one degree of freedom on its mean.
    p = p_value(pooled, points * (masks - 1) - 1)
    return Correlation(
        float(r.mean()), float(rho.mean()), sum(hits) / points, pooled, p, points, masks
    )


def p_value(correlation: float, free: int) -> float:
    """Two-sided p-value of a Pearson correlation with ``free`` degrees of freedom."""
    if abs(correlation) >= 1:
        return 0.0
    t = abs(correlation) * math.sqrt(free / (1 - correlation**2))
    stats = require("scipy.stats", extra="studies", purpose="a p-value")
    return float(2 * stats.t(free).sf(t))


def _pearson(first: Tensor, second: Tensor) -> Tensor:
    """Correlation of each column."""
    first, second = first - first.mean(0), second - second.mean(0)
    scale = (first.square().sum(0) * second.square().sum(0)).sqrt()
    return ((first * second).sum(0) / scale).clamp(-1, 1)


def manhattan(first: Tensor, second: Tensor) -> float:
    """Mean distance between mean masks [points, units], per unit: 1 for opposite ones."""
    return float((first - second).abs().mean())


def pair_distances(means: Tensor, labels: Tensor) -> tuple[float, float]:
    """Mean distance per unit of mean masks [points, units], within and between classes."""
    far = torch.cdist(means.double(), means.double(), p=1) / means.shape[1]
    first, second = torch.triu_indices(len(means), len(means), offset=1)
    far, same = far[first, second], labels[first] == labels[second]
    return float(far[same].mean()), float(far[~same].mean())


def keep_by_class(masks: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Share of points and draws that keep a unit, [classes, units]; NaN without points."""
    kept, sizes = _by_class(masks.double().sum(0), len(masks), labels, classes)
    return kept / sizes.unsqueeze(1)


def information(masks: Tensor, labels: Tensor, classes: int) -> Tensor:
    r"""Mutual information between each unit's bit and the label, plug-in estimate in bits.

    .. math:: I(z; y) = H(z) - \sum_y p(y) H(z | y)

    with shares for probabilities, [units], from masks [draws, points, units] and labels [points].
    It is too large with few points; see :func:`beyond_chance`.
    """
    return _information(masks.double().sum(0), len(masks), labels, classes)


class Information(NamedTuple):
    """Mutual information between each unit and the label, compared with shuffled labels.

    ``bits`` [units] has the mean over shuffled labels subtracted; ``above`` [units] says whether
    it is larger than with any shuffling, as 1 % of uninformative units are with 99 of them.
    """

    bits: Tensor
    above: Tensor


def beyond_chance(
    masks: Tensor, labels: Tensor, classes: int, *, shuffles: int = 99, seed: int = 0
) -> Information:
    """Mutual information beyond what finite data give, by a permutation null.

    Labels are shuffled among points, not among draws: draws of one point belong together.
    """
    generator = torch.Generator().manual_seed(seed)
    kept = masks.double().sum(0)
    orders = [torch.randperm(len(labels), generator=generator) for _ in range(shuffles)]
    null = torch.stack([_information(kept, len(masks), labels[order], classes) for order in orders])
    bits = _information(kept, len(masks), labels, classes)
    return Information(bits - null.mean(0), bits > null.max(0).values)


def _by_class(kept: Tensor, draws: int, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """How often units were kept by class, [classes, units], and of how many times, [classes]."""
    member = F.one_hot(labels.long(), classes).double()
    return member.T @ kept, member.sum(0) * draws


def _information(kept: Tensor, draws: int, labels: Tensor, classes: int) -> Tensor:
    """Mutual information from the number of draws in which units were kept, [points, units]."""
    kept, sizes = _by_class(kept, draws, labels, classes)
    kept, sizes = kept[sizes > 0], sizes[sizes > 0]
    whole = _entropy(kept.sum(0) / sizes.sum())
    parts = _entropy(kept / sizes.unsqueeze(1))
    return (whole - (sizes / sizes.sum()) @ parts).clamp(min=0).abs()  # no -0


def _entropy(keep: Tensor) -> Tensor:
    """Entropy of a bit, in bits."""
    return -(torch.xlogy(keep, keep) + torch.xlogy(1 - keep, 1 - keep)) / math.log(2)


# Of a trained network


@images.after_training
def work(run: Run, fitted: Fitted, context: Context) -> dict[str, Any]:
    """Distances, information about the label and correlation with the reward."""
    test = images.subset(fitted.task.part("test"), run.options["scored"], run.options["points"])
    context.progress(0, 3, "distances")
    masks, metrics = _distances(run, fitted, test, context)
    context.progress(1, 3, "information")
    metrics |= _label_information(run, fitted, test, masks)
    context.progress(2, 3, "correlation")
    return metrics | _reward_correlation(run, fitted, test)


def _model(fitted: Fitted) -> MaskedModel:
    assert isinstance(fitted.model, MaskedModel)
    return fitted.model


def _distances(
    run: Run, fitted: Fitted, test: Part, context: Context
) -> tuple[Tensor, dict[str, Any]]:
    """Masks of a prediction; how far apart they are, and how many units they keep."""
    turned = images.shifted(test.x, images.ROTATED, 0, fitted, context)
    noisy = images.shifted(test.x, *NOISE, fitted, context)
    # One call for all: masks that a method shares between points are then the same throughout.
    whole = Part(torch.cat([test.x, test.x, turned, noisy]), test.y.repeat(4))
    x, _ = images.whole_batch(fitted, whole)
    generator, samples = torch.Generator().manual_seed(1000 * run.seed), run.options["samples"]
    pred = fitted.model.predict(x, samples=samples, generator=generator, return_masks=True)
    assert pred.masks is not None
    drawn = [mask.cpu() for mask in pred.masks]
    sites = [mask[:, : len(test)] for mask in drawn]
    means = torch.cat([mask.mean(0) for mask in drawn], -1).chunk(4)
    within, between = pair_distances(means[0], test.y)
    metrics: dict[str, Any] = {"distance/within": within, "distance/between": between}
    for name, mean in zip(("same", "rotated", "noise"), means[1:], strict=True):
        metrics[f"distance/{name}"] = manhattan(means[0], mean)
    metrics["keep/sd_units"] = float(means[0].mean(0).std())
    for site, mask in zip(_model(fitted).sites, sites, strict=True):
        metrics[f"site/{site.name}"] = float(mask.mean())
    return torch.cat(sites, -1), metrics


def _label_information(run: Run, fitted: Fitted, test: Part, masks: Tensor) -> dict[str, Any]:
    """How much masks tell about the label: those of a prediction, and those of the posterior."""
    model = _model(fitted)
    drawn = {"prediction": masks}
    if run.method in POSTERIOR:
        x, y = images.whole_batch(fitted, test)
        samples, seed = run.options["samples"], 1000 * run.seed + 10
        drawn["posterior"] = score(model, x, y, samples, seed).masks
    classes = fitted.problem.target.classes
    names = [f"{site.name}:{unit}" for site in model.sites for unit in range(site.units)]
    metrics: dict[str, Any] = {}
    for name, masks in drawn.items():
        info = beyond_chance(masks, test.y, len(classes), seed=run.seed)
        metrics |= {
            f"information/{name}": float(info.bits.mean()),
            f"information/{name}_most": float(info.bits.max()),
            f"information/{name}_above": float(info.above.double().mean()),
            f"keep/{name}": float(masks.double().mean()),
        }
        if run.seed == 0:
            units = info.bits.argsort(descending=True)[:_SHOWN_UNITS].sort().values
            rates = keep_by_class(masks, test.y, len(classes))[:, units]
            metrics[f"heat/{name}"] = {
                "rows": list(classes),
                "columns": [names[unit] for unit in units.tolist()],
                "values": [images.rounded(row, 3) for row in rates],
            }
    return metrics


def _reward_correlation(run: Run, fitted: Fitted, test: Part) -> dict[str, Any]:
    """Whether likelier masks have a higher reward."""
    if run.method == "mc":  # all its masks with as many units are alike
        return {}
    part = Part(test.x[: run.options["scored"]], test.y[: run.options["scored"]])
    if _model(fitted).method.name in SHARED:  # their reward is that of the training set
        part = images.subset(fitted.task.train, 0, run.options["points"])
    x, y = images.whole_batch(fitted, part)
    scored = score(_model(fitted), x, y, run.options["masks"], 1000 * run.seed + 20)
    metrics: dict[str, Any] = {
        "log_q/sd": float(scored.log_q.std(0).mean()),
        "log_likelihood/sd": float(scored.log_likelihood.std(0).mean()),
    }
    pairs = {
        "reward": (scored.log_q, scored.log_reward),
        "evidence": (scored.log_q - scored.log_p, scored.log_likelihood),
    }
    for name, both in pairs.items():
        metrics |= prefixed(name, asdict(correlate(*both)))
        if run.seed == 0:
            metrics[f"scatter/{name}"] = _scatter(*both, y, fitted)
    return metrics


def _scatter(first: Tensor, second: Tensor, y: Tensor, fitted: Fitted) -> list[dict[str, Any]]:
    """Some points with the two values of some of their masks, each point's mean taken off."""
    classes = fitted.problem.target.classes
    first, second = first - first.mean(0), second - second.mean(0)
    alone = first.shape[1] == 1
    return [
        {
            "title": "all points" if alone else f"{classes[int(y[point])]} (point {point + 1})",
            "x": images.rounded(first[:_SHOWN_MASKS, point], 3),
            "y": images.rounded(second[:_SHOWN_MASKS, point]),
        }
        for point in range(min(_SHOWN_POINTS, first.shape[1]))
    ]
