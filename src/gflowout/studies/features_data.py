"""Problems of the features study, and scores of what a model says of rows and of features.

Which inputs matter is known, or noise was added to real data. Every problem is a pure function of
a seed. Trials are judged on training rows that are held out from them (``Problem.held``); test rows
are another draw, or patients of other hospitals.
"""

from __future__ import annotations

import functools
import hashlib
import math
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from gflowout.core import checks
from gflowout.core.optional import require
from gflowout.data import clinical, store

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

TABLES = tomllib.loads(resources.files(__package__).joinpath("features.toml").read_text("utf-8"))
"""Arms and problems, by name."""
FLIPPED = 0.1
"""Share of the labels that are wrong, in training and in test."""
STRETCH = 3.0
"""Factor of irrelevant inputs under shift."""
NOISE = 100
"""Columns of standard normal noise that are added to real data."""
HELD = 5
"""One training row in so many is held out from trials."""
COPY_NOISE = 0.1
LEAST = 1e-4
"""Probabilities are at least this, for all arms: a forest may say 0."""
RULES: dict[str, Callable[[Floats], Floats]] = {
    "independent": lambda x: 1.5 * x[0] + 2 * x[1] * x[2] + 2 * np.sin(2 * x[3]) + 1.5 * x[4],
    "interactions": lambda x: x[0] * x[1] + x[2] * x[3],
    "wide": lambda x: 2 * x[0] - 2 * x[1] + 1.5 * x[2] + 1.5 * np.tanh(3 * x[3]) + 1 - x[4] ** 2,
}
"""From features [features, rows] to numbers; labels are 1 where these are positive."""


@dataclass(frozen=True)
class Problem:
    """Rows to train on and rows to test on.

    ``x`` is [rows, features], ``y`` are classes from 0; trials are judged on the rows ``valid``.
    ``family`` numbers the family of each feature: near-copies are of one family, and any of them
    will do. ``relevant`` says which families matter, ``None`` if nobody knows; ``irrelevant`` which
    features are known not to matter.
    """

    x: Floats
    y: Ints
    valid: Flags
    x_test: Floats
    y_test: Ints
    names: tuple[str, ...]
    family: Ints
    relevant: Flags | None
    irrelevant: Flags

    def shifted(self) -> Floats:
        """Test inputs whose irrelevant features have another scale."""
        return np.where(self.irrelevant, STRETCH * self.x_test, self.x_test)

    def checksums(self, test: bool) -> dict[str, str]:
        """Of the training rows, and of the test rows if these were used."""
        parts = {"train": (self.x, self.y)} | ({"test": (self.x_test, self.y_test)} if test else {})
        return {
            name: f"sha256:{hashlib.sha256(x.tobytes() + y.tobytes()).hexdigest()}"
            for name, (x, y) in parts.items()
        }


Make = Callable[[int, int, int], Problem]
"""From a seed and the numbers of training and of test rows to the problem."""


@dataclass(frozen=True)
class Source:
    """Where a problem comes from.

    ``rows`` are training rows, of eICU about so many; ``test`` are test rows at most. ``known``:
    whether it is known which features matter; ``noisy``: whether some are known not to. ``scale``:
    how much longer runs take than on the problem ``independent``.
    """

    make: Make = field(repr=False)
    title: str
    about: str
    rows: int
    test: int
    known: bool = True
    noisy: bool = True
    scale: float = 1.0


def load(name: str, seed: int, rows: int | None = None, test: int | None = None) -> Problem:
    """The draw of a problem that belongs to a seed, with some of its rows if not all.

    The seed decides rows, noise and what is held out; for eICU the test hospitals, too.

    Examples:
        >>> problem = load("independent", 0, rows=50, test=10)
        >>> problem.x.shape, problem.x_test.shape, int(problem.valid.sum())
        ((50, 60), (10, 60), 10)
    """
    source = PROBLEMS[checks.choice("problem", name, PROBLEMS)]
    return source.make(seed, rows or source.rows, test or source.test)


def _synthetic(rule: str, features: int, matter: int, copies: int = 0) -> Make:
    """Standard normal features: the first ones matter, and some near-copies of these follow."""

    def make(seed: int, rows: int, test: int) -> Problem:
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((rows + test, features))
        family = np.arange(features)
        if copies:
            twins = slice(matter, matter + copies)
            x[:, twins] = x[:, :copies] + COPY_NOISE * rng.standard_normal((rows + test, copies))
            family = np.concatenate(
                [np.arange(matter), np.arange(copies), np.arange(matter, features - copies)]
            )
        y = ((RULES[rule](x.T) > 0) ^ (rng.random(rows + test) < FLIPPED)).astype(np.int64)
        relevant = np.arange(features - copies) < matter
        names = tuple(f"x{number}" for number in range(features))
        parts = (x[:rows], y[:rows], _held(rows, rng), x[rows:], y[rows:])
        return Problem(*parts, names, family, relevant, ~relevant[family])

    return make


def _bundled(loader: str) -> Make:
    """A data set that comes with scikit-learn, with noise columns; seeds draw other rows."""

    def make(seed: int, rows: int, test: int) -> Problem:
        sets = require("sklearn.datasets", extra="sklearn", purpose="the study features")
        source = getattr(sets, loader)()
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(source.data))
        noise = rng.standard_normal((len(order), NOISE))
        x, y, names = source.data, source.target.astype(np.int64), source.feature_names
        train, other = order[:rows], order[rows : rows + test]
        return _real(x, noise, y, names, train, other, _held(rows, rng))

    return make


