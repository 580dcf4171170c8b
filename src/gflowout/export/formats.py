"""The two formats: tracing a model, writing it as bytes of one file, and opening them again.

Metadata is one JSON text: ``gflowout`` in the metadata of an ONNX model, ``gflowout.json`` among
the extra files of a torch-export archive.
"""

from __future__ import annotations

import io
import json
import logging
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gflowout.core import checks
from gflowout.core.optional import require
from gflowout.export.deployed import SEED, Deployed, ExportError
from gflowout.export.noise import translations

FORMATS = ("onnx", "torch-export")
"""Formats of a file."""

_ENDINGS = {".onnx": "onnx", ".pt2": "torch-export"}

KEY = "gflowout"
JSON = f"{KEY}.json"
_LARGEST = 2**31 - 1  # bytes that an ONNX file can have
_SEEDS, _ROUNDING = (0, 1, 2), 1e-3  # of the comparison with PyTorch
_OUTER, _INNER = "__output", "__inner"

Answer = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
"""Maps inputs by name to outputs by name."""


def chosen(path: str | os.PathLike[str], format: str | None) -> str:
    """Return the format of a file to be written; ``None`` is decided by the ending of the path."""
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
    """Trace a model and return the bytes of its file, with JSON values as metadata."""
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


def _onnx(deployed: Deployed, program: torch.export.ExportedProgram, text: str) -> bytes:
    onnx = require("onnx", extra="onnx", purpose="exporting to ONNX")
    weights = {
        value.data_ptr(): value.nbytes  # once if it has two names
        for value in (*program.state_dict.values(), *program.constants.values())
        if isinstance(value, Tensor)
    }
    _check_size(sum(weights.values()))
    # Named afterwards, because the exporter may give an inner value the name of an output.
    renamed = {f"{name}{_OUTER}": name for name in deployed.answers}
    try:
        written = torch.onnx.export(
            program, dynamo=True, verbose=False, custom_translation_table=translations(),
            input_names=list(deployed.example), output_names=list(renamed),
        )  # fmt: skip
    except Exception as error:  # an operator that ONNX does not have
        raise ExportError(f"the model cannot be written as ONNX: {gist(error)}") from error
    assert written is not None
    model = written.model_proto
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
    except message.EncodeError:  # whose message does not mention the size
        _check_size(math.inf)
        raise
    _check_size(len(content))
    return content


