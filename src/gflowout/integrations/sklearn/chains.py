"""Chains: networks trained on one table, each on its own, whose predictions are pooled.

A plain loop instead of :func:`gflowout.training.fit`: starting Lightning takes longer than training
on a small table. Options, their checks and when to stop are those of ``fit``. Knows nothing of
scikit-learn.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gflowout.backbones.mlp import MLP
from gflowout.core import random
from gflowout.core.ensemble import shares
from gflowout.core.hooks import evaluating
from gflowout.core.likelihoods import Binary, Gaussian, Likelihood
from gflowout.core.model import MaskedModel
from gflowout.core.noise import Noise
from gflowout.core.predictive import Predictive
from gflowout.core.runner import Runner
from gflowout.core.trajectory import Trajectory
from gflowout.core.wrap import wrap
from gflowout.integrations.sklearn import tabular
from gflowout.integrations.sklearn.recipes import Recipe, annealed, decayed
from gflowout.integrations.sklearn.tabular import Floats, Table
from gflowout.training.alarms import ADVICE, DivergedError
from gflowout.training.options import FitOptions, ended

ROWS = 4096
"""Rows that are predicted at a time."""

NOISE_GAIN = 10.0
"""A regression's noise is one number, and has to go as far as the networks do with thousands."""

_TRAINING = threading.Lock()
"""Training draws from PyTorch's random state: one thread at a time, so that a seed is a result."""

Tell = Callable[[int, list[dict[str, float]]], None]
"""``tell(epochs in all, history)``, after every epoch."""


@dataclass(frozen=True)
class Plan:
    """How one chain is built and trained.

    Attributes:
        hidden: Widths of the hidden layers.
        method: Name of the method.
        sites: As for :func:`gflowout.wrap`.
        options: Of the method.
        likelihood: Makes what the output means.
        outputs: Width of the output.
        fit: How to train; its ``epochs`` at least.
        recipe: Gives the number of steps, the size of batches and what changes over the training.
        sparsity: What the prior charges for every feature in the end.
        device: Where to.
    """

    hidden: tuple[int, ...]
    method: str
    sites: Any
    options: dict[str, Any]
    likelihood: Callable[[], Likelihood]
    outputs: int
    fit: FitOptions
    recipe: Recipe
    sparsity: float
    device: str


@dataclass(frozen=True)
class Chain:
    """A trained network.

    Attributes:
        model: In double precision, so that a prediction does not depend on the rows beside it.
        history: Training and validation loss of every epoch.
        best_epoch: The epoch whose weights it has.
        evidence: Log-likelihood of its validation rows, NaN without any.
    """

    model: MaskedModel
    history: list[dict[str, float]]
    best_epoch: int
    evidence: float


def train(plan: Plan, table: Table, valid: Table | None, tell: Tell) -> Chain:
    """Train a network; it has the weights of its best epoch where there are validation rows.

    Nothing depends on PyTorch's random state, and it is left alone.

    Args:
        plan: How; its seed decides everything.
        table: Training rows, scaled.
        valid: Validation rows.
        tell: Hears of every epoch.
    """
    device = torch.device(plan.device)
    x = torch.tensor(table.x, dtype=torch.float32, device=device)
    with _own_random_state(device):
        torch.manual_seed(plan.fit.seed)
        net = MLP((x.shape[1], *plan.hidden, plan.outputs)).to(device)
        likelihood = plan.likelihood()
        model = wrap(
            net, plan.method, plan.sites, likelihood=likelihood, example=(x[:1].repeat(2, 1),),
            validate=False, **plan.options,
        )  # fmt: skip
        history = _loop(plan, model, x, _targets(table, likelihood, device), table, valid, tell)
    best = history.pop("best")
    if device.type != "mps":  # which has no double precision
        model.double()
    model.eval()
    evidence = math.nan if valid is None else float(log_likelihood(model, valid, plan.fit, 1).sum())
    return Chain(model, history["epochs"], best, evidence)


