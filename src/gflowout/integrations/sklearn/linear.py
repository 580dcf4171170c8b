"""A network that starts as a linear model: training then bends it where validation rows say so."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from gflowout.core.likelihoods import Binary, Gaussian, Likelihood
from gflowout.core.model import MaskedModel
from gflowout.integrations.sklearn import screen
from gflowout.integrations.sklearn.tabular import Table, targets

FOLDS = 5
LEAST_ROWS, MOST_ROWS = 20, 2000
"""Rows below which no linear model is worth starting from, and those that one is fitted to."""


def kind_of(likelihood: Likelihood) -> str:
    """Name of a likelihood for linear models and stacks."""
    if isinstance(likelihood, Gaussian):
        return "gaussian"
    return "binary" if isinstance(likelihood, Binary) else "categorical"


def sparse_model(table: Table, kind: str, seed: int) -> tuple[Tensor, Tensor]:
    """L1 model of a table, [columns, outputs] and [outputs]: the mean over folds of its rows.

    The strength of its penalty is judged by the rows that each fold leaves out.
    """
    if len(table) > MOST_ROWS:
        table = table.take(np.sort(np.random.RandomState(seed).permutation(len(table))[:MOST_ROWS]))
    share = table.weight / table.weight.mean()  # weights may be relative
    x, y, weight = (
        torch.from_numpy(part).float() for part in (table.x, targets(table, kind), share)
    )
    fold = torch.from_numpy(np.random.RandomState(seed).permutation(len(x)) % FOLDS)
    held_out = weight * torch.stack([fold == number for number in range(FOLDS)])
    best = screen.linear(x, y, weight - held_out, held_out, kind)[1]
    return best.weight.mean(0), best.bias.mean(0)


@torch.no_grad()
def start_linear(model: MaskedModel, table: Table, seed: int) -> None:
    """Make a network compute a sparse linear model of a table at first.

    Half of the units of every layer carry the linear model and its negative through the rectifiers,
    in copies, so that masks leave most of them; the others are random, and nothing reads them at
    first. The outputs are scaled for what the mean mask leaves. Nothing happens with few rows, or
    where layers are too narrow.
    """
    kind = kind_of(model.likelihood)
    hidden = [layer for layer in model.backbone.get_submodule("hidden").modules()
              if isinstance(layer, nn.Linear)]  # fmt: skip
    outputs = model.likelihood.label_size
    copies = min((layer.out_features for layer in hidden), default=0) // (4 * outputs)
    if not copies or len(table) < LEAST_ROWS:
        return
    slope, bias = (part.to(hidden[0].weight) for part in sparse_model(table, kind, seed))
    signs = torch.cat([torch.eye(outputs), -torch.eye(outputs)], 1).to(slope)
    used = slice(0, 2 * outputs * copies)
    hidden[0].weight[used] = (slope @ signs).T.repeat(copies, 1)
    hidden[0].bias[used] = 0
    for layer in hidden[1:]:
        layer.weight[used] = 0
        layer.weight[used, used] = torch.eye(2 * outputs).to(slope).repeat(copies, copies) / copies
        layer.bias[used] = 0
    last = model.backbone.get_submodule("output")
    assert isinstance(last, nn.Linear)
    last.weight.zero_()
    last.bias.zero_()
    last.weight[:outputs, used] = signs.repeat(1, copies) / copies
    x = torch.from_numpy(table.x).to(slope)
    target, output = x @ slope, model.eval()(x).reshape(len(x), -1)[:, :outputs]
    last.weight *= (output * target).sum() / (output * output).sum().clamp(min=1e-9)
    last.bias[:outputs] = bias
    if isinstance(model.likelihood, Gaussian):
        weight = torch.from_numpy(table.weight).to(slope)
        error = (torch.from_numpy(table.y).to(slope) - target - bias).square()
        variance = weight @ error / weight.sum()
        model.likelihood.log_variance.copy_(variance.clamp(min=1e-4).log())
