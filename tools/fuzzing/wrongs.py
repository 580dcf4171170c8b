"""Calls with one wrong argument, which must be refused by an error that names it."""

from __future__ import annotations

import copy
import dataclasses
import math
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import gflowout as gfo
from fuzzing.checks import attempt, finite, refused, unchanged
from fuzzing.models import Wrapped, arguments, wrapped
from gflowout.core import tree
from gflowout.methods import METHODS

Wrong = tuple[tuple[str, ...], Callable[[], Any]]
"""What the error may call the argument, and the call."""

NONSENSE = ("nonsense", math.nan, {}, object())


def wrap(rng: random.Random) -> None:
    """Wrap with one wrong argument."""
    case, given = arguments(rng)
    names = [name for name, _ in case.net.named_modules() if name]
    options = [field.name for field in dataclasses.fields(METHODS[given["method"]].Options)]
    changes: list[tuple[tuple[str, ...], dict[str, Any]]] = [
        (("method",), {"method": rng.choice(["gflowot", None, 3, ""])}),
        (("sites",), {"sites": rng.choice(["head", 3, [3], [None], ["nope*"], ["hed"], {"x": 1}])}),
        (("sites", "axis"), {"sites": {rng.choice(names): rng.choice(["a", 9, 1.5, True])}}),
        (("likelihood",), {"likelihood": rng.choice([None, "x", gfo.Categorical, 3])}),
        (("Categorical", "likelihood"), {"likelihood": gfo.Categorical(97)}),
        (("MultiLabel", "likelihood"), {"likelihood": gfo.MultiLabel(97)}),
        (("example",), {"example": rng.choice([torch.zeros(2, 3), (), {}, None, ("x",), (3,)])}),
        (("example",), {"example": (torch.zeros(2, 1, 1, 1, 1, 1),)}),
        (("preset",), {"preset": rng.choice(["papers", 3, ""])}),
        (("validate",), {"validate": rng.choice(["yes", 1, None])}),
        (("padding",), {"padding": rng.choice(["nope", 3])}),
        (("nope",), {"nope": 1}),
    ]
    changes += [((name,), {name: rng.choice(NONSENSE)}) for name in options]
    expected, change = rng.choice(changes)
    with unchanged(case.net, but=("random state",)):
        refused(lambda: gfo.wrap(case.net, **{**given, **change}), *expected)


def parts(rng: random.Random) -> None:
    """Build likelihoods, units and ensembles of wrong values, or wrap something else."""
    net, x = nn.Linear(4, 3), torch.zeros(2, 4)

    def masked(units: gfo.Units) -> Any:
        return gfo.wrap(net, "mc", {"input": units}, likelihood=gfo.Categorical(3), example=(x,))

    def model() -> gfo.MaskedModel:
        own = copy.deepcopy(net)
        return gfo.wrap(own, "mc", ["input"], likelihood=gfo.Categorical(3), example=(x,))

    number = rng.choice([0, -1, 1.5, "a", None, math.nan])
    cells = rng.choice([[9], [-1], ["a"], [0.5]])
    wrongs: list[Wrong] = [
        (("classes",), lambda: gfo.Categorical(number)),
        (("ignore_index",), lambda: gfo.Categorical(3, ignore_index="a")),
        (("labels",), lambda: gfo.MultiLabel(number)),
        (("dim",), lambda: gfo.Gaussian(number)),
        (("noise",), lambda: gfo.Gaussian(1, noise=rng.choice([0, -1.0, "a", math.inf]))),
        (("heteroscedastic",), lambda: gfo.Gaussian(1, heteroscedastic="yes")),
        (("axis",), lambda: gfo.Units(axis=rng.choice(["a", 1.5, True, (1, 1), ()]))),
        (("patch",), lambda: gfo.Units(patch=rng.choice([0, -2, "a", 1.5]))),
        (("groups",), lambda: gfo.Units(groups=rng.choice([3, "ab", [3]]))),
        (("always",), lambda: gfo.Units(always=rng.choice([3, "ab"]))),
        (("groups",), lambda: masked(gfo.Units(groups=[cells]))),
        (("groups",), lambda: masked(gfo.Units(groups=rng.choice([[[0], [0]], [[]]])))),
        (("always",), lambda: masked(gfo.Units(always=cells))),
        (("keep",), lambda: masked(gfo.Units(keep=rng.choice([0.0, 1, 1.5, "a", [0.5]])))),
        (("axis",), lambda: masked(gfo.Units(axis=rng.choice([5, -7])))),
        (("backbone",), lambda: gfo.wrap(rng.choice([None, "net", nn.Linear, model()]), "mc",
                                         likelihood=gfo.Categorical(3), example=(x,))),
        (("model",), lambda: gfo.unwrap(rng.choice([None, net]))),
        (("members", "member"), lambda: gfo.Ensemble(rng.choice([[], net, 3, [3]]))),
        (("weights",), lambda: gfo.Ensemble(
            [model(), model()], weights=rng.choice([[1.0], [-1.0, 2.0], [0.0, 0.0], ["a", 1]]))),
        (("likelihood",), lambda: gfo.Ensemble([net], example=(x,))),
        (("build",), lambda: gfo.Ensemble.of(net, likelihood=gfo.Categorical(3), example=(x,))),
        (("parts",), lambda: gfo.Predictive.join([])),
        (("masks",), lambda: gfo.Inclusion(torch.zeros(2, 3))),
        (("masks",), lambda: gfo.Inclusion(torch.full((1, 2, 1, 3), 0.5))),
    ]  # fmt: skip
    names, function = rng.choice(wrongs)
    refused(function, *names)


