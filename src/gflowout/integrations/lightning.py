"""Masks for a LightningModule of your own, and predictions with uncertainty by its Trainer.

For a network without a LightningModule, take :func:`gflowout.training.fit`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, compress, takewhile
from typing import Any

from gflowout.core import checks
from gflowout.core.optional import require

require("lightning", extra="train", purpose="gflowout.integrations.lightning")

import lightning  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

from gflowout.core import random  # noqa: E402
from gflowout.core.disagreement import Disagreement, check_term  # noqa: E402
from gflowout.core.likelihoods import Likelihood  # noqa: E402
from gflowout.core.method import Losses, Options  # noqa: E402
from gflowout.core.model import MaskedModel  # noqa: E402
from gflowout.core.predictive import Predictive, of_labels  # noqa: E402
from gflowout.core.site_names import SiteNames  # noqa: E402
from gflowout.core.wrap import wrap  # noqa: E402
from gflowout.training.module import Unpack, apart, hits, inputs_of, unpack  # noqa: E402
from gflowout.training.train_size import examples_of  # noqa: E402

__all__ = ["MaskedMixin"]


@dataclass
class _Masking:
    """Arguments of :meth:`MaskedMixin.add_masks`, and whether ``train_size`` is to be counted."""

    network: str
    unpack: Unpack
    samples: int
    seed: int
    generator_lr: float | None
    log_z_lr: float | None
    label_noise_lr: float | None
    counts: bool
    disagreement: Disagreement | None


class MaskedMixin(lightning.LightningModule):
    """Gives a LightningModule masks: put it before your own class, and call :meth:`add_masks`.

    The training step also learns the masks, validation and test also score the average over masks,
    and ``predict_step`` returns a :class:`~gflowout.Predictive`. All else stays as you wrote it.

    Examples:
        >>> import gflowout as gfo
        >>> class Plain(lightning.LightningModule):  # yours, as it is
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
        ...
        ...     def training_step(self, batch, batch_idx):
        ...         return nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        ...
        ...     def configure_optimizers(self):
        ...         return torch.optim.Adam(self.parameters(), lr=1e-2)
        >>> class Masked(MaskedMixin, Plain):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.add_masks(
        ...             "net", "gflowout", ["1"], likelihood=gfo.Categorical(3),
        ...             example=(torch.zeros(2, 4),),
        ...         )
        >>> Masked().predict_step(torch.zeros(5, 4), 0)
        Predictive(20 samples, mean [5, 3], Categorical(classes=3))
    """

    _masking: _Masking | None = None

    def add_masks(
        self,
        network: str,
        method: str | Options = "gflowout",
        sites: SiteNames = None,
        *,
        likelihood: Likelihood | str,
        example: Any,
        samples: int = 20,
        seed: int = 0,
        generator_lr: float | None = None,
        log_z_lr: float | None = None,
        label_noise_lr: float | None = None,
        unpack: Unpack = unpack,
        disagreement: Disagreement | None = None,
        **options: Any,
    ) -> MaskedModel:
        """Wrap the network that an attribute holds; call it at the end of ``__init__``.

        The attribute then holds the wrapped model, which is called as before. Its weights keep
        their keys, so checkpoints of the plain module load, with ``strict=False``.

        Args:
            network: Name of the attribute, such as ``"net"`` or ``"model.encoder"``.
            method: As for :func:`gflowout.wrap`.
            sites: As for :func:`gflowout.wrap`; names within the network.
            likelihood: As for :func:`gflowout.wrap`.
            example: As for :func:`gflowout.wrap`: one call of the network.
            samples: Masks drawn for every prediction and score.
            seed: Of these draws. A prediction depends on it and on the number of its batch.
            generator_lr: Learning rate of the mask generators; that of your own
                ``configure_optimizers`` if not given.
            log_z_lr: Learning rate of the estimate of log Z; same default.
            label_noise_lr: Learning rate of a learned rate of label noise; same default, 3e-2 is
                good.
            unpack: Takes a batch apart into positional arguments of the network, keyword arguments
                and labels. Not needed for ``(input, ..., labels)`` and mappings with ``labels``.
            disagreement: Term that is added to the loss, such as ``gfo.Disagreement(0.1)``.
            **options: Options of the method, ``preset`` and ``validate``. A ``train_size`` that is
                not given is taken from the training data when training starts.

        Returns:
            The wrapped model, which is ``self.masked`` from now on.
        """
        if self._masking is not None:
            raise ValueError(f"network {self._masking.network!r} of this module has masks already")
        _check_order(type(self))
        owner, name = _owner(self, network)
        if not callable(unpack):
            raise TypeError(f"unpack must be a function of a batch, got {unpack!r}")
        checks.integer("samples", samples, low=1)
        checks.integer("seed", seed, low=0)
        rates = {
            "generator_lr": generator_lr, "log_z_lr": log_z_lr, "label_noise_lr": label_noise_lr
        }  # fmt: skip
        for key, rate in rates.items():
            if rate is not None:
                checks.number(key, rate, low=0)
        model = wrap(
            getattr(owner, name), method, sites, likelihood=likelihood, example=example, **options
        )
        if disagreement is not None:
            check_term(disagreement, model)
        setattr(owner, name, model)
        # A size that was not given is that of whatever is trained on.
        counts = getattr(model.method.options, "train_size", 0) is None
        self._masking = _Masking(
            network, unpack, samples, seed, **rates, counts=counts, disagreement=disagreement
        )
        return model

    @property
    def masked(self) -> MaskedModel:
        """The wrapped model."""
        model = self.get_submodule(self._masks.network)
        assert isinstance(model, MaskedModel)
        return model

    def on_train_start(self) -> None:
        """Take the size of the training data for methods that weigh it against a prior."""
        super().on_train_start()
        loader: Any = self.trainer.train_dataloader
        size = examples_of(loader) if self._masks.counts else None
        if size is not None:
            self.masked.set_options(train_size=size)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """The method's loss for a batch, in place of your own step's.

        For a term of your own, override it and add to what ``super().training_step`` returns.
        """
        if not self.automatic_optimization:
            raise TypeError(
                "this module optimises by hand (automatic_optimization is False): call "
                "self.masked(x, y=labels) in a training_step of your own, and step on its `total`"
            )
        args, kwargs, y = apart(batch, self._masks.unpack)
        losses = self.masked(*args, y=y, **kwargs)
        self.log_losses(losses, len(y))
        if self._masks.disagreement is None:
            return losses.total
        term = self._masks.disagreement(self.masked, *args, **kwargs)
        self.log("train/disagreement", term.detach(), batch_size=len(y))
        return losses.total + term

    def log_losses(self, losses: Losses, batch_size: int) -> None:
        """Log the parts of a training loss; override it for other names.

        Args:
            losses: Of a step.
            batch_size: Examples in it.
        """
        parts = {f"train/{name}": getattr(losses, name).detach() for name in ("nll", "tb", "prior")}
        self.log_dict(parts, batch_size=batch_size)

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        """Your own step, if there is one; then ``valid/nll`` and ``valid/accuracy`` are logged.

        These are of the average over drawn masks. In your own step the network runs under one mask.
        """
        return self._evaluate("valid", "validation_step", batch, batch_idx, dataloader_idx)

    def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        """Your own step, if there is one; then ``test/nll`` and ``test/accuracy`` are logged."""
        return self._evaluate("test", "test_step", batch, batch_idx, dataloader_idx)

    def predict_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Predictive:
        """The prediction for a batch, with or without labels in it.

        ``Trainer.predict`` returns a list of them; :meth:`gflowout.Predictive.join` makes it one.
        """
        args, kwargs = inputs_of(batch, self._masks.unpack, self.masked)
        return self._draw(args, kwargs, batch_idx, dataloader_idx)

    def configure_optimizers(self) -> Any:
        """Your own optimisers; the generators get learning rates of their own if you gave any."""
        optimisers: Any = super().configure_optimizers()
        groups = self.masked.parameter_groups()
        if optimisers is not None:
            self._check_covered(optimisers, [p for group in groups for p in group["params"]])
        given = {
            "generator": self._masks.generator_lr, "log_z": self._masks.log_z_lr,
            "label_noise": self._masks.label_noise_lr,
        }  # fmt: skip
        rates = {name: rate for name, rate in given.items() if rate is not None}
        if rates and not isinstance(optimisers, torch.optim.Optimizer):
            raise TypeError(
                f"{next(iter(rates))}_lr needs a configure_optimizers that returns one optimiser "
                f"and no schedule, this one returns {type(optimisers).__name__}: leave it out "
                f"and give your optimiser self.{self._masks.network}.parameter_groups(lr=..., "
                "generator_lr=..., log_z_lr=...)"
            )
        for group in groups:
            if group["name"] in rates:
                _move(optimisers, group["params"], rates[group["name"]], group["name"])
        return optimisers

    @property
    def _masks(self) -> _Masking:
        if self._masking is None:
            raise ValueError(
                f"{type(self).__name__} has no masks yet: call self.add_masks(...) in its __init__"
            )
        return self._masking

    def _evaluate(self, part: str, step: str, batch: Any, index: int, loader: int) -> Any:
        own = getattr(super(), step)
        result = None
        if getattr(own, "__func__", None) is not getattr(lightning.LightningModule, step):
            given = {"batch_idx": index, "dataloader_idx": loader}
            taken = inspect.signature(own).parameters
            result = own(batch, **{name: given[name] for name in given if name in taken})
        args, kwargs, y = apart(batch, self._masks.unpack)
        pred = self._draw(args, kwargs, index, loader)
        # Labels of tests are taken for true ones.
        scored = pred if part == "test" else of_labels(pred, self.masked.likelihood)
        scores = {f"{part}/nll": -scored.log_prob(y).mean()}
        right = hits(pred.likelihood, pred.mean, y)
        if right is not None:
            scores[f"{part}/accuracy"] = right / len(y)
        self.log_dict(scores, on_epoch=True, batch_size=len(y), sync_dist=True)
        return result

    def _draw(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], index: int, loader: int
    ) -> Predictive:
        rank = self.global_rank if self._trainer is not None else 0
        generator = random.generator(self._masks.seed, "predict", loader, index, rank)
        samples = self._masks.samples
        return self.masked.predict(*args, samples=samples, generator=generator, **kwargs)

    def _check_covered(self, optimisers: Any, needed: Iterable[nn.Parameter]) -> None:
        groups = chain.from_iterable(opt.param_groups for opt in _optimisers(optimisers))
        covered = {id(parameter) for group in groups for parameter in group["params"]}
        if any(id(parameter) not in covered for parameter in needed if parameter.requires_grad):
            raise ValueError(
                "configure_optimizers leaves out parameters of the masks: give it "
                f"self.parameters(), self.{self._masks.network}.parameters() or "
                f"self.{self._masks.network}.parameter_groups(lr=...)"
            )


def _check_order(own: type) -> None:
    """Raise if a class comes before the mix-in, whose steps would then override ours."""
    for base in takewhile(lambda kind: kind is not MaskedMixin, own.__mro__):
        if not issubclass(base, MaskedMixin) and issubclass(base, lightning.LightningModule):
            raise TypeError(
                f"MaskedMixin must come before {base.__name__} among the bases, or its steps would "
                f"not be used: class {own.__name__}(MaskedMixin, {base.__name__})"
            )


def _owner(module: nn.Module, path: Any) -> tuple[nn.Module, str]:
    """The module that holds the attribute at a path, and the attribute's name."""
    if not isinstance(path, str):
        raise TypeError(f"network must be the name of an attribute, got {path!r}")
    before, _, name = path.rpartition(".")
    names = [submodule for submodule, _ in module.named_modules() if submodule]
    if path not in names:
        shown = ", ".join(map(repr, names[:8])) + (", ..." if len(names) > 8 else "")
        raise ValueError(f"network must name a submodule, one of {shown or 'none'}, got {path!r}")
    return module.get_submodule(before), name


