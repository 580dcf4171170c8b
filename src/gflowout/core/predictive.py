"""The result of a prediction: samples, their mean, and uncertainty scores as methods."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import torch
from torch import Tensor

from gflowout.core import text, tree, uncertainty
from gflowout.core.lazy import cached_property
from gflowout.core.likelihoods import Gaussian, Likelihood

_AT_A_TIME = 2**17
"""Elements of the outputs that are turned into probabilities or scores at a time."""


@dataclass(frozen=True, eq=False)
class Predictive:
    """What a model predicts, one answer per drawn set of masks.

    Scores have the shape of a label: [batch] for plain classification, [batch, tokens] for
    tagging, [batch, labels] for several labels, [batch, dim] for regression.

    Attributes:
        outputs: Raw outputs of the backbone, [samples, batch, ...].
        likelihood: What the outputs mean.
        masks: The masks that were drawn, one [samples, batch, units] per site, if asked for.

    Examples:
        >>> from gflowout import Categorical
        >>> pred = Predictive(torch.zeros(20, 2, 4), Categorical(4))
        >>> pred.mean
        tensor([[0.2500, 0.2500, 0.2500, 0.2500],
                [0.2500, 0.2500, 0.2500, 0.2500]])
        >>> pred.mutual_information()
        tensor([0., 0.])
    """

    outputs: Tensor
    likelihood: Likelihood
    masks: Sequence[Tensor] | None = None

    @cached_property
    def samples(self) -> Tensor:
        """Probabilities (classes) or means (regression), [samples, batch, ...]."""
        return self._per_output(self.likelihood.samples)

    @cached_property
    def mean(self) -> Tensor:
        """Average over the samples of the probabilities (never of the logits), or of the means."""
        parts = self._parts()
        if "samples" in self.__dict__ or len(parts) == 1:
            return self.samples.mean(0)
        # Probabilities of all samples would take as much memory as the outputs once more.
        sums = (self._per_output(self.likelihood.samples, part).sum(0) for part in parts)
        return reduce(torch.add, sums) / len(self.outputs)

    def to(self, device: torch.device | str) -> Predictive:
        """Return the prediction with its tensors on another device.

        Args:
            device: Where to.

        Examples:
            >>> from gflowout import Categorical
            >>> Predictive(torch.zeros(20, 2, 4), Categorical(4)).to("cpu").outputs.device
            device(type='cpu')
        """
        masks = None if self.masks is None else [mask.to(device) for mask in self.masks]
        return Predictive(self.outputs.to(device), self.likelihood, masks)

    @staticmethod
    def join(parts: Sequence[Predictive]) -> Predictive:
        """Return predictions for several batches as one, batch after batch.

        Args:
            parts: With the same number of samples each, of the same model.

        Examples:
            >>> from gflowout import Categorical
            >>> batches = [Predictive(torch.zeros(20, rows, 4), Categorical(4)) for rows in (8, 3)]
            >>> Predictive.join(batches)
            Predictive(20 samples, mean [11, 4], Categorical(classes=4))
        """
        if not parts:
            raise ValueError("parts must hold at least one prediction, got none")
        counts = sorted({len(part.outputs) for part in parts})
        if len(counts) > 1:
            raise ValueError(f"parts must have the same number of samples, got {counts}")
        with_masks = [part.masks for part in parts if part.masks is not None]
        masks = None
        if len(with_masks) == len(parts):
            masks = [torch.cat(of_site, 1) for of_site in zip(*with_masks, strict=True)]
        return Predictive(torch.cat([p.outputs for p in parts], 1), parts[0].likelihood, masks)

    def log_prob(self, y: Tensor) -> Tensor:
        """Log of the average likelihood of labels, [batch]; its negative mean is the NLL.

        Args:
            y: Labels, as in training.
        """
        target = self.likelihood.target(y)

        def scores(part: Tensor) -> Tensor:
            labels = tree.repeat(target, len(part))
            return self._per_output(lambda output: self.likelihood.log_prob(output, labels), part)

        try:
            all_scores = torch.cat([scores(part) for part in self._parts()])
        except ValueError:
            self.likelihood.log_prob(self.outputs[0], target)  # as the user sees it
            raise
        return all_scores.logsumexp(0) - math.log(len(self.outputs))

    def entropy(self) -> Tensor:
        """Total uncertainty; see :func:`gflowout.uncertainty.predictive_entropy`."""
        return uncertainty.predictive_entropy(self._probabilities("entropy"))

    def expected_entropy(self) -> Tensor:
        """Noise in the data; see :func:`gflowout.uncertainty.expected_entropy`."""
        return uncertainty.expected_entropy(self._probabilities("expected_entropy"))

    def mutual_information(self) -> Tensor:
        """Disagreement of the masks; see :func:`gflowout.uncertainty.mutual_information`."""
        return uncertainty.mutual_information(self._probabilities("mutual_information"))

    def max_probability(self) -> Tensor:
        """Confidence in the predicted class; see :func:`gflowout.uncertainty.max_probability`."""
        return uncertainty.max_probability(self._probabilities("max_probability"))

    def dempster_shafer(self, combine: Literal["logits", "draws"] = "logits") -> Tensor:
        """Lack of evidence for any class; see :func:`gflowout.uncertainty.dempster_shafer`.

        Args:
            combine: Score the mean logits, or average the score over the draws.
        """
        return uncertainty.dempster_shafer(self._logits("dempster_shafer"), combine)

    def variance(self) -> Tensor:
        """Variance of the probabilities, summed over classes; total variance in regression."""
        if isinstance(self.likelihood, Gaussian):
            return uncertainty.total_variance(self.samples, self._noise)
        return uncertainty.variance(self._probabilities("variance"))

    def aleatoric_variance(self) -> Tensor:
        """Noise variance, in regression."""
        self._regression("aleatoric_variance")
        return uncertainty.aleatoric_variance(self._noise)

    def epistemic_variance(self) -> Tensor:
        """Variance of the means between the masks, in regression."""
        self._regression("epistemic_variance")
        return uncertainty.epistemic_variance(self.samples)

    def quantile(self, probability: float) -> Tensor:
        """Quantile of the predictive distribution, in regression.

        Args:
            probability: Between 0 and 1, both excluded.
        """
        self._regression("quantile")
        return uncertainty.gaussian_mixture_quantile(self.samples, self._noise, probability)

    def __repr__(self) -> str:
        """Show counts and shapes, not the numbers."""
        masks = "" if self.masks is None else f", masks at {text.counted(len(self.masks), 'site')}"
        shape = list(self.mean.shape)
        return f"Predictive({len(self.outputs)} samples, mean {shape}, {self.likelihood}{masks})"

    @property
    def _noise(self) -> Tensor:
        assert isinstance(self.likelihood, Gaussian)
        likelihood = self.likelihood
        return self._per_output(lambda output: likelihood.moments(output)[1]).exp()

    def _logits(self, score: str) -> Tensor:
        if isinstance(self.likelihood, Gaussian):
            raise TypeError(
                f"{score}() is for classes; for {self.likelihood} use variance(), "
                "epistemic_variance(), aleatoric_variance() or quantile()"
            )
        return self._per_output(self.likelihood.class_logits)

    def _probabilities(self, score: str) -> Tensor:
        return self._logits(score).softmax(-1)

    def _per_output(
        self, function: Callable[[Tensor], Tensor], outputs: Tensor | None = None
    ) -> Tensor:
        """Apply what takes an output, [batch, ...], to all: a batch of one is no class axis."""
        outputs = self.outputs if outputs is None else outputs
        values = function(outputs.flatten(0, 1))
        return values.reshape(*outputs.shape[:2], *values.shape[1:])

    def _parts(self) -> tuple[Tensor, ...]:
        """Outputs of some draws at a time, so that results in between stay small."""
        draws = max(1, _AT_A_TIME * len(self.outputs) // max(1, self.outputs.numel()))
        return torch.split(self.outputs, draws)

    def _regression(self, score: str) -> None:
        if not isinstance(self.likelihood, Gaussian):
            raise TypeError(
                f"{score}() is for regression (Gaussian); for {self.likelihood} use variance(), "
                "entropy() or mutual_information()"
            )


def settled(
    outputs: Tensor,
    likelihood: Likelihood,
    masks: Sequence[Tensor] | None = None,
    samples: int | None = None,
) -> Predictive:
    """A prediction of outputs, in a form that later training of the likelihood cannot change.

    ``samples`` is their number, where a single draw stands for all of them.

    Examples:
        >>> settled(torch.zeros(1, 2, 1), Gaussian(), samples=20)
        Predictive(20 samples, mean [2, 1], Gaussian(dim=1, ..., heteroscedastic=True))
    """
    if samples is not None and samples > len(outputs):
        outputs = outputs.expand(samples, *outputs.shape[1:])
        masks = masks and [mask.expand(samples, *mask.shape[1:]) for mask in masks]
    values, likelihood = likelihood.settle(outputs.flatten(0, 1))
    return Predictive(values.reshape(*outputs.shape[:2], *values.shape[1:]), likelihood, masks)
