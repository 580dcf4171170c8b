"""Scores of the study joint, from draws of what a model says of labels with many parts.

A draw is an output of a network: given it, the parts of a label are independent. What joins them is
that all parts share the draw.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from gflowout.core.likelihoods import Categorical, Gaussian, Likelihood

BINS = 10
"""Of the calibration of pairs."""
ENERGY_DRAWS = 50
"""Labels that are drawn for the energy score."""


@dataclass(frozen=True)
class Answer:
    """What a model says of some rows.

    Attributes:
        outputs: Of each draw, [draws, rows, ...].
        likelihood: What an output says of a label.
        log_weights: Log of the share of each draw, [draws, rows]; ``None``: all the same.
        scores: Log-likelihood by importance sampling, [draws, rows], where draws from elsewhere
            than ``outputs`` estimate it better; its mean of exponentials is p(y | x).
        exact: Whether the draws are all that there are, so that sums over them have no error.
    """

    outputs: Tensor
    likelihood: Likelihood
    log_weights: Tensor | None = None
    scores: Tensor | None = None
    exact: bool = False


# Of one draw


def part_log_prob(likelihood: Likelihood, outputs: Tensor, y: Tensor) -> Tensor:
    """Log-likelihood of every part of a label, [draws, rows, parts]."""
    y = y.expand(*outputs.shape[:2], *y.shape[1:])
    if isinstance(likelihood, Categorical):
        return outputs.log_softmax(-1).gather(-1, y.unsqueeze(-1)).squeeze(-1)
    if isinstance(likelihood, Gaussian):
        mean, log_variance = outputs.chunk(2, -1)
        squared = (y - mean).square() * torch.exp(-log_variance)
        return -0.5 * (squared + log_variance + math.log(2 * math.pi))
    return -F.binary_cross_entropy_with_logits(outputs, y, reduction="none")


def events(likelihood: Likelihood, outputs: Tensor) -> Tensor:
    """Probabilities of the events whose pairs are counted, [draws, rows, events].

    A label that is present; a tag at a position; a number above 0.
    """
    if isinstance(likelihood, Categorical):
        return outputs.softmax(-1).flatten(2)
    if isinstance(likelihood, Gaussian):
        mean, log_variance = outputs.chunk(2, -1)
        above: Tensor = torch.special.ndtr(mean * torch.exp(-0.5 * log_variance))
        return above
    return outputs.sigmoid()


def happened(likelihood: Likelihood, y: Tensor) -> Tensor:
    """Which events of :func:`events` a label has, [rows, events] of 0 and 1."""
    if isinstance(likelihood, Categorical):
        return F.one_hot(y, likelihood.classes).flatten(1).float()
    return (y > 0).float()


def draw_labels(likelihood: Likelihood, outputs: Tensor, source: torch.Generator) -> Tensor:
    """A label from every output as a vector, [draws, rows, ...]; tags are one-hot."""
    if isinstance(likelihood, Categorical):
        flat = outputs.softmax(-1).flatten(0, -2)
        tags = torch.multinomial(flat, 1, generator=source).reshape(outputs.shape[:-1])
        return F.one_hot(tags, likelihood.classes).flatten(2).float()
    noise = torch.rand if not isinstance(likelihood, Gaussian) else torch.randn
    if isinstance(likelihood, Gaussian):
        mean, log_variance = outputs.chunk(2, -1)
        return mean + torch.exp(0.5 * log_variance) * noise(mean.shape, generator=source)
    return (noise(outputs.shape, generator=source) < outputs.sigmoid()).float()


def as_vector(likelihood: Likelihood, y: Tensor) -> Tensor:
    """Labels in the form of :func:`draw_labels`."""
    return happened(likelihood, y) if isinstance(likelihood, Categorical) else y.float()


# Of all draws together


def log_mean(scores: Tensor) -> Tensor:
    """Log of the mean of exponentials over the first axis."""
    return scores.logsumexp(0) - math.log(len(scores))


def remaining_bias(scores: Tensor) -> Tensor:
    """How far below log p(y | x) the log of a mean of draws is expected to be, [rows], >= 0.

    The estimate log (1/R) sum_r w_r is too low, by about Var(w) / (2 R E[w]^2) for many draws R.
    Two estimates of that, and the larger of them is taken for each row: the formula with the
    variance of the drawn w, and the difference between all draws and the mean of both halves
    (which have twice the bias). With too few draws to see the largest w both are too small.
    """
    draws = len(scores)
    if draws < 4:
        return torch.full_like(scores[0], math.nan)
    shares = scores.softmax(0)
    delta = 0.5 * (shares.square().sum(0) - 1 / draws)
    half = draws // 2
    split = log_mean(scores) - 0.5 * (log_mean(scores[:half]) + log_mean(scores[half : 2 * half]))
    return torch.maximum(delta, split).clamp(min=0)


def energy_score(drawn: Tensor, y: Tensor) -> Tensor:
    """Energy score, [rows]: E|Y - y| - E|Y - Y'| / 2 from labels drawn, [draws, rows, parts].

    Low is good; without bias, and lowest in expectation for the true joint distribution.
    """
    draws, by_row = len(drawn), drawn.transpose(0, 1)
    near: Tensor = torch.linalg.vector_norm(drawn - y, dim=-1).mean(0)
    apart = torch.cdist(by_row, by_row).sum((1, 2)) / (draws * (draws - 1))
    return near - apart / 2


@dataclass
class Pairs:
    """Counts of pairs of events, over rows: how likely both were said to be, and how often so."""

    said: Tensor  # by bin of probability, the sum of what was said
    both: Tensor  # how often both happened
    count: Tensor
    expected: Tensor  # by pair, the sum over rows
    observed: Tensor
    rows: int = 0

    @classmethod
    def none(cls, pairs: int) -> Pairs:
        """Nothing counted yet."""
        by_bin, by_pair = (
            torch.zeros(BINS, dtype=torch.double),
            torch.zeros(pairs, dtype=torch.double),
        )
        return cls(by_bin, by_bin.clone(), by_bin.clone(), by_pair, by_pair.clone())

    def add(self, said: Tensor, both: Tensor) -> None:
        """Count pairs of rows, [rows, pairs] each."""
        place = (said * BINS).long().clamp(0, BINS - 1).flatten()
        for total, values in ((self.said, said), (self.both, both), (self.count, None)):
            weights = None if values is None else values.flatten().double()
            total += torch.bincount(place, weights, minlength=BINS)
        self.expected += said.double().sum(0)
        self.observed += both.double().sum(0)
        self.rows += len(said)

    def metrics(self) -> dict[str, float]:
        """Calibration error over bins, and root mean squared error of a pair's frequency."""
        gaps = (self.said - self.both).abs().sum() / self.count.sum()
        errors = (self.expected - self.observed) / self.rows
        return {"ece": float(gaps), "error": float(errors.square().mean().sqrt())}

    def bins(self) -> list[list[float]]:
        """Of each bin that is not empty: mean probability said, frequency, number of pairs."""
        return [
            [round(float(said / count), 5), round(float(both / count), 5), int(count)]
            for said, both, count in zip(self.said, self.both, self.count, strict=True)
            if count
        ]


