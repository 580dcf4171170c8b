"""Cheap looks at all columns of a table: single columns, pairs, triples, and a sparse linear model.

They propose which columns the masks of a chain start from. Nothing here is a decision: what is
proposed on the training rows of a chain is tested on its held-out rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import chdtrc, gammaln
from scipy.stats import rankdata
from torch import Tensor

from gflowout.integrations.sklearn.tabular import Floats, Ints

Bools = NDArray[np.bool_]

DEGREE = 4  # polynomials of a column's ranks; 4 are what a ring of two columns takes
ROUNDS = 3  # scans, each of what the effects seen before leave unexplained
CERTAIN = 3.0  # nats of evidence, beyond the number of tests, from which an effect is fitted
WORK = 4e9  # multiplications of one scan, beyond which it sees fewer rows and columns
LEAST_ROWS = 1000  # which it sees in any case


def evidence(x: Floats, y: Floats, weight: Floats) -> tuple[Floats, Bools]:
    """How surely each column has an effect, alone or with one or two others, in nats, [columns].

    The evidence of an effect is -log of its p-value less the log of the number of effects that were
    looked at: above 0 it is rarely due to chance. P-values are those of smooth tests: the squared
    correlations of the targets with the products of Legendre polynomials of the ranks, added up by
    rising degree. All pairs of columns are looked at, so columns that matter only together (``x1 *
    x2``, a ring) are seen; of triples the lowest degree. The search goes forward: an effect that is
    certain is fitted, and the next one is looked for in what is left.

    Args:
        x: [rows, columns].
        y: Targets, [rows, targets]; classes as 0 and 1 in a column for each.
        weight: Of the rows, [rows].

    Returns:
        The evidence, and which columns have effects that were fitted, [columns] each.

    Examples:
        >>> x = np.random.default_rng(0).normal(size=(300, 20))
        >>> y = (x[:, 3] * x[:, 7] > 0)[:, None] * 1.0
        >>> np.flatnonzero(evidence(x, y, np.ones(300))[1]).tolist()
        [3, 7]
    """
    rows, columns = x.shape
    most = max(LEAST_ROWS, int(WORK / (columns * DEGREE) ** 2))
    if rows > most:
        chosen = np.linspace(0, rows - 1, most).astype(int)
        x, y, weight = x[chosen], y[chosen], weight[chosen]
    search = _Search(polynomials(x, weight), y, weight)
    best = np.zeros(columns)
    fitted = np.zeros(columns, dtype=bool)
    for _ in range(ROUNDS):
        single, degree = search.single()
        while (top := int(single.argmax())) >= 0 and single[top] > CERTAIN:
            best[top], fitted[top] = max(best[top], single[top]), True
            if not search.fit((top,), int(degree[top])):
                break
            single, degree = search.single()
        pair, partner, degree = search.pairs()
        triple, others = search.triples()
        left = np.max([single, pair, triple], 0)
        best = np.where(fitted, np.maximum(best, left), left)
        effects: list[tuple[float, tuple[int, ...], int]] = [
            (pair[one], (int(one), int(partner[one])), int(degree[one]))
            for one in np.argsort(-pair) if pair[one] > CERTAIN
        ]  # fmt: skip
        if not effects and triple.max() > CERTAIN:
            one = int(triple.argmax())
            effects = [(triple[one], (one, *others[one]), 1)]
        seen: set[int] = set()
        for nats, effect, power in effects:
            if not seen & set(effect) and search.fit(effect, power):
                best[list(effect)] = np.maximum(best[list(effect)], nats)
                fitted[list(effect)] = True
            seen |= set(effect)
        if not seen:
            break
    return best, fitted


class _Search:
    """What effects that were fitted leave of the targets, and evidence of others in it."""

    def __init__(self, basis: Floats, y: Floats, weight: Floats) -> None:
        self.basis, self.share, self.size = basis, weight / weight.sum(), float(weight.sum())
        self.root = np.sqrt(self.share)[:, None]
        self.y = y * self.root
        self.design = np.zeros((len(basis), 0))
        self.left = self._grow(np.ones((len(basis), 1)))

    @property
    def total(self) -> float:
        """Rows, less those that the fitted terms take."""
        return self.size * (1 - self.design.shape[1] / len(self.basis))

    def fit(self, effect: tuple[int, ...], degree: int) -> bool:
        """Fit the products of some columns' polynomials; whether there was room for them."""
        terms = self.basis[:, effect[0], :degree]
        for one in effect[1:]:
            other = self.basis[:, one, :degree]
            both = (terms[:, :, None] * other[:, None, :]).reshape(len(terms), -1)
            terms = np.hstack([terms, other, both]) if len(effect) == 2 else both
        if self.design.shape[1] + terms.shape[1] > len(self.basis) // 4:
            return False
        self.left = self._grow(terms)
        return bool(self.left.shape[1])

    def _grow(self, terms: Floats) -> Floats:
        """Add terms to the design; what is left of targets, uncorrelated and of variance 1."""
        terms = terms * self.root
        for _ in range(2):
            terms = terms - self.design @ (self.design.T @ terms)
        u, size, _ = np.linalg.svd(terms, full_matrices=False)
        self.design = np.hstack([self.design, u[:, size > 1e-3 * max(1e-9, float(size.max()))]])
        left = self.y - self.design @ (self.design.T @ self.y)
        u, size, _ = np.linalg.svd(left, full_matrices=False)
        whitened: Floats = u[:, size > 1e-3 * np.linalg.norm(self.y)] / self.root
        return whitened

    def single(self) -> tuple[Floats, Ints]:
        """Evidence of each column alone, [columns], and the degree of its effect."""
        slopes = np.tensordot(self.left * self.share[:, None], self.basis, (0, 0))
        sums = self.total * (slopes**2).sum(0).cumsum(1)
        freedom = max(1, self.left.shape[1]) * np.arange(1, DEGREE + 1)
        nats = _nats(sums, freedom[None], DEGREE * self.basis.shape[1])
        return nats.max(1), nats.argmax(1) + 1

    def pairs(self) -> tuple[Floats, Ints, Ints]:
        """Evidence of the best pair with each column, [columns], its partner and its degree."""
        columns, targets = self.basis.shape[1], max(1, self.left.shape[1])
        best, partner = np.full(columns, -np.inf), np.zeros(columns, dtype=np.int64)
        power = np.ones(columns, dtype=np.int64)
        if columns < 2:
            return best, partner, power
        flat = torch.from_numpy(self.basis.reshape(len(self.basis), -1)).float()
        sums = [torch.zeros(columns, columns) for _ in range(DEGREE)]
        for target in self.left.T:
            scaled = torch.from_numpy((target * self.share)[:, None]).float()
            squares = (flat.T @ (flat * scaled)).square_().mul_(self.total)
            cells = squares.view(columns, DEGREE, columns, DEGREE)
            for degree in range(DEGREE):
                sums[degree] += cells[:, : degree + 1, :, : degree + 1].sum((1, 3))
        for degree, statistic in enumerate(sums, start=1):
            highest, at = statistic.fill_diagonal_(-1).max(1)
            tests = DEGREE * columns * (columns - 1) / 2
            nats = _nats(highest.double().numpy(), targets * degree**2, tests)
            partner = np.where(nats > best, at.numpy(), partner)
            power = np.where(nats > best, degree, power)
            best = np.maximum(best, nats)
        return best, partner, power

    def triples(self) -> tuple[Floats, Ints]:
        """Evidence of the best triple of first degree with each column, and the two others."""
        line = self.basis[:, :, 0]
        columns, targets = line.shape[1], max(1, self.left.shape[1])
        others = np.zeros((columns, 2), dtype=np.int64)
        if columns < 3 or len(line) * columns**3 > WORK:
            return np.full(columns, -np.inf), others
        values = torch.from_numpy(np.ascontiguousarray(line)).float()
        highest = np.zeros(columns)
        for one in range(columns):
            sums = torch.zeros(columns, columns)
            for target in self.left.T:
                scaled = torch.from_numpy(target * self.share).float() * values[:, one]
                sums += (values.T @ (values * scaled[:, None])).square_()
            sums.fill_diagonal_(0)
            sums[one] = sums[:, one] = 0
            place = int(sums.argmax())
            others[one] = place // columns, place % columns
            highest[one] = float(sums.flatten()[place]) * self.total
        tests = columns * (columns - 1) * (columns - 2) / 6
        return _nats(highest, targets, tests), others


