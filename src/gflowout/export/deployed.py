"""A wrapped model as one plain function of tensors, which can be traced into a file.

Inputs, and a seed or masks, go in by name; samples, their mean and uncertainty come out. All draws
are folded into one batch where the backbone allows it. Knows nothing of file formats.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import keyword
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor, nn

from gflowout.core import tree
from gflowout.core.call import Args, BoundCall, Kwargs, logits_of, named_tensors
from gflowout.core.ensemble import Ensemble, check_same_sites
from gflowout.core.model import MaskedModel
from gflowout.core.noise import Noise
from gflowout.core.runner import Runner
from gflowout.core.trajectory import Trajectory
from gflowout.export.answers import NAMES, answers
from gflowout.export.noise import Hashed

SEED = "seed"
"""Name of the input that decides all draws."""


class ExportError(ValueError):
    """A model cannot be written as a file, or the file does not do what the model does.

    Examples:
        >>> import gflowout as gfo
        >>> x = torch.randn(5, 4)
        >>> net = nn.Linear(4, 3)
        >>> model = gfo.wrap(net, "none", (), likelihood=gfo.Categorical(3), example=(x,))
        >>> Deployed(model, (x,), {}, masks=True)
        Traceback (most recent call last):
            ...
        gflowout.export.deployed.ExportError: masks=True needs a model with sites, this one has none
    """


class Deployed(nn.Module):
    """Predicts as ``model.predict`` does, as a function of named tensors alone.

    Works on a copy in eval mode on the CPU; the model is left as it is. Call it by name, as the
    file that is made of it: ``deployed(x=x, seed=torch.tensor(0))``.

    Args:
        model: From :func:`gflowout.wrap`, or an ensemble.
        args: Positional arguments of one real call.
        kwargs: Keyword arguments of it.
        samples: Draws; for an ensemble those of all members, see ``Ensemble.allot``.
        masks: Take masks, one [samples, batch, units] per site, instead of a seed.
        prepare: Turns the arguments of the call into the one that the model takes.
        scale: Mean and standard deviation of the labels of a regression before they were
            standardised: answers are then in the units of the labels.

    Attributes:
        example: A call of this module, by name of the input.
        batched: Names of the inputs that carry the batch, with the axis that does.
        samples: Draws in all.

    Examples:
        >>> import gflowout as gfo
        >>> x = torch.randn(5, 4)
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> model = gfo.wrap(net, "mc", ["1"], likelihood=gfo.Categorical(3), example=(x,))
        >>> deployed = Deployed(model, (x,), {}, samples=10)
        >>> list(deployed.example)
        ['input', 'seed']
        >>> found = deployed(input=torch.randn(2, 4), seed=torch.tensor(0))
        >>> found["samples"].shape, found["mutual_information"].shape
        (torch.Size([10, 2, 3]), torch.Size([2]))
    """

    def __init__(
        self,
        model: MaskedModel | Ensemble,
        args: Args,
        kwargs: Kwargs,
        *,
        samples: int = 20,
        masks: bool = False,
        prepare: nn.Module | None = None,
        scale: tuple[float, float] | None = None,
    ) -> None:
        super().__init__()
        with torch.no_grad():
            copied = copy.deepcopy(model).cpu().requires_grad_(False)
            self.prepare = None if prepare is None else copy.deepcopy(prepare).cpu()
        for part in (copied, self.prepare):
            for module in () if part is None else part.modules():
                module.training = False
        self.model = copied
        counts = copied.allot(samples) if isinstance(copied, Ensemble) else [samples]
        self.counts = tuple(counts)
        self.samples = sum(counts)
        self.scale = scale
        self.opaque = False
        # Clones, so that no tensor stands in two places of the call.
        self._args, self._kwargs = tree.map_tensors(
            lambda _, each: each.detach().cpu().clone(), (args, kwargs)
        )
        # An empty nn.Sequential is false.
        caller = self.members[0].backbone if self.prepare is None else self.prepare
        _check_names(caller, self._args, self._kwargs, prepare is not None)
        named = named_tensors(caller, self._args, self._kwargs)
        if not named:
            kinds = ", ".join(type(each).__name__ for each in (*args, *kwargs.values()))
            raise TypeError(
                f"example must hold at least one torch.Tensor, got ({kinds}); turn arrays into "
                "tensors with torch.as_tensor"
            )
        self._given = self._mask_names() if masks else ()
        readable = _readable(named, {*NAMES, SEED, *self._given})
        self._names = {id(tensor): name for name, tensor in readable.items()}
        self.example, self.batched = self._learn(dict(zip(readable, named, strict=True)), readable)
        self._folds = [self._can_fold(member) for member in self.members]
        if masks:
            self._take_masks()
        else:
            self.example[SEED] = torch.tensor(0)
        _with_names(self, tuple(self.example))

    @property
    def members(self) -> Sequence[MaskedModel]:
        """The models whose samples are pooled: one, unless it is an ensemble."""
        if isinstance(self.model, Ensemble):
            return self.model.members
        return (self.model,)

    @property
    def masks(self) -> tuple[str, ...]:
        """Names of the inputs that take masks, one per site; none if there is a seed."""
        return self._given

    @property
    def rows(self) -> int:
        """Of the example."""
        name = next(iter(self.batched))
        return self.example[name].shape[self.batched[name]]

    @cached_property
    def answers(self) -> dict[str, Tensor]:
        """What comes out for the example, by name."""
        with torch.no_grad():
            return self.run(self.example)

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Predict.

        Args:
            inputs: By name, as in ``example``.

        Returns:
            By name, as in :func:`gflowout.export.answers.answers`.
        """
        first, *others = (inputs[name].shape[axis] for name, axis in self.batched.items())
        for rows in others:  # one unknown size, not several
            torch._check(rows == first, _unequal)  # type: ignore[no-untyped-call]
        args, kwargs = self._call(inputs)
        masks = [inputs[name] for name in self._given]
        shares = [torch.split(mask, list(self.counts)) for mask in masks]
        parts: list[Tensor] = []
        likelihood = self.members[0].likelihood
        for index, (member, count) in enumerate(zip(self.members, self.counts, strict=True)):
            if not count:
                continue
            given = [share[index] for share in shares] if masks else None
            outputs = self._outputs(index, member, count, args, kwargs, inputs, given)
            # Each member's outputs with the noise that it has learned.
            settled, likelihood = member.likelihood.settle(outputs.flatten(0, 1))
            parts.append(settled.reshape(count, -1, *settled.shape[1:]))
        return answers(torch.cat(parts), likelihood, self.scale)

    def call(self) -> tuple[Args, Kwargs]:
        """The example as arguments of the model itself, prepared."""
        return self._call(self.example)

    def _call(self, inputs: Mapping[str, Tensor]) -> tuple[Args, Kwargs]:
        args, kwargs = tree.map_tensors(
            lambda _, tensor: inputs[self._names[id(tensor)]], (self._args, self._kwargs)
        )
        if self.prepare is None:
            return args, kwargs
        return (self.prepare(*args, **kwargs),), {}

    def _outputs(
        self,
        index: int,
        member: MaskedModel,
        count: int,
        args: Args,
        kwargs: Kwargs,
        inputs: Mapping[str, Tensor],
        given: list[Tensor] | None,
    ) -> Tensor:
        """Outputs of a member, [count, batch, ...]."""
        same = member.method.deterministic and given is None
        draws = [range(count)] if self._folds[index] else [range(at, at + 1) for at in range(count)]
        # A layer that reads the masked units must not take over their product, as it may in
        # `predict`: that is worked out by a kind of tensor that does not trace.
        sites = [dataclasses.replace(site, consumer=None) for site in member.sites]
        spec = member.spec
        runner = Runner(
            member.backbone, sites, dataclasses.replace(spec, padding=None), args, kwargs
        )
        if spec.padding is not None:  # its values, which are unknown here, are not looked at
            given_padding = named_tensors(member.backbone, args, kwargs).get(spec.padding)
            runner.real = None if given_padding is None else given_padding != 0
        parts = []
        for copies in [range(1)] if same else draws:
            if given is None:
                noise: Noise = Hashed(inputs[SEED], copies, index, self.opaque)
                trajectory = Trajectory(noise=noise)
            else:
                rows = slice(copies.start, copies.stop)
                trajectory = Trajectory(
                    noise=Noise(copies=len(copies)),
                    given=[mask[rows].flatten(0, 1) for mask in given],
                )
            output = logits_of(runner.run(member.method.draw, trajectory))
            parts.append(output.reshape(len(copies), -1, *output.shape[1:]))
        joined = torch.cat(parts) if len(parts) > 1 else parts[0]
        return joined.expand(count, *joined.shape[1:]) if same else joined

    def _learn(
        self, paths: Mapping[str, str], readable: Mapping[str, Tensor]
    ) -> tuple[dict[str, Tensor], dict[str, int]]:
        """The example by name, of at least two rows, and which inputs carry the batch."""
        spec = self.members[0].spec
        batched = {
            name: 0 for name in readable if self.prepare is not None or paths[name] in spec.batched
        }
        if not batched:
            raise ExportError(
                f"example must have an argument that carries the batch, as that of wrap had "
                f"({', '.join(spec.batched) or 'none'}), got {', '.join(paths.values())}"
            )
        sizes = {readable[name].shape[0] if readable[name].dim() else 0 for name in batched}
        if len(sizes) != 1 or 0 in sizes:
            raise ExportError(
                "example: arguments that carry the batch must have the same number of rows, at "
                f"least one, got {sorted(sizes)}"
            )
        # One row could not be told from an axis that is always 1.
        copies = 2 if sizes == {1} else 1
        example = {
            name: tree.repeat(tensor, copies) if name in batched else tensor
            for name, tensor in readable.items()
        }
        return example, batched

    def _can_fold(self, member: MaskedModel) -> bool:
        if member.spec.random:
            raise ExportError(
                "the backbone draws random numbers of its own, also in eval mode: a seed could not "
                "decide its answers"
            )
        args, kwargs = self._call(self.example)
        return BoundCall(member.backbone, args, kwargs, member.spec).can_fold

    def _mask_names(self) -> tuple[str, ...]:
        sites = self.members[0].sites
        if not sites:
            raise ExportError("masks=True needs a model with sites, this one has none")
        if len(self.members) > 1:
            check_same_sites(self.members)
        return tuple(f"masks_{index}" for index in range(len(sites)))

    def _take_masks(self) -> None:
        rows = self.rows
        for name, site in zip(self._given, self.members[0].sites, strict=True):
            self.example[name] = torch.ones(self.samples, rows, site.units)
            self.batched[name] = 1


