"""The two formats: a traced model as bytes of one file, and a file as a function again.

Metadata is one JSON text: ``gflowout`` in the metadata of an ONNX model, ``gflowout.json`` among
the extra files of a torch-export archive. Knows nothing of methods or likelihoods.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gflowout.core import checks
from gflowout.core.optional import require
from gflowout.export.check import Answer, check_one_row
from gflowout.export.deployed import Deployed, ExportError
from gflowout.export.translations import translations

FORMATS = ("onnx", "torch-export")
"""What a file can be."""

_ENDINGS = {".onnx": "onnx", ".pt2": "torch-export"}

KEY = "gflowout"
_JSON = f"{KEY}.json"
_LARGEST = 2**31 - 1
"""Bytes that an ONNX file can have."""

_OUTER, _INNER = "__output", "__inner"


def chosen(path: str | os.PathLike[str], format: str | None) -> str:
    """Return the format of a file to be written.

    Args:
        path: Where to.
        format: One of :data:`FORMATS`, or ``None`` to go by the ending of ``path``.

    Raises:
        ValueError: If it is none of them, or the ending is that of the other one.

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
    """Say what to install if a format needs something that is missing."""
    if format == "onnx":
        for module in ("onnx", "onnxscript", "onnxruntime"):
            require(module, extra="onnx", purpose="exporting to ONNX")


def render(deployed: Deployed, format: str, metadata: Mapping[str, Any]) -> bytes:
    """Trace a model and return the bytes of its file.

    Args:
        deployed: The model as a function of tensors.
        format: One of :data:`FORMATS`.
        metadata: JSON values.

    Raises:
        ExportError: If it cannot be traced for any size of the batch, or does not fit in a file.
    """
    text = json.dumps(metadata)
    with _quiet():
        program = _traced(deployed, opaque=format == "onnx")
        return _onnx(deployed, program, text) if format == "onnx" else _archive(program, text)


