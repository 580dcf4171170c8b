"""Deep ensembles (Lakshminarayanan et al. 2017): several models that predict as one."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from gflowout.core import checks
from gflowout.core.call import logits_of
from gflowout.core.ensemble_checks import check_members, check_same_sites, normalised
from gflowout.core.inclusion import Inclusion
from gflowout.core.likelihoods import Likelihood
from gflowout.core.method import Losses
from gflowout.core.model import MaskedModel
from gflowout.core.options import Options
from gflowout.core.predictive import Predictive
from gflowout.core.random import draw_seeds
from gflowout.core.site_names import SiteNames
from gflowout.core.wrap import wrap


@dataclass(frozen=True)
class EnsembleLosses(Losses):
    """The result of a training pass of all members.

    The scalars are sums over the members, so that a gradient step on ``total`` moves each member as
    it would alone. Masks and log-quantities are those of the members and found there only.

    Attributes:
        members: The losses of each member.

    Examples:
        >>> import gflowout as gfo
        >>> x, y = torch.randn(4, 2), torch.tensor([0, 1, 0, 1])
        >>> ensemble = gfo.Ensemble.of(
        ...     lambda: nn.Linear(2, 2), members=3, likelihood=gfo.Categorical(2), example=(x,)
        ... )
        >>> losses = ensemble(x, y=y)
        >>> len(losses.members)
        3
        >>> bool(losses.nll == sum(member.nll for member in losses.members))
        True
    """

    members: tuple[Losses, ...] = ()


class Ensemble(nn.Module):
    """Several models of the same task, whose samples are pooled.

    Members are ordinary models, trained side by side through the ensemble as in the example, or one
    after the other on their own. Every member must have weights of its own.

    Args:
        members: Models from :func:`gflowout.wrap`, of any methods; or bare modules, which become
            models of method ``"none"`` without sites.
        likelihood: What the output of bare modules means; each gets a copy.
        example: One real call of the bare modules, as for :func:`gflowout.wrap`.
        weights: Of the members, such as their likelihoods on validation data: shares of the
            samples that they give. ``None``: all the same.

    Attributes:
        members: The models.
        weights: Of the members, with a sum of 1.

    Examples:
        >>> import gflowout as gfo
        >>> x, y = torch.randn(8, 4), torch.randint(3, (8,))
        >>> nets = [nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)) for _ in range(5)]
        >>> ensemble = gfo.Ensemble(nets, likelihood=gfo.Categorical(3), example=(x[:2],))
        >>> optimizer = torch.optim.Adam(ensemble.parameter_groups(lr=1e-2))
        >>> ensemble(x, y=y).total.backward()
        >>> optimizer.step()
        >>> ensemble.predict(x).mutual_information().shape
        torch.Size([8])
    """

    members: Sequence[MaskedModel]

    def __init__(
        self,
        members: Iterable[nn.Module],
        *,
        likelihood: Likelihood | str | None = None,
        example: Any = None,
        weights: Sequence[float] | None = None,
    ) -> None:
        super().__init__()
        single = isinstance(members, nn.Module) and not isinstance(members, nn.ModuleList)
        if single or not isinstance(members, Iterable):
            raise TypeError(f"members must be a list of models, got {type(members).__name__}")
        models = [_wrapped(at, member, likelihood, example) for at, member in enumerate(members)]
        check_members(models)
        # A ModuleList, but known to hold models.
        self.members = cast("Sequence[MaskedModel]", nn.ModuleList(models))
        self.weights = normalised(weights, len(models))
        self.training = any(model.training for model in models)

    @classmethod
    def of(
        cls,
        build: Callable[[], nn.Module],
        members: int = 5,
        *,
        method: str | Options = "none",
        sites: SiteNames = (),
        likelihood: Likelihood | str,
        example: Any,
        seed: int = 0,
        **options: Any,
    ) -> Ensemble:
        """Build members that differ in their initial weights.

        Args:
            build: Makes a new network each time it is called.
            members: How many.
            method: As for :func:`gflowout.wrap`.
            sites: As for :func:`gflowout.wrap`; none by default.
            likelihood: What the output means; each member gets a copy.
            example: One real call of the network.
            seed: Decides all initial weights; PyTorch's random state is left alone.
            **options: Further options of :func:`gflowout.wrap`.

        Examples:
            >>> import gflowout as gfo
            >>> x = torch.randn(8, 4)
            >>> def build():
            ...     return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
            >>> ensemble = gfo.Ensemble.of(
            ...     build, 3, method="mc", sites=["1"],
            ...     likelihood=gfo.Categorical(3), example=(x[:2],),
            ... )
            >>> ensemble.predict(x, samples=12).samples.shape
            torch.Size([12, 8, 3])
        """
        if isinstance(build, nn.Module) or not callable(build):
            raise TypeError(
                "build must be a function that makes a new network each time, got "
                f"{type(build).__name__}"
            )
        checks.integer("members", members, low=1)
        checks.integer("seed", seed, low=0)
        models = []
        with torch.random.fork_rng(devices=list(range(torch.cuda.device_count()))):
            for own_seed in draw_seeds(members, torch.Generator().manual_seed(seed)):
                torch.manual_seed(own_seed)
                net, own = build(), copy.deepcopy(likelihood)
                models.append(wrap(net, method, sites, likelihood=own, example=example, **options))
        return cls(models)

    def forward(self, *args: Any, y: Tensor | None = None, **kwargs: Any) -> Any:
        """Run every member; with labels, return the losses that train all of them.

        One backward pass of ``total`` and one step of an optimiser move each member exactly as if
        it were trained alone on the same batches, but with other masks: members draw from PyTorch's
        random state one after the other.

        Args:
            *args: Positional arguments of the backbones.
            y: Labels.
            **kwargs: Keyword arguments of the backbones; ``masks`` go to every member.

        Returns:
            :class:`EnsembleLosses` if ``y`` is given, else the mean of the members' outputs, by
            their weights; each is deterministic in eval mode, and that of a drawn mask in train
            mode. Of logits this is not the mean of probabilities, which :meth:`predict` gives.
        """
        results = [member(*args, y=y, **kwargs) for member in self.members]
        if y is None:
            outputs = map(logits_of, results)
            parts = [weight * part for weight, part in zip(self.weights, outputs, strict=True)]
            return torch.stack(parts).sum(0)
        sums = {
            name: torch.stack([getattr(losses, name) for losses in results]).sum()
            for name in ("total", "nll", "tb", "prior")
        }
        return EnsembleLosses(**sums, masks=[], members=tuple(results))

    @torch.no_grad()
    def predict(
        self,
        *args: Any,
        samples: int | None = None,
        chunk: int | None = None,
        generator: torch.Generator | None = None,
        masks: Sequence[Tensor] | None = None,
        return_masks: bool = False,
        **kwargs: Any,
    ) -> Predictive:
        """Predict with uncertainty: the samples of all members, member after member.

        Members without weights give the same number of samples each. With weights, a member gives
        its share of the samples, rounded, which may be none. No member is changed. Members draw one
        after the other from the same source, so each has noise of its own.

        Args:
            *args: Positional arguments of the backbones.
            samples: Number of draws in all; without weights, rounded up to a multiple of the number
                of members. If not given, 20; or one per member, where no member draws anything and
                all weigh the same.
            chunk: Draws per pass of a backbone at most, to bound memory; chosen if not given.
            generator: Source of randomness, as for :meth:`MaskedModel.predict`.
            masks: Masks to use instead of drawing, one [samples, batch, units] per site, as in
                ``Predictive.masks``. This and ``return_masks`` need members of the same sites.
            return_masks: Keep the masks in the result.
            **kwargs: Keyword arguments of the backbones.
        """
        if masks is not None or return_masks:
            check_same_sites(self.members)
        shares = [None] * len(self.members) if masks is None else self._shares(masks, samples)
        counts = self.allot(samples if masks is None or not len(masks) else len(masks[0]))
        kwargs |= {"chunk": chunk, "return_masks": return_masks, "generator": generator}
        parts = [
            member.predict(*args, samples=count if share is None else None, masks=share, **kwargs)
            for member, share, count in zip(self.members, shares, counts, strict=True)
            if count
        ]
        for index, part in enumerate(parts):
            if part.outputs.shape[1:] != parts[0].outputs.shape[1:]:
                raise ValueError(
                    "members must give outputs of one shape, got "
                    f"{list(parts[0].outputs.shape[1:])} from member 0 and "
                    f"{list(part.outputs.shape[1:])} from member {index}"
                )
        outputs = torch.cat([part.outputs for part in parts])
        by_site = zip(*(part.masks or () for part in parts), strict=True)
        pooled = [torch.cat(site) for site in by_site] if return_masks else None
        return Predictive(outputs, parts[0].likelihood, pooled)

    def inclusion(
        self, *args: Any, samples: int = 1000, names: Sequence[str] = (), **kwargs: Any
    ) -> Inclusion:
        """How probable it is that each unit of a site is kept, by all members with their weights.

        Args:
            *args: Inputs, where masks depend on the example.
            samples: Number of masks to draw from each member.
            names: Of the units.
            **kwargs: As for :meth:`MaskedModel.inclusion`.
        """
        check_same_sites(self.members)
        parts = [model.inclusion(*args, samples=samples, **kwargs) for model in self.members]
        masks = torch.cat([part.masks for part in parts])
        return Inclusion(masks, torch.tensor(self.weights), names or parts[0].names)

    def parameter_groups(self, **rates: float) -> list[dict[str, Any]]:
        """Parameter groups for one optimiser: those of a single model, with all members in each.

        Args:
            **rates: Learning rates and weight decays, as for :meth:`MaskedModel.parameter_groups`.
        """
        groups: dict[str, dict[str, Any]] = {}
        for member in self.members:
            for group in member.parameter_groups(**rates):
                joined = groups.setdefault(group["name"], {**group, "params": []})
                joined["params"] += group["params"]
        return list(groups.values())

    def allot(self, samples: int | None = None) -> list[int]:
        """Samples that each member gives of so many in all; see :meth:`predict`.

        Examples:
            >>> import gflowout as gfo
            >>> nets, example = [nn.Linear(4, 3) for _ in range(3)], (torch.zeros(2, 4),)
            >>> pool = gfo.Ensemble(
            ...     nets, likelihood=gfo.Categorical(3), example=example, weights=[3, 1, 0]
            ... )
            >>> pool.allot(20)
            [15, 5, 0]
        """
        if samples is None:
            same = all(model.method.deterministic for model in self.members)
            samples = len(self.members) if same and self._even else 20
        checks.integer("samples", samples, low=1)
        if self._even:
            return [-(-samples // len(self.members))] * len(self.members)
        return shares(self.weights, samples)

    @property
    def _even(self) -> bool:
        return len(set(self.weights)) == 1

    def _shares(self, masks: Sequence[Tensor], samples: int | None) -> list[list[Tensor]]:
        """Masks of each member: [its samples, batch, units] per site."""
        for mask in masks:
            whole = isinstance(mask, Tensor) and mask.dim() == 3
            if not whole or (self._even and len(mask) % len(self.members)):
                shape = list(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
                raise ValueError(
                    "masks must hold one [samples, batch, units] per site, samples being a "
                    f"multiple of the {len(self.members)} members, got {shape}"
                )
            if samples not in (None, len(mask)):
                raise ValueError(f"samples is {samples}, but masks holds {len(mask)} samples")
        parts = [torch.split(mask, self.allot(len(mask))) for mask in masks]
        return [[part[index] for part in parts] for index in range(len(self.members))]


def shares(weights: Sequence[float], samples: int) -> list[int]:
    """Samples in proportion to weights, which sum to 1, by largest remainders.

    Examples:
        >>> shares([0.6, 0.39, 0.01], 20)
        [12, 8, 0]
    """
    exact = [weight * samples for weight in weights]
    counts = [int(count) for count in exact]
    # What is left goes to those who lost most by rounding.
    order = sorted(range(len(counts)), key=lambda at: counts[at] - exact[at])
    for at in order[: samples - sum(counts)]:
        counts[at] += 1
    return counts


def _wrapped(
    index: int, member: Any, likelihood: Likelihood | str | None, example: Any
) -> MaskedModel:
    """Return a model as it is, a bare module as a model of method "none" without sites."""
    if isinstance(member, MaskedModel):
        return member
    if isinstance(member, Ensemble):
        raise TypeError(f"member {index} is an Ensemble: pass its members instead")
    if not isinstance(member, nn.Module):
        raise TypeError(
            f"member {index} must be a model from gfo.wrap or an nn.Module, got "
            f"{type(member).__name__}"
        )
    if likelihood is None or example is None:
        raise TypeError(
            f"member {index} is a bare {type(member).__name__}: give likelihood= and example=, "
            "or wrap it"
        )
    return wrap(member, "none", (), likelihood=copy.deepcopy(likelihood), example=example)