def _check_size(size: float) -> None:
    if size > _LARGEST:
        shown = "more than 2 GB" if size == math.inf else f"{size / 1e9:.1f} GB"
        raise ExportError(
            f"the model takes {shown}, and an ONNX file can have 2 GB at most: take "
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
    torch.export.save(program, stream, extra_files={JSON: text})
    return stream.getvalue()


def traced(deployed: Deployed, opaque: bool) -> torch.export.ExportedProgram:
    """Trace a model for any size of the batch; refuse one that does something else for some."""
    dynamic = torch.export.Dim.DYNAMIC
    shapes = {
        name: {deployed.batched[name]: dynamic} if name in deployed.batched else None
        for name in deployed.example
    }
    deployed.opaque = opaque
    try:
        # When it fails, the tracer prints its graph: the error says enough.
        with torch.no_grad(), redirect_stderr(io.StringIO()):
            inputs = dict(deployed.example)
            program = torch.export.export(deployed, (), kwargs=inputs, dynamic_shapes=shapes)
    except Exception as error:  # whatever the backbone does that cannot be traced
        raise ExportError(f"the model cannot be traced: {gist(error)}") from error
    finally:
        deployed.opaque = False
    for bounds in program.range_constraints.values():
        if bounds.lower > 2 or bounds.upper < 2**31:
            raise ExportError(
                f"the backbone takes batches of {bounds.lower} to {bounds.upper} only: its code "
                "looks at the size of the batch"
            )
    _check_guards(deployed, program)
    _check_one_row(deployed, program.module())
    return program


def _check_guards(deployed: Deployed, program: torch.export.ExportedProgram) -> None:
    """Refuse code that took a branch which is not right for all sizes of the batch.

    A file would take that branch for every batch. Conditions that the tracer met are not solved but
    tried, for two rows or more; those of PyTorch itself hold for all sizes.
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
    numbers = {abs(int(atom)) for atom in condition.atoms() if atom.is_Integer}
    numbers |= {abs(a + sign * b) for a in numbers for b in numbers for sign in (1, -1)}
    near = {a // b for a in numbers for b in numbers if b}
    sizes = {*range(2, 65), *(2**power for power in range(7, 31)), *near}
    return sorted({size + step for size in sizes for step in (-1, 0, 1) if size + step > 1})


def gist(error: Exception) -> str:
    """The part of PyTorch's message that is about the model."""
    text = str(error).split("\n\nThe error above occurred")[0].strip()
    if "data-dependent" in text:
        return _by_values(text)
    if "onstraint" in text or "specialized" in text:
        text += "; code that takes len() or int() of a tensor's size fixes it: take x.shape[0]"
    return " ".join(text.split())[:1000] or type(error).__name__


def _by_values(text: str) -> str:
    """Short message about code that depends on values; PyTorch's own is very long."""
    place = re.search(r'call raised this error:\s*File "(.+)", line (\d+)', text)
    place = place or re.search(r"Caused by: \((.+):(\d+) in ", text)
    where = f" ({place[1]}, line {place[2]})" if place else ""
    message = text.split("\n")[0].split(" (unhinted")[0].rstrip(".")
    return (
        "the backbone or the method decides by values of tensors, which a traced file cannot do: "
        f"take torch.where instead of if, and tensors instead of int() or .item(){where}; PyTorch "
        f"says: {message}"
    )


@torch.no_grad()
def largest_difference(deployed: Deployed, answer: Answer, tolerance: float) -> float:
    """Largest difference of any output of a file from PyTorch, relative to numbers above 1.

    A unit whose keep rate depends on the input is kept or dropped by a comparison. Rounding can
    change its outcome if the random number equals the rate in all but its last bits. That is no
    error but another draw: a difference is refused if it exceeds the tolerance with every seed.
    """
    rows = deployed.rows
    # The example, more rows of it in another order, and one row.
    batches = (range(rows), [place % rows for place in range(rows, -1, -1)], [0])
    gap, name = _worst(deployed, answer, batches, tolerance)
    if gap > tolerance:
        raise ExportError(
            f"the file differs from PyTorch by {gap:.2g} in {name!r}, more than tolerance="
            f"{tolerance:g}"
        )
    return gap


@torch.no_grad()
def _check_one_row(deployed: Deployed, module: nn.Module) -> None:
    """Refuse a model that does something else with one row: the tracer has seen two or more."""
    what = "the backbone does something else with a batch of one row than with several"
    try:
        gap, name = _worst(deployed, lambda inputs: module(**inputs), ([0],), _ROUNDING)
    except ExportError as error:
        raise ExportError(f"{what}: {error}") from error
    except Exception as error:  # whatever the backbone does
        raise ExportError(f"the model fails on a batch of one row: {error}") from error
    if gap > _ROUNDING:
        raise ExportError(f"{what}: {name!r} differs by {gap:.2g}")


def _worst(
    deployed: Deployed, answer: Answer, batches: Sequence[Sequence[int]], enough: float
) -> tuple[float, str]:
    """Largest difference and its output, of the first seed with a small enough one or the last."""
    worst = (0.0, "")
    for seed in _SEEDS:
        worst = max(
            gap
            for places in batches
            for inputs in [_call(deployed, seed, places)]
            for gap in _gaps(deployed.values(inputs), answer(inputs))
        )
        if worst[0] <= enough:
            break
    return worst


def _gaps(expected: dict[str, Tensor], actual: dict[str, Tensor]) -> Iterator[tuple[float, str]]:
    for name, value in expected.items():
        if actual[name].shape != value.shape:
            raise ExportError(
                f"the file gives {name!r} of shape {list(actual[name].shape)}, PyTorch "
                f"{list(value.shape)}"
            )
        if not bool(value.isfinite().all()):
            raise ExportError(f"the model gives {name!r} that is not finite on the example")
        if actual[name].dtype == torch.bool:  # by what margin it is on the wrong side
            apart = torch.where((value >= 0) == actual[name], 0.0, value.abs())
        else:
            apart = (actual[name] - value).abs() / value.abs().clamp(min=1)
        gap = float(apart.max())
        yield (float("inf") if gap != gap else gap), name


def _call(deployed: Deployed, seed: int, places: Sequence[int]) -> dict[str, Tensor]:
    """Some rows of the example, with a seed or with masks of it."""
    chosen = torch.tensor(places)
    call = dict(deployed.example)
    for name, axis in deployed.batched.items():
        call[name] = call[name].index_select(axis, chosen)
    if SEED in call:
        call[SEED] = torch.tensor(seed)
    generator = torch.Generator().manual_seed(seed)
    for name in deployed.masks:
        call[name] = (torch.rand(call[name].shape, generator=generator) < 0.5).to(call[name])
    return call


@contextmanager
def quiet() -> Iterator[None]:
    """Silence messages of exporters that are meant for their developers."""
    names = ("torch.onnx", "torch.export", "torch.fx", "onnxscript")
    loggers = [logging.getLogger(name) for name in names]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