def polynomials(x: Floats, weight: Floats) -> Floats:
    """Orthonormal polynomials of the ranks of each column, [rows, columns, DEGREE].

    Degrees that a column of few values does not have are 0.
    """
    share = weight / weight.sum()
    ranks = (2 * rankdata(x, axis=0) - 1) / len(x) - 1
    result: list[Floats] = []
    power = np.ones_like(ranks)
    for _ in range(DEGREE):
        power = power * ranks
        term = power - share @ power
        before = np.sqrt(share @ term**2)
        for _again in range(2):  # once is not enough for rounding
            for lower in result:
                term = term - lower * (share @ (lower * term))
        size = np.sqrt(share @ term**2)
        real = size > 1e-3 * np.maximum(before, 1e-9)
        result.append(np.where(real, term / np.where(real, size, 1.0), 0.0))
    return np.stack(result, 2)


def _nats(statistic: Floats, freedom: Floats | float, tests: float) -> Floats:
    """-log of the p-value of a chi-squared statistic less the log of the number of tests."""
    probability = chdtrc(freedom, statistic)
    half, x = np.maximum(np.asarray(freedom) / 2, 0.5), np.maximum(statistic / 2, 1.0)
    tail = (half - 1) * np.log(x) - x - gammaln(half)  # its leading term, where it underflows
    log = np.where(probability > 1e-290, np.log(np.maximum(probability, 1e-300)), tail)
    nats: Floats = np.minimum(-log, 1e4) - math.log(max(1.0, tests))
    return nats


