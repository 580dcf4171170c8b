"""Reading saved files: the models in one, with every value of their configuration checked."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as short
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gflowout.core import atomic_io, checks
from gflowout.core.call import CallSpec
from gflowout.core.likelihoods import LIKELIHOODS, Likelihood
from gflowout.core.method import METHODS, Method
from gflowout.core.model import PREFIX
from gflowout.core.sites import Site
from gflowout.core.units import ALWAYS, Layout

FORMAT = 1
"""Version of the file format; a file of another version is refused."""

KEY = "gflowout"
"""Where the header has the configuration."""

_FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
"""Types that a model may be converted to before it is saved."""


@dataclass(frozen=True)
class SavedModel:
    """A model as the file has it."""

    where: str  # what errors call it
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    whole: bool = True  # with the state of the backbone

    def dtype(self, part: str) -> torch.dtype:
        """Floating-point type of the method or the likelihood in the file."""
        prefix = f"{PREFIX}.{part}."
        types = {tensor.dtype for key, tensor in self.tensors.items() if key.startswith(prefix)}
        floating = [dtype for dtype in _FLOATING if dtype in types]
        return floating[0] if len(floating) == 1 else torch.get_default_dtype()


def contents(path: Path, key: str, writer: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors of a file and the configuration that its header has under ``key``.

    ``writer`` is what errors say that the file should have been written by.
    """
    where = repr(str(path))
    if not path.is_file():
        raise FileNotFoundError(f"path: there is no file {where}")
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            ours = file.keys() if key in metadata else ()
            tensors = {name: file.get_tensor(name) for name in ours}
    except (SafetensorError, OSError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{where} is truncated or not a safetensors file: {error}") from error
    if key not in metadata:
        raise ValueError(f"{where} was not written by {writer}")
    checksum = metadata.get(atomic_io.SHA256)  # files of the first versions have none
    if checksum is not None and not atomic_io.intact(path, checksum):
        raise ValueError(
            f"{where} is damaged: its content does not have the checksum that was saved with it; "
            "take another copy"
        )
    return tensors, _parse(where, metadata[key])


def read(path: Path) -> tuple[list[SavedModel], list[float] | None]:
    """Return the models of a file, and their weights if they form an ensemble.

    Files of the first versions have none, and an empty list here: members weigh the same.
    """
    where = repr(str(path))
    tensors, config = contents(path, KEY, "gflowout.save")
    whole = config.get("backbone", True)
    if not isinstance(whole, bool):
        raise ValueError(f"{where} has a damaged configuration: backbone is {short(whole)}")
    if "members" not in config:
        return [SavedModel(where, config, tensors, whole)], None
    members = config["members"]
    if not isinstance(members, list) or not members:
        raise ValueError(f"{where} has a damaged configuration: members is {short(members)}")
    saved = [
        SavedModel(f"member {at} of {where}", own, {}, whole) for at, own in enumerate(members)
    ]
    owners = {f"members.{at}.": member for at, member in enumerate(saved)}
    for key, tensor in tensors.items():
        prefix = ".".join(key.split(".", 2)[:2]) + "."
        if prefix not in owners:
            raise ValueError(f"{where} has a tensor {key!r}, which is of no member")
        owners[prefix].tensors[key.removeprefix(prefix)] = tensor
    weights = config.get("weights", [])
    if not isinstance(weights, list):
        raise ValueError(f"{where} has a damaged configuration: weights is {short(weights)}")
    return saved, weights


def _parse(where: str, text: str) -> dict[str, Any]:
    with damage(where):
        config = json.loads(text)
    version = config.get("format") if isinstance(config, dict) else None
    if version != FORMAT:
        raise ValueError(
            f"{where} has format version {short(version)}, this gflowout reads version {FORMAT}"
        )
    return dict(config)


@contextmanager
def damage(where: str) -> Iterator[None]:
    """Turn whatever a hostile configuration raises into one line that names the file."""
    try:
        yield
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        if len(reason) > 300:
            reason = f"{reason[:300]} ..."
        raise ValueError(f"{where} has a damaged configuration: {reason}") from error


def parts_of(saved: SavedModel) -> tuple[type[Method], list[Site], Likelihood, CallSpec, Any]:
    """Method, sites, likelihood, call and options of a model: each checks the values it takes."""
    config = saved.config
    name = config.get("method") if isinstance(config, dict) else None
    if isinstance(name, str) and name not in METHODS:
        raise ValueError(
            f"{saved.where} was saved with method {short(name)}, which is not registered: if it is "
            f"your own, set gflowout.methods.METHODS[{short(name)}] to its class before you load; "
            f"registered are {', '.join(map(repr, METHODS))}"
        )
    name = config.get("likelihood") if isinstance(config, dict) else None
    if isinstance(name, str) and name not in LIKELIHOODS:
        raise ValueError(
            f"{saved.where} was saved with likelihood {short(name)}, which is not registered: if "
            "it is your own, set gflowout.core.likelihoods.LIKELIHOODS"
            f"[{short(name)}] to its class before you load; registered are "
            f"{', '.join(map(repr, LIKELIHOODS))}"
        )
    with damage(saved.where):
        method = METHODS[checks.choice("method", config["method"], METHODS)]
        kind = LIKELIHOODS[checks.choice("likelihood", config["likelihood"], LIKELIHOODS)]
        saved_options = _tuples(config["options"])
        own = method.Options.translated(saved_options, f"method {method.name!r}", warn=False)
        options = method.Options.build(method.name, None, {**method.Options.BEFORE, **own})
        likelihood = kind(**config["likelihood_options"])
        sites = [_site(site) for site in config["sites"]]
        if not sites and not method.deterministic:
            raise ValueError("there are no sites")
        spec = CallSpec(**_tuples(config["spec"]))
        if not isinstance(config["validate"], bool):
            raise TypeError(f"validate must be true or false, got {config['validate']!r}")
    return method, sites, likelihood, spec, options


def _site(saved: dict[str, Any]) -> Site:
    """A site from its fields, every one of them checked."""
    units, rank = (checks.integer(f"site {name}", saved[name], low=1) for name in ("units", "rank"))
    names = ["axis", "batch_axis"]
    if saved.get("tokens") is not None:
        names.append("tokens")
    axes = [checks.integer(f"site {name}", saved[name], low=0) for name in names]
    if max(axes) >= rank or len(set(axes)) < len(axes):
        raise ValueError(f"site {', '.join(names)} must differ and be below {rank}, got {axes}")
    if saved.get("folded") is not None:
        checks.choice("site folded", saved["folded"], ["examples", "batch"])
    if saved.get("rate") is not None:
        checks.number("site rate", saved["rate"], low=0, high=1)
    if not isinstance(saved["name"], str) or not isinstance(saved.get("consumer"), str | None):
        raise TypeError("site name and consumer must be strings")
    site = {**saved, "layout": None, "keep": None}
    if saved.get("layout") is not None:
        layout = Layout(**{name: tuple(values) for name, values in saved["layout"].items()})
        for axis in layout.axes:
            checks.integer("site axes", axis, low=0)
        for size in layout.shape:
            checks.integer("site shape", size, low=1)
        for unit in layout.unit:
            checks.integer("site unit", unit, low=ALWAYS)
        masked = set(layout.unit) - {ALWAYS}
        fits = (
            len(layout.axes) == len(layout.shape)
            and max(layout.axes) < rank
            and saved["batch_axis"] not in layout.axes
            and layout.axes[0] == saved["axis"]
            and math.prod(layout.shape) == len(layout.unit)
            and len(masked) == units == max(masked) + 1
        )
        if not fits:
            raise ValueError(f"site layout does not fit {units} units")
        site["layout"] = layout
    if saved.get("keep") is not None:
        site["keep"] = tuple(checks.probability("site keep", rate) for rate in saved["keep"])
        if len(site["keep"]) != units:
            raise ValueError(f"site keep must hold {units} rates, got {len(site['keep'])}")
    return Site(**site)


def _tuples(value: Any) -> Any:
    """JSON has lists where the configuration has tuples."""
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return value
