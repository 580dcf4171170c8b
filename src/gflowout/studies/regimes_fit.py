"""Training of the study regimes: a plain loop over tensors in memory, and models that runs share.

Sets are small and epochs short, so that what :func:`gflowout.training.fit` does between epochs
(checkpoints, logs) would take longer than the epochs: ``tools/regime_speed.py`` measures both.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import gflowout as gfo
from gflowout.backbones import MLP, ResNet18
from gflowout.core.atomic_io import write_text
from gflowout.core.ensemble import Ensemble
from gflowout.core.memory_format import to_fastest_format
from gflowout.core.model import MaskedModel
from gflowout.core.predictive import Predictive
from gflowout.core.random import generator
from gflowout.data.transforms import Normalize
from gflowout.methods import METHODS
from gflowout.runs import locks
from gflowout.runs.spec import canonical
from gflowout.studies import images
from gflowout.studies.framework import keep_rates
from gflowout.studies.framework.arms import Arm, Options
from gflowout.studies.regimes_data import (
    REGIMES,
    Problem,
    Regime,
    Rows,
    load,
    pictures,
    read,
    stem_order,
    with_noise,
)

HIDDEN = (300, 100)
BATCH = 500
_OPTION = "method.options."
Report = Callable[[int, int, str], None]


def silent(step: int, steps: int, message: str) -> None:
    """Report nothing."""


class Head(nn.Module):
    """The last two stages of a ResNet-18 and its classifier, for features of the first two."""

    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        net = ResNet18(classes, width)
        self.layer3, self.layer4, self.fc = net.layer3, net.layer4, net.fc
        self.sites = tuple(site for site in net.sites if site.startswith(("layer3", "layer4")))

    def forward(self, x: Tensor) -> Tensor:
        """Map features [batch, 2 width, 16, 16] to logits [batch, classes]."""
        logits: Tensor = self.fc(self.layer4(self.layer3(x)).mean((2, 3)))
        return logits


def network(regime: Regime, classes: int, how: Options) -> MLP | ResNet18 | Head:
    """A network with random weights, as the regime has them."""
    if regime.source == "mnist":
        return MLP((784, *HIDDEN, classes))
    width = how["width"]
    net: ResNet18 | Head = Head(classes, width) if regime.stem else ResNet18(classes, width)
    return to_fastest_format(net)


def build(arm: Arm, tuned: Options, problem: Problem, regime: Regime, how: Options) -> MaskedModel:
    """The model of an arm before training; weights come from PyTorch's random state."""
    own = {**arm.options, **tuned}
    options = {k.removeprefix(_OPTION): v for k, v in own.items() if k.startswith(_OPTION)}
    if "train_size" in METHODS[arm.method].Options.names():
        options["train_size"] = len(problem.train[1])
    net = network(regime, problem.classes, how)
    return gfo.wrap(
        net,
        arm.method,
        () if arm.method == "none" else list(net.sites),
        likelihood=gfo.Categorical(problem.classes),
        example=(problem.train[0][:2],),
        **options,
    )


def step_through(
    model: MaskedModel, rows: Rows, how: Options, decay: float, seed: int
) -> Iterator[int]:
    """Train; yields the number of epochs done after each. ``how`` has epochs, batch and rates."""
    x, y = rows
    groups = model.parameter_groups(lr=how["lr"], weight_decay=decay)
    optimizer = torch.optim.Adam(groups, fused=True)
    epochs, steps = how["epochs"], math.ceil(len(x) / how["batch"])
    cycle = None
    if how.get("cycle"):
        rates = [group["lr"] for group in optimizer.param_groups]
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, rates, epochs * steps)
    for epoch in range(epochs):
        model.train()
        order = torch.randperm(len(x), generator=generator(seed, "order", epoch))
        for chosen in torch.split(order, how["batch"]):
            optimizer.zero_grad(set_to_none=True)
            model(x[chosen], y=y[chosen]).total.backward()
            optimizer.step()
            if cycle is not None:
                cycle.step()
        yield epoch + 1


def train(
    model: MaskedModel,
    problem: Problem,
    how: Options,
    decay: float,
    seed: int,
    report: Report = silent,
) -> list[float]:
    """Train and take the weights of the best epoch; returns the validation NLL of every epoch."""
    curve: list[float] = []
    best: dict[str, Tensor] = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator(seed, "regimes").initial_seed())
        for epoch in step_through(model, problem.train, how, decay, seed):
            curve.append(nll(model, problem.valid, how["valid_samples"], seed))
            if not best or curve[-1] < min(curve[:-1]):
                best = copy.deepcopy(model.state_dict())
            report(epoch, how["epochs"], "epochs")
    model.load_state_dict(best)
    model.eval()
    return curve


def predictions(
    model: MaskedModel | Ensemble, x: Tensor, samples: int, seed: int
) -> Iterator[Predictive]:
    """Predictions of inputs in blocks of :data:`BATCH`."""
    draws = generator(seed, "predict")
    with torch.no_grad():
        for block in torch.split(x, BATCH):
            yield model.predict(block, samples=samples, generator=draws)


def nll(model: MaskedModel | Ensemble, rows: Rows, samples: int, seed: int) -> float:
    """Mean negative log-likelihood; NaN counts as infinite."""
    answers = predictions(model, rows[0], samples, seed)
    blocks = zip(answers, torch.split(rows[1], BATCH), strict=True)
    mean = float(-torch.cat([pred.log_prob(y, values=False) for pred, y in blocks]).mean())
    return math.inf if math.isnan(mean) else mean


