"""Statistics of the masks of a trained network: reward, distances, information on the label.

Masks are [draws, points, units] of 0 and 1.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gflowout.app.sources import Part
from gflowout.core.model import MaskedModel
from gflowout.core.optional import require
from gflowout.runs import Context, Run
from gflowout.studies import images
from gflowout.studies.models import Fitted

SHARED = ("id-gflowout",)
"""Methods that draw one mask for all points."""
_AT_ONCE = 10
"""Draws in a pass."""
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
    log_qs, rewards = list[Tensor](), list[Tensor]()
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
    logits = model.predict(x, masks=masks).outputs.flatten(0, 1)
    fit = -F.cross_entropy(logits, y.repeat(count), reduction="none").reshape(count, len(y))
    if model.method.name in SHARED:
        fit = model.method.options.train_size * fit.mean(1, keepdim=True)
        log_q, reward = log_q[:, :1], reward[:, :1]
    log_p = reward - getattr(model.method.options, "beta", 1.0) * fit
    return Scored(torch.cat(masks, -1).cpu(), log_q.cpu(), log_p.cpu(), fit.cpu())


@contextmanager
def _on_policy(model: MaskedModel, draws: int) -> Iterator[int]:
    """A model that draws without exploring, several masks at once if it can, and learns nothing."""
    has = {field.name for field in dataclasses.fields(model.method.options)}
    plain = {"temperature": 1.0, "epsilon": 0.0, "draws": draws}
    wanted = {name: value for name, value in plain.items() if name in has}
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


@dataclass(frozen=True)
class Correlation:
    """Correlation over the masks of each point, averaged, and over all of them together.

    Attributes:
        significant: Share of points whose Pearson correlation is positive with p <= 0.05.
        pooled: Pearson correlation of all masks, each point's mean taken out.
        p: Of the pooled one, two-sided.
        points: Points in which both values vary; the others are left out.
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

    Examples:
        >>> first = torch.tensor([[0.0, 1.0], [1.0, 0.0], [2.0, -1.0]])
        >>> found = correlate(first, 10 * first + torch.tensor([5.0, -7.0]))
        >>> round(found.pearson, 6), round(found.spearman, 6), found.points
        (1.0, 1.0, 2)
    """
    first, second = (values.double() for values in (first, second))
    varies = [(values.max(0).values > values.min(0).values) for values in (first, second)]
    rows = varies[0] & varies[1]
    first, second = first[:, rows], second[:, rows]
    masks, points = first.shape
    if masks < 3 or not points:
        nan = math.nan
        return Correlation(nan, nan, nan, nan, nan, points, masks)
    r = _pearson(first, second)
    rho = _pearson(ranks(first), ranks(second))
    centred = [values - values.mean(0) for values in (first, second)]
    pooled = float(_pearson(*(values.flatten().unsqueeze(1) for values in centred))[0])
    hits = [value > 0 and p_value(value, masks - 2) <= 0.05 for value in r.tolist()]
    # Every point has spent one degree of freedom on its mean.
    free = points * (masks - 1) - 1
    return Correlation(
        float(r.mean()),
        float(rho.mean()),
        sum(hits) / points,
        pooled,
        p_value(pooled, free),
        points,
        masks,
    )


def p_value(correlation: float, free: int) -> float:
    """Two-sided p-value of a Pearson correlation with ``free`` degrees of freedom."""
    if abs(correlation) >= 1:
        return 0.0
    t = abs(correlation) * math.sqrt(free / (1 - correlation**2))
    stats = require("scipy.stats", extra="studies", purpose="a p-value")
    return float(2 * stats.t(free).sf(t))


def ranks(values: Tensor) -> Tensor:
    """Ranks along the first axis from 1; equal values share the mean of theirs.

    Examples:
        >>> ranks(torch.tensor([[3.0], [1.0], [3.0]])).flatten().tolist()
        [2.5, 1.0, 2.5]
    """
    below = (values.unsqueeze(0) < values.unsqueeze(1)).sum(1)
    same = (values.unsqueeze(0) == values.unsqueeze(1)).sum(1)
    return below.double() + (same + 1) / 2


def manhattan(first: Tensor, second: Tensor) -> float:
    """Mean distance between mean masks [points, units], per unit: 1 for opposite ones.

    Examples:
        >>> manhattan(torch.tensor([[1.0, 0.5]]), torch.tensor([[0.0, 0.5]]))
        0.5
    """
    return float((first - second).abs().mean())


def pair_distances(means: Tensor, labels: Tensor) -> tuple[float, float]:
    """Mean Manhattan distance per unit of mean masks [points, units], within and between classes.

    Examples:
        >>> means = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
        >>> pair_distances(means, torch.tensor([0, 0, 1]))
        (0.5, 0.75)
    """
    far = torch.cdist(means.double(), means.double(), p=1) / means.shape[1]
    first, second = torch.triu_indices(len(means), len(means), offset=1)
    far, same = far[first, second], labels[first] == labels[second]
    return float(far[same].mean()), float(far[~same].mean())


def keep_by_class(masks: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Share of points and draws that keep a unit, [classes, units]; NaN without points."""
    kept, sizes = _kept(masks, labels, classes)
    return kept / sizes.unsqueeze(1)


def information(masks: Tensor, labels: Tensor, classes: int) -> Tensor:
    r"""Mutual information between each unit's bit and the label, plug-in estimate in bits.

    .. math:: I(z; y) = H(z) - \sum_y p(y) H(z | y)

    with shares for probabilities, [units], from masks [draws, points, units] and labels [points].
    It is too large with few points; see :func:`beyond_chance`.

    Examples:
        >>> masks = torch.tensor([[[1.0, 1.0], [0.0, 1.0]]])
        >>> information(masks, torch.tensor([0, 1]), classes=2).tolist()
        [1.0, 0.0]
    """
    return _information(*_kept(masks, labels, classes))