def call(rng: random.Random) -> None:
    """Call a model with one wrong argument."""
    w = wrapped(rng)
    w.model.eval()
    batch = rng.randint(max(2, w.case.smallest), 5)
    args, kwargs = w.case.call(batch)
    wrongs = [*_of_predict(w, rng, args, kwargs), *_of_labels(w, rng, batch, args, kwargs)]
    wrongs += _of_inputs(w, rng, args, kwargs) + _of_options(w, rng) + _of_files(w, rng)
    names, function = rng.choice(wrongs)
    with unchanged(w.model, but=("random state",)):
        refused(function, *names)


def _of_predict(w: Wrapped, rng: random.Random, args: Any, kwargs: Any) -> list[Wrong]:
    model = w.model
    number = rng.choice([0, -3, 1.5, "a", True, [2], math.nan])
    pred = model.predict(*args, samples=3, return_masks=True, **kwargs)
    masks = list(pred.masks or ())
    nan, wide = [masks[0] * math.nan, *masks[1:]], [torch.ones(3, 1, 99), *masks[1:]]
    site, own = rng.choice(["nope", 3, ""]), model.sites[0].name

    def predict(**more: Any) -> Callable[[], Any]:
        return lambda: model.predict(*args, **more, **kwargs)

    wrongs: list[Wrong] = [
        (("samples",), predict(samples=number)),
        (("chunk",), predict(chunk=number)),
        (("generator",), predict(generator=rng.choice([3, "a", torch.zeros(2)]))),
        (("masks",), predict(masks=rng.choice([masks[1:], [*masks, masks[0]], 3, masks[0], "a"]))),
        (("masks",), predict(masks=rng.choice([wide, ["a"] * len(masks)]))),
        (("samples",), predict(masks=masks, samples=7)),
        (("y",), predict(y=torch.zeros(2))),
        (("nonsense",), predict(nonsense=1)),
        (("call", "Tensor"), lambda: model.predict()),
        (("site",), lambda: model.inclusion(*args, site=site, **kwargs)),
        (("samples",), lambda: model.inclusion(*args, site=own, samples=number, **kwargs)),
        (("y",), lambda: pred.log_prob(torch.zeros(99, 99, 99, dtype=torch.long))),
        (("combine", "dempster_shafer"), lambda: pred.dempster_shafer(combine="nope")),
        (("probability", "quantile"), lambda: pred.quantile(rng.choice([0.0, 1.5, -1.0, "a"]))),
    ]
    return wrongs + [(("masks",), predict(masks=nan))] * model.validate


