"""Saving and loading: one safetensors file, its configuration as JSON in the header.

A file holds a model; or an ensemble, with one configuration per member and the member's number in
the names of its tensors. Nothing is ever unpickled. A file is written beside its target and moved
into place when complete. It may come from anywhere: all its values are checked before anything in
memory changes.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
from collections.abc import Callable, Sequence
from reprlib import repr as short
from typing import Any, overload

import torch
from torch import Tensor, nn

from gflowout.core import atomic_io, checks
from gflowout.core.ensemble import Ensemble
from gflowout.core.likelihoods import LIKELIHOODS
from gflowout.core.model import PREFIX, MaskedModel
from gflowout.core.saved_file import FORMAT, KEY, SavedModel, damage, parts_of, read
from gflowout.core.sites import INPUT, Site, input_size
from gflowout.core.wrap import assemble

_PREFIX = f"{PREFIX}."
_OURS = re.compile(rf"(members\.\d+\.)?{PREFIX}\.")
"""Tensors that wrapping added."""


def save(
    model: MaskedModel | Ensemble, path: str | os.PathLike[str], *, backbone: bool = True
) -> None:
    """Write a model or an ensemble to one file: weights, method, options, sites and likelihood.

    Args:
        model: From :func:`gflowout.wrap`, or a :class:`gflowout.Ensemble` of such.
        path: Where to; replaced if it exists, and only once the new file is complete.
        backbone: Whether the file has the backbone's weights. Without them it is small, and
            :func:`load` takes those that the backbone it is given has: for backbones that
            are kept elsewhere, in a format of their own.

    Examples:
        >>> import tempfile
        >>> import gflowout as gfo
        >>> net, x = nn.Linear(4, 3), torch.zeros(2, 4)
        >>> model = gfo.wrap(net, "mc", ["input"], likelihood=gfo.Categorical(3), example=(x,))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     gfo.save(model, f"{folder}/model.safetensors")  # see load for the way back
    """
    if not isinstance(model, MaskedModel | Ensemble):
        raise TypeError(
            f"model must come from gfo.wrap, got {type(model).__name__}; or be a gfo.Ensemble"
        )
    target = checks.target("path", path)
    checks.boolean("backbone", backbone)
    # Tensors that share memory (tied weights) are written twice.
    state = model.state_dict()
    tensors = {key: state[key] for key in state if backbone or _OURS.match(key)}
    for key, value in tensors.items():
        if not isinstance(value, Tensor):
            raise TypeError(f"state {key!r} must be a tensor to be saved, got {type(value)}")
    if isinstance(model, MaskedModel):
        described = _config(model)
    else:
        members = [_config(member) for member in model.members]
        described = {"members": members, "weights": list(model.weights)}
    if not backbone:
        described["backbone"] = False
    config = json.dumps({"format": FORMAT, **described}, allow_nan=False)
    atomic_io.write_safetensors(target, tensors, {KEY: config})


@overload
def load(path: str | os.PathLike[str], backbone: nn.Module) -> MaskedModel: ...


@overload
def load(
    path: str | os.PathLike[str], backbone: Sequence[nn.Module] | Callable[[], nn.Module]
) -> Ensemble: ...


def load(path: str | os.PathLike[str], backbone: Any) -> MaskedModel | Ensemble:
    """Read a model or an ensemble: its weights go into ``backbone``, which is then wrapped.

    Args:
        path: A file written by :func:`save`.
        backbone: With ``save(..., backbone=False)``, the module that was saved, with its weights;
            else a module of the same architecture as the one that was saved; for an ensemble a
            list of these, one per member, or a function that builds one.

    Returns:
        The model or the ensemble, in the train or eval mode of its backbones.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is truncated or damaged, of another version or not ours, or a backbone
            does not fit, also in the dtype of a tensor. All backbones are unchanged then.

    Examples:
        >>> import tempfile
        >>> import gflowout as gfo
        >>> net, x = nn.Linear(4, 3), torch.randn(2, 4)
        >>> model = gfo.wrap(net, "mc", ["input"], likelihood=gfo.Categorical(3), example=(x,))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     gfo.save(model, f"{folder}/model.safetensors")
        ...     again = gfo.load(f"{folder}/model.safetensors", nn.Linear(4, 3))
        >>> first, second = (
        ...     one.predict(x, generator=torch.Generator().manual_seed(0)) for one in (model, again)
        ... )
        >>> torch.equal(first.mean, second.mean)
        True
    """
    single = isinstance(backbone, nn.Module) and not isinstance(backbone, nn.ModuleList)
    build = callable(backbone) and not isinstance(backbone, nn.Module)
    several = isinstance(backbone, Sequence | nn.ModuleList)
    backbones = list(backbone) if several else [] if build else [backbone]
    _check_bare(backbones)
    saved, weights = read(checks.path("path", path))
    ensemble = weights is not None
    if single == ensemble:
        holds = (
            f"an ensemble of {len(saved)} models: pass a list of {len(saved)} backbones, or a "
            "function that builds one"
            if ensemble
            else "one model: pass one backbone"
        )
        raise ValueError(f"{str(path)!r} holds {holds}")
    if not build and len(backbones) != len(saved):
        raise ValueError(
            f"{str(path)!r} holds an ensemble of {len(saved)} models, got {len(backbones)} "
            "backbones"
        )
    for member in saved:
        _check_own(member)
    if build:
        with torch.random.fork_rng(devices=[]):
            backbones = [backbone() for _ in saved]
        _check_bare(backbones)
    models = [_assembled(*pair) for pair in zip(saved, backbones, strict=True)]
    result: MaskedModel | Ensemble = models[0]
    if ensemble:
        try:
            result = Ensemble(models, weights=weights or None)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{str(path)!r} has a damaged configuration: {error}") from error
    for model, member in zip(models, saved, strict=True):  # all checks are done
        model.load_state_dict(member.tensors, strict=member.whole)
    return result


def _config(model: MaskedModel) -> dict[str, Any]:
    if type(model.likelihood).__name__ not in LIKELIHOODS:
        raise TypeError(
            f"likelihood {type(model.likelihood).__name__} cannot be saved, only "
            f"{', '.join(LIKELIHOODS)}; if it is your own, enter its class in "
            "gflowout.core.likelihoods.LIKELIHOODS by this name, here and before you load"
        )
    return {
        "method": model.method.name,
        "options": dataclasses.asdict(model.method.options),
        "likelihood": type(model.likelihood).__name__,
        "likelihood_options": model.likelihood.config(),
        "sites": [dataclasses.asdict(site) for site in model.sites],
        "spec": dataclasses.asdict(model.spec),
        "validate": model.validate,
    }


def _check_bare(backbones: Sequence[Any]) -> None:
    for backbone in backbones:
        if not isinstance(backbone, nn.Module) or isinstance(backbone, MaskedModel | Ensemble):
            raise TypeError(f"backbone must be a bare nn.Module, got {type(backbone).__name__}")


def _check_own(saved: SavedModel) -> None:
    """Raise unless the file has the tensors that its configuration asks for; nothing is allocated.

    Modules are built without storage, and only if the file has tensors for all of them.
    """
    with torch.device("meta"):
        method, sites, likelihood, _, options = parts_of(saved)
        _check_count(saved, sites, options)
        with damage(saved.where):
            parts = {"method": method(sites, likelihood, options), "likelihood": likelihood}
            states = {name: part.to(saved.dtype(name)).state_dict() for name, part in parts.items()}
    expected = {f"{PREFIX}.{at}.{key}": value for at in states for key, value in states[at].items()}
    own = {key: tensor for key, tensor in saved.tensors.items() if key.startswith(_PREFIX)}
    _compare(f"{saved.where} does not fit its own configuration", own, expected)


def _check_count(saved: SavedModel, sites: Sequence[Site], options: Any) -> None:
    """Raise if the file has too few tensors for the generators that the options ask for."""
    blocks, layers = getattr(options, "blocks", 0), len(getattr(options, "hidden", ()))
    generators = sum(min(blocks, site.units) for site in sites)
    # Each has a bias; all but the first have inputs, and so the layers behind the first.
    least = generators + 2 * max(0, generators - 1) * max(0, layers - 1)
    if least > len(saved.tensors):
        raise ValueError(
            f"{saved.where} has a damaged configuration: blocks={short(blocks)} and hidden of "
            f"{layers} layers need {short(least)} tensors at least, it has {len(saved.tensors)}"
        )


def _assembled(saved: SavedModel, backbone: nn.Module) -> MaskedModel:
    """Wrap a backbone as the saved model was, once all is known to fit; its weights stay."""
    parts = parts_of(saved)
    _check_backbone(saved.where, backbone, parts[1])
    theirs = {key: tensor for key, tensor in saved.tensors.items() if not key.startswith(_PREFIX)}
    misfit = f"{saved.where} does not fit the backbone ({type(backbone).__name__})"
    _compare(misfit, theirs, backbone.state_dict() if saved.whole else {})
    _check_units(misfit, backbone, parts[1])
    _check_finite(saved, backbone)
    with torch.random.fork_rng(devices=[]):
        try:
            model = assemble(backbone, *parts, validate=saved.config["validate"])
        except ValueError as error:
            raise ValueError(f"{misfit}: {error}") from error
    model.method.to(saved.dtype("method"))
    model.likelihood.to(saved.dtype("likelihood"))
    return model


def _check_backbone(where: str, backbone: nn.Module, sites: list[Site]) -> None:
    names = dict(backbone.named_modules())
    for site in sites:
        if site.name != INPUT and site.name not in names:
            raise ValueError(
                f"the backbone ({type(backbone).__name__}) has no submodule {site.name!r}, which "
                f"is a site of {where}: it is of another architecture"
            )
        reader = names.get(site.consumer or "")
        if site.consumer is not None and (reader is None or input_size(reader) is None):
            raise ValueError(
                f"the backbone ({type(backbone).__name__}) has no linear or convolutional layer "
                f"{site.consumer!r}, which reads site {site.name!r} of {where}: it is of another "
                "architecture"
            )


def _check_units(misfit: str, backbone: nn.Module, sites: list[Site]) -> None:
    """Raise if a site has more units than the layer that reads it; not all methods tell by size."""
    for site in sites:
        reader = None if site.consumer is None else backbone.get_submodule(site.consumer)
        size, units = None if reader is None else input_size(reader), math.prod(site.shape)
        if size is not None and size % units:
            raise ValueError(
                f"{misfit}: site {site.name!r} has {short(units)} elements in the file, the layer "
                f"{site.consumer!r} reads {size}"
            )


def _compare(misfit: str, tensors: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Raise unless the tensors of a file are those of the model, before any is copied."""
    for problem, keys in (
        ("lacks", expected.keys() - tensors.keys()),
        ("has, beyond the model's,", tensors.keys() - expected.keys()),
    ):
        if keys:
            listed = ", ".join(sorted(keys)[:3]) + (" ..." if len(keys) > 3 else "")
            raise ValueError(f"{misfit}: it {problem} {len(keys)} tensors: {listed}")
    for key, tensor in tensors.items():
        hint = f"; convert the backbone first, with .to({tensor.dtype})"
        for what, value, right, advice in (
            ("shape", list(tensor.shape), list(expected[key].shape), ""),
            ("dtype", tensor.dtype, expected[key].dtype, hint * tensor.is_floating_point()),
        ):
            if value != right:
                raise ValueError(
                    f"{misfit}: {key!r} has {what} {value} in the file and {right} in the "
                    f"model{advice}"
                )


def _check_finite(saved: SavedModel, backbone: nn.Module) -> None:
    """Raise if the file has NaN or infinity, unless it is where a buffer of the backbone has it."""
    buffers = dict(backbone.named_buffers())
    for key, tensor in saved.tensors.items():
        if not tensor.is_floating_point():
            continue
        finite = (tensor.float() if tensor.element_size() == 1 else tensor).isfinite()
        if bool(finite.all()):
            continue
        own = buffers.get(key)  # masks of attention, say
        if own is None or not torch.equal(finite, own.isfinite().cpu()):
            raise ValueError(
                f"{saved.where} has {int((~finite).sum())} values in {key!r} that are NaN or "
                "infinite: the model was damaged before it was saved, or its training diverged; "
                "load an earlier file"
            )