@dataclass(frozen=True)
class Information:
    """Mutual information between units and label, less what shuffled labels give.

    Attributes:
        bits: Of each unit, with the mean over shuffled labels taken off, [units].
        above: Whether the unit's information is larger than with any shuffling, [units]. With
            99 of them, 1 % of units that know nothing are.
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
    null = torch.stack(
        [_information(*_by_class(kept, len(masks), labels[order], classes)) for order in orders]
    )
    found = information(masks, labels, classes)
    return Information(found - null.mean(0), found > null.max(0).values)


def _kept(masks: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    return _by_class(masks.double().sum(0), len(masks), labels, classes)


def _by_class(kept: Tensor, draws: int, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """How often units were kept by class, [classes, units], and of how many times, [classes]."""
    member = F.one_hot(labels.long(), classes).double()
    return member.T @ kept, member.sum(0) * draws


def _information(kept: Tensor, sizes: Tensor) -> Tensor:
    there = sizes > 0
    kept, sizes = kept[there], sizes[there]
    whole = _entropy(kept.sum(0) / sizes.sum())
    parts = _entropy(kept / sizes.unsqueeze(1))
    return (whole - (sizes / sizes.sum()) @ parts).clamp(min=0).abs()  # no -0


def _entropy(keep: Tensor) -> Tensor:
    """Of a bit, in bits."""
    return -(torch.xlogy(keep, keep) + torch.xlogy(1 - keep, 1 - keep)) / math.log(2)


def _pearson(first: Tensor, second: Tensor) -> Tensor:
    """Of each column."""
    first, second = first - first.mean(0), second - second.mean(0)
    scale = (first.square().sum(0) * second.square().sum(0)).sqrt()
    return ((first * second).sum(0) / scale).clamp(-1, 1)


# Of a trained network


def measured(run: Run, fitted: Fitted, context: Context) -> dict[str, Any]:
    """Distances, information about the label and correlation with the reward."""
    test = images.subset(fitted.task.part("test"), run.options["scored"], run.options["points"])
    context.progress(0, 3, "distances")
    masks, metrics = _drawn(run, fitted, test, context)
    context.progress(1, 3, "information")
    metrics |= _informed(run, fitted, test, masks)
    context.progress(2, 3, "correlation")
    return metrics | _rewarded(run, fitted, test)


def _model(fitted: Fitted) -> MaskedModel:
    assert isinstance(fitted.model, MaskedModel)
    return fitted.model


def _batch(fitted: Fitted, part: Part) -> tuple[Tensor, Tensor]:
    """All inputs and labels of a part, where the model is."""
    device = next(fitted.model.parameters()).device
    x, y = next(iter(part.batches(fitted.problem, len(part))))
    return x.to(device), y.to(device)


def _drawn(run: Run, fitted: Fitted, test: Part, context: Context) -> tuple[Tensor, dict[str, Any]]:
    """Masks of a prediction; how far apart they are, and how many units they keep."""
    turned = images.shifted(test.x, images.ROTATED, 0, fitted, context)
    noisy = images.shifted(test.x, *NOISE, fitted, context)
    # One call for all: masks that a method shares between points are then the same throughout.
    whole = Part(torch.cat([test.x, test.x, turned, noisy]), test.y.repeat(4))
    x, _ = _batch(fitted, whole)
    generator, samples = torch.Generator().manual_seed(1000 * run.seed), run.options["samples"]
    pred = fitted.model.predict(x, samples=samples, generator=generator, return_masks=True)
    assert pred.masks is not None
    drawn = [mask.cpu() for mask in pred.masks]
    sites = [mask[:, : len(test)] for mask in drawn]
    masks = torch.cat(sites, -1)
    means = torch.cat([mask.mean(0) for mask in drawn], -1).chunk(4)
    within, between = pair_distances(means[0], test.y)
    metrics: dict[str, Any] = {"distance/within": within, "distance/between": between}
    for name, mean in zip(("same", "rotated", "noise"), means[1:], strict=True):
        metrics[f"distance/{name}"] = manhattan(means[0], mean)
    metrics["keep/sd_units"] = float(means[0].mean(0).std())
    for site, mask in zip(_model(fitted).sites, sites, strict=True):
        metrics[f"site/{site.name}"] = float(mask.mean())
    return masks, metrics


def _informed(run: Run, fitted: Fitted, test: Part, masks: Tensor) -> dict[str, Any]:
    """How much masks tell about the label: those of a prediction, and those of the posterior."""
    model = _model(fitted)
    drawn = {"prediction": masks}
    if run.method in POSTERIOR:
        x, y = _batch(fitted, test)
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
                "values": [_rounded(row, 3) for row in rates],
            }
    return metrics


def _rewarded(run: Run, fitted: Fitted, test: Part) -> dict[str, Any]:
    """Whether likelier masks have a higher reward."""
    if run.method == "mc":  # all its masks with as many units are alike
        return {}
    part = Part(test.x[: run.options["scored"]], test.y[: run.options["scored"]])
    if run.method in SHARED:  # their reward is that of the training set
        part = images.subset(fitted.task.train, 0, run.options["points"])
    x, y = _batch(fitted, part)
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
        values = dataclasses.asdict(correlate(*both))
        metrics |= {f"{name}/{key}": value for key, value in values.items()}
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
            "x": _rounded(first[:_SHOWN_MASKS, point], 3),
            "y": _rounded(second[:_SHOWN_MASKS, point], 4),
        }
        for point in range(min(_SHOWN_POINTS, first.shape[1]))
    ]


def _rounded(values: Tensor, digits: int) -> list[float]:
    return [round(float(value), digits) for value in values]
