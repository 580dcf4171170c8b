"""Arms of the study joint: masked networks, a mixture head and a CVAE, and one loop for all."""

from __future__ import annotations

import copy
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import gflowout as gfo
from gflowout.backbones import MLP
from gflowout.core.random import draw_seeds, generator
from gflowout.methods import METHODS
from gflowout.methods.gflowout import GFlowOut
from gflowout.studies import joint_scores
from gflowout.studies.joint_data import TABLES, Problem, Rows
from gflowout.studies.joint_scores import Answer, part_log_prob

Tuned = Mapping[str, Any]
_OPTIMISER = ("lr", "weight_decay")
"""What is tuned of the optimiser; all else is an option of the method."""


@dataclass(frozen=True)
class Arm:
    """One competitor; ``label`` is ``Run.method`` in records.

    ``method`` is that of the masks, or ``"mixture"``, ``"cvae"``, ``"truth"``. It has fixed
    ``options`` and tries ``trials``, the best guess first. A run trains so many ``members``. A step
    takes ``cost`` times as long as one of the plain network, and all arms may take as long: those
    with dear steps get fewer. What the arm that it is ``like`` chooses is its choice, too. ``only``
    names problems, all if empty.
    """

    label: str
    title: str
    method: str
    cost: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)
    trials: Sequence[Tuned] = ({},)
    members: int = 1
    like: str = ""
    only: Sequence[str] = ()


