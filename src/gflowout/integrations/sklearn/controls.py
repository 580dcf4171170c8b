"""Controls: what a prediction loses if a column is replaced by a draw given the other columns."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, ndtr, ndtri
from scipy.stats import rankdata
from sklearn.covariance import ledoit_wolf

from gflowout.integrations.sklearn.tabular import Floats

ENOUGH = 5  # rows per column from which a covariance needs no shrinking
MOST = 0.9  # quantile of the spread of rows above which none counts more
EXPECTED, SEEN = 4.0, 2.0  # z-values of true effects before any is seen, and how many that counts


class Conditional:
    """Draws of some columns given all others, by a Gaussian copula.

    The marginal distribution of a column is that of its values; dependence is that of a normal
    distribution of the normal scores.
    """

    def __init__(self, x: Floats) -> None:
        self.sorted = np.sort(x, axis=0)
        scores = ndtri((rankdata(x, axis=0) - 0.5) / len(x))
        size = scores.std(0)
        self.scores = scores / np.where(size > 0, size, 1.0)
        self.size = np.where(size > 0, size, 1.0)
        if len(x) >= ENOUGH * x.shape[1]:
            covariance = self.scores.T @ self.scores / len(x)
        else:  # shrinking makes near-copies look less alike: only where it must be
            covariance, _ = ledoit_wolf(self.scores, assume_centered=True)
        self.precision = np.linalg.pinv(covariance + 1e-6 * np.eye(len(covariance)))
        self.residual = self.scores @ self.precision

    def draw(self, columns: Sequence[int], draws: int, rng: np.random.RandomState) -> Floats:
        """Replacements of columns in all rows, [draws, rows, len(columns)]."""
        own = list(columns)
        covariance = np.linalg.inv(self.precision[np.ix_(own, own)])
        mean = self.scores[:, own] - self.residual[:, own] @ covariance
        root = np.linalg.cholesky((covariance + covariance.T) / 2)
        noise = rng.standard_normal((draws, *mean.shape)) @ root.T
        chance = ndtr((mean + noise) * self.size[own])
        rows = len(self.sorted)
        place = np.clip((chance * rows).astype(int), 0, rows - 1)
        drawn: Floats = self.sorted[place, own]
        return drawn


def gains(real: Floats, replaced: Floats, weight: Floats) -> Floats:
    """How much better rows are predicted with their true values, and its variance, [2, rows].

    ``real`` is the log-likelihood of each row, [rows], ``replaced`` that with replacements, [draws,
    rows]. A row counts by the rank of its true value among the replacements, from -1/2 to 1/2,
    times the spread of all of them: unlike a difference of log-likelihoods, it is symmetric and
    bounded, so that a few rows of large loss cannot make a column look relevant.
    """
    draws = len(replaced)
    rank = ((replaced < real).sum(0) + 0.5 * (replaced == real).sum(0)) / draws - 0.5
    spread = np.concatenate([replaced, real[None]]).std(0)
    spread = weight * np.minimum(spread, np.quantile(spread, MOST))
    variance = (draws + 2) / (12 * draws)  # of a uniform rank among draws + 1
    return np.stack([spread * rank, spread**2 * variance])


def z_values(gain: Floats) -> Floats:
    """Z-values of gains of held-out rows, [..., 2, rows] to [...].

    Given the model and the other columns, an irrelevant column and its replacements are
    exchangeable in every row. So all ranks are equally probable, and the sum of gains has mean 0, a
    known variance, and is normal for many rows: the holdout randomization test (Tansey et al.,
    2022). A column that no model reads has minus infinity.
    """
    total, variance = np.moveaxis(gain.sum(-1), -1, 0)
    real = variance > 1e-12
    values: Floats = np.where(real, total / np.sqrt(np.where(real, variance, 1.0)), -np.inf)
    return values


def p_values(gain: Floats) -> Floats:
    """The same as p-values, 1 for a column that no model reads."""
    chance: Floats = ndtr(-z_values(gain))
    return chance


def discoveries(p: Floats, rate: float) -> NDArray[np.bool_]:
    """Hypotheses that Benjamini and Hochberg's procedure rejects at a false discovery rate.

    Examples:
        >>> discoveries(np.array([0.001, 0.5, 0.04, 0.9]), 0.1).tolist()
        [True, False, True, False]
    """
    order = np.argsort(p, kind="stable")
    passed = np.flatnonzero(p[order] <= rate * np.arange(1, len(p) + 1) / len(p))
    chosen = np.zeros(len(p), dtype=bool)
    chosen[order[: passed.max() + 1 if len(passed) else 0]] = True
    return chosen


def probabilities(p: Floats) -> Floats:
    """Posterior probability that a hypothesis is not null, from its p-value.

    The two-groups model (Efron, 2008) of z-values: null ones are standard normal, the others normal
    with a mean and a variance of at least 1. EM finds both and the share of the others, with
    :data:`SEEN` z-values of mean and variance :data:`EXPECTED` before any. A higher z-value never
    has a lower probability: where the odds would rise again to the left, they stay.
    """
    values = np.clip(-ndtri(p), -40.0, 40.0)
    share, mean, variance = min(0.5, 1 / len(values)), EXPECTED, EXPECTED
    chance = np.zeros(len(values))
    for _ in range(100):
        z = np.maximum(values, -mean / max(variance - 1, 0.01))
        gain = (z**2 - (z - mean) ** 2 / variance - math.log(variance)) / 2
        chance = expit(gain + math.log(share / (1 - share)))
        share = float(np.clip(chance.mean(), 0.5 / len(z), 0.9))
        size = float(chance.sum()) + SEEN
        mean = (float(chance @ z) + SEEN * EXPECTED) / size
        around = float(chance @ (z - mean) ** 2) + SEEN * ((EXPECTED - mean) ** 2 + EXPECTED)
        variance = max(1.0, around / size)
    return chance
