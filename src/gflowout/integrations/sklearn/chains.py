"""Chains: networks trained on one table, each on its own, whose predictions are pooled.

A plain loop instead of :func:`gflowout.training.fit`: starting Lightning takes longer than training
on a small table. Options, their checks and when to stop are those of ``fit``.
"""

from __future__ import annotations

import copy
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
from gflowout.core.likelihoods import Binary, Gaussian, Likelihood
from gflowout.core.model import MaskedModel
from gflowout.core.noise import Noise
from gflowout.core.optional import require
from gflowout.core.predictive import Predictive
from gflowout.core.trajectory import Trajectory
from gflowout.core.wrap import wrap
from gflowout.integrations.sklearn import tabular
from gflowout.integrations.sklearn.recipes import Recipe, annealed, decayed
from gflowout.integrations.sklearn.tabular import Floats, Table
from gflowout.training.monitoring import ADVICE, DivergedError
from gflowout.training.options import FitOptions, ended

ROWS = 4096
"""Rows that are predicted at a time."""

NOISE_GAIN = 10.0
"""Factor on the learning rate of a regression's noise.

The noise is a single number and has to move as far as the networks do with thousands.
"""

_TRAINING = threading.Lock()
"""Training draws from PyTorch's random state: one thread at a time keeps results reproducible."""

History = list[dict[str, float]]
"""Training loss, and validation loss where there is one, of every epoch."""

Report = Callable[[int, History], None]
"""``report(number of epochs, history)``, called after every epoch."""


@dataclass(frozen=True)
class Plan:
    """How one chain is built and trained.

    Attributes:
        recipe: Method, widths, number of steps, size of batches and schedules.
        sites: As for :func:`gflowout.wrap`.
        options: Of the method.
        likelihood: Makes the likelihood.
        outputs: Width of the output.
        fit: How to train; its ``epochs`` at least.
        sparsity: What the prior charges for every feature in the end.
        device: Where to train.
    """

    recipe: Recipe
    sites: Any
    options: dict[str, Any]
    likelihood: Callable[[], Likelihood]
    outputs: int
    fit: FitOptions
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
    history: History
    best_epoch: int
    evidence: float


def train(plan: Plan, table: Table, valid: Table | None, report: Report) -> Chain:
    """Train a network on scaled rows; with validation rows, keep the weights of the best epoch.

    The seed of the plan decides everything; PyTorch's random state is neither read nor changed.
    """
    device = torch.device(plan.device)
    x = torch.tensor(table.x, dtype=torch.float32, device=device)
    devices = [device] if device.type == "cuda" else []
    with _TRAINING, torch.random.fork_rng(devices):
        torch.manual_seed(plan.fit.seed)
        net = MLP((x.shape[1], *plan.recipe.hidden, plan.outputs)).to(device)
        likelihood = plan.likelihood()
        model = wrap(
            net, plan.recipe.method, plan.sites, likelihood=likelihood,
            example=(x[:1].repeat(2, 1),), validate=False, **plan.options,
        )  # fmt: skip
        y = _targets(table, likelihood, device)
        history, best_epoch = _loop(plan, model, x, y, table, valid, report)
    if device.type != "mps":  # which has no double precision
        model.double()
    model.eval()
    evidence = math.nan
    if valid is not None:
        samples = 9 * plan.fit.valid_samples
        evidence = float(log_likelihood(model, valid, plan.fit.seed, samples).sum())
    return Chain(model, history, best_epoch, evidence)


