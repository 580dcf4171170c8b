"""The outline that every method follows, its options, and the result of a training pass.

A method file reads in the same order: options, parameters, masks for training, masks for
prediction, losses. A method sees activations and log-likelihoods, never the backbone.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from gflowout import checks, distributed, policy
from gflowout.likelihoods import Likelihood
from gflowout.sites import Site
from gflowout.trajectory import Trajectory, known

Temper = Callable[[Tensor, slice], Tensor]
"""Turns the logits of a policy, those of some units, into those that are drawn from."""

DrawMask = Callable[[int, Tensor, Trajectory], Tensor]
"""``draw(site index, activation, trajectory) -> mask``; see ``Site.apply`` for its shape."""

DrawAhead = Callable[[Trajectory], list[Tensor] | None]
"""See :meth:`Method.draw_ahead`."""


class Score(Protocol):
    """Runs the backbone under masks from ``draw`` and scores the labels."""

    def __call__(self, draw: DrawMask, copies: int = 1) -> Trajectory:
        """Return the trajectory with its log-likelihood, the batch taken ``copies`` times."""

    def weight(self, site: int) -> Tensor | None:
        """Return the weights that read a site's units, [units, ...]; ``None`` if not known."""


@dataclass(frozen=True)
class Losses:
    """The result of a training pass.

    Attributes:
        total: What to call ``backward`` on: the sum of the parts.
        nll: Negative log-likelihood of the labels, averaged over the batch; trains the backbone.
        tb: Trajectory-balance loss; trains the mask posterior and log Z. 0 where there is none.
        prior: Negative log-probability of the masks, which trains a learned prior; or what a method
            adds to the likelihood to regularise its noise. 0 where there is neither.
        log_q: Log-probability of the masks under the posterior, [batch], or ``None``.
        log_reward: Log of the unnormalised posterior, [batch], or ``None``.
        log_z: Estimate of the log evidence, [batch], or ``None``; with ``log_z="batch"`` the mean
            of log R - log q, which on-policy is a lower bound of it.
        masks: One [batch, units] per site, in execution order. With ``draws`` above 1, these and
            the three log-quantities start with an axis of that size.
    """

    total: Tensor
    nll: Tensor
    tb: Tensor
    prior: Tensor
    masks: list[Tensor]
    log_q: Tensor | None = None
    log_reward: Tensor | None = None
    log_z: Tensor | None = None

    def __repr__(self) -> str:
        """Show the numbers, and of the rest only that it is there."""
        parts = ", ".join(
            f"{name}={getattr(self, name).item():.4g}" for name in ("total", "nll", "tb", "prior")
        )
        return f"Losses({parts}, masks at {len(self.masks)} sites)"


@dataclass(frozen=True)
class Options:
    """Options of a method: fields are keywords of ``wrap``, checked when it is built."""

    STRUCTURAL: ClassVar[frozenset[str]] = frozenset()
    """Options that shape the parameters and cannot change after wrapping."""

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {"paper": {}}
    """By name of a preset, values that differ from the defaults."""

    @classmethod
    def build(cls, method: str, preset: str | None, given: dict[str, Any]) -> Any:
        """Build from keywords; an option that the method does not have is an error."""
        names = [option.name for option in dataclasses.fields(cls)]
        for name in given:
            if name not in names:
                listed = ", ".join(names) or "none"
                raise TypeError(
                    f"method {method!r} has no option {name!r}{checks.suggest(name, names)}; "
                    f"its options: {listed}"
                )
        if preset is not None:
            checks.choice("preset", preset, cls.PRESETS)
            given = {**cls.PRESETS[preset], **given}
        return cls(**given)


