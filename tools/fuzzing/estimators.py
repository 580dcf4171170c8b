"""The scikit-learn estimators with good and bad data and parameters."""

from __future__ import annotations

import math
import pickle
import random
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from torch import nn

from fuzzing.checks import close, finite, refused, true, unchanged
from gflowout.integrations.sklearn import GFlowOutClassifier, GFlowOutRegressor
from gflowout.methods import METHODS

Data = tuple[Any, Any]


def _data(rng: random.Random, classes: bool) -> Data:
    source = np.random.default_rng(rng.getrandbits(32))
    rows, features = rng.randint(12, 40), rng.randint(2, 5)
    x = source.normal(size=(rows, features)) * 10.0 ** rng.randint(-3, 4) + rng.choice([0, 1e3])
    if rng.random() < 0.2:
        x[:, 0] = 1.0  # a constant column
    if not classes:
        y = source.normal(size=(rows, 2) if rng.random() < 0.3 else rows) * 10.0 ** rng.randint(
            -3, 4
        )
        return x, y
    labels = rng.choice([[0, 1], [3, 7, 8], ["a", "b"], ["x", "y", "z"], [False, True]])
    y = np.array([labels[at % len(labels)] for at in range(rows)])
    return x, y


def _parameters(rng: random.Random) -> dict[str, Any]:
    given: dict[str, Any] = {
        "epochs": rng.randint(1, 3), "samples": rng.choice([1, 4]), "chains": rng.choice([1, 2]),
        "hidden": rng.choice([(4,), (3, 5)]), "random_state": rng.randrange(99),
        "method": rng.choice(["auto", *METHODS]), "batch_size": rng.choice([None, 1, 7, 100]),
    }  # fmt: skip
    if rng.random() < 0.4:
        given |= {"mask_inputs": True, "mask_hidden": rng.choice([True, False, "auto"])}
    if rng.random() < 0.2:
        given["standardize"] = False
    if rng.random() < 0.2:
        given["validation_fraction"] = rng.choice([0.0, 0.2, 0.5])
    return given


def good(rng: random.Random) -> None:
    """Fit and use an estimator."""
    classes = rng.random() < 0.6
    x, y = _data(rng, classes)
    given = _parameters(rng)
    if given.get("standardize") is False:
        x, y = np.tanh(x), y if classes else np.tanh(y)
    estimator = (GFlowOutClassifier if classes else GFlowOutRegressor)(**given)
    weights = np.random.RandomState(0).rand(len(x)) + 0.1 if rng.random() < 0.2 else None
    state = np.random.get_state()[1].copy()
    with unchanged():
        estimator.fit(x, y, sample_weight=weights)
        predicted = estimator.predict(x)
        score = estimator.score(x, y)
    true("NumPy's random state is left alone", bool((np.random.get_state()[1] == state).all()))
    finite("score", torch.tensor(float(score)))
    true("there is a prediction for every row", len(predicted) == len(x))
    true("its shape is that of y", predicted.shape == y.shape)
    numbers = estimator.predict_proba(x) if classes else predicted
    finite("prediction", torch.from_numpy(np.asarray(numbers, float)))
    if classes:
        close("sum of probabilities", torch.from_numpy(numbers.sum(1)), torch.ones(len(x)))
    for name, value in estimator.predict_uncertainty(x).items():
        finite(name, torch.from_numpy(value))
    alone = estimator.predict_proba(x[3:4]) if classes else estimator.predict(x[3:4])
    scale = max(1.0, float(np.abs(numbers).max()))
    close("a row alone", torch.tensor(alone / scale), torch.tensor(numbers[3:4] / scale))
    other = clone(estimator)
    true("a clone has the parameters", repr(other.get_params()) == repr(estimator.get_params()))
    true("a clone is not fitted", not hasattr(other, "chains_"))
    twin = rng.choice([
        lambda: other.fit(x, y, sample_weight=weights),
        lambda: pickle.loads(pickle.dumps(estimator)),
    ])()  # fmt: skip
    same = twin.predict_proba(x) if classes else twin.predict(x)
    close("a refit or pickle", torch.tensor(same / scale), torch.tensor(numbers / scale))
    if given.get("mask_inputs"):
        support = estimator.get_support()
        true("support has an entry per feature", support.shape == (x.shape[1],))
        indices = list(estimator.get_support(indices=True))
        true("indices are those of the support", indices == list(np.flatnonzero(support)))
        if support.any():
            true("transform selects", estimator.transform(x).shape == (len(x), support.sum()))


