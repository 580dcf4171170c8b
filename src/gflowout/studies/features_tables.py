"""Tables for the rivals of the features study: published known truths, and tables from packages."""

from __future__ import annotations

import bz2
import csv
import functools
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gflowout.core import checks
from gflowout.core.optional import MissingExtraError, require
from gflowout.studies import features_data
from gflowout.studies.features_data import Flags, Floats

WIDTHS = (64, 128, 256, 512)
"""Columns of the published problems."""
ROWS = 1000
"""Rows of the published problems."""
TEST = 2000
"""Rows that a synthetic problem is tested on."""
HELD_OUT = 0.3
"""Share of a real table's rows that is tested on; every seed draws others."""


@dataclass(frozen=True)
class Split:
    """Rows to train on and rows to test on.

    ``y`` holds classes from 0, or numbers if ``classes`` is 0. ``relevant`` says which columns
    matter, ``None`` if nobody knows.
    """

    x: Floats
    y: NDArray[Any]
    x_test: Floats
    y_test: NDArray[Any]
    classes: int
    relevant: Flags | None = None

    def some(self, rows: int, test: int) -> Split:
        """The first rows, to try things out."""
        return Split(
            self.x[:rows], self.y[:rows], self.x_test[:test], self.y_test[:test], self.classes,
            self.relevant,
        )  # fmt: skip


@dataclass(frozen=True)
class Origin:
    """Where a table comes from.

    ``make`` takes a seed. ``classes`` is 0 for a regression. ``package`` is what it needs beside
    scikit-learn. ``scale``: how much longer runs take than on 1,000 rows of 256 columns.
    ``published``: share of the true features among as many and test AUC, by rival.
    """

    make: Callable[[int], Split] = field(repr=False)
    title: str
    about: str
    classes: int
    known: bool = False
    package: str = ""
    scale: float = 1.0
    published: dict[str, list[float]] = field(default_factory=dict)


# Known truths


def ring(x: Floats) -> Floats:
    """Distance from a circle in the first two columns, [rows]."""
    distance: Floats = np.abs(np.hypot(x[:, 0] - 0.5, x[:, 1] - 0.5) - 0.35)
    return distance


def xor(x: Floats, first: int) -> Floats:
    """Strength of the exclusive or of two columns, [rows]."""
    strength: Floats = (x[:, first] - 0.5) * (0.5 - x[:, first + 1])
    return strength


RULES: dict[str, tuple[int, Callable[[Floats, np.random.Generator], Flags]]] = {
    "xor": (2, lambda x, rng: xor(x, 0) >= 0),
    "ring": (2, lambda x, rng: ring(x) <= 0.1151),
    "ring-xor": (4, lambda x, rng: (ring(x) <= 0.0704) | (xor(x, 2) >= 0.0337)),
    "ring-xor-sum": (
        6,
        lambda x, rng: (
            (ring(x) <= 0.0479)
            | (xor(x, 2) >= 0.0598)
            | (x[:, 4] + x[:, 5] + 0.2 * rng.standard_normal(len(x)) >= 1.4074)
        ),
    ),
}
"""How many columns matter, the first ones, and the label of rows that are uniform on [0, 1]."""


def _published(name: str, width: int, seed: int) -> Split:
    rng = np.random.default_rng([seed, width])
    matter, rule = RULES[name]
    x = rng.uniform(size=(ROWS + TEST, width))
    y = rule(x, rng).astype(np.int64)
    return Split(x[:ROWS], y[:ROWS], x[ROWS:], y[ROWS:], 2, np.arange(width) < matter)


def _wide(seed: int) -> Split:
    rng = np.random.default_rng([seed, 500])
    x = rng.standard_normal((150 + TEST, 500))
    effect = np.zeros(500)
    effect[:6] = 2, -2, 1.5, -1.5, 1, -1
    y = x @ effect + rng.standard_normal(len(x))
    return Split(x[:150], y[:150], x[150:], y[150:], 0, effect != 0)


def _correlated(seed: int) -> Split:
    rng = np.random.default_rng([seed, 100])
    noise = rng.standard_normal((500 + TEST, 100))
    x = noise.copy()
    for column in range(1, 100):
        x[:, column] = 0.8 * x[:, column - 1] + 0.6 * noise[:, column]
    effect = np.zeros(100)
    effect[5::10] = rng.choice([-1.0, 1.0], 10)
    y = x @ effect + 2 * rng.standard_normal(len(x))
    return Split(x[:500], y[:500], x[500:], y[500:], 0, effect != 0)


# Tables from packages


def _real(read: Callable[[], tuple[Floats, Floats]], classes: int, seed: int) -> Split:
    x, y = read()
    y = y.astype(np.int64) if classes else y
    order = np.random.default_rng(seed).permutation(len(y))
    test, train = np.split(order, [round(HELD_OUT * len(y))])
    return Split(x[train], y[train], x[test], y[test], classes)


