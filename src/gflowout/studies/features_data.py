"""Problems of the features study: which inputs matter is known, or noise was added to real data.

Every problem is a pure function of a seed. Trials are judged on training rows that are held out
from them (``Problem.held``); test rows are another draw, or patients of other hospitals.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gflowout.core import checks
from gflowout.core.optional import require
from gflowout.data import clinical, store

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

FLIPPED = 0.1
"""Share of the labels that are wrong, in training and in test."""
STRETCH = 3.0
"""What irrelevant inputs are multiplied with under shift."""
NOISE = 100
"""Columns of standard normal noise that are added to real data."""
HELD = 5
"""One training row in so many is held out from trials."""
COPY_NOISE = 0.1


@dataclass(frozen=True)
class Problem:
    """Rows to train on and rows to test on.

    Attributes:
        x: Training inputs, [rows, features].
        y: Their classes, [rows], from 0.
        held: Training rows that trials are judged on, [rows].
        x_test: Test inputs.
        y_test: Their classes.
        names: Of the features.
        family: Number of the family of each feature, [features]. Near-copies are of one family,
            and any of them will do.
        relevant: Families that matter, [families]; ``None`` if nobody knows.
        irrelevant: Features that are known not to matter, [features].
    """

    x: Floats
    y: Ints
    held: Flags
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
        train = {"train": _checksum(self.x, self.y)}
        return {**train, "test": _checksum(self.x_test, self.y_test)} if test else train


@dataclass(frozen=True)
class Source:
    """Where a problem comes from.

    Attributes:
        title: In tables.
        about: What it is, in a sentence.
        make: Draws the problem from a seed, training rows and test rows.
        rows: Training rows; of eICU about.
        test: Test rows at most.
        features: In all; of eICU about.
        known: Whether it is known which features matter.
        noisy: Whether some are known not to matter.
    """

    title: str
    about: str
    make: Callable[[int, int, int], Problem] = field(repr=False)
    rows: int
    test: int
    features: int
    known: bool = True
    noisy: bool = True


def load(name: str, seed: int, rows: int | None = None, test: int | None = None) -> Problem:
    """The draw of a problem that belongs to a seed, with some of its rows if not all.

    The seed decides rows, noise and what is held out; for eICU the test hospitals, too.

    Examples:
        >>> problem = load("independent", 0, rows=50, test=10)
        >>> problem.x.shape, problem.x_test.shape, int(problem.held.sum())
        ((50, 60), (10, 60), 10)
    """
    source = PROBLEMS[checks.choice("problem", name, PROBLEMS)]
    return source.make(seed, rows or source.rows, test or source.test)


def score(x: Floats) -> Floats:
    """What decides the label of the problems ``independent`` and ``copies``, [rows]."""
    value: Floats = 1.5 * x[:, 0] + 2 * x[:, 1] * x[:, 2] + 2 * np.sin(2 * x[:, 3]) + 1.5 * x[:, 4]
    return value


def product_score(x: Floats) -> Floats:
    """What decides the label of ``interactions``: no feature tells anything alone."""
    value: Floats = x[:, 0] * x[:, 1] + x[:, 2] * x[:, 3]
    return value


def wide_score(x: Floats) -> Floats:
    """What decides the label of ``wide``: three linear effects, a step, a square."""
    linear = 2 * x[:, 0] - 2 * x[:, 1] + 1.5 * x[:, 2]
    value: Floats = linear + 1.5 * np.tanh(3 * x[:, 3]) + 1 - x[:, 4] ** 2
    return value


Make = Callable[[int, int, int], Problem]
"""From a seed, training rows and test rows to the problem."""


def _synthetic(
    decide: Callable[[Floats], Floats], features: int, matter: int, copies: int = 0
) -> Make:
    """A problem of standard normal features.

    Args:
        decide: Labels are 1 where it is positive, before some are flipped.
        features: How many.
        matter: The first so many matter.
        copies: So many features after them are near-copies of the first.
    """

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
        y = ((decide(x) > 0) ^ (rng.random(rows + test) < FLIPPED)).astype(np.int64)
        relevant = np.arange(features - copies) < matter
        names = tuple(f"x{number}" for number in range(features))
        held = _held(rows, rng)
        parts = (x[:rows], y[:rows], held, x[rows:], y[rows:])
        return Problem(*parts, names, family, relevant, ~relevant[family])

    return make


def _bundled(loader: str) -> Make:
    """A data set that comes with scikit-learn, with noise columns; seeds draw other rows."""

    def make(seed: int, rows: int, test: int) -> Problem:
        sets = require("sklearn.datasets", extra="sklearn", purpose="the study features")
        source = getattr(sets, loader)()
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(source.data))
        x, names = _with_noise(source.data, map(str, source.feature_names), NOISE, rng)
        train, other, held = order[:rows], order[rows : rows + test], _held(rows, rng)
        y = source.target.astype(np.int64)
        return _real(x, y, held, train, other, names, source.data.shape[1])

    return make


@functools.lru_cache(maxsize=1)
def _stays(seed: int, where: object) -> clinical.ClinicalSplit:
    """Reading the tables takes seconds, and one process may do many runs of a seed."""
    del where  # another data directory is another split
    return clinical.load("eicu-demo", test_hospital=0.3, seed=seed, valid_fraction=1 / HELD)


def _clinical(noise: int) -> Make:
    """Drugs of the eICU demo; every seed tests on other hospitals."""

    def make(seed: int, rows: int, test: int) -> Problem:
        split = _stays(seed, store.root())
        parts = (split.train, split.valid, split.test)
        drugs = np.concatenate([part.x.double().numpy() for part in parts])
        died = np.concatenate([part.y.long().numpy() for part in parts])
        rng = np.random.default_rng(seed)
        x, names = _with_noise(drugs, split.train.features, noise, rng)
        count = len(split.train) + len(split.valid)
        train = np.sort(rng.permutation(count)[:rows])
        other = count + np.sort(rng.permutation(len(split.test))[:test])
        # Patients who are held out are nobody's in training: they come last.
        held = train >= len(split.train)
        return _real(x, died, held, train, other, names, drugs.shape[1])

    return make


def _real(
    x: Floats, y: Ints, held: Flags, train: Ints, test: Ints, names: tuple[str, ...], real: int
) -> Problem:
    """Rows of real data whose features after the first ``real`` ones are noise."""
    number = np.arange(len(names))
    return Problem(x[train], y[train], held, x[test], y[test], names, number, None, number >= real)


def _with_noise(
    x: Floats, names: object, count: int, rng: np.random.Generator
) -> tuple[Floats, tuple[str, ...]]:
    """Columns with noise beside them, and the names of all."""
    noise = rng.standard_normal((len(x), count))
    added = (f"noise {number}" for number in range(count))
    return np.hstack([x, noise]), (*map(str, names), *added)  # type: ignore[call-overload]


def _held(rows: int, rng: np.random.Generator) -> Flags:
    held = np.zeros(rows, dtype=bool)
    held[rng.permutation(rows)[: rows // HELD]] = True
    return held


def _checksum(x: Floats, y: Ints) -> str:
    return f"sha256:{hashlib.sha256(x.tobytes() + y.tobytes()).hexdigest()}"


PROBLEMS = {
    "independent": Source(
        "Independent features",
        "60 standard normal features; y = [1.5 x0 + 2 x1 x2 + 2 sin(2 x3) + 1.5 x4 > 0]",
        _synthetic(score, 60, 5), 800, 4000, 60,
    ),
    "copies": Source(
        "Near-copies",
        "the same with x5 to x9 = x0 to x4 + 0.1 noise: of two near-copies any is right",
        _synthetic(score, 60, 5, copies=5), 800, 4000, 60,
    ),
    "interactions": Source(
        "Interactions only",
        "60 standard normal features; y = [x0 x1 + x2 x3 > 0]: no feature tells anything alone",
        _synthetic(product_score, 60, 4), 900, 4000, 60,
    ),
    "wide": Source(
        "More features than points",
        "400 standard normal features; y = [2 x0 - 2 x1 + 1.5 x2 + 1.5 tanh(3 x3) + 1 - x4² > 0]",
        _synthetic(wide_score, 400, 5), 200, 4000, 400,
    ),
    "breast-cancer": Source(
        "Breast cancer + noise",
        "30 measurements of cells and 100 noise columns: malignant or benign",
        _bundled("load_breast_cancer"), 300, 269, 130, known=False,
    ),
    "digits": Source(
        "Digits + noise",
        "64 pixels of handwritten digits and 100 noise columns: which of ten digits",
        _bundled("load_digits"), 600, 1197, 164, known=False,
    ),
    "eicu": Source(
        "eICU demo",
        "drugs of the first 48 hours in intensive care: death, in hospitals not trained on",
        _clinical(0), 1750, 10_000, 290, known=False, noisy=False,
    ),
    "eicu-noise": Source(
        "eICU demo + noise",
        "the same with 100 noise columns",
        _clinical(NOISE), 1750, 10_000, 390, known=False,
    ),
}  # fmt: skip
"""All problems by name, in the order of the report."""
