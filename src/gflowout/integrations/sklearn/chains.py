"""Chains: networks trained on one table, each on its own, whose predictions are pooled.

A plain loop instead of :func:`gflowout.training.fit`: starting Lightning takes longer than training
on a small table.
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
from gflowout.core.disagreement import Disagreement, check_term
from gflowout.core.ensemble import shares
from gflowout.core.generators import DIRECT_GAIN
from gflowout.core.likelihoods import Binary, Gaussian, Likelihood
from gflowout.core.model import MaskedModel
from gflowout.core.noise import Noise
from gflowout.core.optional import require
from gflowout.core.predictive import Predictive, of_labels
from gflowout.core.trajectory import Trajectory
from gflowout.core.wrap import wrap
from gflowout.integrations.sklearn import tabular
from gflowout.integrations.sklearn.linear import start_linear
from gflowout.integrations.sklearn.recipes import Recipe
from gflowout.integrations.sklearn.stack import Stack
from gflowout.integrations.sklearn.tabular import Floats, Ints, Table
from gflowout.training.monitoring import ADVICE, DivergedError
from gflowout.training.options import FitOptions, ended

AT_A_TIME = 4096  # rows of a prediction
VALID_SAMPLES = 16  # draws per row for the validation loss
NEVER = -15.0  # log-odds of units that a chain does not read
NOISE_GAIN = 10.0
"""Factor on the learning rate of noise, of a regression or of labels: one number that moves far."""

_TRAINING = threading.Lock()
"""Training draws from PyTorch's random state: one thread at a time keeps results reproducible."""

History = list[dict[str, float]]
"""Training loss, and validation loss where there is one, of every epoch."""

Report = Callable[[int, int, History], None]
"""``report(number of the chain, number of epochs, history)``, called after every epoch."""


@dataclass(frozen=True)
class Plan:
    """How one chain is built and trained; its recipe holds the options of this chain."""

    recipe: Recipe
    sites: Any
    likelihood: Callable[[], Likelihood]
    seed: int
    device: str
    disagreement: Disagreement | None = None


@dataclass(frozen=True)
class Chain:
    """A trained network.

    The model is in double precision, so that a prediction does not depend on the rows beside it. It
    has the weights of ``best_epoch``; ``evidence`` is the log-likelihood of its validation rows,
    NaN without any.
    """

    model: MaskedModel
    history: History
    best_epoch: int
    evidence: float


def train(
    plan: Plan, table: Table, valid: Table | None, report: Callable[[int, History], None]
) -> Chain:
    """Train a network on scaled rows; with validation rows, keep the weights of the best epoch.

    The seed of the plan decides everything; PyTorch's random state is neither read nor changed.
    """
    device = torch.device(plan.device)
    with _TRAINING, torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(plan.seed)
        training = _Training(plan, table)
        history, best_epoch = training.run(valid, report)
    model = finished(training.model, plan.device)
    evidence = math.nan
    if valid is not None:
        evidence = float(log_likelihood(model, valid, plan.seed, 9 * VALID_SAMPLES).sum())
    return Chain(model, history, best_epoch, evidence)


def finished(model: MaskedModel, device: str) -> MaskedModel:
    """A trained network, for predictions only."""
    model.to(device)
    if torch.device(device).type != "mps":  # which has no double precision
        model.double()
    return model.eval()


def build_alone(plan: Plan, row: Tensor) -> MaskedModel:
    """The same as :func:`build`, without effect on PyTorch's random state."""
    with _TRAINING, torch.random.fork_rng([]):
        torch.manual_seed(plan.seed)
        return build(plan, row)


def build(plan: Plan, row: Tensor) -> MaskedModel:
    """The untrained network of a chain, for rows such as one [1, features]."""
    likelihood = plan.likelihood()
    net = MLP((row.shape[1], *plan.recipe.hidden, likelihood.label_size)).to(row.device)
    return wrap(
        net, plan.recipe.method, plan.sites, likelihood=likelihood, example=(row.repeat(2, 1),),
        validate=False, **plan.recipe.options,
    )  # fmt: skip