def _loop(
    plan: Plan,
    model: MaskedModel,
    x: Tensor,
    y: Tensor,
    table: Table,
    valid: Table | None,
    report: Report,
) -> tuple[History, int]:
    """Train, and return the history and the number of the epoch whose weights the model has."""
    rng = np.random.RandomState(plan.fit.seed % 2**32)
    visited = len(tabular.visits(table.weight, table.total, rng))
    batches = -(-visited // plan.recipe.batch_size)
    epochs = max(plan.fit.epochs, -(-plan.recipe.steps // batches))
    optimiser = _optimiser(plan, model)
    every = max(1, epochs // plan.recipe.looks)
    history: History = []
    scores: list[float] = []
    best: tuple[int, float, dict[str, Tensor]] | None = None
    model.train()
    for epoch in range(epochs):
        _set_schedules(plan, model, optimiser, epoch / epochs)
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
            log_probs = log_likelihood(model, valid, plan.fit.seed, plan.fit.valid_samples)
            score = -float(log_probs.sum() / valid.weight.sum())
            history[-1]["valid_nll"] = score
            if best is None or score < best[1]:
                state = {name: value.clone() for name, value in model.state_dict().items()}
                best = epoch, score, state
        scores.append(history[-1].get("valid_nll", math.inf))
        report(epochs, history)
        if valid is not None and ended(plan.fit, scores) == "patience":
            break
    if best is not None:
        model.load_state_dict(best[2])
    if plan.sparsity and plan.recipe.settle:
        _settle(plan, model, x, y, table, rng, round(plan.recipe.settle * epochs * batches))
    return history, len(history) - 1 if best is None else best[0]


def _optimiser(plan: Plan, model: MaskedModel) -> torch.optim.Adam:
    """One group per learning rate, and one fused call per group: tensors are small."""
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
    """Fit the mask posterior to the final prior while the network is frozen.

    As long as the network learns, the posterior lags behind it and behind the prior.
    """
    model.set_options(sparsity=plan.sparsity)
    model.backbone.requires_grad_(False)
    optimiser = torch.optim.Adam(model.method.parameters(), lr=plan.recipe.settle_lr)
    for step in range(steps):
        if step == round(0.6 * steps):
            optimiser.param_groups[0]["lr"] /= 5
        visited = tabular.visits(table.weight, table.total, rng)[: plan.recipe.settle_rows]
        rows = torch.from_numpy(visited).to(x.device)
        optimiser.zero_grad()
        model(x[rows], y=y[rows]).tb.backward()
        optimiser.step()
    model.backbone.requires_grad_(True)


def _set_schedules(
    plan: Plan, model: MaskedModel, optimiser: torch.optim.Optimizer, progress: float
) -> None:
    """Set learning rates and the sparsity of the prior for an epoch."""
    if plan.sparsity:
        model.set_options(sparsity=annealed(plan.recipe, plan.sparsity, progress))
    for group in optimiser.param_groups:
        group["lr"] = group["base_lr"] * decayed(plan.recipe, progress)


def log_likelihood(model: MaskedModel, table: Table, seed: int, samples: int) -> Tensor:
    """Weighted log-likelihood of scaled rows, [rows]; the seed decides the draws."""
    pred = predict(model, table.x, samples, random.generator(seed, "valid"))
    y = _targets(table, model.likelihood, pred.outputs.device)
    return pred.log_prob(y).cpu().double() * torch.from_numpy(table.weight)


def predict(
    model: MaskedModel,
    x: Floats,
    samples: int,
    generator: torch.Generator,
    return_masks: bool = False,
) -> Predictive:
    """``model.predict`` for scaled rows [rows, features], with random numbers shared by all rows.

    A draw is then a function of one row; with random numbers of its own, the prediction for a row
    would depend on its position in the batch.
    """
    method = copy.copy(model.method)
    draw_own = method.draw

    def draw(site: int, activation: Tensor, trajectory: Trajectory) -> Tensor:
        if site == 0 and trajectory.given is None:
            trajectory.noise = _SharedNoise(trajectory.noise)
        return draw_own(site, activation, trajectory)

    method.draw = draw  # type: ignore[method-assign]
    sharing = MaskedModel(model.backbone, method, model.likelihood, model.spec, validate=False)
    parameter = next(model.parameters())
    rows = torch.tensor(x, dtype=parameter.dtype, device=parameter.device)
    return sharing.predict(rows, samples=samples, generator=generator, return_masks=return_masks)


class _SharedNoise(Noise):
    """Random numbers of a draw that are the same for every row."""

    def __init__(self, noise: Noise) -> None:
        super().__init__(noise.generators, noise.copies)
        self.noise = noise

    def uniform(self, rows: int, units: int, like: Tensor) -> Tensor:
        """One row of uniform numbers per copy of the batch, repeated for all of its rows."""
        return self.noise.uniform(1, units, like).repeat_interleave(rows, 0)

    def normal(self, rows: int, units: int, like: Tensor) -> Tensor:
        """The same for standard normal numbers."""
        return self.noise.normal(1, units, like).repeat_interleave(rows, 0)


def pooled(
    chains: Sequence[Chain], weights: Floats, x: Floats, samples: int, seed: int
) -> Predictive:
    """Predict scaled rows with all chains; each gives a share of the samples by its weight."""
    counts = shares(weights.tolist(), samples)
    batches = []
    for start in range(0, len(x), ROWS):
        parts = [
            predict(
                chain.model,
                x[start : start + ROWS],
                count,
                random.generator(seed, "predict", number),
            ).to("cpu")
            for number, (chain, count) in enumerate(zip(chains, counts, strict=True))
            if count
        ]
        outputs = torch.cat([part.outputs for part in parts])
        batches.append(Predictive(outputs, parts[0].likelihood))
    return Predictive.join(batches)


def weigh(evidence: Floats, temper: float) -> Floats:
    """Weights of chains: the softmax of their tempered validation log-likelihoods.

    Chains have equal weights if there are no validation rows (NaN in ``evidence``) or ``temper``
    is 0.

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
def progress(chains: int, show: bool) -> Iterator[Callable[[int], Report]]:
    """Show one progress bar over the epochs of all chains; yields a ``Report`` by chain number."""
    if not show:
        yield lambda number: lambda epochs, history: None
        return
    rich = require("rich.progress", extra="sklearn", purpose="verbose=True")
    with rich.Progress(
        rich.TextColumn("{task.description}"),
        rich.BarColumn(bar_width=12),
        rich.TaskProgressColumn(),
        rich.TimeElapsedColumn(),
        rich.TimeRemainingColumn(),
    ) as bar:
        task = bar.add_task("training", total=chains)

        def reporter(number: int) -> Report:
            def report(epochs: int, history: History) -> None:
                text = f"chain {number + 1}/{chains} {describe(epochs, history)}"
                bar.update(task, completed=number + len(history) / epochs, description=text)

            return report

        yield reporter
        bar.update(task, completed=chains)


def describe(epochs: int, history: History) -> str:
    """State of a training run in one line.

    Examples:
        >>> describe(9, [{"train_nll": 0.5, "valid_nll": 0.4}, {"train_nll": 0.3}])
        'epoch 2/9 loss 0.300 valid 0.400 (best 0.400)'
    """
    text = f"epoch {len(history)}/{epochs} loss {history[-1]['train_nll']:.3f}"
    valid = [numbers["valid_nll"] for numbers in history if "valid_nll" in numbers]
    return text + (f" valid {valid[-1]:.3f} (best {min(valid):.3f})" if valid else "")