def _optimisers(returned: Any) -> list[torch.optim.Optimizer]:
    """All optimisers in what ``configure_optimizers`` may return."""
    if isinstance(returned, torch.optim.Optimizer):
        return [returned]
    if isinstance(returned, dict):
        return _optimisers(returned.get("optimizer"))
    if isinstance(returned, list | tuple):
        return [optimiser for part in returned for optimiser in _optimisers(part)]
    return []


def _move(
    optimiser: torch.optim.Optimizer, parameters: list[nn.Parameter], rate: float, name: str
) -> None:
    """Move parameters to a group of their own with another learning rate."""
    moved = set(map(id, parameters))
    settings: dict[str, Any] = {}
    names: dict[int, str] = {}
    for group in optimiser.param_groups:
        stays = [id(parameter) not in moved for parameter in group["params"]]
        if all(stays):
            continue
        settings = {key: group[key] for key in group if key not in ("params", "param_names")}
        if "param_names" in group:  # of an optimiser that was made from named parameters
            names |= dict(zip(map(id, group["params"]), group["param_names"], strict=True))
            group["param_names"] = list(compress(group["param_names"], stays))
        group["params"] = list(compress(group["params"], stays))
    named = [(names.get(id(tensor), name), tensor) for tensor in parameters]
    group = {**settings, "params": named if names else parameters, "lr": rate, "name": name}
    optimiser.add_param_group(group)
