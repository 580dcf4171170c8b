"""Chains side by side: networks with masks on their inputs, trained in one batched pass.

All chains see the same batches; a row that a chain holds out has no weight in its loss. Every layer
is one batched product over chains, so that ten small chains cost little more than one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from gflowout.core.random import draw_seeds
from gflowout.training.monitoring import ADVICE, DivergedError

AT_A_TIME = 4096  # rows of a pass
FLIP_ROWS = 1000  # training rows on which flips of units are scored
LOOK_ROWS = 2000  # held-out rows of a chain that are scored at a look
LOOK_DRAWS = 16
LEAST_VARIANCE = 1e-4  # of the noise at the start
WARM = 20  # steps in which the learning rate rises
MOST_LOG_ODDS = 8.0


@dataclass(frozen=True)
class Rows:
    """Scaled rows of a table.

    ``x`` is [rows, columns]; ``y`` is [rows, outputs], classes as 0 and 1; ``weight`` is [rows].
    ``kind`` is the likelihood: ``"gaussian"``, ``"binary"`` or ``"categorical"``.
    """

    x: Tensor
    y: Tensor
    weight: Tensor
    kind: str

    def take(self, rows: Tensor) -> Rows:
        """Some of the rows."""
        return Rows(self.x[rows], self.y[rows], self.weight[rows], self.kind)


def log_prob(out: Tensor, y: Tensor, log_variance: Tensor, kind: str) -> Tensor:
    """Log-likelihood of outputs [..., outputs] for targets [..., outputs]."""
    if kind == "binary":
        return -F.softplus((1 - 2 * y) * out).squeeze(-1)
    if kind == "categorical":
        return (out.log_softmax(-1) * y).sum(-1)
    errors = (out - y).square() * (-log_variance).exp() + log_variance + math.log(2 * math.pi)
    return -errors.sum(-1) / 2


class Stack:
    """Networks of chains, each with a distribution over masks of its candidate units.

    Attributes:
        columns: Columns that each chain reads, [chains, places].
        unit: Candidate that each place belongs to, [chains, places]; a place of number
            ``candidates`` is always kept, one of ``candidates + 1`` never.
        logits: Log-odds that a candidate is kept, [chains, candidates].
        weights: Of each layer, [chains, inputs, outputs].
        biases: Of each layer, [chains, 1, outputs].
        log_variance: Of the noise of a regression, [chains, 1, 1, outputs].
    """

    def __init__(
        self, columns: Tensor, unit: Tensor, logits: Tensor, widths: tuple[int, ...],
        outputs: int, generator: torch.Generator,
    ) -> None:  # fmt: skip
        self.columns, self.unit, self.logits = columns, unit, logits.clone()
        self.weights: list[Tensor] = []
        self.biases: list[Tensor] = []
        chains, places = columns.shape
        for before, after in zip((places, *widths), (*widths, outputs), strict=True):
            # As torch.nn.Linear; places that are not columns do not count.
            size = 1 / math.sqrt(max(1, before))
            for tensors, shape in ((self.weights, (before, after)), (self.biases, (1, after))):
                drawn = torch.rand(chains, *shape, generator=generator)
                tensors.append((2 * drawn - 1) * size)
        self.log_variance = torch.zeros(chains, 1, 1, outputs)

    def start_linear(self, weight: Tensor, bias: Tensor) -> None:
        """Make the networks compute ``x @ weight + bias``: [chains, columns, outputs] and bias.

        The first units of every layer carry a value and its negative through the rectifiers; the
        output reads nothing else at first.
        """
        outputs = bias.shape[1]
        chain = torch.arange(len(bias))[:, None]
        slope = weight[chain, self.columns]
        slope[self.unit == self.logits.shape[1] + 1] = 0
        self.weights[-1].zero_()
        self.biases[-1][:, 0] = bias
        if len(self.weights) == 1:
            self.weights[0][:] = slope
            return
        if any(layer.shape[2] < 4 * outputs for layer in self.weights[:-1]):
            return
        both = slice(0, 2 * outputs)
        signs = torch.cat([torch.eye(outputs), -torch.eye(outputs)], 1)
        self.weights[0][:, :, both] = slope @ signs
        self.biases[0][:, :, both] = 0
        for layer, shift in zip(self.weights[1:-1], self.biases[1:-1], strict=True):
            layer[:, :, both] = 0
            layer[:, both, both] = torch.eye(2 * outputs)
            shift[:, :, both] = 0
        self.weights[-1][:, both] = signs.T

    def tensors(self) -> list[Tensor]:
        """Everything that is learned; the logits come last."""
        return [*self.weights, *self.biases, self.log_variance, self.logits]

    def draw(self, draws: int, generator: torch.Generator) -> Tensor:
        """Masks of the candidates, [chains, draws, candidates]."""
        chains, candidates = self.logits.shape
        drawn = torch.rand(chains, draws, candidates, generator=generator)
        return (drawn < self.logits.detach().sigmoid()[:, None]).float()

    def inputs(self, x: Tensor) -> Tensor:
        """What each chain reads of rows [rows, columns], [chains, rows, places]."""
        return x[:, self.columns].transpose(0, 1)

    def forward(self, inputs: Tensor, masks: Tensor) -> Tensor:
        """Outputs for inputs [chains, rows, places], [chains, draws, rows, outputs]."""
        chains, draws = masks.shape[:2]
        ends = torch.stack([torch.ones(chains, draws), torch.zeros(chains, draws)], -1)
        wide = torch.cat([masks, ends], -1).gather(2, self.unit[:, None].expand(chains, draws, -1))
        hidden = (inputs[:, None] * wide[:, :, None]).flatten(1, 2)
        last = len(self.weights) - 1
        for place, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            hidden = torch.baddbmm(bias, hidden, weight)
            if place < last:
                hidden = hidden.relu()
        return hidden.view(chains, draws, -1, hidden.shape[-1])

    def part(self, chains: list[int]) -> Stack:
        """Some of the chains, sharing their tensors' values."""
        result = object.__new__(Stack)
        for name in ("columns", "unit", "logits", "log_variance"):
            setattr(result, name, getattr(self, name)[chains])
        result.weights = [weight[chains] for weight in self.weights]
        result.biases = [bias[chains] for bias in self.biases]
        return result

    def at(self, tensors: Sequence[Tensor]) -> Stack:
        """The same chains with other values of what is learned, in the order of ``tensors()``."""
        result = self.part(list(range(len(self.logits))))
        layers = len(self.weights)
        result.weights, result.biases = list(tensors[:layers]), list(tensors[layers:-2])
        result.log_variance, result.logits = tensors[-2], tensors[-1]
        return result


