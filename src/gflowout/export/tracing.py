"""Tracing a model, and comparing a trace or a file with PyTorch on batches of several sizes."""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from typing import Any

import torch
from torch import Tensor

from gflowout.export.deployed import SEED, Deployed, ExportError
from gflowout.export.noise import Hashed

Answer = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
"""Maps inputs by name to outputs by name."""

_SEEDS = (0, 1, 2)
_ROUNDING = 1e-3
_ONE_ROW = "the backbone does something else with a batch of one row than with several"


def traced(deployed: Deployed, opaque: bool) -> torch.export.ExportedProgram:
    """Trace a model for any size of the batch, from one row on.

    Raises:
        ExportError: If it cannot be traced, or does something else for some sizes.
    """
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
    # The tracer takes it for granted that there are two rows or more.
    module = program.module()
    check_one_row(deployed, lambda inputs: module(**inputs))
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
        "the backbone decides by values of its inputs, which a traced file cannot do: take "
        f"torch.where instead of if, and tensors instead of int() or .item(){where}; PyTorch "
        f"says: {message}"
    )


@torch.no_grad()
def largest_difference(deployed: Deployed, answer: Answer, tolerance: float) -> float:
    """Largest difference of any output of a file from PyTorch, relative to numbers above 1.

    A unit whose keep rate depends on the input is kept or dropped by a comparison. Rounding can
    change its outcome if the random number equals the rate in all but its last bits. That is no
    error but another draw: a seed may fail if another one passes.

    Raises:
        ExportError: If it exceeds the tolerance with every seed.
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
def check_one_row(deployed: Deployed, trace: Answer) -> None:
    """Refuse a model that does something else with one row than with several.

    Raises:
        ExportError: If one row fails, or ``trace``, that of several rows, differs by more than
            rounding.
    """
    try:
        gap, name = _worst(deployed, trace, ([0],), _ROUNDING)
    except ExportError as error:
        raise ExportError(f"{_ONE_ROW}: {error}") from error
    except Exception as error:  # whatever the backbone does
        raise ExportError(f"the model fails on a batch of one row: {error}") from error
    if gap > _ROUNDING:
        raise ExportError(f"{_ONE_ROW}: {name!r} differs by {gap:.2g}")


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
            for gap in _gaps(deployed.run(inputs), answer(inputs))
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
        gap = float(((actual[name] - value).abs() / value.abs().clamp(min=1)).max())
        yield (float("inf") if gap != gap else gap), name


def _call(deployed: Deployed, seed: int, places: Sequence[int]) -> dict[str, Tensor]:
    """Some rows of the example, with a seed or with masks of it."""
    chosen = torch.tensor(places)
    call = dict(deployed.example)
    for name, axis in deployed.batched.items():
        call[name] = call[name].index_select(axis, chosen)
    if SEED in call:
        call[SEED] = torch.tensor(seed)
    for number, name in enumerate(deployed.masks):
        samples, rows, units = call[name].shape
        noise = Hashed(torch.tensor(seed), range(1), number)
        numbers = noise.uniform(samples * rows, units, call[name])
        call[name] = (numbers < 0.5).to(call[name]).reshape(samples, rows, units)
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
