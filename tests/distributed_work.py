"""What the processes of ``test_distributed.py`` run, and what it compares them with.

``python distributed_work.py FOLDER RANK`` is one of two processes. The test itself calls
:func:`gradients` on the joint batch, in a process without any group.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import zoo
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import gflowout as gfo
from gflowout.core import distributed
from gflowout.core.noise import Noise
from gflowout.methods import contextual

RANKS = 2
EQUAL, UNEQUAL = (8, 8), (12, 4)
JOINT = sum(EQUAL)


@dataclass(frozen=True)
class Case:
    """A model and how its ranks agree."""

    method: str
    options: dict[str, Any] = field(default_factory=dict)
    whole: bool = False
    """Masks serve the joint batch: the numbers of the first rank must be everybody's."""
    agrees: bool = False
    """Without agreement the gradient is another one."""
    given: bool = False
    """Masks are given, since a rank gives them to its examples in its own way."""
    loops: bool = False
    """The backbone does not take draws as a larger batch."""
    unequal: bool = True
    """Parts of unequal size can have the groups of the joint batch."""


CASES = {
    "none": Case("none"),
    "mc": Case("mc"),
    "concrete": Case("concrete"),
    "variational": Case("variational"),
    "gates": Case("gates"),
    "masksembles": Case("masksembles", given=True),
    "masksembles marginal": Case("masksembles", {"bound": "marginal"}),
    "modes": Case("modes"),
    "modes drawn": Case("modes", {"rate": 0.3}, loops=True),
    "mc marginal": Case("mc", {"bound": "marginal", "draws": 3}),
    "contextual": Case("contextual"),
    "contextual marginal": Case("contextual", {"bound": "marginal", "draws": 3}),
    "contextual gaussian": Case("contextual", {"family": "gaussian"}),
    "gflowout": Case("gflowout"),
    "gflowout draws": Case("gflowout", {"objective": "tb", "draws": 3, "log_z": "batch"}),
    "gflowout marginal": Case("gflowout", {"draws": 3, "bound": "marginal", "prior": "fixed"}),
    "id-gflowout": Case("id-gflowout", whole=True, agrees=True),
    "id-gflowout learned": Case("id-gflowout", {"log_z": "learned"}, whole=True, agrees=True),
    "id-gflowout exploring": Case(
        "id-gflowout", {"epsilon": 0.5, "temperature": 2.0, "blocks": 2}, whole=True, agrees=True
    ),
    "id-gflowout looped": Case("id-gflowout", whole=True, agrees=True, loops=True),
    "id-gflowout groups": Case("id-gflowout", {"draws": 1, "group_size": 4}, agrees=True),
    "id-gflowout one group": Case(
        "id-gflowout", {"draws": 1, "group_size": 8}, agrees=True, unequal=False
    ),
    "id-gflowout groups, draws": Case("id-gflowout", {"draws": 3, "group_size": 4}),
    "id-gflowout paper": Case("id-gflowout", {"preset": "paper"}),
    "combined": Case("combined", whole=True, agrees=True),
    "combined groups": Case("combined", {"draws": 1, "group_size": 4}, agrees=True),
}


AGREEING = [name for name, case in CASES.items() if case.agrees]


def build(case: Case) -> gfo.MaskedModel:
    """A model in double precision with generators away from their start; the same every time."""
    with zoo.seeded(0):
        model = gfo.wrap(
            zoo.MLP(),
            case.method,
            ["fc1", "fc2"],
            likelihood=gfo.Categorical(3),
            example=(torch.zeros(2, 4),),
            **zoo.needed(case.method),
            **case.options,
        )
        for name, parameter in model.method.named_parameters():
            nn.init.normal_(parameter, std=0.03 if name.endswith((".moved", "bias")) else 0.3)
    if case.loops:
        model.spec = dataclasses.replace(model.spec, foldable=False)
    return model.double()


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(JOINT, 4, generator=generator, dtype=torch.float64)
    return x, torch.randint(3, (JOINT,), generator=generator)


