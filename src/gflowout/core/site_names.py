"""How sites are named: from names and patterns to the submodules that they mean."""

from __future__ import annotations

import fnmatch
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import nn

from gflowout.core.checks import suggest
from gflowout.core.sites import DROPOUTS, INPUT
from gflowout.core.units import Units

SiteNames = Sequence[str] | Mapping[str, int | Units | None] | None
"""What users may say about sites; see :func:`find_sites`."""

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


def find_sites(backbone: nn.Module, sites: SiteNames, empty: bool = False) -> dict[str, Units]:
    """Resolve names and glob patterns to submodule names, each with what its units are.

    For ``sites`` see :func:`gflowout.wrap`; ``*`` crosses dots, as in :mod:`fnmatch`, and of nested
    matches of a pattern the outermost is taken. ``empty`` allows no site at all.

    Examples:
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))
        >>> list(find_sites(net, None))
        ['2']
        >>> list(find_sites(net, ["[01]"]))
        ['0', '1']
        >>> list(find_sites(nn.ModuleDict({"blocks": net}), ["*"]))
        ['blocks']
    """
    modules = {name: module for name, module in backbone.named_modules() if name}
    first_names = {module: name for name, module in modules.items()}
    everything = dict(backbone.named_modules(remove_duplicate=False))
    if sites is None:
        dropouts = [name for name, module in modules.items() if isinstance(module, DROPOUTS)]
        if not dropouts and not empty:
            raise ValueError(
                "sites=None turns every nn.Dropout* of the backbone into a site, but "
                f"{type(backbone).__name__} has none: {_suggestion(modules)}"
            )
        return {name: Units() for name in dropouts}
    if isinstance(sites, str) or not isinstance(sites, Sequence | Mapping):
        raise TypeError(
            f"sites must be a list of submodule names or patterns, got {sites!r}; "
            f"write sites=[{sites!r}]"
            if isinstance(sites, str)
            else f"sites must be a list of submodule names, a mapping from names to the axis of "
            f"their units or to gfo.Units, or None, got {type(sites).__name__}"
        )
    if not sites and not empty:
        raise ValueError(f"sites is empty: {_suggestion(modules)}")
    resolved: dict[str, Units] = {}
    for pattern in sites:
        if not isinstance(pattern, str):
            raise TypeError(f"sites must hold strings, got {pattern!r}")
        units = _units(pattern, sites[pattern]) if isinstance(sites, Mapping) else Units()
        if pattern == INPUT:
            resolved[INPUT] = units
            continue
        if pattern in everything and everything[pattern] in first_names:
            resolved[first_names[everything[pattern]]] = units
            continue
        matches = _outermost(
            name
            for name, module in modules.items()
            if fnmatch.fnmatchcase(name, pattern) and not isinstance(module, _CONTAINERS)
        )
        if not matches:
            raise ValueError(
                f"sites: {pattern!r} matches no submodule of {type(backbone).__name__}; it has "
                f"{_listed(modules)}{suggest(pattern, modules)}"
            )
        resolved |= dict.fromkeys(matches, units)
    if INPUT in resolved and INPUT in modules:
        raise ValueError(
            f"sites: {INPUT!r} stands for the input of the backbone, which also has a submodule of "
            "that name: rename the submodule"
        )
    _warn_of_norms(backbone, modules, resolved)
    return resolved


def _suggestion(modules: Mapping[str, nn.Module]) -> str:
    """What to write instead of no site: activations, else all layers with weights but the last."""
    leaves = {name: module for name, module in modules.items() if not any(module.children())}
    names = [
        name
        for name, module in leaves.items()
        if type(module).__module__ == nn.ReLU.__module__ and "Softm" not in type(module).__name__
    ] or [name for name, module in leaves.items() if hasattr(module, "weight")][:-1]
    if not names:
        return f"name submodules whose output is to be masked ({_listed(modules)}), or 'input'"
    more = f" (there are {len(names)})" if len(names) > 4 else ""
    return (
        f"try sites={names[:4]}{more} to mask hidden units, or sites=['input'] to learn which "
        "inputs matter"
    )


def _outermost(names: Iterable[str]) -> list[str]:
    """Names that are not inside another one; parents come before their children."""
    outer: dict[str, None] = {}
    for name in names:
        parents = (name[: dot.start()] for dot in re.finditer(r"\.", name))
        if not any(parent in outer for parent in parents):
            outer[name] = None
    return list(outer)


def _warn_of_norms(
    backbone: nn.Module, modules: Mapping[str, nn.Module], names: Iterable[str]
) -> None:
    """Warn of sites on normalisation layers, unless the backbone itself lists them as sites."""
    own = getattr(backbone, "sites", ())
    listed = own if isinstance(own, tuple | list) else ()
    norms = [name for name in names if _is_norm(modules.get(name)) and name not in listed]
    if not norms:
        return
    order, block = list(modules), norms[0].rpartition(".")[0]
    after = order[order.index(norms[0]) + 1 :]
    instead = [name for name in after if type(modules[name]).__module__ == nn.ReLU.__module__][:1]
    instead += [block] if block and not isinstance(modules[block], _CONTAINERS) else []
    kinds = {type(modules[name]).__name__: None for name in norms}
    warnings.warn(
        f"sites: {_listed(dict.fromkeys(norms), 4)} are normalisation layers ({', '.join(kinds)}): "
        "a mask there changes the mean and the scale that the layer sets. Name an activation that "
        "follows, an nn.Identity after it, or the block around it"
        + (f", such as {' or '.join(map(repr, instead))}" if instead else "")
        + "; gfo.sites(net, pattern) lists what a pattern names",
        stacklevel=4,
    )


def _is_norm(module: nn.Module | None) -> bool:
    """Whether a module normalises: those of PyTorch, and others by their name."""
    if module is None or next(module.children(), None) is not None:
        return False
    return re.fullmatch(r".*Norm(\dd)?|CrossMapLRN2d", type(module).__name__) is not None


def _units(name: str, value: Any) -> Units:
    """Units of a site from what the user gave for it: an axis, units or nothing."""
    if isinstance(value, Units):
        return value
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise TypeError(f"sites: axis of {name!r} must be an integer or gfo.Units, got {value!r}")
    return Units(value)


def _listed(names: Mapping[str, Any], most: int = 12) -> str:
    shown = ", ".join(repr(name) for name in list(names)[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
