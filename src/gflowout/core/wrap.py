"""Give any ``nn.Module`` masks at its sites: arguments are checked and the example call is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from gflowout.core import checks
from gflowout.core.call import Call, CallSpec
from gflowout.core.likelihoods import TASKS, Likelihood, for_task
from gflowout.core.memory_format import warn_of_unsafe_layers
from gflowout.core.method import METHODS, Method
from gflowout.core.model import PREFIX, MaskedModel
from gflowout.core.options import Options
from gflowout.core.probe import learn, split_example
from gflowout.core.site_names import SiteNames, find_sites
from gflowout.core.sites import Site

RESERVED = frozenset({"y", "masks", "samples", "chunk", "generator", "return_masks"})
"""Keywords that the wrapped model takes for itself."""


def wrap(
    backbone: nn.Module,
    method: str | Options = "gflowout",
    sites: SiteNames = None,
    *,
    likelihood: Likelihood | str,
    example: Any,
    padding: str | None = None,
    preset: str | None = None,
    validate: bool = True,
    **options: Any,
) -> MaskedModel:
    """Wrap a module: the result is called like it, and learns and draws masks at its sites.

    Args:
        backbone: Any module. It is used, not copied; its weights and keys stay its own.
        method: A name listed in ``docs/reference/methods.md``: ``"gflowout"``, ``"mc"``, ...; or an
            object with the method's options, such as ``gfo.GFlowOut(beta=0.5)``, which editors
            complete. Options then go into the object, not into ``wrap``.
        sites: Names or glob patterns of submodules whose output is masked (``*`` crosses dots; of
            nested matches of a pattern the outermost; see :func:`sites`); ``"input"`` for the
            input itself; a mapping from these to the axis of the units, where it is ambiguous, or
            to :class:`Units` (groups of features, pixels, prior keep rates); or ``None`` for every
            ``nn.Dropout*``. ``"none"`` also takes ``()``, for the module as it is.
        likelihood: What the output means: :class:`Categorical`, :class:`Binary`,
            :class:`MultiLabel`, :class:`Gaussian`, another one of ``docs/guides/own-model.md`` or
            your own. ``"classification"``, ``"binary"``, ``"multilabel"`` and ``"regression"`` are
            the first four, sized by the output of the example.
        example: One real call: a tuple of positional or a dict of keyword arguments. Two examples
            are enough; nothing is trained on them.
        padding: Name of an argument of the backbone, [batch, tokens], that is not 0 (or True) where
            a position is real, such as ``"attention_mask"``. Mask generators then see averages over
            real positions, so that masks do not depend on how far a sentence was padded; see
            :meth:`gflowout.core.sites.Site.pool`. A call without it counts every position.
        preset: With a name, ``"paper"`` for the paper's own values of the options; ``"features"``,
            with ``"id-gflowout"``, for those that find which inputs matter.
        validate: Check the values of labels, inputs and outputs in every pass. Costs a few
            microseconds, and a synchronisation on accelerators.
        **options: With a name, options of the method, such as ``keep``. Each is described, with
            its default, in the class of the method's object, such as :class:`gflowout.GFlowOut`.

    Examples:
        >>> import torch
        >>> import gflowout as gfo
        >>> net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
        >>> x, y = torch.randn(8, 4), torch.randint(3, (8,))
        >>> model = gfo.wrap(net, sites=["1"], likelihood=gfo.Categorical(3), example=(x[:2],))
        >>> losses = model(x, y=y)
        >>> losses.total.backward()
        >>> model.predict(x).mean.shape
        torch.Size([8, 3])
        >>> method = gfo.GFlowOut(beta=0.5, keep=0.8)
        >>> model = gfo.wrap(net, method, ["1"], likelihood=gfo.Categorical(3), example=(x[:2],))
        >>> model.method.options
        GFlowOut(beta=0.5, prior_keep=0.8)
    """
    _check_arguments(backbone, likelihood, validate)
    kind, built = chosen(method, preset, options)
    names = find_sites(backbone, sites, empty=kind.deterministic)
    args, kwargs = split_example(example)
    _refuse_reserved(kwargs)
    learned, spec, output = learn(Call(backbone, args, kwargs), names, padding)
    if isinstance(likelihood, str):
        likelihood = for_task(likelihood, output)
    warn_of_unsafe_layers(backbone, [*args, *kwargs.values()])
    model = assemble(backbone, kind, learned, likelihood, spec, built, validate)
    model.likelihood.samples(output)  # an output that does not fit the likelihood fails here
    return model


def _check_arguments(backbone: Any, likelihood: Any, validate: Any) -> None:
    if not isinstance(backbone, nn.Module):
        raise TypeError(f"backbone must be an nn.Module, got {type(backbone).__name__}")
    if isinstance(backbone, MaskedModel):
        raise TypeError("backbone is wrapped already: wrap gfo.unwrap(model) instead")
    if isinstance(likelihood, str):
        checks.choice("likelihood", likelihood, TASKS)
    elif not isinstance(likelihood, Likelihood):
        raise TypeError(
            "likelihood must be gfo.Categorical(...), gfo.Gaussian(...) or another gfo.Likelihood, "
            f"or one of {', '.join(map(repr, TASKS))}, got {likelihood!r}"
        )
    checks.boolean("validate", validate)


def _refuse_reserved(keywords: Mapping[str, Any]) -> None:
    taken = RESERVED & keywords.keys()
    if taken:
        raise ValueError(
            f"example: {sorted(taken)[0]!r} is a keyword of the wrapped model's own ("
            f"{', '.join(sorted(RESERVED))}); give this argument of the backbone by position, or "
            "rename it"
        )


def chosen(
    method: str | Options, preset: str | None, options: Mapping[str, Any]
) -> tuple[type[Method], Options]:
    """Class and options of a method that is given by name or as an object.

    Examples:
        >>> import gflowout as gfo
        >>> chosen("mc", None, {"rate": 0.2}) == chosen(gfo.MC(rate=0.2), None, {})
        True
    """
    if isinstance(method, Options):
        name, more = type(method).__name__, {"preset": preset} if preset is not None else {}
        for keyword in (*more, *options):
            value = {**more, **options}[keyword]
            raise TypeError(
                f"{keyword}={value!r} was given beside the method object {method!r}: put it into "
                f"the object, {method.ALIAS or name}({keyword}={value!r}, ...)"
            )
        for kind in METHODS.values():
            if kind.Options is type(method):
                return kind, method
        raise ValueError(
            f"method is a {name}, which is of no registered method: set METHODS[name] of "
            "gflowout.methods to the class first"
        )
    given: Any = method
    if isinstance(given, type) and issubclass(given, Options | Method):
        own = given if issubclass(given, Options) else given.Options
        called = f"gfo.{own.ALIAS}()" if own.ALIAS else f"{own.__name__}()"
        raise TypeError(
            f"method must be a name or an object, got the class {given.__name__}: take {called}"
        )
    checks.choice("method", method, METHODS)
    kind = METHODS[method]
    return kind, kind.Options.build(method, preset, options)


def assemble(
    backbone: nn.Module,
    method: type[Method],
    sites: Sequence[Site],
    likelihood: Likelihood,
    spec: CallSpec,
    options: Any,
    validate: bool = True,
) -> MaskedModel:
    """Build a wrapped model from parts that are known already."""
    if hasattr(backbone, PREFIX):
        raise ValueError(f"the backbone has an attribute {PREFIX!r}, which wrapping needs")
    module = method(sites, likelihood, options)
    device = next((tensor.device for tensor in backbone.parameters()), None)
    if device is not None:
        module, likelihood = module.to(device), likelihood.to(device)
    return MaskedModel(backbone, module, likelihood, spec, validate)


def unwrap(model: MaskedModel) -> nn.Module:
    """Return the backbone of a wrapped model, with the weights it has now.

    Examples:
        >>> import torch
        >>> import gflowout as gfo
        >>> net = nn.Sequential(nn.Linear(4, 3))
        >>> example = (torch.zeros(2, 4),)
        >>> model = gfo.wrap(net, "mc", ["input"], likelihood=gfo.Categorical(3), example=example)
        >>> gfo.unwrap(model) is net
        True
    """
    if not isinstance(model, MaskedModel):
        raise TypeError(f"model must come from gfo.wrap, got {type(model).__name__}")
    return model.backbone