class Method(nn.Module):
    """Base of the methods: how masks are drawn, and what a training pass minimises.

    Args:
        sites: In execution order.
        likelihood: Gives the size of an encoded label.
        options: Of the method's own class.
    """

    name: ClassVar[str]
    Options: ClassVar[type[Options]]
    deterministic: ClassVar[bool] = False
    """Whether every draw of a prediction is the same."""
    binary_masks: ClassVar[bool] = False
    """Whether the method knows probabilities of masks, which must be 0 and 1 then."""
    mask_parts: ClassVar[int] = 1
    """Masks per unit that may stand side by side in a given mask tensor."""
    keep_rates: ClassVar[bool] = True
    """Whether units can start from keep rates of their own."""

    def __init__(self, sites: Sequence[Site], likelihood: Likelihood, options: Any) -> None:
        super().__init__()
        rated = [site.name for site in sites if site.keep is not None]
        if rated and not self.keep_rates:
            raise ValueError(
                f"keep was given for site {rated[0]!r}, but method {self.name!r} has no keep rates"
            )
        self.sites = tuple(sites)
        self.options = options

    def draw(self, site: int, activation: Tensor, trajectory: Trajectory) -> Tensor:
        """Return the multiplier of a site when labels are unknown: in prediction."""
        raise TypeError(f"{type(self).__name__} must define draw")

    def draw_ahead(self, trajectory: Trajectory) -> list[Tensor] | None:
        """Draw the masks of all sites before a prediction's first pass, if nothing else is needed.

        Args:
            trajectory: Of all draws of the prediction.

        Returns:
            What :meth:`draw` would draw, [draws, units] per site, one row for each copy of the
            batch; ``None`` where masks depend on the batch.
        """
        return None

    def step(self, score: Score) -> Losses:
        """Run the backbone as often as the method needs and return the losses."""
        raise TypeError(f"{type(self).__name__} must define step")

    def joint(self, trajectory: Trajectory) -> bool:
        """Tell whether a pass belongs to a step that several processes take together.

        It does in train mode, with gradient, on masks that the method draws. In all other passes a
        process may be the only one to run: agreement would wait for the others for ever.

        Args:
            trajectory: Of the pass.
        """
        learning = self.training and torch.is_grad_enabled() and trajectory.given is None
        return learning and distributed.active()

    def extra_repr(self) -> str:
        """Show the options."""
        options = dataclasses.asdict(self.options)
        return ", ".join(f"{name}={value!r}" for name, value in options.items())


def likelihood_losses(trajectory: Trajectory) -> Losses:
    """Losses of a method that trains the backbone only."""
    nll = -known(trajectory.log_likelihood).mean()
    zero = nll.new_zeros(())
    return Losses(total=nll, nll=nll, tb=zero, prior=zero, masks=full_masks(trajectory))


def regularised_losses(trajectory: Trajectory, prior: Tensor) -> Losses:
    """Losses of a method that adds one regulariser to the negative log-likelihood."""
    plain = likelihood_losses(trajectory)
    return dataclasses.replace(plain, total=plain.nll + prior, prior=prior)


class Starts(nn.Module):
    """Log-odds of the keep rates that masks start from, or have as their prior.

    Args:
        sites: In execution order; those with rates of their own have one number per unit.
        keep: Keep rate of all other sites.

    Examples:
        >>> sites = [Site("fc", 2, 1, 2), Site("input", 2, 1, 2, keep=(0.5, 0.5))]
        >>> starts = Starts(sites, 0.5)
        >>> starts.at(0), starts.at(1)
        (0.0, tensor([0., 0.]))
    """

    def __init__(self, sites: Sequence[Site], keep: float) -> None:
        super().__init__()
        self.common = policy.logit(keep)
        for index, site in enumerate(sites):
            own = None if site.keep is None else torch.tensor(list(map(policy.logit, site.keep)))
            self.register_buffer(f"site{index}", own, persistent=False)

    def at(self, site: int) -> float | Tensor:
        """Of a site: one number, or one per unit, [units]."""
        own: Tensor | None = getattr(self, f"site{site}")
        return self.common if own is None else own