@torch.no_grad()
def densities(stack: Stack, rows: Rows, places: Sequence[Tensor], masks: Tensor) -> list[Tensor]:
    """Log of the predictive density of some rows under each chain, averaged over masks.

    ``places`` are the numbers of each chain's rows, ``masks`` are [chains, draws, candidates].
    """
    result = []
    for chain, place in enumerate(places):
        alone, parts = stack.part([chain]), [torch.zeros(0)]
        for some in torch.split(place, AT_A_TIME):
            out = alone.forward(alone.inputs(rows.x[some]), masks[chain : chain + 1])
            fit = log_prob(out, rows.y[some], alone.log_variance, rows.kind)[0]
            parts.append(fit.logsumexp(0) - math.log(masks.shape[1]))
        result.append(torch.cat(parts))
    return result


@dataclass(frozen=True)
class Schedule:
    """How long and how fast chains are trained."""

    steps: int
    batch_size: int
    lr: float
    weight_decay: float
    draws: int
    beta: float
    looks: int = 20
    free: float = 0.3  # share of the steps before the logits first move
    pace: float = 0.5  # by which share they approach their target at each look
    patience: int = 5  # looks without a better chain after which training ends


class Training:
    """The training of all chains of a stack, in place.

    Networks follow the negative log-likelihood under drawn masks, logits follow detailed balance
    between masks that differ in one unit: see :meth:`balanced`. Each chain ends with the state that
    had the highest log-likelihood of its held-out rows; the last one if it has none.

    Tests of units need states that were not chosen by the rows of the test. Held-out rows therefore
    have two halves, those of even and of odd number: see ``crossed``.

    Args:
        stack: Whose chains are trained.
        rows: Of the table.
        held_out: Rows that a chain is not trained on, [chains, rows] of bool.
        prior: Log-odds of the candidates, [chains, candidates].
        schedule: Steps and rates.
        generator: Of all random numbers.

    Attributes:
        history: Training and held-out loss of every chain at each look.
        best_look: Number of the look whose state each chain has.
        crossed: The chains for tests on the even and on the odd rows, each in the state that was
            best on the other half.
    """

    def __init__(
        self, stack: Stack, rows: Rows, held_out: Tensor, prior: Tensor, schedule: Schedule,
        generator: torch.Generator,
    ) -> None:  # fmt: skip
        self.stack, self.rows, self.prior = stack, rows, prior
        self.schedule, self.generator = schedule, generator
        self.trained = rows.weight * ~held_out
        self.places = [flags.nonzero().flatten()[:LOOK_ROWS] for flags in held_out]
        chains = len(held_out)
        self.history: list[list[dict[str, float]]] = [[] for _ in range(chains)]
        self.best_look = [0] * chains
        # By all held-out rows, by the odd ones, and by the even ones.
        self.best_fit = [[-math.inf] * chains for _ in range(3)]
        self.best_state = [[tensor.clone() for tensor in stack.tensors()] for _ in range(3)]
        self.crossed: list[Stack] = []
        self.look_masks = torch.Generator()
        (self.seed,) = draw_seeds(1, generator)

    def run(self) -> None:
        """Train until no chain has been better for some looks."""
        stack, schedule = self.stack, self.schedule
        if self.rows.kind == "gaussian":
            self._start_noise()
        tensors = stack.tensors()
        for tensor in tensors[:-1]:
            tensor.requires_grad_(True)
        groups = [
            {"params": tensors[:-2], "lr": schedule.lr, "weight_decay": schedule.weight_decay},
            {"params": tensors[-2:-1], "lr": 10 * schedule.lr, "weight_decay": 0.0},
        ]
        optimiser = torch.optim.AdamW(groups, fused=True)
        rates = [group["lr"] for group in optimiser.param_groups]
        every = max(1, schedule.steps // schedule.looks)
        order = torch.empty(0, dtype=torch.long)
        loss = torch.full((len(self.places),), math.nan)
        self._look(loss)
        for step in range(schedule.steps):
            progress = step / schedule.steps
            factor = min(1.0, (step + 1) / WARM) * max(0.02, (1 + math.cos(math.pi * progress)) / 2)
            for group, rate in zip(optimiser.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            if len(order) < schedule.batch_size:
                count = len(self.rows.x)
                order = torch.cat([order, torch.randperm(count, generator=self.generator)])
            batch, order = order[: schedule.batch_size], order[schedule.batch_size :]
            share = self.trained[:, batch]
            share = share / share.sum(1, keepdim=True).clamp(min=1e-9)
            out = stack.forward(
                stack.inputs(self.rows.x[batch]), stack.draw(schedule.draws, self.generator)
            )
            fit = log_prob(out, self.rows.y[batch], stack.log_variance, self.rows.kind)
            losses = -(fit * share[:, None]).sum(-1).mean(1)
            optimiser.zero_grad()
            losses.sum().backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            loss = losses.detach()
            if step % every == every - 1 or step == schedule.steps - 1:
                if not torch.isfinite(loss).all():
                    raise DivergedError(f"the loss is {loss.sum()} in step {step}. {ADVICE}")
                if progress >= schedule.free:
                    stack.logits += schedule.pace * (self.balanced() - stack.logits)
                self._look(loss)
                if len(self.history[0]) - 1 - max(self.best_look) >= schedule.patience:
                    break
        for tensor, state in zip(tensors, self.best_state[0], strict=True):
            tensor.requires_grad_(False).copy_(state)
        self.crossed = [stack.at(state) for state in self.best_state[1:]]

    @torch.no_grad()
    def _start_noise(self) -> None:
        """Start the noise at the variance of the errors that each chain makes in its own rows.

        A chain that is best after a few steps has learned its noise by then, too.
        """
        generator = self.look_masks.manual_seed(self.seed)
        some = torch.randperm(len(self.rows.x), generator=generator)[:FLIP_ROWS]
        rows, weight = self.rows.take(some), self.trained[:, some]
        masks = self.stack.draw(LOOK_DRAWS, generator)
        out = self.stack.forward(self.stack.inputs(rows.x), masks)
        errors = (out - rows.y).square().mean(1)
        share = weight / weight.sum(1, keepdim=True).clamp(min=1e-9)
        variance = (share[..., None] * errors).sum(1)
        self.stack.log_variance[:, 0, 0] = variance.clamp(min=LEAST_VARIANCE).log()

    def _look(self, loss: Tensor) -> None:
        """Score all chains on their held-out rows; the masks are the same at all looks."""
        masks = self.stack.draw(LOOK_DRAWS, self.look_masks.manual_seed(self.seed))
        fits = densities(self.stack, self.rows, self.places, masks)
        for chain, (fit, place) in enumerate(zip(fits, self.places, strict=True)):
            look = len(self.history[chain])
            entry = {"epoch": look, "train_nll": float(loss[chain])}
            self.history[chain].append(entry)
            for judge, chosen in enumerate((place >= 0, place % 2 == 1, place % 2 == 0)):
                score = float(look)
                if chosen.any():
                    weight = self.rows.weight[place[chosen]]
                    score = float((fit[chosen] * weight).sum() / weight.sum())
                if judge == 0 and len(place):
                    entry["valid_nll"] = -score
                if score > self.best_fit[judge][chain]:
                    self.best_fit[judge][chain] = score
                    if judge == 0:
                        self.best_look[chain] = look
                    states = self.best_state[judge]
                    for state, tensor in zip(states, self.stack.tensors(), strict=True):
                        state[chain] = tensor.detach()[chain]

    @torch.no_grad()
    def balanced(self) -> Tensor:
        """Log-odds at which units are in detailed balance, [chains, candidates].

        q is in balance between two masks that differ in one unit if its log-odds are the difference
        of their log-rewards: beta times that of the log-likelihoods of all training rows, plus the
        prior log-odds. Every unit is flipped in a drawn mask of the others.
        """
        stack, rows = self.stack, self.rows
        drawn = stack.draw(1, self.generator)
        target = self.prior.clone()
        for chain, mask in enumerate(drawn):
            alone, trained = stack.part([chain]), self.trained[chain]
            own = trained.nonzero().flatten()
            some = own[torch.randperm(len(own), generator=self.generator)[:FLIP_ROWS]]
            weight = trained[some] * (trained.sum() / trained[some].sum())
            flips = (mask - torch.eye(mask.shape[1])).abs()
            inputs, y = alone.inputs(rows.x[some]), rows.y[some]
            fits = torch.cat([
                log_prob(alone.forward(inputs, part[None]), y, alone.log_variance, rows.kind)[0]
                @ weight
                for part in torch.split(torch.cat([mask, flips]), 16)
            ])  # fmt: skip
            gain = (2 * mask[0] - 1) * (fits[0] - fits[1:])
            target[chain] += self.schedule.beta * gain
        return target.clamp(-MOST_LOG_ODDS, MOST_LOG_ODDS)
