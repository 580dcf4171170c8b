"""Read a saved file: models with their configuration, every value of it checked.

A file may come from anywhere, so nothing in it is taken for granted. Whether it fits a backbone is
checked in :mod:`gflowout.core.serialization`.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from gflowout.core import checks
from gflowout.core.call import CallSpec
from gflowout.core.likelihoods import LIKELIHOODS, Likelihood
from gflowout.core.method import METHODS, Method
from gflowout.core.sites import Site
from gflowout.core.units import ALWAYS, Layout

FORMAT = 1
"""Version of the file format; a file of another version is refused."""

KEY = "gflowout"
"""Where the header has the configuration."""


@dataclass(frozen=True)
class Saved:
    """A model as the file has it."""

    where: str  # what errors call it
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    whole: bool = True  # with the state of the backbone


def read(path: Path) -> tuple[list[Saved], list[float] | None]:
    """Return the models of a file, and their weights if they form an ensemble.

    Files of the first versions have none, and an empty list here: members weigh the same.
    """
    where = repr(str(path))
    if not path.is_file():
        raise FileNotFoundError(f"path: there is no file {where}")
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            if KEY not in metadata:
                raise ValueError(f"{where} was not written by gflowout.save")
            config = _parse(where, metadata[KEY])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{where} is truncated or not a safetensors file: {error}") from error
    whole = config.get("backbone", True)
    if not isinstance(whole, bool):
        raise ValueError(f"{where} has a damaged configuration: backbone is {whole!r}")
    if "members" not in config:
        return [Saved(where, config, tensors, whole)], None
    members = config["members"]
    if not isinstance(members, list) or not members:
        raise ValueError(f"{where} has a damaged configuration: members is {members!r}")
    saved = [Saved(f"member {at} of {where}", own, {}, whole) for at, own in enumerate(members)]
    owners = {f"members.{at}.": member for at, member in enumerate(saved)}
    for key, tensor in tensors.items():
        prefix = ".".join(key.split(".", 2)[:2]) + "."
        if prefix not in owners:
            raise ValueError(f"{where} has a tensor {key!r}, which is of no member")
        owners[prefix].tensors[key.removeprefix(prefix)] = tensor
    weights = config.get("weights", [])
    if not isinstance(weights, list):
        raise ValueError(f"{where} has a damaged configuration: weights is {weights!r}")
    return saved, weights


def _parse(where: str, text: str) -> dict[str, Any]:
    try:
        config = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"{where} has a damaged configuration: {error}") from error
    version = config.get("format") if isinstance(config, dict) else None
    if version != FORMAT:
        raise ValueError(
            f"{where} has format version {version!r}, this gflowout reads version {FORMAT}"
        )
    return dict(config)


def parts_of(
    where: str, config: dict[str, Any]
) -> tuple[type[Method], list[Site], Likelihood, CallSpec, Any]:
    """Method, sites, likelihood, call and options of a model: each checks the values it takes."""
    try:
        method = METHODS[checks.choice("method", config["method"], METHODS)]
        kind = LIKELIHOODS[checks.choice("likelihood", config["likelihood"], LIKELIHOODS)]
        options = method.Options.build(method.name, None, _tuples(config["options"]))
        likelihood = kind(**config["likelihood_options"])
        sites = [_site(site) for site in config["sites"]]
        if not sites and not method.deterministic:
            raise ValueError("there are no sites")
        spec = CallSpec(**_tuples(config["spec"]))
        if not isinstance(config["validate"], bool):
            raise TypeError(f"validate must be true or false, got {config['validate']!r}")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{where} has a damaged configuration: {error!r}") from error
    return method, sites, likelihood, spec, options


def _site(saved: dict[str, Any]) -> Site:
    """A site from its fields, every one of them checked."""
    site = {**_checked_site(saved), "layout": None, "keep": None}
    if saved.get("layout") is not None:
        layout = Layout(**{name: tuple(values) for name, values in saved["layout"].items()})
        for axis in layout.axes:
            checks.integer("site axes", axis, low=0)
        for unit in layout.unit:
            checks.integer("site unit", unit, low=ALWAYS)
        fits = (
            len(layout.axes) == len(layout.shape)
            and max(layout.axes) < saved["rank"]
            and saved["batch_axis"] not in layout.axes
            and layout.axes[0] == saved["axis"]
            and math.prod(layout.shape) == len(layout.unit)
            and set(layout.unit) - {ALWAYS} == set(range(saved["units"]))
        )
        if not fits:
            raise ValueError(f"site layout does not fit {saved['units']} units")
        site["layout"] = layout
    if saved.get("keep") is not None:
        rates = tuple(checks.probability("site keep", rate) for rate in saved["keep"])
        if len(rates) != saved["units"]:
            raise ValueError(f"site keep must hold {saved['units']} rates, got {len(rates)}")
        site["keep"] = rates
    return Site(**site)


def _checked_site(site: dict[str, Any]) -> dict[str, Any]:
    for name in ("units", "rank"):
        checks.integer(f"site {name}", site[name], low=1)
    for name in ("axis", "batch_axis"):
        checks.integer(f"site {name}", site[name], low=0)
        if site[name] >= site["rank"]:
            raise ValueError(f"site {name} must be below rank {site['rank']}, got {site[name]}")
    if site["axis"] == site["batch_axis"]:
        raise ValueError("site axis and batch_axis must differ")
    if site.get("rate") is not None:
        checks.number("site rate", site["rate"], low=0, high=1)
    tokens = site.get("tokens")
    if tokens is not None:
        checks.integer("site tokens", tokens, low=0)
        if tokens >= site["rank"] or tokens in (site["axis"], site["batch_axis"]):
            raise ValueError(f"site tokens must be an axis of their own, got {tokens}")
    if not isinstance(site["name"], str):
        raise TypeError(f"site name must be a string, got {site['name']!r}")
    if not isinstance(site.get("consumer"), str | None):
        raise TypeError(f"site consumer must be a string or None, got {site['consumer']!r}")
    return site


def _tuples(value: Any) -> Any:
    """JSON has lists where the configuration has tuples."""
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return value
