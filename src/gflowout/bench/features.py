"""What a search for the needed columns of a table costs, beside boosting and beside one chain."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from gflowout.bench.timing import Case, Table
from gflowout.core.optional import require

BOOSTING, FIT = "tuned boosting", "masks on inputs"
ONE, TEN = "1 chain", "10 chains"
SECONDS = "seconds"
"""The number that a target is set for where the time itself counts."""
LARGE = 100_000
ROUNDS = 300
_GRID = {"learning_rate": [0.03, 0.1], "max_leaf_nodes": [4, 8, 16]}


def features_tables(quick: bool) -> list[Table]:
    """Fits of the estimators with ``mask_inputs=True`` at their defaults."""
    needs = ("sklearn", "scipy")
    rows, columns, large, rounds = (100, 8, 200, 1) if quick else (1000, 60, LARGE, 3)
    short: dict[str, Any] = {"epochs": 2} if quick else {}
    titles = (
        f"Fit of the classifier with masks on inputs, {rows:,} rows, {columns} columns",
        f"The same by number of chains, {rows:,} rows, {columns} columns",
        f"Fit with masks on inputs, {large:,} rows, 20 columns",
    )

    def seconds(cases: dict[str, Case], medians: dict[str, float]) -> dict[str, dict[str, float]]:
        return {name: {SECONDS: medians[name]} for name in cases}

    def boosting_cases() -> dict[str, Case]:
        x, y = table(rows, columns)
        tuned = partial(boosting, x, y, 5 if quick else ROUNDS)
        return {BOOSTING: tuned, FIT: partial(fit, x, y, **short)}

    def chain_cases() -> dict[str, Case]:
        x, y = table(rows, columns)
        one = partial(fit, x, y, **short)
        return {ONE: partial(one, chains=1), TEN: partial(one, chains=10)}

    def large_cases() -> dict[str, Case]:
        return {FIT: partial(fit, *table(large, 20), **short)}

    return [
        Table("features-fit", titles[0], (BOOSTING,), rounds, boosting_cases, cost=20, needs=needs),
        Table("features-chains", titles[1], (ONE,), rounds, chain_cases, cost=12, needs=needs),
        Table("features-large", titles[2], (), 1, large_cases, seconds, cost=60, needs=needs),
    ]


def table(rows: int, columns: int) -> tuple[Any, Any]:
    """Normal columns of which five matter, two of them only together; a tenth of labels flipped."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, columns, generator=generator)
    effect = 1.5 * x[:, 0] + 2 * x[:, 1] * x[:, 2] + 2 * (2 * x[:, 3]).sin() + 1.5 * x[:, 4]
    flipped = torch.rand(rows, generator=generator) < 0.1
    return x.double().numpy(), ((effect > 0) ^ flipped).long().numpy()


def fit(x: Any, y: Any, **options: Any) -> object:
    """Fit the classifier at its defaults."""
    module = require("gflowout.integrations.sklearn", extra="sklearn", purpose="the benchmark")
    return module.GFlowOutClassifier(mask_inputs=True, random_state=0, **options).fit(x, y)


def boosting(x: Any, y: Any, rounds: int) -> object:
    """Histogram boosting with early stopping, six settings by three-fold cross-validation."""
    ensemble = require("sklearn.ensemble", extra="sklearn", purpose="the benchmark")
    selection = require("sklearn.model_selection", extra="sklearn", purpose="the benchmark")
    model = ensemble.HistGradientBoostingClassifier(
        max_iter=rounds, early_stopping=True, random_state=0
    )
    return selection.GridSearchCV(model, _GRID, cv=3, scoring="neg_log_loss").fit(x, y)
