"""Find sites in any ``nn.Module``: names and glob patterns to submodules.

Looks at names and types alone. This file knows nothing of calls, activations or masks: shapes are
learned later, from an example.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from gflowout.core.checks import suggest
from gflowout.core.sites import DROPOUTS, INPUT
from gflowout.core.units import Units

SiteNames = Sequence[str] | Mapping[str, int | Units | None] | None
"""What users may say about sites; see :func:`find`."""

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


def find(backbone: nn.Module, sites: SiteNames, empty: bool = False) -> dict[str, Units]:
    """Resolve names and glob patterns to submodule names, each with what its units are.

    Args:
        backbone: The module to search.
        sites: Names or patterns (``*`` crosses dots, as in :mod:`fnmatch`); a mapping from these
            to the axis of the units, for shapes that cannot be told apart, or to
            :class:`~gflowout.Units`; or ``None`` for every ``nn.Dropout*``.
        empty: Whether ``sites=()``, no site at all, makes sense.

    Returns:
        Units by name; an axis of ``None`` is to be learned.

    Examples:
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))
        >>> list(find(net, None))
        ['2']
        >>> list(find(net, ["[01]"]))
        ['0', '1']
    """
    modules = {name: module for name, module in backbone.named_modules() if name}
    first_names = {module: name for name, module in modules.items()}
    everything = dict(backbone.named_modules(remove_duplicate=False))
    if sites is None:
        found = {name: Units() for name, module in modules.items() if isinstance(module, DROPOUTS)}
        if not found:
            raise ValueError(
                "sites=None turns every nn.Dropout* of the backbone into a site, but it has none; "
                f"name the submodules whose output is to be masked: {_listed(modules)}"
            )
        return found
    if isinstance(sites, str) or not isinstance(sites, Sequence | Mapping):
        raise TypeError(
            f"sites must be a list of submodule names or patterns, got {sites!r}; "
            f"write sites=[{sites!r}]"
            if isinstance(sites, str)
            else f"sites must be a list of submodule names, a mapping from names to the axis of "
            f"their units or to gfo.Units, or None, got {type(sites).__name__}"
        )
    if not sites and not empty:
        raise ValueError("sites is empty: name at least one submodule, or pass None")
    resolved: dict[str, Units] = {}
    for pattern in sites:
        if not isinstance(pattern, str):
            raise TypeError(f"sites must hold strings, got {pattern!r}")
        units = sites[pattern] if isinstance(sites, Mapping) else None
        if not isinstance(units, Units):
            if units is not None and (isinstance(units, bool) or not isinstance(units, int)):
                raise TypeError(
                    f"sites: the axis of {pattern!r} must be an integer or gfo.Units, got {units!r}"
                )
            units = Units(units)
        if pattern == INPUT:
            resolved[INPUT] = units
            continue
        if pattern in everything and everything[pattern] in first_names:
            resolved[first_names[everything[pattern]]] = units
            continue
        matches = [
            name
            for name, module in modules.items()
            if fnmatch.fnmatchcase(name, pattern) and not isinstance(module, _CONTAINERS)
        ]
        if not matches:
            raise ValueError(
                f"sites: {pattern!r} matches no submodule of {type(backbone).__name__}"
                f"{suggest(pattern, modules)}; it has {_listed(modules)}"
            )
        resolved |= dict.fromkeys(matches, units)
    if INPUT in resolved and INPUT in modules:
        raise ValueError(
            f"sites: {INPUT!r} stands for the input of the backbone, which also has a submodule of "
            "that name: rename the submodule"
        )
    return resolved


def _listed(names: Mapping[str, Any], most: int = 12) -> str:
    shown = ", ".join(repr(name) for name in list(names)[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