class SiteNumbers(nn.Module):
    """Learned numbers of all sites, one for the site or one per unit, as one parameter.

    Args:
        sites: In execution order.
        start: What every number starts with; weight decay pulls back to it. A tensor has one
            for every number.
        per_unit: One number per unit instead of one per site.

    Examples:
        >>> numbers = SiteNumbers([Site("fc", units=3, axis=1, rank=2)], start=2.0, per_unit=True)
        >>> [site.tolist() for site in numbers.split(numbers())]
        [[2.0, 2.0, 2.0]]
    """

    units: Tensor
    """Units that a number stands for, [numbers]."""
    start: float | Tensor

    def __init__(self, sites: Sequence[Site], start: float | Tensor, per_unit: bool) -> None:
        super().__init__()
        if isinstance(start, Tensor):
            self.register_buffer("start", start, persistent=False)
        else:
            self.start = start
        self.sizes = [site.units if per_unit else 1 for site in sites]
        self.moved = nn.Parameter(torch.zeros(sum(self.sizes)))
        units = torch.tensor([site.units for site in sites])
        units = torch.ones(sum(self.sizes)) if per_unit else units.float()
        self.register_buffer("units", units, persistent=False)

    def forward(self) -> Tensor:
        """Return all numbers, [numbers]."""
        # One parameter must do what a generator does with many; see policy.DIRECT_GAIN.
        return self.start + policy.DIRECT_GAIN * self.moved

    def split(self, values: Tensor) -> tuple[Tensor, ...]:
        """Cut what was made of the numbers into the part of each site, [units or 1]."""
        return torch.split(values, self.sizes)


def full_masks(trajectory: Trajectory) -> list[Tensor]:
    """Masks per example, [batch, units], or [draws, batch, units] with several draws."""
    examples = len(known(trajectory.log_likelihood))
    masks = trajectory.full_masks(examples)
    return [split_draws(mask, trajectory.copies).detach() for mask in masks]


def split_draws(values: Tensor, draws: int) -> Tensor:
    """Reshape [draws * batch, ...] to [draws, batch, ...]; unchanged for one draw."""
    return values if draws == 1 else values.reshape(draws, -1, *values.shape[1:])


def examples_in_training(train_size: int | None, batch: int) -> int:
    """Size of the training set: the option, or, with a warning, that of the batch."""
    if train_size is not None:
        return train_size
    if distributed.active():
        raise ValueError(
            f"train_size was not given, and with {distributed.size()} processes the batch of "
            f"{batch} is only a part: pass train_size=, the number of training examples of all "
            "processes together"
        )
    warnings.warn(
        f"train_size was not given: the batch of {batch} is taken for the whole training set, so "
        "masks are learned from too little; pass train_size=",
        stacklevel=2,
    )
    return batch


def scaled(mask: Tensor, rescale: str, keep: float | Tensor = 1.0) -> Tensor:
    """Multiplier of a mask: as it is, or scaled so that activations keep their size.

    Args:
        mask: [rows, units].
        rescale: ``"none"``; ``"kept"``: times units over kept units, per row; ``"inverse"``:
            over the keep rate.
        keep: The keep rate, for ``"inverse"``.

    Examples:
        >>> import torch
        >>> scaled(torch.tensor([[1.0, 0.0]]), "kept")
        tensor([[2., 0.]])
    """
    if rescale == "kept":
        return mask * (mask.shape[-1] / mask.sum(-1, keepdim=True).clamp(min=1))
    return mask / keep if rescale == "inverse" else mask


def check_sizes(options: Any) -> None:
    """Check the options that methods with masks shared by several examples have."""
    for name in ("group_size", "train_size"):
        value = getattr(options, name)
        if value is not None:
            checks.integer(name, value, low=1)


def _as_is(logits: Tensor, _: slice) -> Tensor:
    return logits


