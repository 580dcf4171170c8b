"""Learn from one example call: the sites in execution order, and how the backbone is called.

The example is run once as it is and once with its batch doubled (:mod:`gflowout.core.trace`). What
the two runs show is kept; what they do not show is not assumed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

from torch import Tensor, nn

from gflowout.core import checks, tree
from gflowout.core.call import Args, Call, CallSpec, Kwargs, first_size, real_positions
from gflowout.core.sites import DROPOUTS, INPUT, Site
from gflowout.core.trace import (
    Trace,
    close,
    independent_rows,
    masked_call,
    padded_call,
    rolled_call,
    trace_call,
    unused_sites,
    widened_call,
)
from gflowout.core.units import Units, keep_rates, layout_of

_MOST_CANDIDATES = 4
"""Arguments of the size of the batch up to which all combinations are tried."""


def split_example(example: Any) -> tuple[Args, Kwargs]:
    """Return the positional and keyword arguments of ``example``."""
    if isinstance(example, Mapping):
        return (), dict(example)
    if isinstance(example, tuple | list):
        return tuple(example), {}
    raise TypeError(
        "example must be a tuple of positional arguments or a dict of keyword arguments of the "
        f"backbone, such as example=(x[:2],), got {type(example).__name__}"
    )


def learn(
    call: Call, names: Mapping[str, Units], padding: str | None = None
) -> tuple[list[Site], CallSpec, Tensor]:
    """Run the example; return the sites in execution order, how to call, and the output.

    ``padding`` is the name of the argument that tells real positions from padding.
    """
    trace, mutates = run_example(call, names)
    if padding is not None:
        checks.choice("padding", padding, call.tensors)
    batch = trace.output.shape[0]
    batched, doubled = _find_batched(call, trace)
    fixed, unfoldable = _compare(trace, doubled)
    folded = _several_rows(call, batched, trace, doubled)
    sites = [
        _with_consumer(
            _site(name, shape, units, batch, call.backbone, doubled, name in folded), shape, readers
        )
        for (name, shape, units), readers in zip(trace.sites, trace.readers, strict=True)
    ]
    if any(site.folded == "batch" for site in sites):
        doubled = None  # one mask serves a whole pass, so that every draw needs its own
    if doubled is not None and not independent_rows(call, batched, sites, trace.output):
        doubled = None
    for site in unused_sites(call, sites, trace.output):
        recurrent = site.name != INPUT and isinstance(
            call.backbone.get_submodule(site.name), nn.RNNBase
        )
        raise ValueError(
            f"site {site.name!r} has no influence on the output of the backbone: its masks would "
            "change nothing, and predictions would look certain. Name a submodule whose output the "
            "result is computed from"
            + ("; of a recurrent layer the sequence is masked, not the state" if recurrent else "")
        )
    if padding is not None:
        tokens = real_positions(padding, call.tensors[padding], batch).shape[1]
        sites = [
            site.with_tokens(_unfolded(site, shape, batch), tokens)
            for site, (_, shape, _) in zip(sites, trace.sites, strict=True)
        ]
    spec = CallSpec(
        shapes={path: tuple(tensor.shape) for path, tensor in call.tensors.items()},
        floating={path: tensor.is_floating_point() for path, tensor in call.tensors.items()},
        batched=batched,
        foldable=doubled is not None,
        fixed=fixed,
        unfoldable=unfoldable,
        mutates=mutates,
        footprint=max(trace.largest // max(batch, 1), 1),
        random=trace.random,
        parts_at_first_site=bool(sites)
        and doubled is not None
        and not trace.random
        and _parts_at_first(call, sites[0], batched, doubled),
        padding=padding,
    )
    return sites, spec, trace.output


def _check_example(call: Call) -> None:
    if not call.tensors:
        raise TypeError(
            f"example must hold at least one torch.Tensor, got ({call.kinds()}); turn arrays into "
            "tensors with torch.as_tensor"
        )
    for path, tensor in call.tensors.items():
        if tensor.numel() == 0:
            raise ValueError(
                f"example must hold a batch of real inputs, got {path!r} of shape "
                f"{list(tensor.shape)}"
            )


def run_example(call: Call, names: Mapping[str, Units], idle: bool = False) -> tuple[Trace, bool]:
    """Trace the example on a copy of its tensors; tell also whether the backbone changed them.

    ``idle`` allows sites that do not run.
    """
    _check_example(call)
    copy = Call(call.backbone, *tree.clone((call.args, call.kwargs)))
    versions = {path: _version(tensor) for path, tensor in copy.tensors.items()}
    try:
        trace = trace_call(copy, names)
    except Exception as error:
        if str(error).startswith(("site ", "the backbone must")):
            raise
        shapes = ", ".join(
            f"{path}: {list(tensor.shape)} {tensor.dtype}" for path, tensor in call.tensors.items()
        )
        wanted = next((p.dtype for p in call.backbone.parameters() if p.is_floating_point()), None)
        other = [
            path
            for path, tensor in call.tensors.items()
            if wanted and tensor.is_floating_point() and tensor.dtype != wanted
        ]
        hint = f"; its weights are {wanted}, so convert {other[0]} to it" if other else ""
        raise ValueError(f"the backbone failed on `example` ({shapes}): {error}{hint}") from error
    for name in names:
        runs = trace.runs.get(name, 0)
        if runs == 0 and not idle:
            raise ValueError(f"site {name!r} did not run in the forward pass of `example`")
        if runs > 1:
            raise ValueError(
                f"site {name!r} ran {runs} times in the forward pass of `example`: give each place "
                "a submodule of its own and name those"
            )
    return trace, any(_version(tensor) != versions[path] for path, tensor in copy.tensors.items())


def _site(
    name: str,
    shape: tuple[int, ...],
    units: Units,
    batch: int,
    backbone: nn.Module,
    doubled: Trace | None,
    several_rows: bool,
) -> Site:
    """A site from the shape of its activation; ``several_rows``: of an example, on axis 0."""
    rank = len(shape)
    if rank < 2:
        raise ValueError(
            f"site {name!r} gives shape {list(shape)}: it needs a batch axis and a unit axis"
        )
    axes = _axes(name, shape, units)
    module = None if name == INPUT else backbone.get_submodule(name)
    sequence_first = getattr(module, "batch_first", True) is False
    candidates = [at for at in ((1, 0) if sequence_first else (0, 1)) if at not in axes]
    if doubled is not None and name in doubled.shapes:
        # As many steps as examples look alike, but only the batch grows with the batch.
        after = doubled.shapes[name][0]
        candidates = [at for at in candidates if after[at] == 2 * shape[at]]
    elif (
        doubled is None
        and rank > 2
        and not sequence_first
        and shape[0] == shape[1] == batch
        and axes[0] > 1
    ):
        raise ValueError(
            f"site {name!r} gives shape {list(shape)}, in which axes 0 and 1 are of one size and "
            "either may be the batch: give an example whose batch differs from its other sizes"
        )
    batch_axis = next((at for at in candidates if shape[at] == batch), None)
    folded = None
    if several_rows or batch_axis is None:
        folded, batch_axis = "examples" if several_rows else "batch", 0
    if (folded and 0 in axes) or (rank == 2 and batch_axis == 1):
        raise ValueError(
            f"site {name!r} gives shape {list(shape)}, in which no axis before the units (axis "
            f"{axes[0]}) is the batch of {batch} that the backbone returns for `example`"
        )
    rate = float(module.p) if isinstance(module, DROPOUTS) else None
    sizes = tuple(shape[axis] for axis in axes)
    if folded:
        axes, rank = tuple(axis + 1 for axis in axes), rank + 1
    layout = layout_of(units, axes, sizes)
    keep = keep_rates(units, layout)
    plain = len(axes) == 1 and layout.unit == tuple(range(sizes[0]))
    return Site(
        name, layout.units, axes[0], rank, batch_axis, rate,
        layout=None if plain else layout, keep=keep, folded=folded,
    )  # fmt: skip


def _unfolded(site: Site, shape: tuple[int, ...], batch: int) -> tuple[int, ...]:
    """Shape of an activation as the site sees it; see :meth:`Site.unfold`."""
    if site.folded is None:
        return shape
    count = batch if site.folded == "examples" else 1
    return (count, shape[0] // count, *shape[1:])


def _several_rows(
    call: Call, batched: Sequence[str], trace: Trace, doubled: Trace | None
) -> set[str]:
    """Sites whose first axis has several rows of one example after the other, such as frames.

    Their rows must follow the examples when these change places; the same rows everywhere prove
    nothing.
    """
    batch, sites = len(trace.output), {}
    for name, shape, units in trace.sites:
        after = doubled.shapes.get(name, [()])[0] if doubled is not None else ()
        several = bool(shape) and shape[0] % batch == 0 < shape[0] - batch
        if several and after == (2 * shape[0], *shape[1:]):
            sites[name] = units
    if not sites:
        return set()
    padded = trace_call(padded_call(call, batched), sites, keep=True)
    turned = trace_call(rolled_call(padded_call(call, batched), batched), sites, keep=True)
    proven = set()
    for name, activation in padded.activations.items():
        moved = activation.roll(len(activation) // len(padded.output), 0)
        if close(turned.activations[name], moved) and not close(activation, moved):
            proven.add(name)
    return proven


def _axes(name: str, shape: tuple[int, ...], units: Units) -> tuple[int, ...]:
    """Axes of the units, in rising order."""
    rank = len(shape)
    wanted = units.axis
    if wanted is None:
        wanted = 1 if rank >= 4 else -1
        if units.patch is not None and rank >= 4:
            raise ValueError(
                f"sites: patch of {name!r} needs to know the axes of the picture, as in "
                "gfo.Units(axis=(2, 3), patch=4)"
            )
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for axis in wanted:
        if not -rank <= axis < rank:
            raise ValueError(f"sites: axis {axis} of {name!r} is outside its shape {list(shape)}")
    axes = tuple(axis % rank for axis in wanted)
    if list(axes) != sorted(set(axes)):
        raise ValueError(
            f"sites: axis of {name!r} must name different axes in rising order, got {wanted}"
        )
    return axes


def _with_consumer(site: Site, shape: tuple[int, ...], readers: Mapping[str, int]) -> Site:
    """Add the first layer after the site that takes as many inputs as it has units.

    Channels that are flattened reach a linear layer as channels times positions.
    """
    sizes = {math.prod(site.shape)}
    if site.axis == (1 if site.folded is None else 2):
        sizes.add(math.prod(shape[1:]))
    consumer = next((name for name, size in readers.items() if size in sizes), None)
    return dataclasses.replace(site, consumer=consumer)


def _find_batched(call: Call, trace: Trace) -> tuple[tuple[str, ...], Trace | None]:
    """Tell which arguments carry the batch: the fewest that may be doubled together.

    An argument of another meaning can happen to have the size of the batch. If nothing works, a
    single candidate is still taken for the batch.
    """
    batch = trace.output.shape[0]
    candidates = [path for path, tensor in call.tensors.items() if first_size(tensor) == batch]
    sizes = range(1, len(candidates) + 1) if len(candidates) <= _MOST_CANDIDATES else ()
    for size in sizes:
        passes = {chosen: _double(call, chosen, trace) for chosen in combinations(candidates, size)}
        working = {path for chosen, doubled in passes.items() if doubled for path in chosen}
        if working:  # more than one choice: an example of one row does not tell them apart
            chosen = tuple(path for path in candidates if path in working)
            return chosen, passes.get(chosen) or _double(call, chosen, trace)
    if candidates and _time_first(call, candidates[0], trace):
        return (), None
    return tuple(candidates) if len(candidates) == 1 else (), None


def _time_first(call: Call, path: str, trace: Trace) -> bool:
    """Whether axis 1 of an argument is the batch, though axis 0 is of its size; raise for outputs.

    More rows there give more rows of the output, and the ones that were there do not change.
    """
    tensor, output = call.tensors[path], trace.output
    if tensor.dim() < 2:
        return False
    size = tensor.shape[1]
    try:
        wide = masked_call(widened_call(call, size))
    except Exception:
        return False
    if size == len(output) and close(wide[: len(output)], output) and len(wide) == 2 * size:
        return True
    recurrent = any(
        getattr(module, "batch_first", True) is False or isinstance(module, nn.RNNCellBase)
        for module in call.backbone.modules()
    )
    out = output.dim() > 1 and output.shape[1] == size and wide.shape[1:2] == (2 * size,)
    if recurrent and out and close(wide[:, :size], output):
        raise ValueError(
            f"the backbone takes and returns the batch on axis 1: argument {path!r} of shape "
            f"{list(tensor.shape)} gives {list(output.shape)}, and rows of axis 0 depend on each "
            "other, as steps in time do. The output must start with the batch: return "
            "output.transpose(0, 1), and give labels in that order"
        )
    return False


def _double(call: Call, batched: Sequence[str], trace: Trace) -> Trace | None:
    """Run the example with other rows added to its batch; return the pass if folding is safe.

    It is if the rows of the example come out as they did alone, whether they come first, last or in
    the middle: a network may look at fixed rows, such as the nodes of a graph. Added rows must
    differ: a network that mixes the batch, with its mean say, would not notice copies. A single row
    in front tells whether rows are taken in groups, which copies of another batch could split.
    """
    batch = len(trace.output)
    if bool(trace.output.isnan().any()):  # which would look the same whatever rows do
        return None

    def same(output: Tensor, before: int, after: int) -> bool:
        rows = output[before : before + batch]
        return len(output) == before + batch + after and close(rows, trace.output)

    try:
        second = trace_call(padded_call(call, batched), {})
        if (
            same(second.output, 0, batch)
            and same(masked_call(padded_call(call, batched, 1, 0, rows=1)), 1, 0)
            and same(masked_call(padded_call(call, batched, 1, 1)), batch, batch)
        ):
            return second
    except Exception:
        return None
    return None


def _parts_at_first(call: Call, first: Site, batched: Sequence[str], doubled: Trace) -> bool:
    """Repeat the doubled example at its first site; tell whether the output comes out repeated.

    What passes by the site has too few rows to fit what comes from it.
    """
    if first.batch_axis != 0:
        return False
    call = padded_call(call, batched)

    def keep(_: int, activation: Tensor) -> Tensor:
        return activation.new_ones(1, first.units)

    try:
        output = masked_call(call, [first], keep, copies=3)
    except Exception:
        return False
    return close(output, tree.repeat(doubled.output, 3))


def _compare(trace: Trace, doubled: Trace | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the modules whose output ignores the batch, and those that cannot be repeated.

    Rows that are not examples are not repeated: they may be ordered by something else first.
    """
    batch = len(trace.output)
    fixed: list[str] = []
    unfoldable: list[str] = []
    if doubled is None:
        return (), ()
    for name, shapes in trace.shapes.items():
        after = doubled.shapes.get(name)
        empty = any(0 in shape for shape in shapes)
        if after == shapes and not empty:
            fixed.append(name)
        elif empty or after != [(2 * batch, *shape[1:]) for shape in shapes]:
            unfoldable.append(name)
    return tuple(fixed), tuple(unfoldable)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