def opened(content: bytes, format: str) -> Answer:
    """Return what the bytes of a file do."""
    if format == "onnx":
        runtime = require("onnxruntime", extra="onnx", purpose="running ONNX")
        options = runtime.SessionOptions()
        options.log_severity_level = 3  # no remarks on what it cannot work out beforehand
        try:
            session = runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # such as a type of numbers that an operator does not have
            raise ExportError(f"onnxruntime cannot run the file: {_gist(error)}") from error
        names = [output.name for output in session.get_outputs()]

        def answer(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
            found = session.run(names, {name: each.numpy() for name, each in inputs.items()})
            return {name: torch.as_tensor(each) for name, each in zip(names, found, strict=True)}

        return answer
    with _quiet():
        module = torch.export.load(io.BytesIO(content)).module()

    def run(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        with torch.no_grad():
            found: dict[str, Tensor] = module(**inputs)
        return found

    return run


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
        ...     found = read_metadata(path)
        >>> found["likelihood"], found["samples"], found["classes"]
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
        text = {each.key: each.value for each in model.metadata_props}.get(KEY)
    if text is None:
        raise ExportError(f"{path}: not written by gflowout, it has no metadata of ours")
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ExportError(f"{path}: the metadata is damaged: {error}") from error
    if not isinstance(found, dict):
        raise ExportError(f"{path}: the metadata is damaged: {found!r} is no mapping")
    return found


def _traced(deployed: Deployed, opaque: bool) -> torch.export.ExportedProgram:
    dynamic = torch.export.Dim.DYNAMIC
    shapes = {
        name: {deployed.batched[name]: dynamic} if name in deployed.batched else None
        for name in deployed.example
    }
    deployed.opaque = opaque
    try:
        # When it fails, the tracer prints its graph: the error says enough.
        with torch.no_grad(), redirect_stderr(io.StringIO()):
            program = torch.export.export(
                deployed, (), kwargs=dict(deployed.example), dynamic_shapes=shapes
            )
    except Exception as error:  # whatever the backbone does that cannot be traced
        raise ExportError(f"the model cannot be traced: {_gist(error)}") from error
    finally:
        deployed.opaque = False
    for bounds in program.range_constraints.values():
        if bounds.lower > 2 or bounds.upper < 2**31:
            raise ExportError(
                f"the backbone takes batches of {bounds.lower} to {bounds.upper} only: its code "
                "looks at the size of the batch"
            )
    _check_guards(deployed, program)
    # The tracer takes it for granted that there are two rows or more.
    module = program.module()
    check_one_row(deployed, lambda inputs: module(**inputs))
    return program


def _check_guards(deployed: Deployed, program: torch.export.ExportedProgram) -> None:
    """Refuse code that took a way that is not right for all sizes of the batch.

    A file would go that way with every batch. Conditions that the tracer met are not solved but
    tried, for two rows or more; those of PyTorch itself hold for all.
    """
    sizes = [
        node.meta["val"].shape[deployed.batched[node.name]]
        for node in program.graph.nodes
        if node.op == "placeholder" and node.name in deployed.batched
    ]
    environment = sizes[0].node.shape_env
    batch = {symbol for size in sizes for symbol in size.node.expr.free_symbols}
    for condition in {environment.replace(guard.expr) for guard in environment.guards}:
        symbols = condition.free_symbols
        if not symbols or not symbols <= batch:
            continue
        for rows in _tried(condition):
            if not bool(condition.subs(dict.fromkeys(symbols, rows))):
                raise ExportError(
                    f"the backbone does something else with a batch of {rows}: its code looks at "
                    f"the size of the batch ({condition})"
                )


def _tried(condition: Any) -> list[int]:
    """Sizes at which a condition may change: small ones, and those near its own numbers."""
    numbers = {abs(int(each)) for each in condition.atoms() if each.is_Integer}
    numbers |= {abs(one + sign * other) for one in numbers for other in numbers for sign in (1, -1)}
    near = {one // other for one in numbers for other in numbers if other}
    sizes = {*range(2, 65), *(2**power for power in range(7, 31)), *near}
    return sorted(size for each in sizes for size in (each, each + 1, each - 1) if size > 1)


def _gist(error: Exception) -> str:
    """The part of PyTorch's message that is about the model."""
    text = str(error).split("\n\nThe error above occurred")[0].strip()
    if "data-dependent" in text:
        return _by_values(text)
    if "onstraint" in text or "specialized" in text:
        text += "; code that takes len() or int() of a tensor's size fixes it: take x.shape[0]"
    return " ".join(text.split())[:1000] or type(error).__name__


def _by_values(text: str) -> str:
    """What to say of code that looks at values, of which PyTorch says more than anyone reads."""
    place = re.search(r'call raised this error:\s*File "(.+)", line (\d+)', text)
    place = place or re.search(r"Caused by: \((.+):(\d+) in ", text)
    where = f" ({place[1]}, line {place[2]})" if place else ""
    said = text.split("\n")[0].split(" (unhinted")[0].rstrip(".")
    return (
        "the backbone decides by values of its inputs, which a traced file cannot do: take "
        f"torch.where instead of if, and tensors instead of int() or .item(){where}; PyTorch "
        f"says: {said}"
    )


def _onnx(deployed: Deployed, program: torch.export.ExportedProgram, text: str) -> bytes:
    onnx = require("onnx", extra="onnx", purpose="exporting to ONNX")
    weights = {
        each.data_ptr(): each.nbytes  # once if it has two names
        for each in (*program.state_dict.values(), *program.constants.values())
        if isinstance(each, Tensor)
    }
    _check_size(sum(weights.values()))
    try:
        made = torch.onnx.export(
            program,
            input_names=list(deployed.example),
            output_names=[f"{name}{_OUTER}" for name in deployed.answers],
            dynamo=True,
            verbose=False,
            custom_translation_table=translations(),
        )
    except Exception as error:  # an operator that ONNX does not have
        raise ExportError(f"the model cannot be written as ONNX: {_gist(error)}") from error
    assert made is not None
    model = made.model_proto
    # Named here: the exporter would not mind that a value inside has the name of an output.
    renamed = {f"{name}{_OUTER}": name for name in deployed.answers}
    _rename(model.graph, renamed | {name: f"{name}{_INNER}" for name in deployed.answers})
    for value in (*model.graph.input, *model.graph.output):
        batch = deployed.batched.get(value.name, 1 if value.name == "samples" else 0)
        sizes = value.type.tensor_type.shape.dim
        if batch < len(sizes) and sizes[batch].dim_param:
            sizes[batch].dim_param = "batch"
    # Lines of code and paths of this machine, half of a small file, are nobody's business.
    for node in (*model.graph.node, *(each for one in model.functions for each in one.node)):
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
    except message.EncodeError as error:  # which says nothing of the size
        raise ExportError(_too_large("more than 2 GB")) from error
    _check_size(len(content))
    return content


def _check_size(size: int) -> None:
    if size > _LARGEST:
        raise ExportError(_too_large(f"{size / 1e9:.1f} GB"))


def _too_large(size: str) -> str:
    return (
        f"the model takes {size}, and an ONNX file can have 2 GB at most: take "
        'format="torch-export"'
    )


def _rename(graph: Any, names: Mapping[str, str]) -> None:
    """Give values of a graph, and of those inside its nodes, other names."""
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


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what exporters say to their developers from the user."""
    names = ("torch.onnx", "torch.export", "torch.fx", "onnxscript")
    loggers = [logging.getLogger(name) for name in names]
    levels = [each.level for each in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for each in loggers:
            each.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for each, level in zip(loggers, levels, strict=True):
                each.setLevel(level)
