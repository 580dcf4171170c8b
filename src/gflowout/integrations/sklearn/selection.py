"""Which columns a table needs: proposals, chains in several settings, tests on held-out rows.

Every chain holds out a fold of the rows. Its columns are proposed on the other rows
(:mod:`~gflowout.integrations.sklearn.screen`), it is trained on them
(:mod:`~gflowout.integrations.sklearn.stack`), and the fold says how well it predicts, how much
weight its setting gets, and whether it needs a column
(:mod:`~gflowout.integrations.sklearn.controls`). Rows that test a column decide neither about the
state of the chain nor about its weight in the test: even and odd rows swap these roles.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform
from torch import Tensor

from gflowout.core.inclusion import Inclusion
from gflowout.integrations.sklearn import controls, screen
from gflowout.integrations.sklearn.stack import Rows, Schedule, Stack, Training, densities
from gflowout.integrations.sklearn.tabular import Floats, Ints, Table, targets

SETTINGS = ("sparse", "linear", "dense")
"""What a chain starts from, and its prior. ``"sparse"``: effects of the forward search, and each
unit costs log(units) + log(rows) / 2 nats (extended BIC, one unit expected); ``"linear"``: those of
an L1 model, and log(rows) / 2 (BIC); ``"dense"``: everything, for nothing."""
FASTER = 3.0  # factor on the learning rate of networks with few inputs, which may have to bend
MOST = 64  # units that a chain looks at
ON, OFF = 3.0, -5.0  # log-odds of proposed and of other units at the start
TEST_ROWS = 2000  # held-out rows that columns are tested on
TEST_DRAWS = 16
REPLACEMENTS = 4, 16  # of a column; the second number if the first leaves a doubt
DOUBT = 0.2  # p-value above which there is none
USED = 0.2  # keep rate from which a unit is tested
SMALL = 0.02  # weight below which a chain does not count in tests
ALIKE = 0.7  # mean absolute rank correlation of units of one cluster


@dataclass(frozen=True)
class Setup:
    """What is selected from: ``unit`` is the unit of each column, -1 for columns that stay.

    ``prior`` holds log-odds of units that override those of the settings, NaN where there are none.
    """

    unit: Ints
    prior: Floats
    hidden: tuple[int, ...]
    start: float | None
    kind: str

    @property
    def units(self) -> int:
        """Number of units."""
        return len(self.prior)

    def columns(self, units: Sequence[int]) -> list[int]:
        """The columns of some units."""
        return np.flatnonzero(np.isin(self.unit, list(units))).tolist()

    def by_unit(self, values: Floats, empty: float) -> Floats:
        """Highest value among the columns of each unit, [units]."""
        best = np.full(self.units, empty)
        masked = self.unit >= 0
        np.maximum.at(best, self.unit[masked], values[masked])
        return best


@dataclass(frozen=True)
class Result:
    """Trained chains: of each a stack of one, its candidates, held-out rows and history."""

    stacks: list[Stack]
    candidates: list[Ints]
    held_out: NDArray[np.bool_]  # [chains, rows]
    histories: list[list[dict[str, float]]]
    best_looks: list[int]
    setting: list[str]
    crossed: tuple[list[Stack], list[Stack]]  # for tests on even and on odd rows

    def apart(self, half: int, rows: int) -> Result:
        """The chains for tests on one half of the rows, with the held-out rows of a half."""
        chosen = np.arange(self.held_out.shape[1]) % 2 == rows
        return replace(self, stacks=self.crossed[half], held_out=self.held_out & chosen)

    def keep(self, units: int) -> Floats:
        """Keep rates of all units by chain, [chains, units]."""
        rates = np.zeros((len(self.stacks), units))
        for chain, (stack, own) in enumerate(zip(self.stacks, self.candidates, strict=True)):
            rates[chain, own] = stack.logits[0].sigmoid().numpy()[: len(own)]
        return rates


def _rows(table: Table, kind: str) -> Rows:
    x, y, weight = (
        torch.from_numpy(part).float() for part in (table.x, targets(table, kind), table.weight)
    )
    return Rows(x, y, weight, kind)


def settings_of(chains: int) -> list[str]:
    """Setting of each chain; a few chains take what two settings propose together."""
    if chains < len(SETTINGS):
        return ["both"] * chains
    return [SETTINGS[chain % len(SETTINGS)] for chain in range(chains)]


def train(
    table: Table, setup: Setup, held_out: NDArray[np.bool_], schedule: Schedule, seed: int,
    report: Callable[[int], None],
) -> Result:  # fmt: skip
    """Train chains on scaled rows; each holds some rows out, [chains, rows] of bool.

    If it is interrupted, chains of the settings that are done are the result, if there are any.
    """
    generator = torch.Generator().manual_seed(seed)
    y = targets(table, setup.kind)
    rows = _rows(table, setup.kind)
    folds, fold = np.unique(held_out, axis=0, return_inverse=True)
    fold = fold.ravel()
    evidence = [screen.evidence(table.x[~f], y[~f], table.weight[~f]) for f in folds]
    apart = torch.from_numpy(folds)
    weighted = rows.weight * apart
    linear = screen.linear(rows.x, rows.y, rows.weight - weighted, weighted, setup.kind)
    setting = settings_of(len(held_out))
    chains = len(held_out)
    stacks: list[Stack | None] = [None] * chains
    candidates: list[Ints] = [np.zeros(0, dtype=np.int64)] * chains
    histories: list[list[dict[str, float]]] = [[] for _ in range(chains)]
    looks = [0] * chains
    crossed: tuple[list[Stack | None], ...] = ([None] * chains, [None] * chains)
    for name in dict.fromkeys(setting):
        own = [chain for chain in range(chains) if setting[chain] == name]
        model = linear[1 if name == "dense" else 0]
        size = model.weight.abs().amax(2).double().numpy()
        scores = [_scores(name, setup, evidence[fold[c]], size[fold[c]]) for c in own]
        count = max(int((score > 0).sum()) for score in scores)
        count = min(setup.units, MOST, max(8, count) if name != "dense" else MOST)
        chosen = np.stack([np.argsort(-score, kind="stable")[:count] for score in scores])
        on = np.take_along_axis(np.stack(scores), chosen, 1) > 0
        stack = _stack(setup, chosen, on, name, generator, rows)
        place = torch.from_numpy(fold[own])
        stack.start_linear(model.weight[place], model.bias[place])
        prior = torch.from_numpy(_prior(name, setup, len(table))[chosen]).float()
        pace = replace(schedule, lr=schedule.lr * (1 if name in ("linear", "dense") else FASTER))
        training = Training(stack, rows, torch.from_numpy(held_out[own]), prior, pace, generator)
        try:
            training.run()
        except KeyboardInterrupt:
            if own[0] == 0:  # the first setting
                raise
            break
        for number, chain in enumerate(own):
            stacks[chain], candidates[chain] = stack.part([number]), chosen[number]
            for half, tested in zip(crossed, training.crossed, strict=True):
                half[chain] = tested.part([number])
            histories[chain] = training.history[number]
            looks[chain] = training.best_look[number]
        report(len(own))
    every, even, odd = ([s for s in part if s] for part in (stacks, *crossed))
    done = [chain for chain in range(chains) if stacks[chain]]
    return Result(
        every, [candidates[c] for c in done], held_out[done], [histories[c] for c in done],
        [looks[c] for c in done], [setting[c] for c in done], (even, odd),
    )  # fmt: skip


def _scores(
    name: str, setup: Setup, evidence: tuple[Floats, NDArray[np.bool_]], size: Floats
) -> Floats:
    """Order in which a setting proposes units; it starts with those above 0, [units]."""
    nats = setup.by_unit(evidence[0], -99.0)
    chosen = setup.by_unit(evidence[1].astype(np.float64), 0.0) > 0
    size = setup.by_unit(size, 0.0)
    on = {"sparse": chosen, "linear": size > 0, "both": chosen | (size > 0)}.get(name)
    if on is None:  # dense
        everything: Floats = 1000 + nats + 1000 * (size > 0) + 1000 * chosen
        return everything
    highest = max(float(size.max(initial=0.0)), 1e-12)
    scores: Floats = np.where(on, 1 + size / highest + chosen, nats - 1e6)
    return scores


def _prior(name: str, setup: Setup, rows: int) -> Floats:
    """Log-odds of the units before anything is seen, [units]."""
    cost = {"dense": 0.0, "linear": math.log(rows) / 2}.get(
        name, math.log(max(1, setup.units)) + math.log(rows) / 2
    )
    return np.where(np.isnan(setup.prior), -cost, setup.prior)


def _stack(
    setup: Setup, chosen: Ints, on: NDArray[np.bool_], name: str, generator: torch.Generator,
    rows: Rows,
) -> Stack:  # fmt: skip
    """Chains that read the columns of their candidates, and those that are always kept."""
    always = np.flatnonzero(setup.unit < 0)
    places: list[list[tuple[int, int]]] = []
    for units in chosen:
        rank = {int(unit): number for number, unit in enumerate(units)}
        columns = np.flatnonzero(np.isin(setup.unit, units))
        places.append([(int(c), rank[int(setup.unit[c])]) for c in columns])
        places[-1] += [(int(c), len(units)) for c in always]
    width = max(1, *map(len, places))
    padded = [own + [(0, chosen.shape[1] + 1)] * (width - len(own)) for own in places]
    both = torch.tensor(padded)
    logits = torch.where(torch.from_numpy(on), ON, OFF)
    if setup.start is not None:
        logits = torch.full(on.shape, math.log(setup.start / (1 - setup.start)))
    outputs = rows.y.shape[1]
    return Stack(both[..., 0], both[..., 1], logits, setup.hidden, outputs, generator)


# Weights of chains


def weigh(table: Table, result: Result, kind: str, seed: int) -> tuple[Floats, Floats]:
    """Weights of chains, [chains], and the log-density of each one's held-out rows, [chains, rows].

    Settings are weighted by stacking: the mixture with the highest log-likelihood of the rows that
    every setting held out (Yao et al., 2018), by EM. Densities of other rows are NaN.
    """
    rows, places, masks = _tested(table, result, kind, seed, len(table))
    dense = np.full(result.held_out.shape, np.nan)
    for chain, (stack, place) in enumerate(zip(result.stacks, places, strict=True)):
        dense[chain, place.numpy()] = densities(stack, rows, [place], masks[chain])[0].numpy()
    names = list(dict.fromkeys(result.setting))
    member = np.array([names.index(name) for name in result.setting])
    table_of = np.stack([_mean(dense[member == number], None) for number in range(len(names))])
    judged = ~np.isnan(table_of).any(0)
    share = np.full(len(names), 1 / len(names))
    if judged.any():
        fit, weight = table_of[:, judged], table.weight[judged]
        for _ in range(200):
            joint = fit + np.log(np.maximum(share, 1e-12))[:, None]
            part = np.exp(joint - np.logaddexp.reduce(joint, 0))
            share = (part @ weight) / weight.sum()
    weights = share[member] / np.bincount(member)[member]
    return weights / weights.sum(), dense


def _tested(
    table: Table, result: Result, kind: str, seed: int, most: int
) -> tuple[Rows, list[Tensor], list[Tensor]]:
    """Rows in single precision; of each chain its held-out rows, ``most`` of all, and masks."""
    rows = _rows(table, kind)
    counted = np.zeros(len(table), dtype=bool)
    counted[np.random.RandomState(seed).permutation(len(table))[:most]] = True
    places = [torch.from_numpy(np.flatnonzero(rows & counted)) for rows in result.held_out]
    generator = torch.Generator().manual_seed(seed)
    masks = [stack.draw(TEST_DRAWS, generator) for stack in result.stacks]
    return rows, places, masks


def _mean(dense: Floats, weights: Floats | None) -> Floats:
    """Log of the weighted mean density over the chains that have one, [chains, rows] to [rows]."""
    weights = np.ones(len(dense)) if weights is None else weights
    present = ~np.isnan(dense)
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(present, dense + np.log(weights)[:, None], -np.inf)
        share = np.where(present, weights[:, None], 0.0).sum(0)
        mixed: Floats = np.logaddexp.reduce(terms, 0) - np.log(share)
    return np.where(present.any(0), mixed, np.nan)


# Tests of columns


@dataclass(frozen=True)
class Tests:
    """Gains of units and of clusters in held-out rows, [.., 2, rows], and the fold of each row."""

    units: Floats
    clusters: Floats
    members: list[list[int]]
    fold: Ints


def test(table: Table, setup: Setup, whole: Result, seed: int) -> Tests:
    """Replace units, and clusters of them, by draws given the others, in held-out rows."""
    # States and weights for the test on one half of the rows come from the other half.
    weights = np.concatenate([
        weigh(table, whole.apart(half, 1 - half), setup.kind, seed)[0] for half in (0, 1)
    ])  # fmt: skip
    even, odd = whole.apart(0, 0), whole.apart(1, 1)
    result = replace(
        whole,
        stacks=even.stacks + odd.stacks,
        candidates=2 * whole.candidates,
        held_out=np.concatenate([even.held_out, odd.held_out]),
    )
    rows, places, masks = _tested(table, result, setup.kind, seed, TEST_ROWS)
    used = np.flatnonzero(weights > SMALL * weights.max())
    keep = result.keep(setup.units)
    base = np.full((len(used), len(table)), np.nan)
    for number, chain in enumerate(used):
        fit = densities(result.stacks[chain], rows, [places[chain]], masks[chain])[0]
        base[number, places[chain].numpy()] = fit.numpy()
    judged = np.flatnonzero(~np.isnan(base).all(0))
    base = base[:, judged]  # few of many rows
    real = _mean(base, weights[used])
    conditional = controls.Conditional(table.x)
    rng = np.random.RandomState(seed)

    def gains(units: list[int]) -> Floats:
        columns = setup.columns(units)
        tested = [n for n, chain in enumerate(used) if keep[chain, units].max() > SMALL]
        gain = np.zeros((2, len(judged)))
        if not tested or not columns:
            return gain
        for draws in REPLACEMENTS:
            drawn = conditional.draw(columns, draws, rng)
            replaced = np.repeat(base[None], draws, 0)
            for number in tested:
                chain = used[number]
                place = places[chain]
                x = rows.x[place].repeat(draws, 1)
                x[:, columns] = torch.from_numpy(drawn[:, place.numpy()]).float().flatten(0, 1)
                many = Rows(x, rows.y[place].repeat(draws, 1), rows.weight[place], rows.kind)
                everything = torch.arange(len(x))
                fit = densities(result.stacks[chain], many, [everything], masks[chain])[0]
                seat = np.searchsorted(judged, place.numpy())
                replaced[:, number, seat] = fit.view(draws, -1).numpy()
            mixed = np.stack([_mean(one, weights[used]) for one in replaced])
            gain = controls.gains(real, mixed, table.weight[judged])
            if controls.p_values(gain) > DOUBT:
                break
        return gain

    read = keep[used].max(0) > USED
    members = clusters(conditional.scores, setup, read)
    single = np.zeros((setup.units, 2, len(judged)))
    for unit in np.flatnonzero(read):
        single[unit] = gains([int(unit)])
    group = np.stack([single[own[0]] if len(own) == 1 else gains(own) for own in members])
    fold = np.unique(whole.held_out.astype(int)[:, judged], axis=1, return_inverse=True)[1]
    return Tests(single, group, members, fold.ravel())


def clusters(scores: Floats, setup: Setup, read: NDArray[np.bool_]) -> list[list[int]]:
    """Units that chains read and those like them, by average-linkage clusters of correlations.

    Every other unit is alone. Of a unit with several columns the highest correlation counts.
    """
    near = read.copy()
    columns = np.flatnonzero(np.isin(setup.unit, np.flatnonzero(read)))
    if len(columns):
        related = np.abs(scores.T @ scores[:, columns]).max(1) / len(scores)
        near |= setup.by_unit(related, 0.0) >= ALIKE
    units = np.flatnonzero(near)
    alone = [[int(unit)] for unit in np.flatnonzero(~near)]
    if len(units) < 2:
        return alone + [[int(unit)] for unit in units]
    columns = np.flatnonzero(np.isin(setup.unit, units))
    related = np.abs(scores[:, columns].T @ scores[:, columns]) / len(scores)
    owner = np.searchsorted(units, setup.unit[columns])
    strength = np.zeros((len(units), len(units)))
    np.maximum.at(strength, (owner[:, None], owner[None]), related)
    distance = 1 - np.minimum(strength, 1)
    np.fill_diagonal(distance, 0)
    tree = hierarchy.linkage(squareform(distance, checks=False), "average")
    label = hierarchy.fcluster(tree, 1 - ALIKE, "distance")
    return alone + [units[label == number].tolist() for number in np.unique(label)]


def inclusion(
    tests: Tests, keep: Floats, setup: Setup, names: Sequence[str], seed: int
) -> Inclusion:
    """Masks whose rates are the probabilities that units and clusters are needed.

    One chain of masks for every fold of rows: how much they differ shows how much the answer
    depends on the rows. A cluster is needed with the probability of its test, a unit in it with
    that of its own. If the cluster is needed and none of its units is, one of them is drawn: half
    of the time any, else in proportion to the keep rates ``keep``, [units].
    """
    rng = np.random.RandomState(seed)
    by_unit, by_cluster = (_by_fold(gain, tests.fold) for gain in (tests.units, tests.clusters))
    masks = np.zeros((len(by_unit), DRAWN, 1, len(setup.unit)), dtype=np.float32)
    masks[..., setup.unit < 0] = 1
    for number in range(len(masks)):
        unit, group = by_unit[number], by_cluster[number]
        kept = np.zeros((DRAWN, setup.units), dtype=bool)
        for chance, own in zip(group, tests.members, strict=True):
            needed = rng.uniform(size=DRAWN) < max(chance, float(unit[own].max()))
            rate = unit[own] / max(chance, float(unit[own].max()), 1e-12)
            drawn = rng.uniform(size=(DRAWN, len(own))) < rate
            likely = 0.5 / len(own) + 0.5 * keep[own] / max(float(keep[own].sum()), 1e-12)
            stand_in = rng.choice(len(own), size=DRAWN, p=likely / likely.sum())
            empty = ~drawn.any(1)
            drawn[empty, stand_in[empty]] = True
            kept[:, own] = drawn & needed[:, None]
        masked = setup.unit >= 0
        masks[number, :, 0, masked] = kept[:, setup.unit[masked]].T
    several = [number for number, own in enumerate(tests.members) if len(own) > 1]
    together = [setup.columns(tests.members[number]) for number in several]
    z = np.append(controls.z_values(tests.units), np.inf)[setup.unit]  # the last of those that stay
    gains = np.append(z, controls.z_values(tests.clusters)[several])
    return Inclusion(torch.from_numpy(masks), names=names, similar=together, gains=gains.tolist())


def _by_fold(gain: Floats, fold: Ints) -> Floats:
    """Probabilities that sets are needed, one row for each fold, [folds, sets].

    Their mean is the probability by all rows. They differ as those without each fold do, or less
    where these would leave 0 to 1.
    """
    whole = controls.probabilities(controls.p_values(gain))
    folds = np.unique(fold)
    if len(folds) == 1:
        return whole[None]
    left = np.stack([
        controls.probabilities(controls.p_values(gain[..., fold != number])) for number in folds
    ])  # fmt: skip
    shift = left - left.mean(0)
    room = np.where(shift > 0, 1 - whole, whole) / np.maximum(np.abs(shift), 1e-12)
    moved: Floats = whole + shift * np.minimum(room.min(0), 1)
    return moved.clip(0, 1)


DRAWN = 400
"""Masks of each fold that inclusion is read from."""
