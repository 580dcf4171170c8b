"""Options of a training run, and what follows from them: learning rates, optimisers, precision."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from gflowout.core import checks
from gflowout.core.model import MaskedModel

_BACKBONE = ("backbone", "likelihood", "label_noise")
_ACCELERATORS = ("auto", "cpu", "gpu", "cuda", "mps", "tpu")  # beside those of plugins


@dataclass(frozen=True)
class FitOptions:
    """How to train.

    Attributes:
        epochs: Passes over the training data at most.
        optimizer: Of backbone and likelihood: ``"adam"``, ``"adamw"`` or ``"sgd"``.
        generator_optimizer: Of the mask generators and log Z.
        lr: Learning rate of the backbone.
        generator_lr: Learning rate of the generators.
        log_z_lr: Learning rate of log Z.
        weight_decay: Of the backbone.
        generator_weight_decay: Of generators and log Z.
        momentum: Of ``"sgd"``.
        betas: Decay rates of the two running means of ``"adam"`` and ``"adamw"``.
        schedule: Of all learning rates: ``"constant"``, ``"cosine"`` to zero, or
            ``"milestones"``: times ``gamma`` at each.
        milestones: Shares of ``epochs`` at which rates fall.
        gamma: By how much.
        warmup: Epochs over which rates grow from near zero.
        clip: Largest norm of the gradient of each optimiser's parameters; none if ``None``.
        patience: Epochs without a better validation loss after which training stops; never if
            ``None``.
        min_delta: What counts as better.
        valid_samples: Draws per example for the validation loss.
        keep: How many of the best checkpoints to keep, beside the last two.
        precision: ``"auto"`` is ``"bf16-mixed"`` where a GPU computes in it (compute capability
            8.0 or above; not where it is emulated) and ``"32-true"`` elsewhere; or ``"64-true"``.
            Log-likelihoods and rewards are in single precision at least, whatever this is.
        seed: Of all random numbers of the run.
        accelerator: Lightning's name of the hardware: ``"auto"``, ``"cpu"``, ``"gpu"``...
        devices: Processes on each machine.
        nodes: Machines.

    Examples:
        >>> FitOptions(epochs=5, schedule="cosine").epochs
        5
        >>> FitOptions(schedule="cosin")
        Traceback (most recent call last):
            ...
        ValueError: schedule must be one of 'constant', 'cosine', 'milestones', got 'cosin'; ...
    """

    epochs: int = 20
    optimizer: str = "adam"
    generator_optimizer: str = "adam"
    lr: float = 1e-3
    generator_lr: float = 1e-3
    log_z_lr: float = 1e-2
    weight_decay: float = 0.0
    generator_weight_decay: float = 0.0
    momentum: float = 0.9
    betas: tuple[float, float] = (0.9, 0.999)
    schedule: str = "constant"
    milestones: tuple[float, ...] = (0.5, 0.75)
    gamma: float = 0.1
    warmup: int = 0
    clip: float | None = None
    patience: int | None = None
    min_delta: float = 0.0
    valid_samples: int = 5
    keep: int = 1
    precision: str = "auto"
    seed: int = 0
    accelerator: str = "auto"
    devices: int = 1
    nodes: int = 1

    def __post_init__(self) -> None:
        """Check the values."""
        for name in ("epochs", "valid_samples", "keep", "devices", "nodes"):
            checks.integer(name, getattr(self, name), low=1)
        for name in ("warmup", "seed"):
            checks.integer(name, getattr(self, name), low=0)
        for name in ("lr", "generator_lr", "log_z_lr"):
            checks.number(name, getattr(self, name), low=0, open_low=True)
        for name in ("weight_decay", "generator_weight_decay", "min_delta"):
            checks.number(name, getattr(self, name), low=0)
        checks.number("momentum", self.momentum, low=0, high=1, open_high=True)
        if isinstance(self.betas, str) or len(tuple(self.betas)) != 2:
            raise TypeError(f"betas must be two numbers in [0, 1), got {self.betas!r}")
        first, second = self.betas
        for beta in (first, second):
            checks.number("betas", beta, low=0, high=1, open_high=True)
        object.__setattr__(self, "betas", (first, second))
        checks.number("gamma", self.gamma, low=0, high=1, open_low=True)
        shares: Any = self.milestones
        if isinstance(shares, str) or not isinstance(shares, Sequence):
            raise TypeError(f"milestones must be numbers in [0, 1], got {shares!r}")
        object.__setattr__(self, "milestones", tuple(self.milestones))
        for milestone in self.milestones:
            checks.number("milestones", milestone, low=0, high=1)
        if self.clip is not None:
            checks.number("clip", self.clip, low=0, open_low=True)
        if self.patience is not None:
            checks.integer("patience", self.patience, low=1)
        for name in ("optimizer", "generator_optimizer"):
            checks.choice(name, getattr(self, name), ("adam", "adamw", "sgd"))
        checks.choice("schedule", self.schedule, ("constant", "cosine", "milestones"))
        # Not "16-mixed": gradient norms, and so `clip`, would see its scaled gradients.
        checks.choice("precision", self.precision, ("auto", "32-true", "64-true", "bf16-mixed"))
        if self.accelerator not in _ACCELERATORS:  # importing Lightning takes seconds
            more = _registered() if find_spec("lightning") else {}
            checks.choice("accelerator", self.accelerator, dict.fromkeys((*_ACCELERATORS, *more)))


def check_available(accelerator: str) -> None:
    """Raise if this machine does not have the hardware; needs Lightning."""
    kinds = {"auto": ["cpu"], "gpu": ["cuda", "mps"]}.get(accelerator, [accelerator])
    available = [name for name, kind in _registered().items() if kind.is_available()]
    if not set(kinds) & set(available):
        raise ValueError(
            f"accelerator {accelerator!r} is not available on this machine, only "
            f"{', '.join(available)}; 'auto' takes what there is"
        )


def _registered() -> dict[str, Any]:
    """Lightning's accelerators by name, also those that plugins have added."""
    from lightning.pytorch.accelerators import AcceleratorRegistry

    return {name: entry["accelerator"] for name, entry in AcceleratorRegistry.items()}