def _unequal() -> str:
    return "all inputs must have the same number of rows"


def _with_names(module: Deployed, names: tuple[str, ...]) -> None:
    """Let the module be called by these names; the tracer reads them off the signature."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(name, kind) for name in names])

    def forward(*args: Tensor, **kwargs: Tensor) -> dict[str, Tensor]:
        return module.run(signature.bind(*args, **kwargs).arguments)

    forward.__signature__ = signature  # type: ignore[attr-defined]
    module.forward = forward


def _check_names(caller: nn.Module, args: Args, kwargs: Kwargs, prepares: bool) -> None:
    """Refuse a call that ``forward`` does not take."""
    try:
        # What is called, not what it wraps.
        signature = inspect.signature(caller.forward, follow_wrapped=False)
    except (TypeError, ValueError):  # it does not say
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        who = "prepare" if prepares else "the backbone"
        unknown = [name for name in kwargs if name not in signature.parameters]
        got = ", ".join(map(repr, unknown)) if unknown else f"a call with {error}"
        raise TypeError(
            f"example must have the arguments of {who}, got {got}; it takes "
            f"{', '.join(map(repr, signature.parameters)) or 'none'}"
        ) from error


def _readable(named: Mapping[str, Tensor], taken: Collection[str]) -> dict[str, Tensor]:
    """Tensors by names that programs can take: ``batch.x`` becomes ``batch_x``."""
    found: dict[str, Tensor] = {}
    for path, tensor in named.items():
        name = re.sub(r"\W", "_", path)
        if not name.isidentifier() or keyword.iskeyword(name) or name in taken:
            name = f"input_{name}"
        while name in found:
            name += "_"
        found[name] = tensor
    return found
