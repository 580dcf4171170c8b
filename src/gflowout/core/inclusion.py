"""Which units a posterior keeps: probabilities, with intervals, of single units and of sets.

Everything is computed from drawn masks, so it holds for any method that draws 0 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gflowout.core import checks
from gflowout.core.lazy import cached_property
from gflowout.core.optional import require

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DRAWS = 4000
"""Samples from which intervals are read."""
CONTROLS = 1.645
"""Standard deviations around 0 in which 90 % of the gains of controls are."""
_AT_A_TIME = 256
"""Units whose samples are held at a time."""


@dataclass(frozen=True, eq=False)
class Inclusion:
    """Drawn masks of one site, and what they say of its units.

    A chain is a model with a mask posterior of its own; a single model is one chain. Methods whose
    masks depend on the example have masks for every row of the batch, all others for one.

    Attributes:
        masks: Of 0 and 1, [chains, draws, rows, units].
        weights: Of the chains, with a sum of 1, [chains]; equal if not given.
        names: Of the units.
        similar: Lists of units that may replace each other, by number.
        gains: How much better predictions are with true values than with those of controls, in
            standard deviations: of the units, then of the lists of similar ones; or nothing.

    Examples:
        >>> masks = torch.tensor([[1.0, 0, 1], [1, 1, 0], [1, 0, 1], [1, 0, 0]])
        >>> inclusion = Inclusion(masks.reshape(1, 4, 1, 3), names=["age", "sex", "dose"])
        >>> inclusion.mean.tolist()
        [1.0, 0.25, 0.5]
        >>> inclusion.subsets(1)
        [(('age', 'dose'), 0.5)]
        >>> inclusion.expected_size
        1.75
    """

    masks: Tensor
    weights: Tensor = field(default_factory=lambda: torch.empty(0))
    names: Sequence[str] = ()
    similar: Sequence[Sequence[int]] = ()
    gains: Sequence[float] = ()

    def __post_init__(self) -> None:
        """Check shapes; give names and weights to what has none."""
        if self.masks.dim() != 4 or 0 in self.masks.shape:
            raise ValueError(
                f"masks must have shape [chains, draws, rows, units], got {list(self.masks.shape)}"
            )
        if not ((self.masks == 0) | (self.masks == 1)).all():
            raise ValueError(
                "masks must hold 0 and 1: inclusion has no meaning for factors of other values; "
                'of "gates" ask model.method.open_probability(site)'
            )
        chains, units = len(self.masks), self.masks.shape[-1]
        weights = self.weights if len(self.weights) else torch.full((chains,), 1 / chains)
        if weights.shape != (chains,) or not (weights >= 0).all() or not weights.sum() > 0:
            raise ValueError(f"weights must hold {chains} numbers >= 0, got {weights.tolist()}")
        object.__setattr__(self, "weights", weights.double() / weights.double().sum())
        names = tuple(map(str, self.names)) or tuple(f"unit {unit}" for unit in range(units))
        if len(names) != units:
            raise ValueError(f"names must hold one for each of {units} units, got {len(names)}")
        object.__setattr__(self, "names", names)
        listed = [unit for units in self.similar for unit in units]
        if len(set(listed)) < len(listed) or not set(listed) <= set(range(len(names))):
            raise ValueError(
                f"similar must hold lists of units from 0 to {len(names) - 1}, each named once, "
                f"got {self.similar}"
            )
        if len(self.gains) not in (0, len(names) + len(self.similar)):
            raise ValueError(
                f"gains must hold one for each of {len(names)} units and {len(self.similar)} lists "
                f"of similar ones, got {len(self.gains)}"
            )

    @cached_property
    def chains(self) -> Tensor:
        """Inclusion probabilities by chain, over draws and rows, [chains, units]."""
        return self.masks.double().mean((1, 2))

    @cached_property
    def mean(self) -> Tensor:
        """Inclusion probability of every unit, [units]."""
        return self.weights @ self.chains

    @cached_property
    def rows(self) -> Tensor:
        """Inclusion probability of every unit in every row, [rows, units]."""
        return torch.einsum("c,cdru->ru", self.weights, self.masks.double()) / self.masks.shape[1]

    @property
    def expected_size(self) -> float:
        """Expected number of units that are kept."""
        return float(self.mean.sum())

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """Where the inclusion probability of a unit may be, by masks and chains, [units] each.

        A chain's probability is known from its draws as a beta distribution (Jeffreys); the
        interval is of the mixture of these over chains. With one chain it shows how much the
        number of draws leaves open; with several, above all how much they disagree.

        Args:
            level: Probability of the interval.
        """
        checks.probability("level", level)
        # Rows of a draw share their random numbers: they do not count as draws of their own.
        draws = self.masks.shape[1]
        kept = self.chains * draws
        generator = torch.Generator().manual_seed(0)
        chosen = torch.multinomial(self.weights, _DRAWS, replacement=True, generator=generator)
        low, high = [], []
        with torch.random.fork_rng(devices=[]):  # the beta distribution knows no generator
            torch.manual_seed(0)
            for part in torch.split(kept[chosen], _AT_A_TIME, 1):
                values = torch.distributions.Beta(part + 0.5, draws - part + 0.5).sample()
                low.append(values.quantile((1 - level) / 2, 0))
                high.append(values.quantile((1 + level) / 2, 0))
        return torch.cat(low), torch.cat(high)

    @cached_property
    def joint(self) -> Tensor:
        """Probability that two units are kept together, [units, units]."""
        flat = self.masks.double().flatten(1, 2)
        together = torch.einsum("cdu,cdv->cuv", flat, flat) / flat.shape[1]
        return torch.einsum("c,cuv->uv", self.weights, together)

    def pairs(self, count: int = 10) -> list[tuple[str, str, float]]:
        """Pairs of units by how far they are from independent, farthest first.

        Args:
            count: How many pairs at most.

        Returns:
            Names, and the probability to be kept together less what it would be if units were
            independent. Below 0 two units stand in for each other: near-copies, of which one is
            enough. Above 0 they are wanted together. Units that are always kept or dropped
            together, columns of one group for instance, are left out.
        """
        checks.integer("count", count, low=1)
        excess = self.joint - torch.outer(self.mean, self.mean)
        flat = self.masks.double().flatten(0, 2)
        differ = (flat.T @ flat - flat.sum(0)).abs() > 0.5  # both ways: of either there is more
        upper = torch.triu(differ | differ.T, 1)
        first, second = upper.nonzero().T
        values = excess[first, second]
        order = values.abs().argsort(descending=True, stable=True)[:count]
        return [
            (self.names[int(first[at])], self.names[int(second[at])], float(values[at]))
            for at in order
        ]

    def subsets(self, count: int = 5) -> list[tuple[tuple[str, ...], float]]:
        """The sets of units that are drawn most often, with their probability.

        Args:
            count: How many sets at most.
        """
        checks.integer("count", count, low=1)
        probability: dict[tuple[int, ...], float] = {}
        share = self.weights / (self.masks.shape[1] * self.masks.shape[2])
        for chain, weight in zip(self.masks.flatten(1, 2), share.tolist(), strict=True):
            kinds, numbers = chain.unique(dim=0, return_counts=True)
            for kind, number in zip(kinds, numbers.tolist(), strict=True):
                units = tuple(kind.nonzero().flatten().tolist())
                probability[units] = probability.get(units, 0.0) + weight * number
        order = sorted(probability, key=lambda units: (-probability[units], units))
        return [
            (tuple(self.names[unit] for unit in units), probability[units])
            for units in order[:count]
        ]

    def support(self, threshold: float = 0.5) -> Tensor:
        """Units whose inclusion probability is at least a threshold, [units] of bool.

        Of similar units of which one is needed with that probability, though none by itself, the
        most probable one is among them.
        """
        checks.number("threshold", threshold, low=0, high=1)
        chosen = self.mean >= threshold - 1e-9  # weights sum to 1 up to rounding
        for units in self.similar:
            own = torch.tensor(list(units))
            if not chosen[own].any() and self._any(units) >= threshold - 1e-9:
                chosen[own[self.mean[own].argmax()]] = True
        return chosen

    def clusters(self, threshold: float = 0.5) -> list[tuple[tuple[str, ...], float]]:
        """Sets of units of which at least one is needed, with the probability of that.

        Units that are similar form a set; every other unit is alone.

        Args:
            threshold: Least probability.

        Returns:
            Names and probabilities, most probable first.

        Examples:
            >>> masks = torch.tensor([[1.0, 0, 1], [0, 1, 0]]).reshape(1, 2, 1, 3)
            >>> Inclusion(masks, names=["a", "copy of a", "b"], similar=[[0, 1]]).clusters()
            [(('a', 'copy of a'), 1.0), (('b',), 0.5)]
        """
        checks.number("threshold", threshold, low=0, high=1)
        listed = {unit for units in self.similar for unit in units}
        alone = [(unit,) for unit in range(len(self.names)) if unit not in listed]
        sets = [(tuple(units), self._any(units)) for units in [*self.similar, *alone]]
        sets.sort(key=lambda cluster: (-cluster[1], cluster[0]))
        return [
            (tuple(self.names[unit] for unit in units), chance)
            for units, chance in sets
            if chance >= threshold - 1e-9
        ]

    def any_of(self, names: Sequence[str | int]) -> float:
        """Probability that at least one of several units is kept, near-copies for instance.

        Args:
            names: Of the units, or their numbers.

        Examples:
            >>> masks = torch.tensor([[1.0, 0, 1], [0, 1, 0]]).reshape(1, 2, 1, 3)
            >>> Inclusion(masks, names=["a", "copy of a", "b"]).any_of(["a", "copy of a"])
            1.0
        """
        return self._any([self._place(name) for name in names])

    def _place(self, name: str | int) -> int:
        if isinstance(name, str):
            return list(self.names).index(checks.choice("name", name, self.names))
        place = checks.integer("names", name, low=0)
        if place >= len(self.names):
            raise ValueError(f"names must be numbers below {len(self.names)}, got {place}")
        return place

    def _any(self, units: Sequence[int]) -> float:
        kept = self.masks[..., list(units)].amax(-1).double().mean((1, 2))
        return float(self.weights @ kept)

    def table(self, level: float = 0.9) -> list[dict[str, Any]]:
        """One row per unit, most probable first: ``name``, ``inclusion``, ``low``, ``high``.

        Args:
            level: Of the interval.
        """
        low, high = self.interval(level)
        order = self.mean.argsort(descending=True, stable=True).tolist()
        return [
            {
                "name": self.names[unit],
                "inclusion": float(self.mean[unit]),
                "low": float(low[unit]),
                "high": float(high[unit]),
            }
            for unit in order
        ]

    def plot(self, top: int = 20, level: float = 0.9, ax: Axes | None = None) -> Axes:
        """Draw inclusion probabilities with their intervals, most probable on top.

        Similar units are next to each other, in a frame with the probability that one is needed.
        A new figure shows gains over controls beside, if there are any.

        Args:
            top: How many units at most.
            level: Of the interval.
            ax: Where to draw; a new figure if not given.
        """
        pyplot = require("matplotlib.pyplot", extra="sklearn", purpose="plots of inclusion")
        order, frames = self._arranged(checks.integer("top", top, low=1))
        low, high = (end[order] for end in self.interval(level))
        beside: list[Axes] = []
        if ax is None:
            panels = 2 if len(self.gains) else 1
            size = 3 + 3 * panels, 0.8 + 0.26 * len(order)
            (ax, *beside), *_ = pyplot.subplots(
                1, panels, squeeze=False, sharey=True, width_ratios=(2, 1)[:panels],
                figsize=size, layout="constrained",
            )[1]  # fmt: skip
        assert ax is not None
        places = range(len(order))
        ax.hlines(places, low, high, color="#7fa7c9", linewidth=3)
        ax.scatter(self.mean[order], places, color="#1f4e79", zorder=3)
        ax.axvline(0.5, color="#999999", linewidth=0.8, linestyle=":")
        for start, stop, _, chance in frames:
            ax.axhspan(start - 0.45, stop - 0.55, color="#f0b050", alpha=0.25, linewidth=0)
            ax.text(
                1.0, (start + stop - 1) / 2, f"one of these: {chance:.2f}", fontsize=8,
                ha="right", va="center", color="#8a5a00",
            )  # fmt: skip
        ax.set(
            yticks=list(places), yticklabels=[self.names[unit] for unit in order],
            xlim=(-0.02, 1.02), xlabel=f"inclusion probability, with {level:.0%} interval",
        )  # fmt: skip
        ax.invert_yaxis()
        ax.spines[["top", "right"]].set_visible(False)
        left = self.masks.shape[-1] - len(order)
        more = f"; {left} less probable ones not shown" if left else ""
        ax.set_title(f"{self.expected_size:.1f} of {len(self.names)} expected{more}", fontsize=10)
        for panel in beside:
            own = [(float(self.gains[unit]), place) for place, unit in enumerate(order)]
            units = len(self.names)
            sets = [(float(self.gains[units + n]), (a + b - 1) / 2) for a, b, n, _ in frames]
            _draw_gains(panel, own, sets)
        return ax

    def _arranged(self, top: int) -> tuple[list[int], list[tuple[int, int, int, float]]]:
        """Numbers of the most probable units, similar ones together, and the rows of such sets.

        A set is as probable as that one of its units is needed. Of each with two units or more in
        sight: first row, row after the last, its number, and that probability.
        """
        mean = self.mean.tolist()
        shown = set(self.mean.argsort(descending=True, stable=True)[:top].tolist())
        listed = {unit for units in self.similar for unit in units}
        sets = [([unit], -1, mean[unit]) for unit in shown - listed]
        for number, units in enumerate(self.similar):
            sets.append(([u for u in units if u in shown], number, self._any(units)))
        order: list[int] = []
        frames = []
        for units, number, chance in sorted(sets, key=lambda own: (-own[2], own[0])):
            if len(units) > 1:
                frames.append((len(order), len(order) + len(units), number, chance))
            order += sorted(units, key=lambda unit: (-mean[unit], unit))
        return order, frames

    def __repr__(self) -> str:
        """Show sizes and the most probable units."""
        order = self.mean.argsort(descending=True, stable=True)[:5].tolist()
        best = ", ".join(f"{self.names[unit]} {self.mean[unit]:.2f}" for unit in order)
        chains, draws, rows, units = self.masks.shape
        return (
            f"Inclusion({units} units, {chains} chains x {draws} draws x {rows} rows; "
            f"{self.expected_size:.1f} kept on average; most probable: {best})"
        )


def _draw_gains(
    panel: Axes, units: Sequence[tuple[float, float]], sets: Sequence[tuple[float, float]]
) -> None:
    """Draw gains over controls of units and of sets, each with its row."""
    panel.axvspan(-CONTROLS, CONTROLS, color="#dddddd", linewidth=0)
    panel.axvline(0, color="#999999", linewidth=0.8)
    for points, color, marker in ((units, "#1f4e79", "o"), (sets, "#d08000", "D")):
        finite = [(gain, row) for gain, row in points if math.isfinite(gain)]
        if finite:
            values, rows = zip(*finite, strict=True)
            panel.scatter(values, rows, color=color, marker=marker, s=26, zorder=3)
    panel.set_xlabel("gain over controls, in sd")
    panel.set_title("grey: 90% of controls" + (", ◆: of a set" if sets else ""), fontsize=9)
    panel.spines[["top", "right"]].set_visible(False)