def rate_factor(options: FitOptions, epoch: int) -> float:
    """Factor of an epoch's learning rates; a pure function, so a resumed run needs no state."""
    factor = 1.0
    if epoch < options.warmup:
        factor = (epoch + 1) / (options.warmup + 1)
    if options.schedule == "cosine":
        factor *= (1 + math.cos(math.pi * epoch / options.epochs)) / 2
    elif options.schedule == "milestones":
        passed = sum(epoch >= share * options.epochs for share in options.milestones)
        factor *= options.gamma**passed
    return factor


def ended(options: FitOptions, scores: Sequence[float]) -> str | None:
    """Why a run is over, if it is: ``"epochs"`` or ``"patience"``.

    A pure function of the scores of all epochs so far (less is better), so that a run that was
    killed after its last epoch is as much over as one that was not.

    Examples:
        >>> ended(FitOptions(epochs=9, patience=2), [3.0, 1.0, 2.0, 1.0])
        'patience'
        >>> ended(FitOptions(epochs=9, patience=2), [3.0, 1.0, 2.0, 0.5]) is None
        True
    """
    if options.patience is not None:
        best, since = math.inf, 0
        for score in scores:
            since = 0 if score < best - options.min_delta else since + 1
            best = min(best, score) if not since else best
        if since >= options.patience:
            return "patience"
    return "epochs" if len(scores) >= options.epochs else None


def optimisers(model: MaskedModel, options: FitOptions) -> list[torch.optim.Optimizer]:
    """Optimisers of a model: one, or two if backbone and generators have different kinds.

    Every group keeps its learning rate under ``base_lr``, too, from which schedules start.
    """
    groups = model.parameter_groups(
        lr=options.lr,
        generator_lr=options.generator_lr,
        log_z_lr=options.log_z_lr,
        weight_decay=options.weight_decay,
        generator_weight_decay=options.generator_weight_decay,
    )
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for group in sorted(groups, key=lambda group: group["name"] not in _BACKBONE):
        kind = options.optimizer if group["name"] in _BACKBONE else options.generator_optimizer
        by_kind.setdefault(kind, []).append({**group, "base_lr": group["lr"]})
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "adam": partial(torch.optim.Adam, betas=options.betas),
        "adamw": partial(torch.optim.AdamW, betas=options.betas),
        "sgd": partial(torch.optim.SGD, momentum=options.momentum),
    }
    return [kinds[kind](groups) for kind, groups in by_kind.items()]


def training_step(
    model: MaskedModel, optimisers: Sequence[torch.optim.Optimizer], x: Tensor, y: Tensor
) -> None:
    """One plain training step, without Lightning."""
    for optimiser in optimisers:
        optimiser.zero_grad()
    model(x, y=y).total.backward()
    for optimiser in optimisers:
        optimiser.step()


def choose_precision(options: FitOptions) -> str:
    """Lightning's name of the precision to train in."""
    if options.precision != "auto":
        return options.precision
    wanted = options.accelerator in ("auto", "gpu", "cuda")
    # By default PyTorch also says yes where bf16 is emulated, which is slower than float32.
    native = torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16-mixed" if wanted and native else "32-true"