def _of_labels(w: Wrapped, rng: random.Random, batch: int, args: Any, kwargs: Any) -> list[Wrong]:
    y = w.case.labels(batch)
    wrong: list[Any] = [
        y[:-1], torch.cat([y, y]), y.tolist(), 3, "a", y.sum(), y[:0], y.to(torch.complex64),
        y.reshape(1, *y.shape), np.asarray(y),
    ]  # fmt: skip
    if w.model.validate:
        low = y - 100 if not isinstance(w.model.likelihood, gfo.Gaussian) else y / 0
        wrong += [low, low] if y.is_floating_point() else [y + 100, y - 100]
    label = rng.choice(wrong)
    return [(("y",), lambda: w.model(*args, y=label, **kwargs))] * 4


def _of_inputs(w: Wrapped, rng: random.Random, args: Any, kwargs: Any) -> list[Wrong]:
    model, names = w.model, w.case.names
    first = tree.tensors((args, kwargs))[0][1]

    def predict(change: Callable[[Tensor], Any], *also: str) -> Wrong:
        new = change(first)

        def replaced(value: Any) -> Any:
            if value is first:
                return new
            if isinstance(value, dict):
                return {key: replaced(item) for key, item in value.items()}
            return value

        own = [replaced(value) for value in args]
        keywords = {key: replaced(value) for key, value in kwargs.items()}
        return (*names, *also), lambda: model.predict(*own, samples=2, **keywords)

    wrongs = [
        predict(lambda x: x[:0], "batch"),
        predict(lambda x: x.numpy() if x.dtype != torch.bfloat16 else "x", "0", "Tensor"),
        predict(lambda x: x.tolist(), "Tensor"),
        predict(lambda x: None, "Tensor"),
    ]
    if first.is_floating_point():
        wrongs += [
            predict(lambda x: torch.cat([x, x], 1)) if first.dim() != 3 else
            predict(lambda x: torch.cat([x, x], 2)),
            predict(lambda x: x.long()),
            predict(lambda x: x.to(torch.float16 if x.dtype == torch.float64 else torch.float64)),
        ]  # fmt: skip
    else:
        wrongs.append(predict(lambda x: x.float()))
    return wrongs


def _of_options(w: Wrapped, rng: random.Random) -> list[Wrong]:
    name = rng.choice([field.name for field in dataclasses.fields(w.model.method.options)] or ["a"])
    value = rng.choice(NONSENSE)
    return [
        ((name,), lambda: w.model.set_options(**{name: value})),
        (("nope",), lambda: w.model.set_options(nope=1)),
    ]


def _of_files(w: Wrapped, rng: random.Random) -> list[Wrong]:
    folder = tempfile.gettempdir()
    missing = f"{folder}/no-such-folder/model"
    return [
        (("path",), lambda: gfo.save(w.model, rng.choice([missing, folder]))),
        (("path",), lambda: gfo.save(w.model, rng.choice([None, 3]))),
        (("model",), lambda: gfo.save(w.case.net, f"{folder}/x")),
        (("backbone",), lambda: gfo.save(w.model, f"{folder}/x", backbone="yes")),
        ((missing, "path"), lambda: gfo.load(missing, w.case.net)),
        ((folder, "path"), lambda: gfo.load(Path(folder), w.case.net)),
        (("backbone",), lambda: gfo.load(missing, rng.choice([None, w.model, "net"]))),
    ]


def not_finite(rng: random.Random) -> None:
    """Inputs with NaN, infinity or huge numbers: an error that names them, or finite results."""
    w = wrapped(rng)
    w.model.validate = True
    args, kwargs = w.case.call(rng.randint(2, 5))
    tensors = [tensor for _, tensor in tree.tensors((args, kwargs)) if tensor.is_floating_point()]
    if not tensors:
        return
    tensor = rng.choice(tensors)
    tensor.flatten()[rng.randrange(tensor.numel())] = rng.choice([math.nan, math.inf, -math.inf])
    if rng.random() < 0.3:
        tensor.fill_(torch.finfo(tensor.dtype).max)
    names = (*w.case.names, "scale", "batch.scale", "output", "outputs", "input")
    with unchanged(w.model, but=("random state",)):
        attempt(lambda: finite("predict", w.model.predict(*args, **kwargs).samples), *names)
    y = w.case.labels(len(tree.tensors((args, kwargs))[0][1]))
    w.model.eval()

    def loss() -> Tensor:
        return finite("loss", w.model(*args, y=y, **kwargs).total)

    attempt(loss, *names)