def bad(rng: random.Random) -> None:
    """Fit or predict with one wrong value."""
    classes = rng.random() < 0.5
    kind = GFlowOutClassifier if classes else GFlowOutRegressor
    x, y = _data(rng, classes)
    given = {**_parameters(rng), "method": "mc", "mask_inputs": False, "mask_hidden": "auto"}
    given |= {"epochs": 1, "standardize": True}
    holes = x.copy()
    holes[1, 0] = rng.choice([math.nan, math.inf])

    def fit(x: Any = x, y: Any = y, weight: Any = None, **change: Any) -> Any:
        return lambda: kind(**{**given, **change}).fit(x, y, sample_weight=weight)

    number = rng.choice([0, -1, 1.5, "a", [], math.nan])
    rate = rng.choice([-1.0, "a", math.nan, math.inf])
    wrongs = [
        (("X", "Input", "array"), fit(x=rng.choice([holes, x[:0], x[0], x[:, :0], x[None]]))),
        (("X", "array"), fit(x=rng.choice([None, 3, "ab"]))),
        (("y", "samples", "sample"), fit(y=rng.choice([y[:-1], None, y[:0]]))),
        (("y", "class", "Input"), fit(y=np.full(len(y), 1.0 if classes else math.nan))),
        (("sample_weight", "weight", "weights"), fit(weight=rng.choice(
            [-np.ones(len(x)), np.zeros(len(x)), np.ones(3), np.full(len(x), math.nan)]))),
        (("method",), fit(method=rng.choice(["nope", None, 3]))),
        (("hidden_layer_sizes",), fit(hidden_layer_sizes=rng.choice(
            [3, "ab", (0,), (-1,), (1.5,), ("a",)]))),
        (("options",), fit(options=rng.choice([3, "ab", [1]]))),
        (("nope",), fit(options={"nope": 1})),
        (("mask_inputs",), fit(mask_inputs=rng.choice([1, "yes", None]))),
        (("mask_hidden",), fit(mask_hidden=rng.choice([3, "yes", None]))),
        (("standardize",), fit(standardize=rng.choice([3, "yes", None]))),
        (("verbose",), fit(verbose=rng.choice([3, "yes", None]))),
        (("threshold",), fit(threshold=rng.choice([-1, 1.5, "a", None]))),
        (("device",), fit(device=rng.choice(["tpu9", 3.5, "", None, "cuda:99"]))),
        (("random_state", "seed", "Seed"), fit(random_state=rng.choice(["a", -1, 1.5]))),
        (("validation_fraction",), fit(validation_fraction=rng.choice([rate, 0.9]))),
        (("groups", "always", "keep"), fit(**rng.choice(
            [{"groups": [[0, 1]]}, {"always": [0]}, {"keep": 0.5}]))),
        (("groups",), fit(mask_inputs=True, groups=rng.choice([3, [3], [[99]], [[0], [0]]]))),
        (("always",), fit(mask_inputs=True, always=rng.choice([3, [99], ["a"]]))),
        (("keep",), fit(mask_inputs=True, keep=rng.choice([1.5, -1, "a", [0.5] * 99]))),
        (("GFlowOutClassifier", "GFlowOutRegressor"), lambda: kind().predict(x)),
    ]  # fmt: skip
    wrongs += [
        ((name,), fit(**{name: number}))
        for name in ("samples", "chains", "epochs", "batch_size", "patience")
    ]
    wrongs += [((name,), fit(**{name: rate})) for name in ("lr", "generator_lr", "weight_decay")]
    if classes:
        wrongs.append((("class_weight",), fit(class_weight=rng.choice(
            ["x", 3, {"none such": 1.0}, {y[0]: -1.0}]))))  # fmt: skip
    if rng.random() < 0.15:
        fitted = kind(**given).fit(x, y)
        wide = np.concatenate([x, x], 1)
        wrongs = [
            (
                ("X", "Input", "array"),
                lambda: fitted.predict(rng.choice([wide, holes, x[0], x[:0]])),
            )
        ]
        wrongs.append((("get_support", "mask_inputs"), lambda: fitted.get_support()))
        if not classes:
            wrongs.append((("quantiles",), lambda: fitted.predict_uncertainty(x, quantiles=[rate])))
    names, function = rng.choice(wrongs)
    with unchanged(nn.Identity()):
        refused(function, *names)