@contextmanager
def arranged(case: Case, rank: int, part: slice) -> Iterator[None]:
    """Let a rank draw its examples' rows of the numbers that one process draws for all.

    Where masks serve the joint batch, ranks but the first draw numbers of their own.
    """
    generator = torch.Generator().manual_seed(2)
    own = part.stop - part.start

    def numbers(self: Noise, draw: Callable[..., Tensor], rows: int, units: int, _: Any) -> Tensor:
        joint = draw(self.copies, JOINT, units, generator=generator)
        if case.whole and rows == 1:
            drawn = joint[:, :1]
            return (drawn if rank == 0 else 1 - drawn).flatten(0, 1)
        first = part.start * rows // own
        return joint[:, first : first + rows].flatten(0, 1)

    with mock.patch.object(Noise, "_numbers", numbers):
        yield


def joint_baseline() -> AbstractContextManager[Any]:
    """Contextual dropout with a baseline of the joint batch instead of a rank's examples."""

    def others_mean(values: Tensor) -> Tensor:
        total = values.sum(-1, keepdim=True).contiguous()
        if dist.is_initialized():
            dist.all_reduce(total)
        return (total - values) / (JOINT - 1)

    return mock.patch.object(contextual, "_others_mean", others_mean)


def gradients(
    name: str,
    rank: int = 0,
    sizes: tuple[int, ...] = (JOINT,),
    weighted: bool = True,
    accumulate: bool = False,
) -> dict[str, Tensor]:
    """Gradients, and the losses that all ranks must have in common, of one step."""
    case = CASES[name]
    start = sum(sizes[:rank])
    part = slice(start, start + sizes[rank])
    x, y = data()
    model: nn.Module = build(case)
    masks = None
    if case.given:
        with arranged(case, 0, slice(0, JOINT)), distributed.among(None):
            masks = [mask[part] for mask in build(case)(x, y=y).masks]
    if len(sizes) > 1:
        model = DistributedDataParallel(model)
    extra = joint_baseline() if name == "contextual" else nullcontext()
    with arranged(case, rank, part), extra:
        for last in (False, True):  # a parameter without gradient would fail in the second pass
            wait = accumulate and len(sizes) > 1 and not last
            if not accumulate:
                model.zero_grad()
            with model.no_sync() if wait else nullcontext():
                losses = model(x[part], y=y[part], masks=masks)
                (losses.total * (distributed.weight(sizes[rank]) if weighted else 1)).backward()
    result = {
        key.removeprefix("module."): parameter.grad for key, parameter in model.named_parameters()
    }
    if case.whole and case.method == "id-gflowout":
        result |= {"tb": losses.tb.detach(), "log_z": losses.log_z[:, :1].detach()}
    return result