def pair_index(likelihood: Likelihood, count: int) -> Tensor:
    """Pairs of events that are counted, [2, pairs]: all but two tags of one position."""
    pairs = torch.triu_indices(count, count, 1)
    if isinstance(likelihood, Categorical):
        pairs = pairs[:, pairs[0] // likelihood.classes != pairs[1] // likelihood.classes]
    return pairs


def measure(
    answers: Iterable[tuple[Answer, Tensor]], source: torch.Generator
) -> tuple[dict[str, float], list[list[float]]]:
    """All scores of answers with their labels, batch by batch, and the bins of the pairs.

    ``joint`` is the mean of log p(y | x), ``bias`` how far below the truth it is expected to be for
    lack of draws, ``half`` the same estimate from half of the draws, ``marginal`` what it would be
    if the parts were independent given x.
    """
    sums: dict[str, list[Tensor]] = {}
    pairs: Pairs | None = None
    for answer, y in answers:
        for name, values in _by_row(answer, y, source).items():
            sums.setdefault(name, []).append(values)
        chances = events(answer.likelihood, answer.outputs)
        index = pair_index(answer.likelihood, chances.shape[-1])
        pairs = pairs or Pairs.none(index.shape[1])
        shares = _shares(answer).T.unsqueeze(1)  # [rows, 1, draws]
        by_row = chances.movedim(0, -1)  # [rows, events, draws]
        together = (by_row * shares) @ by_row.transpose(1, 2)
        said = together[:, index[0], index[1]]
        real = happened(answer.likelihood, y)
        pairs.add(said.clamp(0, 1), real[:, index[0]] * real[:, index[1]])
    if pairs is None:
        raise ValueError("answers must hold at least one batch, got none")
    metrics = {name: float(torch.cat(values).double().mean()) for name, values in sums.items()}
    return {**metrics, **{f"pairs_{k}": v for k, v in pairs.metrics().items()}}, pairs.bins()


def _by_row(answer: Answer, y: Tensor, source: torch.Generator) -> dict[str, Tensor]:
    parts = part_log_prob(answer.likelihood, answer.outputs, y)
    weights = _shares(answer).log()
    scores = parts.flatten(2).sum(-1) + weights + math.log(len(weights))
    scores = scores if answer.scores is None else answer.scores
    joint = log_mean(scores)
    half = log_mean(scores[: max(1, len(scores) // 2)])
    drawn = draw_labels(answer.likelihood, _some(answer, source), source)
    return {
        "joint": joint,
        "half": joint if answer.exact else half,
        "bias": torch.zeros_like(joint) if answer.exact else remaining_bias(scores),
        "marginal": (parts.flatten(2) + weights.unsqueeze(-1)).logsumexp(0).sum(-1),
        "energy": energy_score(drawn, as_vector(answer.likelihood, y)),
    }


def _shares(answer: Answer) -> Tensor:
    """Share of each draw, [draws, rows]."""
    if answer.log_weights is not None:
        return answer.log_weights.exp()
    draws, rows = answer.outputs.shape[:2]
    return answer.outputs.new_full((draws, rows), 1 / draws)


def _some(answer: Answer, source: torch.Generator) -> Tensor:
    """Outputs of :data:`ENERGY_DRAWS` draws of each row: others each time if there are enough."""
    if not answer.exact and answer.log_weights is None and len(answer.outputs) >= ENERGY_DRAWS:
        return answer.outputs[:ENERGY_DRAWS]
    chosen = torch.multinomial(_shares(answer).T, ENERGY_DRAWS, True, generator=source).T
    index = chosen.reshape(*chosen.shape, *[1] * (answer.outputs.dim() - 2))
    return answer.outputs.gather(0, index.expand(-1, -1, *answer.outputs.shape[2:]))


def likelihood_of(scores: Sequence[Tensor]) -> float:
    """Mean joint log-likelihood from scores of batches, [draws, rows] each."""
    return float(torch.cat([log_mean(batch) for batch in scores]).double().mean())