@torch.no_grad()
def fill(model: MaskedModel, stack: Stack, candidates: Ints) -> None:
    """Copy the only chain of a stack into a network, with the log-odds of its candidate units."""
    state = dict(model.named_parameters())
    names = [f"hidden.{layer}.linear" for layer in range(len(stack.weights) - 1)] + ["output"]
    for name, weight, bias in zip(names, stack.weights, stack.biases, strict=True):
        target = state[f"backbone.{name}.weight"]
        if name == names[0]:
            target.zero_()
            real = stack.unit[0] <= len(candidates)  # columns, not padding
            target[:, stack.columns[0, real]] = weight[0, real].T.to(target)
        else:
            target.copy_(weight[0].T)
        state[f"backbone.{name}.bias"].copy_(bias[0, 0])
    policy = model.method.get_submodule("posterior.0.blocks.0")
    logits = torch.full_like(state["method.posterior.0.blocks.0.bias"], NEVER)
    logits[torch.from_numpy(candidates)] = stack.logits[0, : len(candidates)].to(logits)
    start: Any = policy.start
    state["method.posterior.0.blocks.0.bias"].copy_((logits - start) / DIRECT_GAIN)
    if isinstance(model.likelihood, Gaussian):
        model.likelihood.log_variance.copy_(stack.log_variance[0, 0, 0])


