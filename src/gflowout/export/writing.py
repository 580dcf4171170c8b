"""``export``: a wrapped model as one file that needs neither this library nor its code; metadata.

The file is traced, written in memory, compared with PyTorch, and only then moved to its path.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import gflowout
from gflowout.core import atomic_io, checks
from gflowout.core.ensemble import Ensemble
from gflowout.core.likelihoods import Gaussian
from gflowout.core.model import MaskedModel
from gflowout.core.optional import require
from gflowout.core.probe import split_example
from gflowout.export import answers, formats
from gflowout.export.deployed import Deployed, ExportError

FORMAT = 1
"""Version of the metadata."""


class Port(NamedTuple):
    """An input or an output of a file.

    Attributes:
        name: By which it is passed or found.
        dtype: Such as ``"float32"``.
        shape: Sizes; ``"batch"`` for the one that may be any from 1 on.

    Examples:
        >>> Port("mean", "float32", ["batch", 10]).shape
        ['batch', 10]
    """

    name: str
    dtype: str
    shape: list[int | str]


@dataclass(frozen=True)
class Exported:
    """A file that was written.

    Attributes:
        path: The file.
        format: ``"onnx"`` or ``"torch-export"``.
        size: In bytes.
        inputs: What it takes.
        outputs: What it gives.
        difference: Largest difference from PyTorch, see :func:`export`; ``None`` if not checked.
        metadata: That of the file, see :func:`read_metadata`.

    Examples:
        >>> port = Port("input", "float32", ["batch", 4])
        >>> Exported(Path("model.onnx"), "onnx", 9000, (port,), (), 1e-7, {}).inputs[0].shape
        ['batch', 4]
    """

    path: Path
    format: str
    size: int
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    difference: float | None
    metadata: dict[str, Any] = field(repr=False)


def export(
    model: MaskedModel | Ensemble,
    path: str | os.PathLike[str],
    example: Any,
    *,
    format: str | None = None,
    samples: int = 20,
    masks: bool = False,
    prepare: nn.Module | None = None,
    scale: tuple[float, float] | None = None,
    decisions: Any = (),
    metadata: Mapping[str, Any] | None = None,
    overwrite: bool = False,
    check: bool = True,
    tolerance: float = 1e-4,
) -> Exported:
    """Write a model as one file that takes inputs and a seed and gives predictions.

    The file answers with ``samples``, their ``mean`` and the scores of :class:`gflowout.Predictive`
    by their names, for batches of any size from one row on. The model is left as it is.

    Args:
        model: From :func:`gflowout.wrap`, or an ensemble.
        path: Where to. It appears when it is complete and has passed the check.
        example: One real call, as for :func:`gflowout.wrap`. All sizes but that of the batch, and
            all arguments that are no tensors, are fixed by it.
        format: ``"onnx"`` (extra ``onnx``) or ``"torch-export"``, for ``torch.export.load``. If
            left out, a ``path`` that ends in ``.pt2`` is torch-export and any other ONNX.
        samples: Draws of masks, fixed in the file; 20 as in ``predict``.
        masks: Take masks instead of a seed: ``masks_0`` for the first site and so on, each
            [samples, batch, units], as in ``Predictive.masks``.
        prepare: A module that precedes the model in the file and maps what the file takes to the
            model's one argument, such as the scaling of an image; ``example`` is then a call of it.
        scale: Mean and standard deviation of a regression's labels, if these were standardised:
            answers are then in the labels' own units.
        decisions: Fitted objects, in the order in which the file applies them to its draws: scalers
            (``calibration.Temperature``, ``Vector``), after which all answers are calibrated;
            ``conformal.Sets``, which adds the output ``set``, bool [batch, classes];
            ``conformal.Intervals``, ``low`` and ``high``; ``selective.Defer``, ``defer``, bool
            [batch]. Fit them to ``model.predict``, with as many samples as the file has.
        metadata: Further JSON values for the file's metadata, such as ``{"classes": names}``, by
            names that it does not have itself.
        overwrite: Replace a file that exists.
        check: Run the file and compare it with PyTorch, on batches of several sizes.
        tolerance: Largest difference allowed, relative to numbers above 1.

    Raises:
        ExportError: If the model cannot be traced, does not fit in the format, or the file differs
            from PyTorch. Nothing is written then.
        MissingExtraError: If the format needs a package that is not installed.

    Examples:
        >>> import tempfile
        >>> import gflowout as gfo
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> x = torch.randn(5, 4)
        >>> model = gfo.wrap(net, "mc", ["1"], likelihood=gfo.Categorical(3), example=(x,))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     done = export(model, f"{folder}/model.pt2", (x,))
        ...     program = torch.export.load(done.path).module()
        >>> done.inputs[0]
        Port(name='input', dtype='float32', shape=['batch', 4])
        >>> program(input=torch.randn(9, 4), seed=torch.tensor(0))["mean"].shape
        torch.Size([9, 3])
    """
    _check_arguments(
        model, path, samples, prepare, tolerance, masks=masks, overwrite=overwrite, check=check
    )
    format = formats.chosen(path, format)
    target = place(path, overwrite)
    formats.need(format)
    args, kwargs = split_example(example)
    # A file must not depend on an autocast context around this call.
    with torch.autocast("cpu", enabled=False):
        deployed = Deployed(
            model, args, kwargs, samples=samples, masks=masks, prepare=prepare,
            scale=_scale(model, scale), decisions=decisions,
        )  # fmt: skip
        described = describe(deployed, {} if metadata is None else metadata)
        return _write(deployed, target, format, described, overwrite, tolerance if check else None)


def _write(
    deployed: Deployed,
    path: Path,
    format: str,
    metadata: dict[str, Any],
    overwrite: bool,
    tolerance: float | None,
) -> Exported:
    """Write the file, after a comparison with PyTorch unless ``tolerance`` is ``None``."""
    content = formats.render(deployed, format, metadata)
    difference = None
    if tolerance is not None:
        difference = _difference(deployed, content, format, tolerance)
    place(path, overwrite)  # a file may have appeared in the meantime
    atomic_io.write_file(path, lambda stream: stream.write(content))
    inputs, outputs = (
        tuple(Port(**port) for port in metadata[side]) for side in ("inputs", "outputs")
    )
    return Exported(path, format, len(content), inputs, outputs, difference, metadata)


def _check_arguments(
    model: Any, path: Any, samples: Any, prepare: Any, tolerance: Any, **flags: Any
) -> None:
    if not isinstance(model, MaskedModel | Ensemble):
        raise TypeError(f"model must come from gfo.wrap, got {type(model).__name__}")
    checks.path("path", path)
    if prepare is not None and not isinstance(prepare, nn.Module):
        raise TypeError(f"prepare must be an nn.Module, got {type(prepare).__name__}")
    checks.integer("samples", samples, low=1)
    checks.number("tolerance", tolerance, low=0)
    for name, flag in flags.items():
        checks.boolean(name, flag)


def place(path: str | os.PathLike[str], overwrite: bool) -> Path:
    """Refuse a path that could not be written to, before any work is done."""
    target = checks.target("path", path)
    if target.exists() and not overwrite:
        raise FileExistsError(f"path: {str(target)!r} exists; overwrite=True replaces it")
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise PermissionError(f"path: no permission to write into {str(target.parent)!r}")
    return target


def describe(deployed: Deployed, more: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata of a file, as JSON values, with ``more`` from the user, which is checked."""
    likelihood = deployed.members[0].likelihood
    own = {
        "format": FORMAT,
        "gflowout": gflowout.__version__,
        "torch": torch.__version__,
        "samples": deployed.samples,
        "draws": "masks" if deployed.masks else "seed",
        "likelihood": {"name": type(likelihood).__name__, **likelihood.config()},
        "scale": deployed.scale,
        "decisions": answers.described(deployed.decisions),
        "members": [
            {
                "method": member.method.name,
                "samples": count,
                "sites": [{"name": site.name, "units": site.units} for site in member.sites],
            }
            for member, count in zip(deployed.members, deployed.counts, strict=True)
        ],
        "inputs": _ports(deployed.example, deployed.batched),
        "outputs": _ports(deployed.answers, dict.fromkeys(deployed.answers, 0) | {"samples": 1}),
    }
    if not isinstance(more, Mapping):
        raise TypeError(f"metadata must be a mapping, got {type(more).__name__}")
    if taken := [name for name in more if name in own]:
        raise ValueError(
            f"metadata must leave the file's own names alone, got {taken}; taken are {list(own)}"
        )
    try:
        added = json.loads(json.dumps(dict(more), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise type(error)(f"metadata must hold JSON values, got {more!r}: {error}") from error
    return {**json.loads(json.dumps(own, allow_nan=False)), **added}


def read_metadata(path: str | Path) -> dict[str, Any]:
    """What a file says of itself: method, sites, likelihood, inputs, outputs and so on.

    Nothing of the file is run. Of an archive the metadata alone is read; an ONNX file is read as a
    whole, which takes the extra ``onnx``.

    Args:
        path: A file that :func:`gflowout.export.export` wrote.

    Raises:
        FileNotFoundError: If there is no such file.
        ExportError: If it is not one of ours, or is damaged.

    Examples:
        >>> import tempfile
        >>> import gflowout as gfo
        >>> x = torch.randn(5, 4)
        >>> net = nn.Linear(4, 3)
        >>> model = gfo.wrap(net, "none", (), likelihood=gfo.Categorical(3), example=(x,))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     done = export(model, f"{folder}/model.pt2", (x,), metadata={"version": 7})
        ...     about = read_metadata(done.path)
        >>> about["likelihood"], about["samples"], about["version"]
        ({'name': 'Categorical', 'classes': 3}, 20, 7)
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"path: there is no file {str(path)!r}")
    if path.is_dir():
        raise IsADirectoryError(f"path must be a file, got the folder {str(path)!r}")
    text: str | bytes | None = None
    if zipfile.is_zipfile(path):
        try:
            with zipfile.ZipFile(path) as archive:
                ending = f"/extra/{formats.JSON}"
                names = [name for name in archive.namelist() if name.endswith(ending)]
                text = archive.read(names[0]) if names else None
        except zipfile.BadZipFile as error:
            raise ExportError(f"{path}: the archive is damaged") from error
    else:
        onnx = require("onnx", extra="onnx", purpose="reading ONNX")
        try:
            model = onnx.load(str(path), load_external_data=False)
        except OSError:
            raise
        except Exception as error:  # of a library that onnx reads files with
            raise ExportError(f"{path}: neither ONNX nor a torch-export archive") from error
        text = {entry.key: entry.value for entry in model.metadata_props}.get(formats.KEY)
    if text is None:
        raise ExportError(f"{path}: not written by gflowout, it has no metadata of ours")
    try:
        metadata = json.loads(text)
    except ValueError as error:
        raise ExportError(f"{path}: the metadata is damaged: {error}") from error
    if not isinstance(metadata, dict):
        raise ExportError(f"{path}: the metadata is damaged: {metadata!r} is no mapping")
    return metadata


def _difference(deployed: Deployed, content: bytes, format: str, tolerance: float) -> float:
    """Open the bytes of a file and return its largest difference from PyTorch."""
    try:
        answer = formats.opened(content, format)
    except ExportError as error:
        tensors = (*deployed.parameters(), *deployed.buffers(), *deployed.example.values())
        half = {tensor.dtype for tensor in tensors} & {torch.float16, torch.bfloat16}
        if not half:
            raise
        raise ExportError(
            f"{error}; the model is in half precision ({half.pop()}): export model.float()"
        ) from error
    return formats.largest_difference(deployed, answer, tolerance)


def _ports(tensors: Mapping[str, Tensor], batched: Mapping[str, int]) -> list[dict[str, Any]]:
    """Inputs or outputs as JSON values; ``batched`` has the axis of those that carry the batch."""
    ports = []
    for name, value in tensors.items():
        sizes: list[int | str] = list(value.shape)
        if name in batched:
            sizes[batched[name]] = "batch"
        dtype = str(value.dtype).removeprefix("torch.")
        ports.append({"name": name, "dtype": dtype, "shape": sizes})
    return ports


def _scale(
    model: MaskedModel | Ensemble, scale: tuple[float, float] | None
) -> tuple[float, float] | None:
    if scale is None:
        return None
    first = model.members[0] if isinstance(model, Ensemble) else model
    if not isinstance(first.likelihood, Gaussian):
        raise ValueError(f"scale is for regression (Gaussian), the model has {first.likelihood}")
    try:
        mean, deviation = scale
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"scale must be two numbers, a mean and a standard deviation, got {scale!r}"
        ) from error
    return checks.number("scale", mean), checks.number("scale", deviation, low=0, open_low=True)
