"""Likelihoods: what the backbone's output says about a label, p(y | output)."""

from __future__ import annotations

from torch import Tensor

from gflowout.core import checks
from gflowout.core.likelihoods.base import Likelihood
from gflowout.core.likelihoods.classes import Categorical
from gflowout.core.likelihoods.continuous import Gaussian, Quantile, StudentT
from gflowout.core.likelihoods.counts import NegativeBinomial, Poisson
from gflowout.core.likelihoods.ordinal import Ordinal
from gflowout.core.likelihoods.survival import Cox
from gflowout.core.likelihoods.yes_no import Binary, MultiLabel

__all__ = [
    "LIKELIHOODS",
    "TASKS",
    "Binary",
    "Categorical",
    "Cox",
    "Gaussian",
    "Likelihood",
    "MultiLabel",
    "NegativeBinomial",
    "Ordinal",
    "Poisson",
    "Quantile",
    "StudentT",
    "for_task",
]

LIKELIHOODS: dict[str, type[Likelihood]] = {
    kind.__name__: kind
    for kind in (
        Categorical, Binary, MultiLabel, Gaussian,
        StudentT, Quantile, Poisson, NegativeBinomial, Ordinal, Cox,
    )
}  # fmt: skip
"""Likelihoods by name, as saved files have them. Enter your own here to save and load it."""

TASKS = ("classification", "binary", "multilabel", "regression")
"""Names that ``wrap`` takes in place of a likelihood."""


def for_task(task: str, output: Tensor) -> Likelihood:
    """Likelihood of a task, sized by an output of the backbone.

    Args:
        task: ``"classification"`` (:class:`Categorical`), ``"binary"`` (:class:`Binary`),
            ``"multilabel"`` (:class:`MultiLabel`) or ``"regression"`` (:class:`Gaussian`).
        output: [batch, ..., size], or [batch].

    Examples:
        >>> import torch
        >>> for_task("classification", torch.zeros(2, 10))
        Categorical(classes=10)
        >>> for_task("regression", torch.zeros(2))
        Gaussian(dim=1, noise=1.0, learn_noise=True, heteroscedastic=False)
    """
    checks.choice("likelihood", task, TASKS)
    size = output.shape[-1] if output.dim() > 1 else 1
    if task == "binary":
        return Binary()
    if output.dim() > 3:
        raise ValueError(
            f"likelihood={task!r} is sized by the last axis of an output [batch, size] or [batch, "
            f"tokens, size], the backbone gives {list(output.shape)}; name the likelihood, such as "
            f"gfo.Categorical({output.shape[1]}, axis=1) for pixels"
        )
    if task == "classification" and size == 1:
        raise ValueError(
            "likelihood='classification' needs one output per class, the backbone gives "
            f"{list(output.shape)}; for one logit use likelihood='binary'"
        )
    if task == "classification":
        return Categorical(size)
    return MultiLabel(size) if task == "multilabel" else Gaussian(size)