@dataclass(frozen=True)
class Linear:
    """Sparse linear models of several sets of rows.

    ``weight`` is [sets, columns, outputs], ``bias`` is [sets, outputs].
    """

    weight: Tensor
    bias: Tensor


STRENGTHS = 10 ** np.linspace(-0.2, -3.2, 10)  # of the penalty that removes all columns
STEPS = 300


def linear(x: Tensor, y: Tensor, weight: Tensor, held_out: Tensor, kind: str) -> list[Linear]:
    """L1-penalised linear models on several sets of rows, by accelerated proximal gradient.

    The strength of the penalty is the same for all sets, and judged by all held-out rows together.

    Args:
        x: [rows, columns], standardised.
        y: Targets, [rows, outputs]: numbers, or classes as 0 and 1.
        weight: Of the rows in each set, [sets, rows].
        held_out: Weight of the rows that judge a set, [sets, rows].
        kind: ``"gaussian"``, ``"binary"`` or ``"categorical"``.

    Returns:
        The models with the strongest penalty that is within one standard error of the best, and the
        best.
    """
    sets, count = weight.shape[0], len(STRENGTHS)
    share = weight / weight.sum(1, keepdim=True)
    shape = (x.shape[1], sets, count, y.shape[1])
    mean = share @ y
    slopes = torch.einsum("np,sn,snk->spk", x, share, y - mean[:, None])
    strength = slopes.abs().amax((1, 2))[:, None] * torch.tensor(STRENGTHS, dtype=x.dtype)
    curvature = {"binary": 0.25, "categorical": 0.5}.get(kind, 1.0)
    spread = torch.linalg.matrix_norm(x * share.amax(0).sqrt()[:, None], 2) ** 2
    rate = 1 / (curvature * float(spread + share.amax(0).sum()) + 1e-12)
    beta, momentum = torch.zeros(shape), torch.zeros(shape)
    bias = torch.zeros(shape[1:])
    bias_momentum, pace = bias, 1.0
    for _ in range(STEPS):
        out = (x @ momentum.flatten(1)).view(len(x), *shape[1:]) + bias_momentum
        error = (_mean(out, kind) - y[:, None, None]) * share.T[:, :, None, None]
        ahead = momentum - rate * (x.T @ error.flatten(1)).view(shape)
        shrunk = (ahead.abs() - rate * strength[None, :, :, None]).clamp(min=0) * ahead.sign()
        shifted = bias_momentum - rate * error.sum(0)
        following = (1 + math.sqrt(1 + 4 * pace**2)) / 2
        step = (pace - 1) / following
        momentum, bias_momentum = shrunk + step * (shrunk - beta), shifted + step * (shifted - bias)
        beta, bias, pace = shrunk, shifted, following
    out = (x @ beta.flatten(1)).view(len(x), *shape[1:]) + bias
    # The density of each row that is held out, [rows, strengths]; a row is in one set at most.
    dense = (held_out.T[:, :, None] * _log_likelihood(out, y[:, None, None], kind)).sum(1)
    judged = held_out.any(0)
    best = sparse = count // 2
    if bool(judged.any()):
        fit = dense[judged].double()
        best = int(fit.sum(0).argmax())
        behind = fit[:, [best]] - fit
        error = behind.std(0) * math.sqrt(len(fit))
        sparse = int((behind.sum(0) <= error + 1e-9).nonzero()[0])
    return [
        Linear(beta[:, :, place].transpose(0, 1).contiguous(), bias[:, place])
        for place in (sparse, best)
    ]


def _mean(out: Tensor, kind: str) -> Tensor:
    """Expected targets for linear outputs."""
    if kind == "gaussian":
        return out
    return out.sigmoid() if kind == "binary" else out.softmax(-1)


def _log_likelihood(out: Tensor, y: Tensor, kind: str) -> Tensor:
    if kind == "binary":
        return -torch.nn.functional.softplus((1 - 2 * y) * out).sum(-1)
    if kind == "categorical":
        return (out.log_softmax(-1) * y).sum(-1)
    return -(out - y).square().sum(-1)  # in an unknown unit: only its differences are compared