class Model(nn.Module, ABC):
    """What is trained and scored: a loss of a batch, and draws of what is said of its labels."""

    exact = False
    """Whether an answer has all the draws that there are."""
    weighted = False
    """Whether scores come from draws that see the label, not from those of an answer."""

    @abstractmethod
    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """What a training step minimises."""

    @abstractmethod
    def answer(self, x: Tensor, draws: int, source: torch.Generator) -> Answer:
        """What the model says of inputs."""

    def scores(self, x: Tensor, y: Tensor, draws: int, source: torch.Generator) -> Tensor:
        """Log-likelihoods [draws, rows], the mean of whose exponentials is p(y | x)."""
        answer = self.answer(x, draws, source)
        parts = part_log_prob(answer.likelihood, answer.outputs, y).flatten(2).sum(-1)
        if answer.log_weights is None:
            return parts
        return parts + answer.log_weights + math.log(len(parts))

    def groups(self, lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """Parameter groups of the optimiser."""
        return [{"params": list(self.parameters()), "lr": lr, "weight_decay": weight_decay}]


class Masked(Model):
    """A network with masks of one of this library's methods, or an ensemble of them."""

    def __init__(self, model: gfo.MaskedModel | gfo.Ensemble, exact: bool) -> None:
        super().__init__()
        self.model, self.exact = model, exact
        self.weighted = isinstance(model, gfo.MaskedModel) and isinstance(model.method, GFlowOut)

    @classmethod
    def build(cls, problem: Problem, hidden: Sequence[int], arm: Arm, options: Tuned) -> Masked:
        """A network before training."""
        options = {**arm.options, **options}
        if "train_size" in METHODS[arm.method].Options.__dataclass_fields__:
            options["train_size"] = len(problem.train[0])
        x, outputs = problem.train[0], problem.outputs
        trunk = MLP((x.shape[1], *hidden, math.prod(outputs)))
        net = nn.Sequential(trunk, nn.Unflatten(1, outputs))
        exact = arm.method == "none"
        sites = () if exact else [f"0.{name}" for name in trunk.sites]
        likelihood = problem.likelihood()
        model = gfo.wrap(net, arm.method, sites, likelihood=likelihood, example=(x[:2],), **options)
        return cls(model, exact)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """The method's own."""
        total: Tensor = self.model(x, y=y).total
        return total

    def answer(self, x: Tensor, draws: int, source: torch.Generator) -> Answer:
        """Draws of masks, or one answer of every member."""
        if self.exact:
            draws = len(self.model.members) if isinstance(self.model, gfo.Ensemble) else 1
        pred = self.model.predict(x, samples=draws, generator=source)
        return Answer(pred.outputs, pred.likelihood, exact=self.exact)

    def scores(self, x: Tensor, y: Tensor, draws: int, source: torch.Generator) -> Tensor:
        """Half of the masks come from the posterior where there is one that sees the label.

        A mask then counts by p / (p / 2 + q / 2), at most 2: importance sampling that is never much
        worse than draws of the prior, and better if few masks explain a label.
        """
        if not self.weighted or draws < 2:
            return super().scores(x, y, draws, source)
        half = draws // 2
        prior = self.model.predict(x, samples=draws - half, generator=source, return_masks=True)
        parts = [list(prior.masks or ())]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(draw_seeds(1, source)[0])
            while sum(len(part[0]) for part in parts) < draws:
                drawn = self.model(x, y=y).masks
                parts.append([mask.reshape(-1, *mask.shape[-2:]) for mask in drawn])
        order = torch.randperm(draws, generator=source)  # any half of the draws is like the other
        masks = [torch.cat(site)[order] for site in zip(*parts, strict=True)]
        given = self.model(x, y=y, masks=masks)
        shares = math.log(1 - half / draws), math.log(half / draws)
        proposal = torch.logaddexp(given.log_p + shares[0], given.log_q + shares[1])
        scores: Tensor = given.log_likelihood + given.log_p - proposal
        return scores

    def groups(self, lr: float, weight_decay: float) -> list[dict[str, Any]]:
        """Those of the library; generators have its default learning rates."""
        return self.model.parameter_groups(lr=lr, weight_decay=weight_decay)


class Mixture(Model):
    """A network with several answers and their weights (a mixture density network).

    p(y | x) = sum_k w_k(x) prod_i p(y_i | x, k), trained by its logarithm.
    """

    exact = True

    def __init__(self, problem: Problem, hidden: Sequence[int], arm: Arm, options: Tuned) -> None:
        super().__init__()
        del arm
        self.components, self.shape = int(options["components"]), problem.outputs
        width, size = problem.train[0].shape[1], math.prod(self.shape)
        self.net = MLP((width, *hidden, self.components * (size + 1)))
        self.likelihood = problem.likelihood()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Negative log-likelihood."""
        outputs, weights = self._components(x)
        parts = part_log_prob(self.likelihood, outputs, y).flatten(2).sum(-1)
        return -(parts + weights).logsumexp(0).mean()

    def answer(self, x: Tensor, draws: int, source: torch.Generator) -> Answer:
        """All components."""
        outputs, weights = self._components(x)
        return Answer(outputs, self.likelihood, weights, exact=True)

    def _components(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs [components, rows, ...] and log-weights [components, rows]."""
        numbers = self.net(x)
        weights = numbers[:, : self.components].log_softmax(-1).T
        outputs = numbers[:, self.components :].reshape(len(x), self.components, *self.shape)
        return outputs.transpose(0, 1), weights


class CVAE(Model):
    """A conditional variational autoencoder (Sohn et al. 2015) with a learned Gaussian prior.

    With several draws it is trained by their importance-weighted bound (Burda et al. 2016), which
    is also what its likelihood is estimated by: draws from q(z | x, y), weights p(z | x) / q.
    """

    weighted = True

    def __init__(self, problem: Problem, hidden: Sequence[int], arm: Arm, options: Tuned) -> None:
        super().__init__()
        del arm
        self.latent, self.draws = int(options["latent"]), int(options["draws"])
        self.likelihood, self.shape = problem.likelihood(), problem.outputs
        width, size = problem.train[0].shape[1], math.prod(self.shape)
        label = joint_scores.as_vector(self.likelihood, problem.train[1][:1]).shape[1]
        self.encoder = MLP((width + label, *hidden, 2 * self.latent))
        self.prior = MLP((width, hidden[0], 2 * self.latent))
        self.decoder = MLP((width + self.latent, *hidden, size))

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Negative bound."""
        return -joint_scores.log_mean(self._weighted(x, y, self.draws, None)).mean()

    def answer(self, x: Tensor, draws: int, source: torch.Generator) -> Answer:
        """Draws of the prior."""
        mean, deviation = _moments(self.prior(x))
        noise = torch.randn(draws, *mean.shape, generator=source)
        return Answer(self._decoded(x, mean + deviation * noise), self.likelihood)

    def scores(self, x: Tensor, y: Tensor, draws: int, source: torch.Generator) -> Tensor:
        """By importance sampling."""
        return self._weighted(x, y, draws, source)

    def _weighted(self, x: Tensor, y: Tensor, draws: int, source: torch.Generator | None) -> Tensor:
        """Return log p(y | x, z) + log p(z | x) - log q(z | x, y) of draws of q, [draws, rows]."""
        label = joint_scores.as_vector(self.likelihood, y)
        mean, deviation = _moments(self.encoder(torch.cat([x, label], 1)))
        noise = torch.randn(draws, *mean.shape, generator=source)
        z = mean + deviation * noise
        centre, width = _moments(self.prior(x))
        # Both normal densities have the same constant, and (z - mean) / deviation is the noise.
        log_q = -deviation.log() - 0.5 * noise.square()
        log_p = -width.log() - 0.5 * ((z - centre) / width).square()
        parts = part_log_prob(self.likelihood, self._decoded(x, z), y).flatten(2).sum(-1)
        return parts + (log_p - log_q).sum(-1)

    def _decoded(self, x: Tensor, z: Tensor) -> Tensor:
        inputs = torch.cat([x.expand(len(z), *x.shape), z], -1).flatten(0, 1)
        outputs: Tensor = self.decoder(inputs)
        return outputs.reshape(*z.shape[:2], *self.shape)


def _moments(numbers: Tensor) -> tuple[Tensor, Tensor]:
    mean, log_deviation = numbers.chunk(2, -1)
    return mean, log_deviation.clamp(-5, 5).exp()


MODELS: dict[str, Callable[..., Model]] = {"mixture": Mixture, "cvae": CVAE}
"""What a user could take instead of masks."""
TRUTH = "truth"
"""The method of the arm that is the generator of a made problem."""
ARMS = {label: Arm(label, **arm) for label, arm in TABLES["arms"].items()}


# Training


@dataclass(frozen=True)
class Fitted:
    """A trained model, its validation score, what it took, and how the score rose."""

    model: Model
    valid: float  # mean joint log-likelihood of the validation rows
    seconds: float  # of the processor, in training steps
    steps: int
    stopped: bool  # before its last step, because validation got no better
    curve: Sequence[tuple[int, float, float]]  # steps, seconds, validation score


def fit(
    arm: Arm,
    tuned: Tuned,
    problem: Problem,
    hidden: Sequence[int],
    how: Mapping[str, Any],
    seed: int,
    progress: Callable[[int, int, str], None] = lambda *_: None,
) -> Fitted:
    """Train an arm until its validation score has not risen for a while; keep the best weights.

    ``how`` has ``steps`` of the arm at most, ``batch``, ``every`` so many steps the validation, the
    ``patience`` in validations and ``valid_draws``. Members of an ensemble are trained one after
    the other and share the steps.
    """
    options = {key: value for key, value in tuned.items() if key not in _OPTIMISER}
    build = MODELS.get(arm.method, Masked.build)
    share = {**how, "steps": max(1, how["steps"] // arm.members)}
    parts = []
    for member in range(arm.members):
        own = seed if arm.members == 1 else 1000 * seed + member
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(generator(own, "joint fit").initial_seed())
            parts.append(_train(build(problem, hidden, arm, options), tuned, problem, share, own))
        progress(member + 1, arm.members, "networks")
    model, valid = parts[0].model, parts[0].valid
    if arm.members > 1:
        members = [part.model.model for part in parts if isinstance(part.model, Masked)]
        model = Masked(gfo.Ensemble(members), parts[0].model.exact)
        valid = _valid(model, problem, how, seed)
    seconds, steps = (sum(getattr(part, name) for part in parts) for name in ("seconds", "steps"))
    stopped = all(part.stopped for part in parts)
    return Fitted(model, valid, seconds, steps, stopped, parts[0].curve)


def _train(
    model: Model, tuned: Tuned, problem: Problem, how: Mapping[str, Any], seed: int
) -> Fitted:
    groups = model.groups(float(tuned.get("lr", 1e-3)), float(tuned.get("weight_decay", 0.0)))
    optimizer = torch.optim.Adam(groups)
    best, state, best_at = -float("inf"), copy.deepcopy(model.state_dict()), 0
    seconds, curve, step = 0.0, list[tuple[int, float, float]](), 0
    batches, stopped = _batches(problem.train, how["batch"], seed), False
    while step < how["steps"] and not stopped:
        began = time.process_time()
        model.train()
        for _ in range(min(how["every"], how["steps"] - step)):
            x, y = next(batches)
            optimizer.zero_grad(set_to_none=True)
            model.loss(x, y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            step += 1
        seconds += time.process_time() - began
        score = _valid(model, problem, how, seed)
        curve.append((step, seconds, score))
        if score > best:
            best, best_at, state = score, len(curve), copy.deepcopy(model.state_dict())
        stopped = len(curve) - best_at >= how["patience"]
    model.load_state_dict(state)
    return Fitted(model.eval(), best, seconds, step, stopped, curve)


def _batches(rows: Rows, size: int, seed: int) -> Iterator[Rows]:
    """Batches of training rows without end, shuffled anew in every epoch."""
    x, y = rows
    epoch = 0
    while True:
        order = torch.randperm(len(x), generator=generator(seed, "order", epoch))
        for chosen in torch.split(order, size):
            if len(chosen) == min(size, len(x)):
                yield x[chosen], y[chosen]
        epoch += 1


def _split(rows: Rows) -> Iterator[Rows]:
    """Rows in batches to score."""
    return zip(torch.split(rows[0], BATCH), torch.split(rows[1], BATCH), strict=True)


@torch.no_grad()
def _valid(model: Model, problem: Problem, how: Mapping[str, Any], seed: int) -> float:
    """Mean joint log-likelihood of the validation rows, with the same draws every time."""
    model.eval()
    source, (x, y) = generator(seed, "valid"), problem.valid
    return joint_scores.likelihood_of(
        [
            model.scores(x_part, y_part, how["valid_draws"], source)
            for x_part, y_part in _split((x, y))
        ]
    )


BATCH = 500
"""Rows that are scored at a time."""


@torch.no_grad()
def answers(
    model: Model, rows: Rows, draws: int, source: torch.Generator
) -> Iterator[tuple[Answer, Tensor]]:
    """What a trained model says of rows, with their labels, batch by batch."""
    model.eval()
    for x, y in _split(rows):
        answer = model.answer(x, draws, source)
        if model.weighted:
            answer = Answer(
                answer.outputs, answer.likelihood, scores=model.scores(x, y, draws, source)
            )
        yield answer, y