class _Training:
    """The training of one chain."""

    def __init__(self, plan: Plan, table: Table) -> None:
        recipe, device = plan.recipe, torch.device(plan.device)
        self.recipe, self.table, self.seed = recipe, table, plan.seed
        self.x = torch.tensor(table.x, dtype=torch.float32, device=device)
        self.model = build(plan, self.x[:1])
        likelihood = self.model.likelihood
        if recipe.linear:
            start_linear(self.model, table, plan.seed)
        self.disagreement = plan.disagreement
        if self.disagreement is not None:
            check_term(self.disagreement, self.model)
        self.y = _targets(table, likelihood, device)
        self.rng = np.random.RandomState(plan.seed)
        self.batches = -(-len(self._visits()) // recipe.batch_size)
        self.epochs = max(recipe.epochs, -(-recipe.steps // self.batches))

    def run(
        self, valid: Table | None, report: Callable[[int, History], None]
    ) -> tuple[History, int]:
        """Train, and return the history and the number of the epoch whose weights the model has."""
        model, recipe, optimiser = self.model, self.recipe, self._optimiser()
        stopping = FitOptions(patience=recipe.patience, min_delta=recipe.tolerance)
        every = max(1, self.epochs // recipe.looks)
        history: History = []
        best: tuple[int, float, dict[str, Tensor]] | None = None
        model.train()
        for epoch in range(self.epochs):
            progress = epoch / self.epochs
            if recipe.sparsity:
                model.set_options(sparsity=recipe.annealed(progress))
                if progress < recipe.anneal[1]:
                    best = None  # of another prior than the final one
            for group in optimiser.param_groups:
                group["lr"] = group["base_lr"] * recipe.decayed(progress)
            loss = 0.0
            for rows in self._visits().tensor_split(self.batches):
                losses = model(self.x[rows], y=self.y[rows])
                total = losses.total
                if self.disagreement is not None:
                    total = total + self.disagreement(model, self.x[rows])
                optimiser.zero_grad()
                total.backward()
                optimiser.step()
                loss += losses.nll.item() / self.batches
            if not math.isfinite(loss):
                raise DivergedError(f"the loss is {loss} in epoch {epoch}. {ADVICE}")
            history.append({"epoch": epoch, "train_nll": loss})
            if valid is not None and (epoch % every == every - 1 or epoch == self.epochs - 1):
                log_probs = log_likelihood(model, valid, self.seed, VALID_SAMPLES)
                score = -float(log_probs.sum() / valid.weight.sum())
                history[-1]["valid_nll"] = score
                if best is None or score < best[1]:
                    state = {name: value.clone() for name, value in model.state_dict().items()}
                    best = epoch, score, state
            report(self.epochs, history)
            scores = [numbers.get("valid_nll", math.inf) for numbers in history]
            if valid is not None and ended(stopping, scores) == "patience":
                break
        if best is None:
            return history, len(history) - 1
        model.load_state_dict(best[2])
        return history, best[0]

    def _visits(self) -> Tensor:
        """Numbers of the rows that the next epoch visits."""
        rows = tabular.visits(self.table.weight, self.table.total, self.rng)
        return torch.from_numpy(rows).to(self.x.device)

    def _optimiser(self) -> torch.optim.Adam:
        """One group per learning rate, and one fused call per group: tensors are small."""
        merged: dict[tuple[float, float], list[Tensor]] = {}
        recipe, decay = self.recipe, self.recipe.weight_decay
        groups = self.model.parameter_groups(
            recipe.lr, recipe.generator_lr, weight_decay=decay, label_noise_lr=recipe.lr
        )
        for group in groups:
            noise = group["name"] in ("likelihood", "label_noise")
            rate = group["lr"] * (NOISE_GAIN if noise else 1)
            merged.setdefault((rate, group["weight_decay"]), []).extend(group["params"])
        groups = [
            {"params": tensors, "lr": rate, "base_lr": rate, "weight_decay": decay}
            for (rate, decay), tensors in merged.items()
        ]
        return torch.optim.Adam(groups, fused=self.x.device.type in ("cpu", "cuda"))


def log_likelihood(model: MaskedModel, table: Table, seed: int, samples: int) -> Tensor:
    """Weighted log-likelihood of scaled rows, [rows]; the seed decides the draws."""
    pred = predict(model, table.x, samples, random.generator(seed, "valid"))
    y = _targets(table, model.likelihood, pred.outputs.device)
    log_prob = of_labels(pred, model.likelihood).log_prob(y)
    return log_prob.cpu().double() * torch.from_numpy(table.weight)


def predict(
    model: MaskedModel, x: Floats, samples: int, generator: torch.Generator, masks: bool = False
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
    return sharing.predict(rows, samples=samples, generator=generator, return_masks=masks)


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
    for start in range(0, len(x), AT_A_TIME):
        rows = x[start : start + AT_A_TIME]
        parts = [
            predict(chain.model, rows, count, random.generator(seed, "predict", number)).to("cpu")
            for number, (chain, count) in enumerate(zip(chains, counts, strict=True))
            if count
        ]
        outputs = torch.cat([part.outputs for part in parts])
        batches.append(Predictive(outputs, parts[0].likelihood))
    return Predictive.join(batches)


def _targets(table: Table, likelihood: Likelihood, device: torch.device) -> Tensor:
    if isinstance(likelihood, Gaussian):
        return torch.tensor(table.y, dtype=torch.float32, device=device)
    kind = torch.float32 if isinstance(likelihood, Binary) else torch.int64
    return torch.tensor(table.y[:, 0], dtype=kind, device=device)


def report_chains(report: Report) -> Callable[[int], None]:
    """What reports chains that end together."""
    ended_chains = 0

    def ended_now(count: int) -> None:
        nonlocal ended_chains
        ended_chains += count
        report(ended_chains - 1, 1, [{"epoch": 0, "train_nll": math.nan}])

    return ended_now


@contextmanager
def progress_bar(chains: int, show: bool) -> Iterator[Report]:
    """Show one progress bar over the epochs of all chains; yields what reports an epoch to it."""
    if not show:
        yield lambda *_: None
        return
    rich = require("rich.progress", extra="sklearn", purpose="verbose=True")
    columns = (
        rich.TextColumn("{task.description}"), rich.BarColumn(bar_width=12),
        rich.TaskProgressColumn(), rich.TimeElapsedColumn(), rich.TimeRemainingColumn(),
    )  # fmt: skip
    with rich.Progress(*columns) as bar:
        task = bar.add_task("training", total=chains)

        def report(number: int, epochs: int, history: History) -> None:
            text = f"chain {number + 1}/{chains} epoch {len(history)}/{epochs}"
            text += f" loss {history[-1]['train_nll']:.3f}"
            valid = [numbers["valid_nll"] for numbers in history if "valid_nll" in numbers]
            text += f" valid {valid[-1]:.3f} (best {min(valid):.3f})" if valid else ""
            bar.update(task, completed=number + len(history) / epochs, description=text)

        yield report
        bar.update(task, completed=chains)