def _loop(
    plan: Plan,
    model: MaskedModel,
    x: Tensor,
    y: Tensor,
    table: Table,
    valid: Table | None,
    tell: Tell,
) -> dict[str, Any]:
    rng = np.random.RandomState(plan.fit.seed % 2**32)
    visited = len(tabular.visits(table.weight, table.total, rng))
    batches = -(-visited // plan.recipe.batch_size)
    epochs = max(plan.fit.epochs, -(-plan.recipe.steps // batches))
    optimiser = _optimiser(plan, model)
    every = max(1, epochs // plan.recipe.looks)
    history: list[dict[str, float]] = []
    scores: list[float] = []
    best: tuple[int, float, dict[str, Tensor]] | None = None
    model.train()
    for epoch in range(epochs):
        _set(plan, model, optimiser, epoch / epochs)
        order = torch.from_numpy(tabular.visits(table.weight, table.total, rng)).to(x.device)
        loss = 0.0
        for rows in order.tensor_split(batches):
            losses = model(x[rows], y=y[rows])
            optimiser.zero_grad()
            losses.total.backward()
            optimiser.step()
            loss += losses.nll.item() / batches
        if not math.isfinite(loss):
            raise DivergedError(f"the loss is {loss} in epoch {epoch}. {ADVICE}")
        history.append({"epoch": epoch, "train_nll": loss})
        if valid is not None and (epoch % every == every - 1 or epoch == epochs - 1):
            score = -float(log_likelihood(model, valid, plan.fit).sum() / valid.weight.sum())
            history[-1]["valid_nll"] = score
            if best is None or score < best[1]:
                state = {name: value.clone() for name, value in model.state_dict().items()}
                best = epoch, score, state
        scores.append(history[-1].get("valid_nll", math.inf))
        tell(epochs, history)
        if valid is not None and ended(plan.fit, scores) == "patience":
            break
    if best is not None:
        model.load_state_dict(best[2])
    if plan.sparsity and plan.recipe.settle:
        _settle(plan, model, x, y, table, rng, round(plan.recipe.settle * epochs * batches))
    return {"epochs": history, "best": len(history) - 1 if best is None else best[0]}


def _optimiser(plan: Plan, model: MaskedModel) -> torch.optim.Adam:
    """One group for all parameters of a rate, and one fused call for a group: tensors are small."""
    merged: dict[tuple[float, float], list[Tensor]] = {}
    rates = {name: getattr(plan.fit, name) for name in ("lr", "generator_lr", "weight_decay")}
    for group in model.parameter_groups(**rates):
        rate = group["lr"] * (NOISE_GAIN if group["name"] == "likelihood" else 1)
        merged.setdefault((rate, group["weight_decay"]), []).extend(group["params"])
    return torch.optim.Adam(
        [
            {"params": tensors, "lr": rate, "base_lr": rate, "weight_decay": decay}
            for (rate, decay), tensors in merged.items()
        ],
        fused=torch.device(plan.device).type in ("cpu", "cuda"),
    )


def _settle(
    plan: Plan,
    model: MaskedModel,
    x: Tensor,
    y: Tensor,
    table: Table,
    rng: np.random.RandomState,
    steps: int,
) -> None:
    """Fit the mask posterior of the last prior, with the network at rest.

    While the network learns, the posterior trails behind it and behind the prior.
    """
    model.set_options(sparsity=plan.sparsity)
    model.backbone.requires_grad_(False)
    stepper = torch.optim.Adam(model.method.parameters(), lr=plan.recipe.settle_lr)
    for step in range(steps):
        if step == round(0.6 * steps):
            stepper.param_groups[0]["lr"] /= 5
        visited = tabular.visits(table.weight, table.total, rng)[: plan.recipe.settle_rows]
        rows = torch.from_numpy(visited).to(x.device)
        stepper.zero_grad()
        model(x[rows], y=y[rows]).tb.backward()
        stepper.step()
    model.backbone.requires_grad_(True)


def _set(plan: Plan, model: MaskedModel, optimiser: torch.optim.Optimizer, progress: float) -> None:
    """Set learning rates and the prior's charge of an epoch."""
    if plan.sparsity:
        model.set_options(sparsity=annealed(plan.recipe, plan.sparsity, progress))
    for group in optimiser.param_groups:
        group["lr"] = group["base_lr"] * decayed(plan.recipe, progress)


def log_likelihood(model: MaskedModel, table: Table, fit: FitOptions, more: int = 0) -> Tensor:
    """Weighted log-likelihood of rows, [rows]; the draws are the same each time.

    Args:
        model: A wrapped network.
        table: Rows, scaled.
        fit: Gives seed and number of draws.
        more: Multiplies the draws by 1 + 8 times this.
    """
    first = next(model.parameters())
    seed = random.generator(fit.seed, "valid")
    draws = random.draw_seeds(fit.valid_samples * (1 + 8 * more), seed)
    x = torch.tensor(table.x, dtype=first.dtype, device=first.device)
    pred = draw(model, x, draws)
    y = _targets(table, model.likelihood, first.device)
    return pred.log_prob(y).cpu().double() * torch.from_numpy(table.weight)


def draw(
    model: MaskedModel, x: Tensor, draws: Sequence[int], return_masks: bool = False
) -> Predictive:
    """Predict rows, all with the same random numbers.

    A draw is then one function of a row, whatever the rows beside it; with numbers of its own, a
    row's answer would depend on its place in the batch.

    Args:
        model: A wrapped network.
        x: [rows, features].
        draws: One seed per draw.
        return_masks: Keep the masks in the result.
    """
    runner = Runner(model.backbone, model.sites, model.spec, (x,), {})
    same = model.method.deterministic

    def in_common(site: int, activation: Tensor, trajectory: Trajectory) -> Tensor:
        if site == 0 and trajectory.given is None:
            trajectory.noise = _Common(trajectory.noise)
        return model.method.draw(site, activation, trajectory)

    with torch.no_grad(), evaluating(model):
        outputs, masks = runner.sample(
            in_common, model.method.draw_ahead, draws[:1] if same else draws, None, None,
            return_masks,
        )  # fmt: skip
    if same:
        outputs = outputs.expand(len(draws), *outputs.shape[1:])
        masks = masks and [mask.expand(len(draws), *mask.shape[1:]) for mask in masks]
    settled, likelihood = model.likelihood.settle(outputs.flatten(0, 1))
    settled = settled.reshape(*outputs.shape[:2], *settled.shape[1:])
    return Predictive(settled.detach(), likelihood, masks)


class _Common(Noise):
    """Random numbers of a draw that are the same for every row."""

    def __init__(self, noise: Noise) -> None:
        super().__init__(noise.generators, noise.copies)
        self.noise = noise

    def uniform(self, rows: int, units: int, like: Tensor) -> Tensor:
        """One row of numbers per copy of the batch, for all of its rows."""
        return self.noise.uniform(1, units, like).repeat_interleave(rows, 0)

    def normal(self, rows: int, units: int, like: Tensor) -> Tensor:
        """The same of normal numbers."""
        return self.noise.normal(1, units, like).repeat_interleave(rows, 0)


def pooled(
    chains: Sequence[Chain],
    weights: Floats,
    x: Floats,
    samples: int,
    seed: int,
) -> Predictive:
    """Predict with all chains; each gives a share of the samples.

    Args:
        chains: Trained networks.
        weights: Of the chains.
        x: Rows, scaled, [rows, features].
        samples: Draws in all.
        seed: Decides the draws.
    """
    parts: list[list[Predictive]] = []
    numbered = list(enumerate(zip(chains, shares(weights.tolist(), samples), strict=True)))
    for start in range(0, len(x), ROWS):
        part = []
        for number, (chain, share) in numbered:
            if not share:
                continue
            first = next(chain.model.parameters())
            rows = torch.tensor(x[start : start + ROWS], dtype=first.dtype, device=first.device)
            source = random.generator(seed, "predict", number)
            draws = random.draw_seeds(share, source)
            part.append(draw(chain.model, rows, draws))
        parts.append(part)
    outputs = torch.cat([torch.cat([one.outputs for one in part]) for part in parts], 1)
    return Predictive(outputs.cpu(), parts[0][0].likelihood.cpu())


def weigh(evidence: Floats, temper: float) -> Floats:
    """Weights of chains: the softmax of their validation log-likelihoods; equal without any.

    Args:
        evidence: Validation log-likelihood of every chain, [chains]; NaN without validation rows.
        temper: Multiplies it.

    Examples:
        >>> weigh(np.array([-10.0, -10.0 - np.log(3)]), 1.0)
        array([0.75, 0.25])
    """
    if not temper or not np.isfinite(evidence).all():
        return np.full(len(evidence), 1 / len(evidence))
    weights: Floats = np.exp(temper * (evidence - evidence.max()))
    weights /= weights.sum()
    return weights


def _targets(table: Table, likelihood: Likelihood, device: torch.device) -> Tensor:
    if isinstance(likelihood, Gaussian):
        return torch.tensor(table.y, dtype=torch.float32, device=device)
    kind = torch.float32 if isinstance(likelihood, Binary) else torch.int64
    return torch.tensor(table.y[:, 0], dtype=kind, device=device)


@contextmanager
def _own_random_state(device: torch.device) -> Iterator[None]:
    devices = [device] if device.type == "cuda" else []
    with _TRAINING, torch.random.fork_rng(devices):
        yield
