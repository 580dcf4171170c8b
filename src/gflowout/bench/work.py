"""Work instead of seconds: what an action makes PyTorch do, the same on every run and machine."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from gflowout.bench.methods import DRAWS, MLP_784, Build, Network, action_cases, models, resnet
from gflowout.bench.timing import Case, Table
from gflowout.core.model import MaskedModel

MEMORY_METHODS = ("mc", "concrete", "contextual", "id-gflowout", "gflowout")
MEMORY_DRAWS = (20, 100, 500)
GROWTH = "beside it ÷ 20 draws"
"""The number that a target is set for: most memory at a time besides the result, as a multiple of
that of 20 draws. The result is what was asked for; with shared masks it is larger than all else."""


@dataclass
class Work:
    """What an action did; memory in bytes."""

    passes: int = 0  # calls of the backbone
    # Rows of the batch that went through each layer of the backbone with parameters, by its name.
    rows: dict[str, int] = field(default_factory=dict)
    calls: int = 0  # of the method's own networks, the mask generators
    random_numbers: int = 0  # of any size
    operations: int = 0  # of PyTorch, forward and backward, views included
    products: int = 0  # those of them that are matrix products or convolutions
    flops: int = 0  # floating-point operations of these
    allocated: int = 0  # memory of all tensors that were made
    peak: int = 0  # most of it at one time
    returned: int = 0  # what is alive in the end, as part of what the action returns


def count(action: Callable[[], object], model: MaskedModel | None = None) -> Work:
    """Run an action once in this thread and count its work.

    Memory is that of tensors which operations make, not of what a kernel needs inside. An action
    that prepares something when it first runs should have run before. ``passes``, ``rows`` and
    ``calls`` stay empty without the ``model`` that it uses.

    Examples:
        >>> x = torch.zeros(2, 3)
        >>> work = count(lambda: torch.rand(3, 4) + (x @ torch.ones(3, 4)).sum())
        >>> work.random_numbers, work.products, work.flops, work.returned
        (12, 1, 48, 48)
    """
    work = Work()
    collecting = gc.isenabled()
    gc.disable()  # what is alive must not depend on when garbage was last collected
    try:
        with _watched(work, model), _Counter(work) as counter:
            result = action()
            work.returned = counter.alive
        del result
    finally:
        if collecting:
            gc.enable()
    return work


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts every operation below autograd."""

    def __init__(self, work: Work) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.alive = 0
        self._work = work
        self._storages: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if any(kind not in (Tensor, nn.Parameter) for kind in types):
            return NotImplemented  # tensor subclasses: the operations they run come by here
        kwargs = kwargs or {}
        formula = flop_registry.get(func._overloadpacket)
        if formula is None and func._can_decompose():  # called by such a subclass
            with self:
                return func.decompose(*args, **kwargs)
        result = func(*args, **kwargs)
        work = self._work
        work.operations += 1
        outputs = _tensors(result)
        if formula is not None:
            work.products += 1
            work.flops += formula(*args, **kwargs, out_val=result)
        elif torch.Tag.nondeterministic_seeded in func.tags and outputs:
            work.random_numbers += outputs[0].numel()
        inputs = {tensor.untyped_storage()._cdata for tensor in _tensors((args, kwargs))}
        for tensor in outputs:
            if tensor.untyped_storage()._cdata not in inputs:
                self._add(tensor.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        """Count memory that an operation allocated, until it is freed."""
        key, size = storage._cdata, storage.nbytes()
        if key in self._storages:
            return

        def freed(_: object) -> None:
            self.alive -= size
            del self._storages[key]

        self._storages[key] = weakref.ref(storage, freed)
        self.alive += size
        self._work.allocated += size
        self._work.peak = max(self._work.peak, self.alive)


def _tensors(values: Any) -> list[Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


@contextmanager
def _watched(work: Work, model: MaskedModel | None) -> Iterator[None]:
    """Count calls of a model's parts.

    Replaces ``forward`` instead of adding a hook: hooks also run where an output is reused that was
    kept from an earlier call.
    """
    nested = 0  # calls of the method's networks that are running

    def watch(module: nn.Module, layer: str | None) -> AbstractContextManager[Any]:
        forward = module.forward

        def replacement(*args: Any, **kwargs: Any) -> Any:
            nonlocal nested
            if layer is not None:
                first = next(leaf for leaf in tree_leaves((args, kwargs)) if hasattr(leaf, "shape"))
                work.rows[layer] = work.rows.get(layer, 0) + first.shape[0]
                return forward(*args, **kwargs)
            work.calls += not nested
            nested += 1
            try:
                return forward(*args, **kwargs)
            finally:
                nested -= 1

        return mock.patch.object(module, "forward", replacement)

    def enter_backbone(*_: object) -> None:
        work.passes += 1

    with ExitStack() as stack:
        if model is not None:
            stack.enter_context(model.backbone.register_forward_pre_hook(enter_backbone))
            for name, module in model.backbone.named_modules():
                if name and any(True for _ in module.parameters(recurse=False)):
                    stack.enter_context(watch(module, name))
            containers = nn.ModuleList | nn.ModuleDict
            for module in model.method.modules():
                if module is not model.method and not isinstance(module, containers):
                    stack.enter_context(watch(module, None))
        yield


def work_of(
    step: bool, build: Build, x: Tensor, last: int = 0, methods: Sequence[str] | None = None
) -> dict[str, Work]:
    """Work of a step of Adam or of a prediction; arguments as in :func:`action_cases`."""
    works = {}
    for name, (case, model) in action_cases(step, build, x, last, methods).items():
        if step:
            case()  # Adam makes its state in the first
        works[name] = count(case, model)
        if model is None:  # only the case itself knows how many passes it makes
            works[name].passes = 1 if step else DRAWS
    return works


def work_tables(width: int) -> list[Table]:
    """Work on the networks that the other tables time; ``width`` is that of ResNet-18."""
    net, scale = resnet(width), (width / 64) ** 2
    return [
        _work_table("mlp-step", MLP_784, 128, 1),
        _work_table("mlp-predict", MLP_784, 128, 1),
        _work_table("resnet-step", net, 32, 2 + 60 * scale),
        _work_table("resnet-predict", net, 16, 2 + 100 * scale),
    ]


def _work_table(name: str, network: Network, batch: int, cost: float) -> Table:
    step = name.endswith("-step")
    action = "a training step" if step else f"a prediction with {DRAWS} draws"

    def columns(*_: object) -> dict[str, dict[str, float]]:
        works = work_of(step, network.build, network.batch(batch))
        return {
            case: {
                "passes": work.passes,
                "generator calls": work.calls,
                "random numbers": work.random_numbers,
                "operations": work.operations,
                "products": work.products,
                "MFLOP": work.flops / 1e6,
                "MB made": work.allocated / 1e6,
                "MB at once": work.peak / 1e6,
            }
            for case, work in works.items()
        }

    title = f"Work of {action}, {network.title}, batch {batch}"
    return Table(f"work-{name}", title, (), 0, dict, further=columns, cost=cost)


def memory_table(repeats: int, batch: int = 128) -> Table:
    """How time and memory, without that of inputs and weights, grow with the number of draws."""

    def cases() -> dict[str, Case]:
        x = MLP_784.batch(batch)
        return {
            f"{method}, {draws} draws": partial(model.predict, x, samples=draws)
            for method, model in models(MLP_784.build, x, methods=MEMORY_METHODS).items()
            for draws in MEMORY_DRAWS
        }

    title = f"Prediction with 20, 100 and 500 draws, {MLP_784.title}, batch {batch}"
    return Table("memory", title, (), repeats, cases, further=memory_columns, cost=3.0)


def memory_columns(
    cases: dict[str, Case], seconds: dict[str, float]
) -> dict[str, dict[str, float]]:
    """Time per draw and memory of each case of the table, whose names end in the draws."""
    works = {name: count(case) for name, case in cases.items()}
    columns = {}
    for name, work in works.items():
        method, _, draws = name.removesuffix(" draws").rpartition(", ")
        fewest = works[f"{method}, {MEMORY_DRAWS[0]} draws"]
        columns[name] = {
            "ms per draw": 1e3 * seconds[name] / int(draws),
            "MB at once": work.peak / 1e6,
            "MB of result": work.returned / 1e6,
            GROWTH: (work.peak - work.returned) / (fewest.peak - fewest.returned),
        }
    return columns
