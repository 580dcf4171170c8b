"""The evidence lower bound of trained models: what the paper's objective comes to on test data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from gflowout.core.ensemble import Ensemble
from gflowout.core.model import MaskedModel
from gflowout.core.predictive import Predictive

AT_ONCE = 10
"""Draws in a pass."""
SHARED = ("id-gflowout",)
"""Methods that draw one mask for all points, whose ELBO is that of the training set."""


@contextmanager
def on_policy(model: MaskedModel, draws: int) -> Iterator[int]:
    """Draw without exploring, several masks at once if the method can, and learn nothing.

    Masks that points share are shared by all of them, also where each had its own in training.
    """
    options = model.method.options
    plain = {"temperature": 1.0, "epsilon": 0.0, "draws": draws, "group_size": None}
    plain = {name: value for name, value in plain.items() if hasattr(options, name)}
    training = model.training
    model.eval()
    model.set_options(**plain)
    try:
        with torch.no_grad():
            yield int(plain.get("draws") or 1)
    finally:
        model.set_options(**{name: getattr(options, name) for name in plain})
        model.train(training)


def elbo(
    model: MaskedModel | Ensemble,
    batches: Iterable[tuple[tuple[Tensor, ...], Tensor]],
    seed: int = 0,
    draws: int = AT_ONCE,
) -> float | None:
    r"""Mean over examples of the ELBO, in nats; ``None`` for an ensemble, which has no masks.

    .. math:: \mathbb{E}_{q(z | x, y)} [\log p(y | x, z)] - \mathrm{KL}(q(z | x, y) \| p(z | x))

    (equation 4 of the paper). A method without a posterior of its own draws from its prior, with a
    KL divergence of 0. Masks that all examples share belong to the training set: their KL
    divergence counts once for all its examples.

    Args:
        model: A trained model.
        batches: Inputs of the backbone, and labels.
        seed: Of the draws.
        draws: Masks per example.
    """
    if isinstance(model, Ensemble):
        return None
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    total, count = 0.0, 0
    devices = [device] if device.type == "cuda" else []
    with on_policy(model, draws), torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        for inputs, labels in batches:
            x, y = [part.to(device) for part in inputs], labels.to(device)
            bound = model(*x, y=y).elbo
            if bound is None:
                pred = model.predict(*x, samples=draws, generator=generator)
                bound = expected_log_likelihood(pred, y)
            elif model.method.name in SHARED:
                bound = bound / model.method.options.train_size
            total += float(bound) * len(y)
            count += len(y)
    return total / count


def expected_log_likelihood(pred: Predictive, y: Tensor) -> Tensor:
    """Mean over draws and examples of log p(y | x, z)."""
    scores = [
        Predictive(output.unsqueeze(0), pred.likelihood).log_prob(y) for output in pred.outputs
    ]
    return torch.stack(scores).mean()
