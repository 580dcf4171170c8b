"""A wrapped model as one plain function of named tensors, which can be traced into a file."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import keyword
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from gflowout.core import tree
from gflowout.core.call import Args, BoundCall, Kwargs, logits_of, named_tensors
from gflowout.core.ensemble import Ensemble
from gflowout.core.ensemble_checks import check_same_sites
from gflowout.core.model import MaskedModel
from gflowout.core.noise import Noise
from gflowout.core.predictive import Predictive, settled
from gflowout.core.runner import Runner
from gflowout.core.trajectory import Trajectory
from gflowout.export import answers
from gflowout.export.noise import Hashed

SEED = "seed"  # name of the input that decides all draws


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

    Works on a copy in eval mode on the CPU; the model is not changed. All draws are folded into one
    batch where the backbone allows it. Call it with keyword arguments, like the file that is made
    of it: ``deployed(x=x, seed=torch.tensor(0))``.

    Args:
        model: From :func:`gflowout.wrap`, or an ensemble.
        args: Positional arguments of one real call.
        kwargs: Keyword arguments of it.
        samples: Draws; for an ensemble those of all members, see ``Ensemble.allot``.
        masks: Take masks, one [samples, batch, units] per site, instead of a seed.
        prepare: Turns the arguments of the call into the one that the model takes.
        scale: Mean and standard deviation of the labels of a regression before they were
            standardised: answers are then in the units of the labels.
        decisions: Fitted scalers, sets, intervals and rules of :mod:`gflowout.calibration`,
            :mod:`gflowout.conformal` and :mod:`gflowout.selective`, in the order in which they are
            applied.

    Attributes:
        example: A call of this module, by name of the input.
        batched: Names of the inputs that carry the batch, with the axis that does.
        samples: Draws in all.
        masks: Names of the inputs that take masks, one per site; none if there is a seed.

    Examples:
        >>> import gflowout as gfo
        >>> x = torch.randn(5, 4)
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> model = gfo.wrap(net, "mc", ["1"], likelihood=gfo.Categorical(3), example=(x,))
        >>> deployed = Deployed(model, (x,), {}, samples=10)
        >>> list(deployed.example)
        ['input', 'seed']
        >>> answer = deployed(input=torch.randn(2, 4), seed=torch.tensor(0))
        >>> answer["samples"].shape, answer["mutual_information"].shape
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
        decisions: Any = (),
    ) -> None:
        super().__init__()
        self.decisions = answers.checked(decisions)
        with torch.no_grad():
            copied = copy.deepcopy(model).cpu().requires_grad_(False)
            self.prepare = None if prepare is None else copy.deepcopy(prepare).cpu()
        self.model = copied
        for module in self.modules():
            module.training = False
        counts = copied.allot(samples) if isinstance(copied, Ensemble) else [samples]
        self.counts = tuple(counts)
        self.samples = sum(counts)
        self.scale = scale
        self.opaque = False
        # Clones, so that no tensor occurs twice in the call.
        self._args, self._kwargs = tree.map_tensors(
            lambda _, tensor: tensor.detach().cpu().clone(), (args, kwargs)
        )
        # Not `prepare or ...`: an empty nn.Sequential is false.
        caller = self.members[0].backbone if self.prepare is None else self.prepare
        _check_names(caller, self._args, self._kwargs, prepare is not None)
        named = named_tensors(caller, self._args, self._kwargs)
        if not named:
            kinds = ", ".join(type(value).__name__ for value in (*args, *kwargs.values()))
            raise TypeError(
                f"example must hold at least one torch.Tensor, got ({kinds}); turn arrays into "
                "tensors with torch.as_tensor"
            )
        self.masks = self._mask_names() if masks else ()
        outputs = *answers.SCORES, *answers.outputs_of(self.decisions)
        readable = _readable(named, {*outputs, SEED, *self.masks})
        self._names = {id(tensor): name for name, tensor in readable.items()}
        self.example, self.batched = self._with_batch(readable, list(named))
        self._folds = [self._can_fold(member) for member in self.members]
        if masks:
            for name, site in zip(self.masks, self.members[0].sites, strict=True):
                self.example[name] = torch.ones(self.samples, self.rows, site.units)
                self.batched[name] = 1
        else:
            self.example[SEED] = torch.tensor(0)
        _set_signature(self, tuple(self.example))
        if self.decisions:
            with torch.no_grad():
                answers.check_fit(self.decisions, self._prediction(self.example))

    @property
    def members(self) -> Sequence[MaskedModel]:
        """The models whose samples are pooled: one, unless it is an ensemble."""
        if isinstance(self.model, Ensemble):
            return self.model.members
        return (self.model,)

    @property
    def rows(self) -> int:
        """Number of rows of the example."""
        name, axis = next(iter(self.batched.items()))
        return self.example[name].shape[axis]

    @cached_property
    def answers(self) -> dict[str, Tensor]:
        """Outputs for the example, by name."""
        with torch.no_grad():
            return self.run(self.example)

    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Predict ``mean``, ``samples`` and the scores of :class:`gflowout.Predictive`, by name.

        Args:
            inputs: By name, as in ``example``.
        """
        return answers.decided(self.values(inputs))

    def values(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same with margins in place of ``set`` and ``defer``, yes where above 0.

        Args:
            inputs: By name, as in ``example``.
        """
        return answers.values(self._prediction(inputs), self.decisions, self.scale)

    def _prediction(self, inputs: Mapping[str, Tensor]) -> Predictive:
        message = "all inputs must have the same number of rows"
        first, *others = (inputs[name].shape[axis] for name, axis in self.batched.items())
        for rows in others:  # one unknown size, not several
            torch._check(rows == first, lambda: message)  # type: ignore[no-untyped-call]
        args, kwargs = self.call(inputs)
        parts = [
            # Each member's outputs with the noise that it has learned.
            settled(self._outputs(index, args, kwargs, inputs), member.likelihood, samples=count)
            for index, (member, count) in enumerate(zip(self.members, self.counts, strict=True))
            if count
        ]
        return Predictive(torch.cat([part.outputs for part in parts]), parts[0].likelihood)

    def call(self, inputs: Mapping[str, Tensor] | None = None) -> tuple[Args, Kwargs]:
        """Inputs as arguments of the model itself, prepared; those of the example if not given."""
        named = self.example if inputs is None else inputs
        args, kwargs = tree.map_tensors(
            lambda _, tensor: named[self._names[id(tensor)]], (self._args, self._kwargs)
        )
        if self.prepare is None:
            return args, kwargs
        return (self.prepare(*args, **kwargs),), {}

    def _outputs(
        self, index: int, args: Args, kwargs: Kwargs, inputs: Mapping[str, Tensor]
    ) -> Tensor:
        """Outputs of a member, [draws, batch, ...], under given masks or those of the seed.

        A single draw stands for all of them where they are the same.
        """
        member = self.members[index]
        # The next layer must not apply the masks to its weights, as it may in `predict`: the lazily
        # evaluated tensors that this takes cannot be traced.
        sites = [dataclasses.replace(site, consumer=None) for site in member.sites]
        spec = dataclasses.replace(member.spec, padding=None)
        runner = Runner(member.backbone, sites, spec, args, kwargs)
        if member.spec.padding is not None:  # unchecked, because its values are unknown in a trace
            padding = named_tensors(member.backbone, args, kwargs).get(member.spec.padding)
            runner.real = None if padding is None else padding != 0
        draws = 1 if member.method.deterministic and not self.masks else self.counts[index]
        step = draws if self._folds[index] else 1
        before = sum(self.counts[:index])
        parts = []
        for start in range(0, draws, step):
            if self.masks:
                own = slice(before + start, before + start + step)
                masks = [inputs[name][own].flatten(0, 1) for name in self.masks]
                trajectory = Trajectory(noise=Noise(copies=step), given=masks)
            else:
                draw = range(start, start + step)
                trajectory = Trajectory(noise=Hashed(inputs[SEED], draw, index, self.opaque))
            output = logits_of(runner.run(member.method.draw, trajectory))
            parts.append(output.reshape(step, -1, *output.shape[1:]))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _with_batch(
        self, inputs: Mapping[str, Tensor], paths: Sequence[str]
    ) -> tuple[dict[str, Tensor], dict[str, int]]:
        """The example by name, of at least two rows, and which inputs have the batch axis.

        ``paths`` are those of the inputs in the call, in the same order.
        """
        spec = self.members[0].spec
        batched = {
            name: 0
            for name, path in zip(inputs, paths, strict=True)
            if self.prepare is not None or path in spec.batched
        }
        if not batched:
            raise ExportError(
                f"example must have an argument that carries the batch, as that of wrap had "
                f"({', '.join(spec.batched) or 'none'}), got {', '.join(paths)}"
            )
        sizes = {inputs[name].shape[0] if inputs[name].dim() else 0 for name in batched}
        if len(sizes) != 1 or 0 in sizes:
            raise ExportError(
                "example: arguments that carry the batch must have the same number of rows, at "
                f"least one, got {sorted(sizes)}"
            )
        # One row could not be distinguished from an axis that is always 1.
        copies = 2 if sizes == {1} else 1
        example = {
            name: tree.repeat(tensor, copies) if name in batched else tensor
            for name, tensor in inputs.items()
        }
        return example, batched

    def _can_fold(self, member: MaskedModel) -> bool:
        if member.spec.random:
            raise ExportError(
                "the backbone draws random numbers of its own, also in eval mode: a seed could not "
                "decide its answers"
            )
        return BoundCall(member.backbone, *self.call(), member.spec).can_fold

    def _mask_names(self) -> tuple[str, ...]:
        sites = self.members[0].sites
        if not sites:
            raise ExportError("masks=True needs a model with sites, this one has none")
        if len(self.members) > 1:
            check_same_sites(self.members)
        return tuple(f"masks_{index}" for index in range(len(sites)))


def _set_signature(module: Deployed, names: tuple[str, ...]) -> None:
    """Give ``forward`` arguments of these names, which the tracer reads from its signature."""
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
    readable: dict[str, Tensor] = {}
    for path, tensor in named.items():
        name = re.sub(r"\W", "_", path)
        if not name.isidentifier() or keyword.iskeyword(name) or name in taken:
            name = f"input_{name}"
        while name in readable:
            name += "_"
        readable[name] = tensor
    return readable
