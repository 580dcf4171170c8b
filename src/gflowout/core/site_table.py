"""What a pattern would mask, listed before anything is wrapped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from gflowout.core import text
from gflowout.core.call import Call
from gflowout.core.probe import learn, run_example, split_example
from gflowout.core.site_names import SiteNames, find_sites
from gflowout.core.sites import INPUT, Site


@dataclass(frozen=True)
class SiteRow:
    """One site in the list of :func:`sites`.

    Attributes:
        name: Name of the submodule, or ``"input"``.
        kind: Class of the submodule.
        shape: Shape of its output in the example call; ``None`` without one.
        units: Number of units that a mask switches; ``None`` without an example.
        axis: Axis, or axes, of the units in that shape; ``None`` without an example.

    Examples:
        >>> SiteRow("fc", "Linear").units is None
        True
    """

    name: str
    kind: str
    shape: tuple[int, ...] | None = None
    units: int | None = None
    axis: int | tuple[int, ...] | None = None


class SiteTable(list[SiteRow]):
    """A list of :class:`SiteRow` that prints as a table.

    Examples:
        >>> SiteTable([SiteRow("fc", "Linear", (2, 8), 8, 1)])
        site  module  shape   units  axis
        fc    Linear  [2, 8]  8      1
    """

    @property
    def names(self) -> list[str]:
        """Names of the sites."""
        return [row.name for row in self]

    def __repr__(self) -> str:
        """One line per site."""
        rows = [["site", "module"], *([row.name, row.kind] for row in self)]
        if any(row.shape is not None for row in self):
            rows[0] += ["shape", "units", "axis"]
            for line, row in zip(rows[1:], self, strict=True):
                shape = "did not run" if row.shape is None else str(list(row.shape))
                line += [
                    shape,
                    *("" if part is None else str(part) for part in (row.units, row.axis)),
                ]
        return "\n".join(text.aligned(rows))


def sites(backbone: nn.Module, pattern: str | SiteNames = None, example: Any = None) -> SiteTable:
    """List what :func:`wrap` would mask, without wrapping anything.

    Args:
        backbone: Any module.
        pattern: One name or pattern, or what ``sites`` of :func:`wrap` takes: ``None`` for every
            ``nn.Dropout*``. ``*`` crosses dots, and of nested matches the outermost is taken.
        example: One real call, as for :func:`wrap`. With it, sites are in execution order, have
            shapes and units, and are refused where :func:`wrap` would refuse them, but for those
            that do not run: they come last, without a shape.

    Examples:
        >>> import torch
        >>> import gflowout as gfo
        >>> block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        >>> net = nn.Sequential(block, nn.Linear(4, 3))
        >>> gfo.sites(net, "*")
        site  module
        0     Sequential
        1     Linear
        >>> gfo.sites(net, "0.*", example=(torch.zeros(2, 4),))
        site  module  shape   units  axis
        0.0   Linear  [2, 4]  4      1
        0.1   ReLU    [2, 4]  4      1
    """
    if not isinstance(backbone, nn.Module):
        raise TypeError(f"backbone must be an nn.Module, got {type(backbone).__name__}")
    names = find_sites(backbone, [pattern] if isinstance(pattern, str) else pattern)
    kinds = {
        name: "-" if name == INPUT else type(backbone.get_submodule(name)).__name__
        for name in names
    }
    if example is None:
        return SiteTable(SiteRow(name, kind) for name, kind in kinds.items())
    call = Call(backbone, *split_example(example))
    trace, _ = run_example(call, names, idle=True)
    idle = [name for name in names if not trace.runs.get(name)]
    learned = learn(call, {name: names[name] for name in names if name not in idle})[0]
    shapes = {name: shape for name, shape, _ in trace.sites}
    rows = [
        SiteRow(site.name, kinds[site.name], shapes[site.name], site.units, _axis(site))
        for site in learned
    ]
    return SiteTable(rows + [SiteRow(name, kinds[name]) for name in idle])


def _axis(site: Site) -> int | tuple[int, ...]:
    """Axis, or axes, of the units in what the submodule gives."""
    axes = tuple(axis - (site.folded is not None) for axis in site.axes)
    return axes[0] if len(axes) == 1 else axes
