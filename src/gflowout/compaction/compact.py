"""From a wrapped model and one mask per site to a smaller module with the same answers."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn

from gflowout.compaction.evidence import Evidence, Probe, Slices
from gflowout.compaction.report import CompactedSite, Compaction, measure
from gflowout.compaction.steps import Step, adapt_ranks, silent_parts, snapshot
from gflowout.core import checks
from gflowout.core.call import BoundCall, CallSpec, logits_of
from gflowout.core.model import MaskedModel
from gflowout.core.probe import split_example
from gflowout.core.runner import Runner, given_masks
from gflowout.core.sites import INPUT, Site
from gflowout.core.trajectory import Trajectory
from gflowout.core.view import evaluating

_CLOSE = 2e-5
"""Largest difference that rounding makes on the perturbed copy, relative to the output."""


@overload
def compact(
    model: MaskedModel,
    threshold: float = 0.5,
    masks: Sequence[Tensor] | None = None,
    *,
    example: Any = None,
    strict: bool = False,
    tolerance: float = 1e-5,
    return_report: Literal[False] = False,
) -> nn.Module: ...


@overload
def compact(
    model: MaskedModel,
    threshold: float = 0.5,
    masks: Sequence[Tensor] | None = None,
    *,
    example: Any = None,
    strict: bool = False,
    tolerance: float = 1e-5,
    return_report: Literal[True],
) -> tuple[nn.Module, Compaction]: ...


def compact(
    model: MaskedModel,
    threshold: float = 0.5,
    masks: Sequence[Tensor] | None = None,
    *,
    example: Any = None,
    strict: bool = False,
    tolerance: float = 1e-5,
    return_report: bool = False,
) -> nn.Module | tuple[nn.Module, Compaction]:
    """Remove the units that a mask leaves out: a smaller module with the same answers.

    The module is a plain one, in eval mode, a copy of the backbone: its output is that of
    ``model(x, masks=report.masks)``. The model itself does not change.

    Which weights write and read a unit is seen in the example call: they have no gradient when the
    unit is dropped. At each site the units are removed if the smaller module then gives the same
    output, and otherwise stay in place, as those of a residual stream must: with weights of 0
    or, where no weights are theirs alone, with the mask as a product in the forward pass.
    A warning names the sites where they stay; the report, if asked for, also says why.

    Args:
        model: Wrapped by :func:`wrap`.
        threshold: Units are kept if the probability of that is at least this. Methods that know
            it: ``"id-gflowout"``, ``"combined"`` (its shared masks), ``"concrete"``, ``"gates"``
            (which keep the value of their gate) and ``"masksembles"``. With all others masks depend
            on the example, and ``masks`` must be given.
        masks: One per site, [units] or [1, units], instead of those of the threshold. The method
            rescales them as in a prediction.
        example: One real call, as for :func:`wrap`; ``None``: random inputs of the shapes of that
            one. Latency is measured on it.
        strict: Raise if units of a site cannot be removed.
        tolerance: Largest difference from the masked model on the example; relative to the
            largest output, if that is above 1.
        return_report: Also measure parameters, FLOPs and latency before and after.

    Returns:
        The module; with ``return_report`` the module and a :class:`Compaction`.

    Examples:
        >>> import gflowout as gfo
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x, likelihood = torch.randn(5, 4), gfo.Categorical(3)
        >>> model = gfo.wrap(net, "mc", ["1"], likelihood=likelihood, example=(x,), rescale="none")
        >>> masks = [torch.tensor([1.0, 0, 0, 1, 1, 0, 0, 0])]
        >>> small = gfo.compact(model, masks=masks)
        >>> small[0], torch.allclose(small(x), model(x, masks=[masks[0][None]]), atol=1e-5)
        (Linear(in_features=4, out_features=3, bias=True), True)
    """
    if not isinstance(model, MaskedModel):
        raise TypeError(f"model must come from gfo.wrap, got {type(model).__name__}")
    checks.number("threshold", threshold, low=0, high=1)
    checks.number("tolerance", tolerance, low=0, open_low=True)
    checks.boolean("return_report", return_report)
    chosen = _masks(model, threshold, masks)
    args, kwargs = split_example(_random_call(model) if example is None else example)
    call = BoundCall(model.backbone, args, kwargs, model.spec)
    small, rows, difference = _smaller(model, call, chosen, strict, tolerance)
    if return_report:
        with evaluating(model.backbone) as backbone:
            return small, Compaction(rows, chosen, difference, **measure(backbone, small, call))
    _warn_of_units_in_place(rows)
    return small


def _smaller(
    model: MaskedModel, call: BoundCall, masks: list[Tensor], strict: bool, tolerance: float
) -> tuple[nn.Module, list[CompactedSite], float]:
    """The module, what was done at every site, and the difference from the masked model."""
    multipliers, expected = _multipliers(model, call, masks)
    steps, rows = _plan(model, call, multipliers, strict)
    small = copy.deepcopy(model.backbone).eval()
    for step, multiplier in zip(steps, multipliers, strict=True):
        step.apply(small, multiplier)
    adapt_ranks(small)
    with torch.no_grad():
        output = logits_of(small(*call.repeated(1)[0], **call.repeated(1)[1]))
    difference = _difference(output, expected)
    if not difference <= tolerance:
        raise ValueError(
            f"the compacted module differs from the masked model by {difference:.2g} on `example`, "
            f"above tolerance={tolerance:g}"
        )
    return small, rows, difference


def _warn_of_units_in_place(rows: Sequence[CompactedSite]) -> None:
    in_place = [f"{row.name!r} ({row.how})" for row in rows if row.how not in ("", "removed")]
    if in_place:
        sites = "site" if len(in_place) == 1 else "sites"
        warnings.warn(
            f"units cannot be removed altogether at {sites} {', '.join(in_place)}: the answers are "
            "right, but less is saved; return_report=True says why",
            stacklevel=3,
        )


def _masks(model: MaskedModel, threshold: float, masks: Any) -> list[Tensor]:
    """One mask per site, [1, units]."""
    if masks is None:
        fixed = model.method.fixed_masks(threshold)
        if fixed is None:
            raise ValueError(
                f"masks must be given for method {model.method.name!r}, which has no masks of 0 "
                "and 1 that all examples share: one [units] per site, such as "
                "[model.inclusion(x, site=site.name).support(0.5) for site in model.sites], from "
                "the mean over the examples x"
            )
        return [mask.unsqueeze(0) for mask in fixed]
    if isinstance(masks, Sequence):
        flat = [isinstance(mask, Tensor) and mask.dim() == 1 for mask in masks]
        masks = [mask[None] if one else mask for mask, one in zip(masks, flat, strict=True)]
    return given_masks(masks, model.method, 1, values=True)


def _random_call(model: MaskedModel) -> dict[str, Any]:
    """Random arguments of the shapes in the example that the model was wrapped with.

    Integers are 0 and 1, which nearly all tables and masks take; padding is all real.
    """
    spec: CallSpec = model.spec
    generator = torch.Generator().manual_seed(0)
    like = next((p for p in model.backbone.parameters() if p.is_floating_point()), torch.empty(0))
    values = {}
    for path, shape in spec.shapes.items():
        if not path.isidentifier():
            raise ValueError(
                f"example must be given: no input can be made up for argument {path!r}, which is "
                "inside another one or has no name"
            )
        if spec.floating[path]:
            values[path] = torch.randn(shape, generator=generator).to(like)
        else:
            ones = path == spec.padding or path == "attention_mask"
            numbers = torch.randint(int(ones), 2, shape, generator=generator)
            values[path] = numbers.to(like.device)
    return values


def _multipliers(
    model: MaskedModel, call: BoundCall, masks: list[Tensor]
) -> tuple[list[Tensor], Tensor]:
    """What the masked model multiplies units by, [units] per site, and its output."""
    multipliers: list[Tensor] = []

    def draw(site: int, activation: Tensor, trajectory: Trajectory) -> Tensor:
        used = resting.method.draw(site, activation, trajectory)
        if not torch.allclose(used, used[:1]):
            raise ValueError(
                f"method {model.method.name!r} scales masks by rates that depend on the example at "
                f"site {model.sites[site].name!r}, so that no fixed weights do the same"
            )
        multipliers.append(used[0].detach().float().cpu())
        return used

    with torch.inference_mode(False), torch.no_grad(), evaluating(model) as resting:
        runner = Runner(resting.backbone, model.sites, model.spec, call.args, call.kwargs)
        output = logits_of(runner.run(draw, Trajectory(given=masks)))
    return multipliers, output


def _plan(
    model: MaskedModel, call: BoundCall, multipliers: list[Tensor], strict: bool
) -> tuple[list[Step], list[CompactedSite]]:
    """Find a step for every site on a perturbed copy, one after the other."""
    probe = Probe(model.backbone, call)
    exaggerated = [_exaggerated(multiplier) for multiplier in multipliers]
    expected = []
    for end in range(1, len(model.sites) + 1):
        with torch.no_grad():
            expected.append(probe.run(model.sites[:end], exaggerated[:end]))
    steps, rows = [], []
    for at, (site, multiplier) in enumerate(zip(model.sites, exaggerated, strict=True)):
        how, step, reason = _step(probe, site, multiplier, model.sites[at + 1 :], expected[at])
        kept = int((multiplier != 0).sum())
        if strict and how not in ("", "removed"):
            raise ValueError(
                f"units of site {site.name!r} cannot be removed, and strict=True: {reason}"
            )
        steps.append(step)
        rows.append(CompactedSite(site.name, site.units, kept, how, reason))
    return steps, rows


def _exaggerated(multiplier: Tensor) -> Tensor:
    """Multipliers that are 0 and 1 where the given ones are, and clearly neither elsewhere.

    A factor near 1 in the wrong place would hardly change the output.
    """
    plain = (multiplier == 0) | (multiplier == 1)
    others = 0.5 + torch.rand(len(multiplier), generator=torch.Generator().manual_seed(0))
    factors = multiplier[~plain]
    if bool((factors == factors[:1]).all()):  # one for all
        others[:] = 1.5
    return torch.where(plain, multiplier, others)


def _step(
    probe: Probe, site: Site, multiplier: Tensor, later: Sequence[Site], target: Tensor
) -> tuple[str, Step, str]:
    """The first change that gives the output of the masked copy, and why none before it did.

    Sites after this one must keep their shape.
    """
    if bool((multiplier == 1).all()):
        return "", Step(site), ""
    ones = [torch.ones(after.units) for after in later]
    scale = float(target.abs().max()) or 1.0
    reason = ""
    for how, step in _candidates(probe, site, multiplier):
        restore = snapshot(probe.module)
        try:
            step.apply(probe.module, multiplier)
            with torch.no_grad():
                difference = _difference(probe.run(later, ones), target, scale)
            if difference <= _CLOSE or step.masked:
                why = reason or "no weights are theirs alone"
                return how, step, "" if how in ("", "removed") else why
            failure = f"without them the output changes by {difference:.2g}"
        except Exception as error:  # whatever a module does when its sizes do not fit
            if step.masked:
                raise
            failure = "without them the module fails: " + str(error).partition("\n")[0]
        restore()
        reason = reason or failure
    raise AssertionError("the last change is always right")


def _candidates(probe: Probe, site: Site, multiplier: Tensor) -> Iterator[tuple[str, Step]]:
    """What may be done at a site, best first; the last one is always right."""
    evidence = Evidence(probe, site)
    dropped = multiplier == 0
    rest = torch.zeros_like(dropped)
    rest[0] = bool(dropped.all())  # nothing of size 0: one unit stays, with weights of 0
    folds = list(_folds(evidence, site, multiplier))
    cut = evidence.slices(dropped & ~rest)
    cut = {name: axes for name, axes in cut.items() if any(map(_partial, axes.values()))}
    zero = evidence.slices(rest)
    if cut:
        for fold in folds:
            for counted in (True, False):
                yield "removed", Step(site, cut, zero, fold, counted=counted)
    if bool(dropped.all()):
        idle, calls = evidence.idle_parts(), probe.calls()
        # An outer part may also pass something on, such as a residual: then only those inside.
        inner = [n for n in idle if not any(other.startswith(f"{n}.") for other in idle)]
        for names in [idle] if inner == idle else [idle, inner]:
            silent = silent_parts(names, calls)
            if silent:
                yield "removed", Step(site, silent=silent)
    if cut and len(site.axes) == 1 and site.name != INPUT:
        for fold in folds:
            yield "padded", Step(site, cut, zero, fold, padded=True, counted=False)
    zero = evidence.slices(dropped)
    for fold in folds:
        if zero or fold:
            yield "zeroed" if bool(dropped.any()) else "", Step(site, zero=zero, fold=fold)
    yield "masked", Step(site, masked=True)


def _partial(dead: Tensor) -> bool:
    return not bool(dead.all())


def _folds(evidence: Evidence, site: Site, multiplier: Tensor) -> Iterator[Slices]:
    """Where the factors of kept units may go: the weights of one module that writes or reads them.

    Or those of all parts of one, as of a layer with an adapter. Slices are taken to be in the order
    of the units; if they are not, the outputs differ later.
    """
    scaled = (multiplier != 0) & (multiplier != 1)
    if not bool(scaled.any()):
        yield {}
        return
    elements = torch.arange(site.units)
    if site.layout is not None:
        elements = torch.tensor(site.layout.unit)
    elements = elements[scaled[elements.clamp(min=0)] & (elements >= 0)]
    modules: dict[str, Slices] = {}
    for name, axes in evidence.slices(scaled).items():
        for axis, places in axes.items():
            if int(places.sum()) % len(elements) == 0:
                unit = torch.full(places.shape, -1)
                unit[places] = elements.repeat_interleave(int(places.sum()) // len(elements))
                path = name.split(".")
                for end in range(len(path) - 1, max(len(path) - 4, 0), -1):
                    whole = modules.setdefault(".".join(path[:end]), {})
                    whole.setdefault(name, {})[axis] = unit
    own = {name.rpartition(".")[0] for slices in modules.values() for name in slices}
    yield from (modules[module] for module in own)
    yield from (slices for module, slices in modules.items() if module not in own)


def _difference(output: Tensor, expected: Tensor, scale: float | None = None) -> float:
    """Largest difference of two outputs, over ``scale``; by default the largest, if above 1."""
    if output.shape != expected.shape:
        raise ValueError(f"the output is {list(output.shape)}, not {list(expected.shape)}")
    scale = max(float(expected.abs().max()), 1.0) if scale is None else scale
    return float((output - expected).abs().max()) / scale