def check_policy(options: Any) -> None:
    """Check the options that methods with a learned mask posterior share."""
    checks.number("temperature", options.temperature, low=0, open_low=True)
    checks.number("epsilon", options.epsilon, low=0, high=1)
    checks.number("beta", options.beta, low=0)
    checks.number("prior_keep", options.prior_keep, low=0, high=1, open_low=True, open_high=True)
    checks.choice("rescale", options.rescale, ["none", "kept"])
    checks.choice("log_z", options.log_z, ["learned", "batch"])
    checks.integer("draws", options.draws, low=1)
    checks.integer("blocks", options.blocks, low=1)
    checks.choice("history", options.history, ["all", "summary"])
    if not isinstance(options.hidden, tuple | list):
        raise TypeError(f"hidden must be a tuple of widths, got {options.hidden!r}")
    for width in options.hidden:
        checks.integer("hidden", width, low=1)


def history_of(sites: Sequence[Site], options: Any) -> policy.MaskHistory | None:
    """What keeps a summary of earlier masks, if the options ask for one."""
    if options.history == "all":
        return None
    return policy.MaskHistory([site.units for site in sites], policy.SUMMARY)


def history_sizes(sites: Sequence[Site], options: Any) -> list[int]:
    """Size of what a generator sees of the earlier masks, per site."""
    if options.history == "summary":
        return [policy.SUMMARY if index else 0 for index in range(len(sites))]
    return [sum(site.units for site in sites[:index]) for index in range(len(sites))]


def seen_of_earlier(
    history: policy.MaskHistory | None, name: str, trajectory: Trajectory, like: Tensor
) -> Tensor:
    """Return what a generator sees of the earlier masks: all of them, or their summary.

    Args:
        history: Keeps the summary; ``None`` for all masks.
        name: Of the summary: posterior and prior each keep one, trained by their own loss.
        trajectory: Of the pass.
        like: Gives rows and dtype.
    """
    if history is None or not trajectory.masks:
        return trajectory.earlier(like)
    summary: Tensor = history(trajectory.masks, trajectory.summaries.get(name))
    trajectory.summaries[name] = summary
    return summary


def choosing(
    trajectory: Trajectory, site: int, rows: int, units: int, like: Tensor, temper: Temper = _as_is
) -> policy.Choose:
    """Return what chooses a site's mask, block by block: the given one, or a drawn one.

    Args:
        trajectory: Of the pass.
        site: Index of the site.
        rows: Masks per copy of the batch.
        units: Units of the site.
        like: Gives device and dtype of the random numbers.
        temper: Turns the logits into those that are drawn from.
    """
    if trajectory.given is not None:
        given = trajectory.given[site]
        return lambda _, part: given[..., part]
    uniform = trajectory.noise.uniform(rows, units, like)
    return lambda logits, part: policy.draw(temper(logits.detach(), part), uniform[..., part])


def exploring(
    options: Any, start: float | Tensor, trajectory: Trajectory, rows: int, like: Tensor
) -> Temper:
    """Return what turns logits into those of the training policy; see :func:`policy.explore`.

    Args:
        options: With ``temperature`` and ``epsilon``.
        start: Log-odds of the prior's keep rate, or of every unit's.
        trajectory: Of the pass.
        rows: Masks per copy of the batch.
        like: Gives device and dtype of the random numbers.
    """
    random = random_rows(options.epsilon, trajectory, rows, like)

    def temper(logits: Tensor, part: slice) -> Tensor:
        centre = start[part] if isinstance(start, Tensor) else start
        return policy.explore(logits, centre, options.temperature, random)

    return temper


def random_rows(epsilon: float, trajectory: Trajectory, rows: int, like: Tensor) -> Tensor | None:
    """Choose the rows that take a random mask at one site: [copies * rows] of bool."""
    if epsilon == 0:
        return None
    return trajectory.noise.uniform(rows, 1, like).squeeze(-1) < epsilon
