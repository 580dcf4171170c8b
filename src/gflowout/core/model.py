"""A backbone, a method and a likelihood as one module, which is called like the backbone.

It keeps the backbone's own keys in ``state_dict`` and puts everything it adds under ``gflowout.``.
Built by :func:`gflowout.core.wrap.wrap`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _IncompatibleKeys

from gflowout.core import checks
from gflowout.core.call import CallSpec
from gflowout.core.inclusion import Inclusion
from gflowout.core.likelihoods import Likelihood
from gflowout.core.method import Method
from gflowout.core.noise import Noise, NoNoise, SeededNoise
from gflowout.core.predictive import Predictive, settled
from gflowout.core.random import draw_seeds
from gflowout.core.runner import Runner, Scorer, given_masks
from gflowout.core.sites import INPUT, Site
from gflowout.core.trajectory import Trajectory
from gflowout.core.view import evaluating

PREFIX = "gflowout"
"""Where a wrapped model's state_dict keeps what wrapping added."""

_FOLDED = {"examples": "batch", "batch": "1"}


class MaskedModel(nn.Module):
    """A backbone with masks at its sites; built by :func:`gflowout.wrap`.

    Attributes:
        backbone: The module that was wrapped.
        method: Draws the masks and owns the generators.
        likelihood: What the output means.
        spec: What the example call taught about the backbone.
        validate: Whether values are checked in every pass.
        counted: The ``train_size`` that ``gfo.fit`` counted in the training data, if it did.

    Examples:
        >>> import gflowout as gfo
        >>> net, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), torch.zeros(2, 4)
        >>> model = gfo.wrap(net, "mc", ["1"], likelihood=gfo.Categorical(3), example=(x,))
        >>> model(x).shape  # called like the backbone
        torch.Size([2, 3])
        >>> [site.name for site in model.sites]
        ['1']
        >>> model.predict(x, samples=5)
        Predictive(5 samples, mean [2, 3], Categorical(classes=3))
    """

    backbone: nn.Module
    method: Method
    likelihood: Likelihood
    counted: int | None = None

    def __init__(
        self,
        backbone: nn.Module,
        method: Method,
        likelihood: Likelihood,
        spec: CallSpec,
        validate: bool = True,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.method = method
        self.likelihood = likelihood
        self.spec = spec
        self.validate = validate
        self.register_load_state_dict_post_hook(_rename_incompatible)  # type: ignore[no-untyped-call]
        # Not self.train(): a backbone may keep parts of it, such as a frozen BatchNorm, in eval.
        self.training = backbone.training
        for own in (method, likelihood):
            own.train(backbone.training)

    @property
    def sites(self) -> tuple[Site, ...]:
        """What was wrapped, in execution order."""
        return self.method.sites

    def forward(
        self,
        *args: Any,
        y: Tensor | None = None,
        masks: Sequence[Tensor] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run the backbone under masks; with labels, return the losses.

        Without labels, the result is the backbone's own output. In train mode it is that of one
        drawn mask. In eval mode it is deterministic, as with ``nn.Dropout``: the mean mask (the
        keep rates) takes the place of a drawn one. For one drawn network in eval mode, take
        ``model.predict(x, samples=1)``.

        Args:
            *args: Positional arguments of the backbone.
            y: Labels.
            masks: Masks to use instead of drawing, one [batch, units] per site (or [1, units] for
                the whole batch), as in ``Losses.masks``.
            **kwargs: Keyword arguments of the backbone.

        Returns:
            :class:`Losses` if ``y`` is given, else whatever the backbone returns.
        """
        runner = Runner(self.backbone, self.sites, self.spec, args, kwargs)
        if y is None:
            trajectory = Trajectory(Noise() if self.training else NoNoise())
            if masks is not None:
                batch = runner.call.batch_size
                given = given_masks(masks, self.method, batch, self.validate)
                trajectory = Trajectory(given=given)
            return runner.run(self.method.draw, trajectory)
        scorer = Scorer(runner, self.method, self.likelihood, y, masks, values=self.validate)
        losses = self.method.step(scorer)
        if self.validate and not math.isfinite(losses.total.item()):
            runner.call.check_finite()
        return losses

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
        """Predict with uncertainty: one output per drawn set of masks.

        The model is run in eval mode and left as it was.

        Args:
            *args: Positional arguments of the backbone.
            samples: Number of draws; 20 if not given, or as many as ``masks`` holds.
            chunk: Draws per pass of the backbone at most, to bound memory; chosen if not given.
            generator: Source of randomness: the same state gives the same answer, whatever the
                chunk. Without one, draws follow from PyTorch's random state, and advance it like
                every other random call: two batches of a loop have noise of their own.
            masks: Masks to use instead of drawing, one [samples, batch, units] per site, as in
                ``Predictive.masks``.
            return_masks: Keep the masks in the result.
            **kwargs: Keyword arguments of the backbone.
        """
        if "y" in kwargs:
            raise TypeError("predict takes no labels: y is for training passes, model(x, y=labels)")
        for name, value in (("samples", samples), ("chunk", chunk)):
            if value is not None:
                checks.integer(name, value, low=1)
        if generator is not None and not isinstance(generator, torch.Generator):
            raise TypeError(
                f"generator must be a torch.Generator or None, got {type(generator).__name__}"
            )
        runner = Runner(self.backbone, self.sites, self.spec, args, kwargs)
        given = None
        if masks is not None:
            batch = runner.call.batch_size
            given = given_masks(masks, self.method, batch, self.validate, several=True)
        if given and samples not in (None, len(given[0])):
            raise ValueError(f"samples is {samples}, but masks holds {len(given[0])} samples")
        count = len(given[0]) if given else samples or 20
        random = self.spec.random or not (given or self.method.deterministic)
        # A generator always advances by the same count; PyTorch's state only if it is needed.
        seeds = draw_seeds(count, generator) if random or generator is not None else [0] * count
        distinct = seeds[:1] if self.method.deterministic and not given else seeds
        # Tensors of inference mode do not tell whether they were changed in place.
        with (
            torch.inference_mode(False),
            torch.no_grad(),
            evaluating(self) as resting,
            runner.own_random_state(),
        ):
            runner.backbone = resting.backbone
            outputs, kept = runner.sample(
                resting.method, distinct, chunk, given or None, return_masks
            )
            if self.validate and not _finite(outputs):
                runner.call.check_finite()
            self.likelihood.samples(outputs[0])  # an output of the wrong shape fails here, by name
            return settled(outputs, self.likelihood, kept, count)

    @torch.no_grad()
    def inclusion(
        self,
        *args: Any,
        site: str | None = None,
        samples: int = 1000,
        generator: torch.Generator | None = None,
        names: Sequence[str] = (),
        **kwargs: Any,
    ) -> Inclusion:
        """How probable it is that each unit of a site is kept.

        Args:
            *args: Inputs, where masks depend on the example; then there is an answer for each row.
                Not needed where all examples share masks, as in ``"id-gflowout"``.
            site: Name of the site; ``"input"`` if it is one, else the only site.
            samples: Number of masks to draw.
            generator: Source of randomness, as for :meth:`predict`.
            names: Of the units.
            **kwargs: Keyword arguments of the backbone.

        Examples:
            >>> import gflowout as gfo
            >>> net, x = nn.Linear(4, 3), torch.zeros(2, 4)
            >>> model = gfo.wrap(
            ...     net, "id-gflowout", ["input"], likelihood=gfo.Categorical(3), example=(x,),
            ...     preset="features", train_size=100,
            ... )
            >>> model.inclusion(samples=500).mean.shape
            torch.Size([4])
        """
        at = self._place(site)
        checks.integer("samples", samples, low=1)
        shared = self._shared_masks(samples, generator)
        if shared is not None:
            masks = shared[at].unsqueeze(1)
        elif not args and not kwargs:
            raise ValueError(
                f"masks of method {self.method.name!r} are drawn for each example: pass inputs, as "
                "in model.inclusion(x)"
            )
        else:
            pred = self.predict(
                *args, samples=samples, generator=generator, return_masks=True, **kwargs
            )
            assert pred.masks is not None
            masks = pred.masks[at]
        named = names or [f"{self.sites[at].name} {unit}" for unit in range(masks.shape[-1])]
        return Inclusion(masks.unsqueeze(0), names=named)

    def _place(self, site: str | None) -> int:
        """Index of a site that may be left to choose."""
        names = [place.name for place in self.sites]
        if site is None and INPUT in names:
            site = INPUT
        if site is None and len(names) == 1:
            return 0
        if site is None:
            raise ValueError(f"site must be named, one of {', '.join(map(repr, names))}")
        return names.index(checks.choice("site", site, names))

    def _shared_masks(self, samples: int, generator: torch.Generator | None) -> Any:
        """Masks that do not depend on inputs, [samples, units] per site, or ``None``."""
        device = next((tensor.device for tensor in self.method.parameters()), torch.device("cpu"))
        noise = SeededNoise(draw_seeds(samples, generator), device)
        return self.method.draw_ahead(Trajectory(noise))

    def set_options(self, **options: Any) -> None:
        """Change options of the method, for instance to let ``beta`` grow during training.

        Options that shape the parameters (such as ``hidden``) cannot change.

        Args:
            **options: New values by name.
        """
        kind, old = type(self.method.options), self.method.options
        options = kind.translated(options, f"method {self.method.name!r}")
        current = {field.name: getattr(old, field.name) for field in dataclasses.fields(old)}
        for name, value in options.items():
            if name in kind.STRUCTURAL and value != current.get(name):
                raise ValueError(f"{name} is fixed by wrap: wrap the backbone again to change it")
        self.method.options = kind.build(self.method.name, None, {**current, **options})

    def parameter_groups(
        self,
        lr: float = 1e-3,
        generator_lr: float = 1e-3,
        log_z_lr: float = 1e-2,
        weight_decay: float = 0.0,
        generator_weight_decay: float = 0.0,
        label_noise_lr: float = 3e-2,
    ) -> list[dict[str, Any]]:
        """Parameter groups for an optimiser, each with its own learning rate.

        Args:
            lr: For the backbone and the likelihood.
            generator_lr: For the mask generators.
            log_z_lr: For the estimate of log Z.
            weight_decay: For the backbone. The likelihood's noise has none.
            generator_weight_decay: For the generators and log Z.
            label_noise_lr: For a learned rate of label noise.

        Returns:
            Groups with ``params``, ``lr``, ``weight_decay`` and ``name``; empty ones are left out.
            Those of the generators, many small tensors, ask for the fused kernel that optimisers of
            PyTorch have on CPUs and CUDA; others take no notice.
        """
        for name, value in (
            ("lr", lr), ("generator_lr", generator_lr), ("log_z_lr", log_z_lr),
            ("weight_decay", weight_decay), ("generator_weight_decay", generator_weight_decay),
        ):  # fmt: skip
            checks.number(name, value, low=0)
        generators: list[nn.Parameter] = []
        log_z: list[nn.Parameter] = []
        for name, parameter in self.method.named_parameters():
            (log_z if {"log_z", "log_flow"} & {*name.split(".")} else generators).append(parameter)
        likelihood: list[nn.Parameter] = []
        label_noise: list[nn.Parameter] = []
        for name, parameter in self.likelihood.named_parameters():
            own = label_noise if name.startswith("label_noise.") else likelihood
            own.append(parameter)
        plain: dict[str, Any] = {}
        devices = {parameter.device.type for parameter in (*generators, *log_z)}
        fused = {"fused": True} if devices <= {"cpu", "cuda"} else plain
        groups = [
            ("backbone", list(self.backbone.parameters()), lr, weight_decay, plain),
            ("likelihood", likelihood, lr, 0.0, plain),
            ("label_noise", label_noise, label_noise_lr, 0.0, plain),
            ("generator", generators, generator_lr, generator_weight_decay, fused),
            ("log_z", log_z, log_z_lr, generator_weight_decay, fused),
        ]
        return [
            {"params": parameters, "lr": rate, "weight_decay": decay, "name": name, **more}
            for name, parameters, rate, decay, more in groups
            if parameters
        ]

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the backbone's state under its own keys, and ours under ``gflowout.``."""
        prefix = kwargs.get("prefix", args[1] if len(args) > 1 else "")
        state = super().state_dict(*args, **kwargs)
        for key in [key for key in state if key.startswith(prefix)]:
            state[prefix + outer(key[len(prefix) :])] = state.pop(key)
        return state

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        self._loading = prefix
        for key in [key for key in state_dict if key.startswith(prefix)]:
            state_dict[prefix + inner(key[len(prefix) :])] = state_dict.pop(key)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        """Show the method and the sites."""
        lines = [f"method={self.method.name!r}"]
        lines += [
            f"site {site.name!r}: {site.units} units on "
            + (f"axes {site.axes}" if len(site.axes) > 1 else f"axis {site.axis}")
            + ("" if site.tokens is None else f", real tokens on axis {site.tokens}")
            + ("" if site.folded is None else f" of [{_FOLDED[site.folded]}, rows, ...]")
            for site in self.sites
        ]
        return "\n".join(lines)


def _finite(values: Tensor) -> bool:
    """Whether all numbers are finite: their sum says so at once, unless it is too large itself."""
    return math.isfinite(values.sum().item()) or bool(values.isfinite().all())


def outer(key: str) -> str:
    """The name in the state that users see, for a name inside the model.

    Examples:
        >>> outer("backbone.fc.weight"), outer("method.prior")
        ('fc.weight', 'gflowout.method.prior')
    """
    head, _, rest = key.partition(".")
    return rest if head == "backbone" else f"{PREFIX}.{key}"


def inner(key: str) -> str:
    """The name inside the model, for a name in the state that users see.

    Examples:
        >>> inner("fc.weight"), inner("gflowout.method.prior")
        ('backbone.fc.weight', 'method.prior')
    """
    head, _, rest = key.partition(".")
    return rest if head == PREFIX else f"backbone.{key}"


def _rename_incompatible(model: MaskedModel, incompatible: _IncompatibleKeys) -> None:
    """Report keys as users know them, also when the model is a part of a larger one."""
    prefix = model._loading
    for keys in (incompatible.missing_keys, incompatible.unexpected_keys):
        keys[:] = [
            prefix + outer(key[len(prefix) :]) if key.startswith(prefix) else key for key in keys
        ]
