"""The two formats: a traced model as bytes of one file, and a file as a function again.

Metadata is one JSON text: ``gflowout`` in the metadata of an ONNX model, ``gflowout.json`` among
the extra files of a torch-export archive.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gflowout.core import checks
from gflowout.core.optional import require
from gflowout.export.deployed import Deployed, ExportError
from gflowout.export.noise import translations
from gflowout.export.tracing import Answer, gist, quiet, traced

FORMATS = ("onnx", "torch-export")
"""Formats of a file."""

_ENDINGS = {".onnx": "onnx", ".pt2": "torch-export"}

KEY = "gflowout"
_JSON = f"{KEY}.json"
_LARGEST = 2**31 - 1
"""Bytes that an ONNX file can have."""

_OUTER, _INNER = "__output", "__inner"


def chosen(path: str | os.PathLike[str], format: str | None) -> str:
    """Return the format of a file to be written; ``None`` is decided by the ending of the path.

    Raises:
        ValueError: If it is not one of :data:`FORMATS`, or the ending is that of the other one.

    Examples:
        >>> chosen("model.pt2", None), chosen("model", None)
        ('torch-export', 'onnx')
        >>> chosen("model.pt2", "onnx")
        Traceback (most recent call last):
            ...
        ValueError: format must be 'torch-export' for a path that ends in '.pt2', got 'onnx'
    """
    ending = Path(path).suffix
    usual = _ENDINGS.get(ending.lower())
    if format is None:
        return usual or "onnx"
    checks.choice("format", format, FORMATS)
    if usual not in (None, format):
        raise ValueError(
            f"format must be {usual!r} for a path that ends in {ending!r}, got {format!r}"
        )
    return format


def need(format: str) -> None:
    """Raise MissingExtraError if a package that the format needs is not installed."""
    if format == "onnx":
        for module in ("onnx", "onnxscript", "onnxruntime"):
            require(module, extra="onnx", purpose="exporting to ONNX")


def render(deployed: Deployed, format: str, metadata: Mapping[str, Any]) -> bytes:
    """Trace a model and return the bytes of its file, with JSON values as metadata.

    Raises:
        ExportError: If it cannot be traced for any size of the batch, or does not fit in a file.
    """
    text = json.dumps(metadata)
    with quiet():
        program = traced(deployed, opaque=format == "onnx")
        return _onnx(deployed, program, text) if format == "onnx" else _archive(program, text)


def opened(content: bytes, format: str) -> Answer:
    """Load the bytes of a file and return what it computes as a function."""
    if format == "torch-export":
        with quiet():
            module = torch.export.load(io.BytesIO(content)).module()

        def run(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
            with torch.no_grad():
                outputs: dict[str, Tensor] = module(**inputs)
            return outputs

        return run
    runtime = require("onnxruntime", extra="onnx", purpose="running ONNX")
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # no remarks on shapes that it cannot infer
    try:
        session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # such as a type of numbers that an operator does not have
        raise ExportError(f"onnxruntime cannot run the file: {gist(error)}") from error
    names = [output.name for output in session.get_outputs()]

    def run_onnx(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        arrays = session.run(names, {name: value.numpy() for name, value in inputs.items()})
        return {name: torch.as_tensor(value) for name, value in zip(names, arrays, strict=True)}

    return run_onnx


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
        >>> from gflowout.export import export
        >>> x = torch.randn(5, 4)
        >>> net = torch.nn.Linear(4, 3)
        >>> model = gfo.wrap(net, "none", (), likelihood=gfo.Categorical(3), example=(x,))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = f"{folder}/model.pt2"
        ...     about = {"classes": ["cat", "dog", "owl"]}
        ...     done = export(model, path, (x,), format="torch-export", metadata=about)
        ...     about = read_metadata(path)
        >>> about["likelihood"], about["samples"], about["classes"]
        ({'name': 'Categorical', 'classes': 3}, 20, ['cat', 'dog', 'owl'])
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
                names = [name for name in archive.namelist() if name.endswith(f"/extra/{_JSON}")]
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
        text = {entry.key: entry.value for entry in model.metadata_props}.get(KEY)
    if text is None:
        raise ExportError(f"{path}: not written by gflowout, it has no metadata of ours")
    try:
        metadata = json.loads(text)
    except ValueError as error:
        raise ExportError(f"{path}: the metadata is damaged: {error}") from error
    if not isinstance(metadata, dict):
        raise ExportError(f"{path}: the metadata is damaged: {metadata!r} is no mapping")
    return metadata


def _onnx(deployed: Deployed, program: torch.export.ExportedProgram, text: str) -> bytes:
    onnx = require("onnx", extra="onnx", purpose="exporting to ONNX")
    weights = {
        value.data_ptr(): value.nbytes  # once if it has two names
        for value in (*program.state_dict.values(), *program.constants.values())
        if isinstance(value, Tensor)
    }
    _check_size(sum(weights.values()))
    try:
        written = torch.onnx.export(
            program,
            input_names=list(deployed.example),
            output_names=[f"{name}{_OUTER}" for name in deployed.answers],
            dynamo=True,
            verbose=False,
            custom_translation_table=translations(),
        )
    except Exception as error:  # an operator that ONNX does not have
        raise ExportError(f"the model cannot be written as ONNX: {gist(error)}") from error
    assert written is not None
    model = written.model_proto
    # Named here, because the exporter may give an inner value the name of an output.
    renamed = {f"{name}{_OUTER}": name for name in deployed.answers}
    _rename(model.graph, renamed | {name: f"{name}{_INNER}" for name in deployed.answers})
    for value in (*model.graph.input, *model.graph.output):
        batch = deployed.batched.get(value.name, 1 if value.name == "samples" else 0)
        sizes = value.type.tensor_type.shape.dim
        if batch < len(sizes) and sizes[batch].dim_param:
            sizes[batch].dim_param = "batch"
    # Lines of code and paths of this machine must not be in the file, half of a small one.
    for node in (*model.graph.node, *(node for part in model.functions for node in part.node)):
        del node.metadata_props[:]
        node.ClearField("doc_string")
    del model.graph.value_info[:]
    del model.graph.metadata_props[:]
    del model.metadata_props[:]
    model.metadata_props.add(key=KEY, value=text)
    content = _serialized(model)
    onnx.checker.check_model(content, full_check=True)
    return content


def _serialized(model: Any) -> bytes:
    message = require("google.protobuf.message", extra="onnx", purpose="exporting to ONNX")
    try:
        content: bytes = model.SerializeToString()
    except message.EncodeError as error:  # whose message does not mention the size
        raise _too_large("more than 2 GB") from error
    _check_size(len(content))
    return content


def _check_size(size: int) -> None:
    if size > _LARGEST:
        raise _too_large(f"{size / 1e9:.1f} GB")


def _too_large(size: str) -> ExportError:
    return ExportError(
        f"the model takes {size}, and an ONNX file can have 2 GB at most: take "
        'format="torch-export"'
    )


def _rename(graph: Any, names: Mapping[str, str]) -> None:
    """Rename values of a graph and of the graphs inside its nodes."""
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        for side in (node.input, node.output):
            side[:] = [names.get(name, name) for name in side]
        for attribute in node.attribute:
            for inner in (attribute.g, *attribute.graphs):
                _rename(inner, names)


def _archive(program: torch.export.ExportedProgram, text: str) -> bytes:
    for node in program.graph.nodes:  # lines of code and paths of this machine
        node.meta.pop("stack_trace", None)
    stream = io.BytesIO()
    torch.export.save(program, stream, extra_files={_JSON: text})
    return stream.getvalue()
