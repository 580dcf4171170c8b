"""The result of a prediction: samples, their mean, and uncertainty scores as methods."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import torch
from torch import Tensor

from gflowout.core import checks, text, tree, uncertainty
from gflowout.core.lazy import cached_property
from gflowout.core.likelihoods import Likelihood
from gflowout.core.uncertainty import Combine

_AT_A_TIME = 2**17
"""Elements of the outputs that are turned into probabilities or scores at a time."""

_FEW = 16
"""Classes below which PyTorch's softmax over the last axis takes up to 16 times as long as another.
"""

SCORES = (
    "entropy", "expected_entropy", "mutual_information", "max_probability", "dempster_shafer",
    "variance", "energy", "max_logit", "gen", "variation_ratio", "logit_disagreement",
    "aleatoric_variance", "epistemic_variance",
)  # fmt: skip
"""Scores by which :meth:`Predictive.score` finds them; high for less certain but for one."""


@dataclass(frozen=True, eq=False)
class Predictive:
    """What a model predicts, one answer per drawn set of masks.

    Scores have the shape of a label: [batch] for plain classification, [batch, tokens] for
    tagging, [batch, height, width] for pixels, [batch, labels] for several labels, [batch, dim] for
    regression and counts.

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
        """Probabilities (classes) or means (numbers), classes last, [samples, batch, ...]."""
        return self._per_output(self.likelihood.samples)

    @cached_property
    def mean(self) -> Tensor:
        """Average over the samples of the probabilities (never of the logits), or of the means."""
        if "samples" in self.__dict__:
            return self.samples.mean(0)
        parts = self._parts()
        if len(parts) == 1:
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
        kinds = sorted({repr(part.likelihood) for part in parts})
        if len(kinds) > 1:
            raise ValueError(f"parts must have the same likelihood, got {', '.join(kinds)}")
        with_masks = [part.masks for part in parts if part.masks is not None]
        masks = None
        if len(with_masks) == len(parts):
            masks = [torch.cat(of_site, 1) for of_site in zip(*with_masks, strict=True)]
        return Predictive(torch.cat([p.outputs for p in parts], 1), parts[0].likelihood, masks)

    def log_prob(self, y: Tensor, *, values: bool = True) -> Tensor:
        """Log of the average likelihood of labels, [batch]; its negative mean is the NLL.

        The likelihood is that of a whole label. For a label with several parts (tags, several
        yes-or-no labels, several numbers) it is the joint one: the log of the mean over draws of
        the product over parts, which knows what parts occur together. With few draws it is too low
        in expectation, by about Var(p) / (2 S E[p]^2) for the likelihoods p of S draws: with many
        parts take hundreds.

        Args:
            y: Labels, as in training.
            values: Check the values of labels, for which an accelerator is waited for.

        Examples:
            >>> from gflowout import MultiLabel
            >>> both_or_none = torch.tensor([[[9.0, 9.0]], [[-9.0, -9.0]]])  # two draws
            >>> pred = Predictive(both_or_none, MultiLabel(2))
            >>> pred.mean  # one by one, each label is as likely as not
            tensor([[0.5000, 0.5000]])
            >>> pred.log_prob(torch.tensor([[1.0, 1.0]])).exp()
            tensor([0.4999])
            >>> pred.log_prob(torch.tensor([[1.0, 0.0]])).exp()
            tensor([0.0001])
        """
        target = self.likelihood.target(y, values=values)

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

    def energy(self, combine: Combine = "mean") -> Tensor:
        """Lack of evidence for any class; see :func:`gflowout.uncertainty.energy`.

        Args:
            combine: Score the mean logits, or average the score over the draws.
        """
        return uncertainty.energy(self._logits("energy"), combine)

    def max_logit(self, combine: Combine = "mean") -> Tensor:
        """Lack of evidence for the predicted class; see :func:`gflowout.uncertainty.max_logit`.

        Args:
            combine: Score the mean logits, or average the score over the draws.
        """
        return uncertainty.max_logit(self._logits("max_logit"), combine)

    def gen(self, combine: Combine = "mean", gamma: float = 0.1, top: int = 100) -> Tensor:
        """Generalised entropy; see :func:`gflowout.uncertainty.gen`.

        Args:
            combine: Score the mean probabilities, or average the score over the draws.
            gamma: Exponent of the probabilities.
            top: How many of the largest probabilities count.
        """
        return uncertainty.gen(self._probabilities("gen"), combine, gamma, top)

    def variation_ratio(self, combine: Combine = "draws") -> Tensor:
        """Draws that vote against the majority; see :func:`gflowout.uncertainty.variation_ratio`.

        Args:
            combine: Count votes of draws, or take the mean probabilities as shares of the votes.
        """
        if combine == "draws":  # logits give the same votes, without a softmax
            return uncertainty.variation_ratio(self._logits("variation_ratio"))
        return uncertainty.variation_ratio(self._probabilities("variation_ratio"), combine)

    def logit_disagreement(self) -> Tensor:
        """Spread of the draws' logits; see :func:`gflowout.uncertainty.logit_disagreement`."""
        return uncertainty.logit_disagreement(self._logits("logit_disagreement"))

    def variance(self) -> Tensor:
        """Variance of the probabilities, summed over classes; total variance of numbers."""
        if self.likelihood.has_classes:
            return uncertainty.variance(self._probabilities("variance"))
        return uncertainty.total_variance(self.samples, self._noise)

    def aleatoric_variance(self) -> Tensor:
        """Noise variance, in regression and of counts."""
        self._numbers("aleatoric_variance")
        return uncertainty.aleatoric_variance(self._noise)

    def epistemic_variance(self) -> Tensor:
        """Variance of the means between the masks, in regression and of counts."""
        self._numbers("epistemic_variance")
        return uncertainty.epistemic_variance(self.samples)

    def quantile(self, probability: float) -> Tensor:
        """Quantile of the predictive distribution, in regression and of counts and times.

        Args:
            probability: Between 0 and 1, both excluded.
        """
        self._numbers("quantile")
        return self.likelihood.quantile(self.outputs, probability)

    def score(self, name: str) -> Tensor:
        """An uncertainty by its name, higher for less certain.

        Args:
            name: A method of this class that takes no arguments and returns a score, such as
                ``"entropy"``. That of ``"max_probability"`` has its sign turned.

        Examples:
            >>> from gflowout import Categorical
            >>> pred = Predictive(torch.zeros(20, 2, 4), Categorical(4))
            >>> pred.score("max_probability")
            tensor([-0.2500, -0.2500])
        """
        checks.choice("score", name, [option for option in SCORES if hasattr(self, option)])
        values: Tensor = getattr(self, name)()
        return -values if name == "max_probability" else values

    def defer(
        self,
        score: str = "entropy",
        *,
        share: float | None = None,
        threshold: float | None = None,
    ) -> Tensor:
        """Which examples to leave to a person, bool of the shape of the score.

        :class:`gflowout.selective.Defer` finds a threshold for a wanted risk.

        Args:
            score: Uncertainty by name; see :meth:`score`.
            share: Leave this share of the examples at hand, the least certain; rounded down.
            threshold: Leave examples with a score above this, and those with a score of NaN; give
                either.

        Examples:
            >>> from gflowout import Categorical
            >>> pred = Predictive(torch.tensor([[[9.0, 0.0], [1.0, 0.0]]]), Categorical(2))
            >>> pred.defer(share=0.5), pred.defer(threshold=0.6)
            (tensor([False,  True]), tensor([False, False]))
        """
        if (share is None) == (threshold is None):
            raise ValueError(
                f"give either share or threshold, got share={share!r} and threshold={threshold!r}"
            )
        scores = self.score(score)
        if threshold is not None:
            return ~(scores <= checks.number("threshold", threshold))
        assert share is not None
        count = math.floor(checks.number("share", share, low=0, high=1) * scores.numel())
        chosen = torch.zeros_like(scores, dtype=torch.bool).flatten()
        order = scores.flatten().argsort(descending=True, stable=True)
        chosen[order[:count]] = True
        return chosen.reshape(scores.shape)

    def __repr__(self) -> str:
        """Show counts and shapes, not the numbers."""
        masks = "" if self.masks is None else f", masks at {text.counted(len(self.masks), 'site')}"
        shape = list(self.mean.shape)
        return f"Predictive({len(self.outputs)} samples, mean {shape}, {self.likelihood}{masks})"

    @property
    def _noise(self) -> Tensor:
        return self._per_output(self.likelihood.variance)

    def _logits(self, score: str) -> Tensor:
        if not self.likelihood.has_classes:
            raise TypeError(
                f"{score}() is for classes; for {self.likelihood} use variance(), "
                "epistemic_variance(), aleatoric_variance() or quantile()"
            )
        return self._per_output(self.likelihood.class_logits)

    def _probabilities(self, score: str) -> Tensor:
        logits = self._logits(score)
        if logits.shape[-1] >= _FEW:
            return logits.softmax(-1)
        return logits.movedim(-1, 0).contiguous().softmax(0).movedim(0, -1)

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

    def _numbers(self, score: str) -> None:
        if self.likelihood.has_classes:
            raise TypeError(
                f"{score}() is for regression (Gaussian, ...); for {self.likelihood} use "
                "variance(), entropy() or mutual_information()"
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
        >>> from gflowout import Gaussian
        >>> settled(torch.zeros(1, 2, 1), Gaussian(), samples=20)
        Predictive(20 samples, mean [2, 1], Gaussian(dim=1, ..., heteroscedastic=True))
    """
    if samples is not None and samples > len(outputs):
        outputs = outputs.expand(samples, *outputs.shape[1:])
        masks = masks and [mask.expand(samples, *mask.shape[1:]) for mask in masks]
    values, likelihood = likelihood.settle(outputs.flatten(0, 1))
    return Predictive(values.reshape(*outputs.shape[:2], *values.shape[1:]), likelihood, masks)


def of_labels(pred: Predictive, likelihood: Likelihood) -> Predictive:
    """A model's prediction of labels as they are, with the label noise of its likelihood, if any.

    Validation labels are as noisy as those of training: against predictions of the true class,
    a few wrong labels would make sure predictions look bad.

    Examples:
        >>> from gflowout import Categorical
        >>> clean, y = Predictive(torch.tensor([[[99.0, 0.0]]]), Categorical(2)), torch.tensor([1])
        >>> of_labels(clean, Categorical(2, label_noise=0.2)).log_prob(y).exp()
        tensor([0.1000])
    """
    if likelihood.label_noise is None:
        return pred
    fixed = likelihood.of_labels().to(pred.outputs.device)
    return Predictive(pred.outputs, fixed, pred.masks)