# Models that runs share: each is trained once


@dataclass(frozen=True)
class Fitted:
    """A trained arm: its model, and validation NLL after each epoch of the first member."""

    model: MaskedModel | Ensemble
    curve: list[float]
    keep: float | None  # share of units that are kept in predictions on validation data


@dataclass(frozen=True)
class Place:
    """What a run trains on, and where models are kept."""

    regime: Regime
    problem: Problem
    how: Options
    store: Path
    seed: int


def place(name: str, how: Options, store: Path, seed: int) -> Place:
    """The data of a run, for features of the stem with the stem trained before."""
    regime = REGIMES[name]
    problem = behind_stem(regime, how, store, seed) if regime.stem else load(name, seed, how)
    return Place(regime, problem, how, store, seed)


def fitted(
    arm: Arm, tuned: Options, partner: tuple[Arm, Options] | None, here: Place, report: Report
) -> Fitted:
    """An arm, trained now or before; ``partner`` is the arm whose keep rate it takes over."""
    if partner is not None:
        learned = fitted(*partner, None, here, report)
        tuned = {**tuned, **keep_rates.drop_rate(learned.keep)}
    members = [_member(arm, tuned, here, number, report) for number in range(arm.members)]
    first, curve = members[0]
    model = first if len(members) == 1 else Ensemble([model for model, _ in members])
    x = here.problem.valid[0][: keep_rates.EXAMPLES]
    return Fitted(model, curve, keep_rates.kept(model, x))


def _member(
    arm: Arm, tuned: Options, here: Place, number: int, report: Report
) -> tuple[MaskedModel, list[float]]:
    """A network with its own starting weights and order on the data of the run."""
    seed = here.seed + images.APART * number
    values = {"regime": here.regime.name, "data": here.seed, "how": dict(here.how), "seed": seed}
    values |= {"method": arm.method, "options": {**arm.options, **tuned}}
    digest = hashlib.sha256(canonical(values).encode()).hexdigest()[:16]
    folder = here.store / images.STORE / f"{here.regime.name}-{arm.method}-s{seed}-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    weights, numbers = folder / "model.safetensors", folder / "curve.json"
    with locks.hold(folder / ".lock", wait=True), torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator(seed, "weights").initial_seed())
        model = build(arm, tuned, here.problem, here.regime, here.how)
        if numbers.is_file():
            net = network(here.regime, here.problem.classes, here.how)
            return gfo.load(weights, net).eval(), json.loads(numbers.read_text())
        decay = float(tuned.get("fit.weight_decay", 0.0))
        curve = train(model, here.problem, here.how, decay, seed, report)
        gfo.save(model, weights)
        write_text(numbers, json.dumps(curve))
    return model, curve


# The stem


def behind_stem(regime: Regime, how: Options, store: Path, seed: int) -> Problem:
    """CIFAR-10 as features of a stem that other images have trained, with noisy labels."""
    sizes = how["stem"]
    train_set, valid, test = pictures(regime, seed, how, first=sizes["train"])
    stem, scale = _stem(regime, how, store)
    parts = []
    with torch.no_grad():
        for part in (train_set, valid, test):
            x = torch.cat([stem(scale(block)) for block in torch.split(part.images, BATCH)])
            parts.append((x, part.labels))
    learn, check, score = parts
    return with_noise(Problem(len(test.classes), learn, check, score, learn), seed)


def _stem(regime: Regime, how: Options, store: Path) -> tuple[nn.Module, Normalize]:
    """The first two stages of a ResNet-18, trained without masks, once for all runs."""
    sizes, width = how["stem"], how["width"]
    whole = read(regime.source, "train")
    mine = whole.subset(stem_order(len(whole))[: sizes["train"]])
    scale = Normalize.fit(mine.images)
    values = canonical({"width": width, "lr": how["lr"], "batch": how["batch"], **sizes})
    digest = hashlib.sha256((values + mine.fingerprint()).encode()).hexdigest()[:16]
    folder = store / images.STORE / f"stem-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.safetensors"
    with locks.hold(folder / ".lock", wait=True), torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator(0, "stem").initial_seed())
        net = to_fastest_format(ResNet18(len(whole.classes), width))
        rows = (scale(mine.images), mine.labels)
        if path.is_file():
            model = gfo.load(path, net)
        else:
            likelihood = gfo.Categorical(len(whole.classes))
            model = gfo.wrap(net, "none", (), likelihood=likelihood, example=(rows[0][:2],))
            options = {**how, "epochs": sizes["epochs"]}
            for _ in step_through(model, rows, options, 0.0, 0):
                pass
            gfo.save(model, path)
    net.eval()
    stem = nn.Sequential(net.conv1, net.bn1, nn.ReLU(), net.layer1, net.layer2)
    return stem, scale


def adapt(model: MaskedModel, problem: Problem, points: int, how: Options, seed: int) -> None:
    """Train on some images with their true labels, as long as one run and at a third of the rate.

    Those of fewer points are among those of more.
    """
    rows = torch.randperm(len(problem.clean[1]), generator=generator(seed, "points"))[:points]
    few = {**how, "epochs": max(1, how["epochs"] // 4), "lr": how["lr"] / 3}
    if "train_size" in type(model.method.options).names():
        model.set_options(train_size=points)
    clean = problem.clean[0][rows], problem.clean[1][rows]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator(seed, "adapt").initial_seed())
        for _ in step_through(model, clean, few, 0.0, seed):
            pass
    model.eval()