@functools.lru_cache(maxsize=1)
def _stays(seed: int, where: object) -> clinical.ClinicalSplit:
    """Reading the tables takes seconds, and one process may do many runs of a seed."""
    del where  # another data directory is another split
    return clinical.load("eicu-demo", test_hospital=0.3, seed=seed, valid_fraction=1 / HELD)


def _clinical(columns: int) -> Make:
    """Drugs of the eICU demo and columns of noise; every seed tests on other hospitals."""

    def make(seed: int, rows: int, test: int) -> Problem:
        split = _stays(seed, store.root())
        parts = (split.train, split.valid, split.test)
        drugs = np.concatenate([part.x.double().numpy() for part in parts])
        died = np.concatenate([part.y.long().numpy() for part in parts])
        rng = np.random.default_rng(seed)
        noise = rng.standard_normal((len(drugs), columns))
        count = len(split.train) + len(split.valid)
        train = np.sort(rng.permutation(count)[:rows])
        other = count + np.sort(rng.permutation(len(split.test))[:test])
        # Patients who are held out are nobody's in training: they come last.
        valid = train >= len(split.train)
        return _real(drugs, noise, died, split.train.features, train, other, valid)

    return make


def _real(
    x: Floats,
    noise: Floats,
    y: Ints,
    names: Iterable[object],
    train: Ints,
    test: Ints,
    valid: Flags,
) -> Problem:
    """Rows of real data, chosen by number, with columns of noise beside them."""
    real = x.shape[1]
    x = np.hstack([x, noise])
    number = np.arange(x.shape[1])
    titles = (*map(str, names), *(f"noise {place}" for place in range(noise.shape[1])))
    parts = (x[train], y[train], valid, x[test], y[test])
    return Problem(*parts, titles, number, None, number >= real)


def _held(rows: int, rng: np.random.Generator) -> Flags:
    valid = np.zeros(rows, dtype=bool)
    valid[rng.permutation(rows)[: rows // HELD]] = True
    return valid


_MAKERS = {
    "independent": _synthetic("independent", 60, 5),
    "copies": _synthetic("independent", 60, 5, copies=5),
    "interactions": _synthetic("interactions", 60, 4),
    "wide": _synthetic("wide", 400, 5),
    "breast-cancer": _bundled("load_breast_cancer"),
    "digits": _bundled("load_digits"),
    "eicu": _clinical(0),
    "eicu-noise": _clinical(NOISE),
}
PROBLEMS = {name: Source(_MAKERS[name], **about) for name, about in TABLES["problems"].items()}
"""All problems by name, in the order of the report."""

JUDGED = ("independent", "copies")
"""Problems that something was promised of."""


# Scores


def prediction(probabilities: Floats, y: Ints) -> dict[str, float]:
    """NLL, accuracy and AUROC of probabilities [rows, classes]; of several classes its mean."""
    kept = np.clip(probabilities, LEAST, 1)
    kept /= kept.sum(1, keepdims=True)
    classes = range(1, 2) if kept.shape[1] == 2 else range(kept.shape[1])
    areas = [auroc(kept[:, label], y == label) for label in classes]
    areas = [area for area in areas if not math.isnan(area)]
    return {
        "nll": float(-np.log(kept[np.arange(len(y)), y]).mean()),
        "accuracy": float((kept.argmax(1) == y).mean()),
        "auroc": float(np.mean(areas)) if areas else math.nan,
    }


def auroc(score: Floats, right: Flags) -> float:
    """Chance that something right has a higher score than something wrong; ties count half.

    NaN if there is only one kind.
    """
    positive, negative = int(right.sum()), int((~right).sum())
    if not positive or not negative:
        return math.nan
    ranks = require("scipy.stats", extra="studies", purpose="the study features").rankdata(score)
    return float((ranks[right].sum() - positive * (positive + 1) / 2) / (positive * negative))


def best_of_families(score: Floats, family: Ints) -> Floats:
    """Highest score in each family, from [..., features] to [..., families]."""
    return np.stack([score[..., family == number].max(-1) for number in np.unique(family)], -1)


def discoveries(
    selected: Flags, family: Ints, relevant: Flags | None, irrelevant: Flags
) -> dict[str, float]:
    """How many of the features that a method found are right.

    ``"found"``: features. ``"false"``: those of them known not to matter. Where it is known what
    matters, ``"true"``: relevant families of which a feature was found, and ``"fdr"``: the share of
    what was found that is false; 0 if nothing was found. ``"strict"`` is that share if of a family
    only the first is right, and its copies are false.
    """
    false = float((selected & irrelevant).sum())
    total = float(selected.sum())
    metrics = {"found": total, "false": false}
    if relevant is not None:
        metrics["true"] = float(
            (best_of_families(selected.astype(float), family) > 0)[relevant].sum()
        )
        metrics["fdr"] = false / max(1.0, total)
        originals = np.zeros(len(selected), dtype=bool)
        originals[np.unique(family, return_index=True)[1]] = True
        wrong = selected & ~(originals & relevant[family])
        metrics["strict"] = float(wrong.sum()) / max(1.0, total)
    return metrics