class Counted:
    """Counts the messages between processes."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.sizes: list[int] = []

    def __enter__(self) -> Counted:
        self._stack = contextlib.ExitStack()
        for name in ("all_reduce", "broadcast"):
            original = getattr(dist, name)

            def counted(
                tensor: Tensor, *args: Any, name: str = name, do: Any = original, **kw: Any
            ):
                self.names.append(name)
                self.sizes.append(tensor.numel())
                return do(tensor, *args, **kw)

            self._stack.enter_context(mock.patch.object(dist, name, counted))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def alone(rank: int) -> None:
    """Passes that a rank may make alone: none sends a message, so none waits."""
    for case in CASES.values() if rank == 1 else ():
        model, (x, y) = build(case), data()
        with Counted() as counted:
            model.train()
            masks = model.predict(x, samples=2, return_masks=True).masks
            model(x)
            with torch.no_grad():
                losses = model(x, y=y)
            with torch.inference_mode():
                model(x, y=y)
            if case.options.get("log_z") != "batch":
                model(x, y=y, masks=[mask[0] for mask in masks]).total.backward()
            model(x, y=y, masks=masks).total.backward()
            model.eval()
            losses = model(x, y=y)
            losses.total.backward(retain_graph=True)
            losses.total.backward()
            with distributed.among(None):
                model.train()
                model(x, y=y).total.backward()
        assert counted.names == [], (case, counted.names)


def messages() -> dict[str, list[Any]]:
    """What one training pass sends, without DDP."""
    found = {}
    x, y = data()
    for name, case in CASES.items():
        model = build(case)
        with Counted() as counted:
            losses = model(x, y=y)
            losses.total.backward(retain_graph=True)
            losses.total.backward()
        found[name] = list(zip(counted.names, counted.sizes, strict=True))
    ensemble = gfo.Ensemble([build(CASES["id-gflowout"]) for _ in range(2)])
    with Counted() as counted:
        DistributedDataParallel(ensemble)(x, y=y).total.backward()
    found["ensemble"] = list(zip(counted.names, counted.sizes, strict=True))
    return found


def functions(rank: int) -> dict[str, Any]:
    """The functions of ``gflowout.core.distributed``, with a value per rank."""
    own, half = torch.tensor([[1.0 + rank, 10.0]]), torch.tensor([0.5 + rank]).bfloat16()
    alone = [dist.new_group([other]) for other in range(RANKS)][rank]
    both = dist.new_group(list(range(RANKS)))
    result = {
        "size": distributed.size(),
        "first": distributed.from_first(own.t()).t(),
        "mean": distributed.mean(own, count=3 - 2 * rank),
        "half": distributed.mean(half, count=1),
        "weight": distributed.weight(12 - 8 * rank),
        "own": own,
    }
    with distributed.among(alone):
        result["alone"] = (distributed.active(), distributed.mean(own, 1))
        with distributed.among(both):
            result["both"] = (distributed.active(), distributed.mean(own, 1))
    model = gfo.wrap(
        zoo.MLP(),
        "id-gflowout",
        ["fc1"],
        likelihood=gfo.Categorical(3),
        example=(torch.zeros(2, 4),),
    )
    try:
        model(torch.zeros(2, 4), y=torch.zeros(2, dtype=torch.long))
    except ValueError as error:
        result["error"] = str(error)
    return result


def normalised(rank: int) -> dict[str, Any]:
    """A backbone with BatchNorm under DDP, beside the same without this library."""
    x, y = data()
    x, y = x[8 * rank : 8 * rank + 8].float(), y[8 * rank : 8 * rank + 8]
    with zoo.seeded(3):
        net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
        plain = DistributedDataParallel(copy.deepcopy(net))
        model = gfo.wrap(net, "none", (), likelihood=gfo.Categorical(3), example=(x[:2],))
    wrapped = DistributedDataParallel(model)
    for _ in range(2):
        plain.zero_grad()
        wrapped.zero_grad()
        nn.functional.cross_entropy(plain(x), y).backward()
        wrapped(x, y=y).total.backward()
    ours, theirs = wrapped.module.backbone, plain.module
    return {
        "gradients": [[parameter.grad for parameter in net.parameters()] for net in (ours, theirs)],
        "running": [net[1].running_mean.clone() for net in (ours, theirs)],
        "keys": list(wrapped.state_dict()),
        "plain keys": list(plain.state_dict()),
        "unused": type(
            DistributedDataParallel(model, find_unused_parameters=True)(x, y=y)
        ).__name__,
    }


MUTANTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "own masks": lambda: mock.patch.object(distributed, "from_first", lambda values: values),
    "own evidence": lambda: mock.patch.object(distributed, "mean", lambda values, count: values),
    "no weight": lambda: mock.patch.object(
        distributed, "mean", lambda values, count: _mean(values, 1 + 9 * dist.get_rank())
    ),
}
_mean = distributed.mean


def main(folder: Path, rank: int) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'meeting'}",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=60),
    )
    result: dict[str, Any] = {"functions": functions(rank)}
    result["equal"] = {name: gradients(name, rank, EQUAL) for name in CASES}
    result["unequal"] = {
        name: gradients(name, rank, UNEQUAL) for name, case in CASES.items() if case.unequal
    }
    for mutant, broken in MUTANTS.items():
        with broken():
            result[mutant] = {name: gradients(name, rank, EQUAL) for name in AGREEING}
            result[mutant, "plain"] = gradients("id-gflowout", rank, UNEQUAL, weighted=False)
    result["accumulated"] = gradients("id-gflowout", rank, EQUAL, accumulate=True)
    result["plain"] = gradients("id-gflowout", rank, UNEQUAL, weighted=False)
    result["messages"] = messages()
    result["normalised"] = normalised(rank)
    alone(rank)
    dist.barrier()
    torch.save(result, folder / f"rank{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