def _bundled(loader: str) -> tuple[Floats, Floats]:
    """A table of scikit-learn."""
    sets = require("sklearn.datasets", extra="sklearn", purpose="the study features")
    x, y = getattr(sets, loader)(return_X_y=True)
    return np.asarray(x, float), np.asarray(y, float)


def _faraway(name: str, target: str, others: tuple[str, ...] = ()) -> tuple[Floats, Floats]:
    """A table of the package faraway, without columns that say the same as its target."""
    text = bz2.decompress(_file("faraway", f"datasets/{name}/{name}.csv.bz2").read_bytes())
    names, *rows = csv.reader(io.StringIO(text.decode()))
    values = np.array([row[-len(names) :] for row in rows], dtype=float)  # without row numbers
    kept = [place for place, name in enumerate(names) if name not in (target, *others)]
    return values[:, kept], values[:, names.index(target)]


def _khan() -> tuple[Floats, Floats]:
    parts = [
        [_numbers("ISLP", f"data/Khan_{kind}{part}.csv") for part in ("train", "test")]
        for kind in ("x", "y")
    ]
    x, y = (np.concatenate(part) for part in parts)
    return x, y[:, 0] - 1


def _caravan() -> tuple[Floats, Floats]:
    lines = _file("ISLP", "data/Caravan.csv").read_text().splitlines()[1:]
    cells = [line.split(",") for line in lines]
    x = np.array([row[:-1] for row in cells], dtype=float)
    return x, np.array([row[-1].strip('"') == "Yes" for row in cells], dtype=float)


def _numbers(package: str, path: str) -> Floats:
    return np.loadtxt(_file(package, path), delimiter=",", skiprows=1, ndmin=2)


def _file(package: str, path: str) -> Path:
    """A file of a package, which is not imported: only its tables are wanted."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtraError(f"this table {needs(package)}", name=package)
    return Path(spec.submodule_search_locations[0]) / path


def needs(package: str) -> str:
    """What to install for a package of a rival or a table."""
    if package == "ISLP":  # whose requirements contradict those of the studies
        return "needs ISLP: pip install --no-deps ISLP"
    return f"needs {package}: pip install -e '.[rivals]' in a clone of gflowout"


_FAT = ("siri", "density", "free")
_READERS: dict[str, tuple[Callable[[], tuple[Floats, Floats]], int, str, float]] = {
    "breast-cancer-plain": (functools.partial(_bundled, "load_breast_cancer"), 2, "", 0.3),
    "wine": (functools.partial(_bundled, "load_wine"), 3, "", 0.2),
    "pima": (functools.partial(_faraway, "pima", "test"), 2, "faraway", 0.3),
    "khan": (_khan, 4, "ISLP", 3.0),
    "caravan": (_caravan, 2, "ISLP", 2.0),
    "diabetes": (functools.partial(_bundled, "load_diabetes"), 0, "", 0.2),
    "fat": (functools.partial(_faraway, "fat", "brozek", _FAT), 0, "faraway", 0.2),
    "meatspec": (functools.partial(_faraway, "meatspec", "fat"), 0, "faraway", 0.4),
}
"""Of real tables: what reads them, classes, the package they come with, and how long runs take."""


def _all() -> dict[str, Origin]:
    origins: dict[str, Origin] = {}
    for name, about in features_data.TABLES["tables"].items():
        texts = {key: about[key] for key in ("title", "about")}
        if name in RULES:
            published: dict[str, Any] = about.get("published", {})
            for width in WIDTHS:
                origins[f"{name}-{width}"] = Origin(
                    functools.partial(_published, name, width),
                    f"{texts['title']}, {width} columns", texts["about"], 2, True,
                    scale=width / 256, published=published.get(str(width), {}),
                )  # fmt: skip
        elif name in _READERS:
            read, classes, package, scale = _READERS[name]
            real = functools.partial(_real, read, classes)
            origins[name] = Origin(real, **texts, classes=classes, package=package, scale=scale)
        else:
            make = {"wide-500": _wide, "correlated": _correlated}[name]
            origins[name] = Origin(make, **texts, classes=0, known=True)
    return origins


ORIGINS = _all()
"""All tables by name, in the order of the report."""


def load(name: str, seed: int) -> Split:
    """The rows of a table that belong to a seed.

    Examples:
        >>> split = load("ring-64", 0)
        >>> split.x.shape, split.x_test.shape, split.classes, int(split.relevant.sum())
        ((1000, 64), (2000, 64), 2, 2)
    """
    return ORIGINS[checks.choice("table", name, ORIGINS)].make(seed)
