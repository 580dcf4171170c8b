"""What a compaction did at every site, and what the smaller module costs beside the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from gflowout.core import text
from gflowout.core.call import BoundCall

_SECONDS = 0.2
"""Time that measuring latency takes, about; a slow call takes more, since rounds are at least 5."""
_ROUNDS = (5, 50)


@dataclass(frozen=True)
class CompactedSite:
    """What was done at one site.

    Attributes:
        name: Of the site.
        units: How many it had.
        kept: How many the mask keeps.
        how: ``"removed"``: dropped units are gone, and factors of kept ones are in the weights;
            ``"zeroed"``: they are in place, with weights of 0; ``"masked"``: the module still
            multiplies by the mask; ``""``: there was nothing to do.
        reason: Why units were not removed, in the words of what failed.

    Examples:
        >>> CompactedSite("fc1", units=8, kept=3, how="removed").kept
        3
    """

    name: str
    units: int
    kept: int
    how: str
    reason: str = ""


@dataclass(frozen=True, eq=False)
class Compaction:
    """The report of :func:`compact`; prints as a table.

    Attributes:
        sites: What was done at each.
        masks: That the module has the answers of, one [1, units] per site.
        difference: From the masked model on the example; relative to its largest output, if that
            is above 1.
        parameters: Of the backbone, and of the compacted module.
        flops: Of both on the example, by the formulas of :mod:`torch.utils.flop_counter`.
        seconds: Of one call of both on the example, medians of calls in turn.

    Examples:
        >>> site = CompactedSite("fc1", units=8, kept=3, how="removed")
        >>> Compaction([site], [], 1e-7, (67, 27), (112, 42), (2e-5, 1.8e-5))
        site  units  kept  dropped units
        fc1   8      3     removed
        <BLANKLINE>
                    before   after     ratio
        parameters  67       27        0.40
        FLOPs       112      42        0.38
        latency     0.02 ms  0.018 ms  0.90
    """

    sites: Sequence[CompactedSite]
    masks: list[Tensor]
    difference: float
    parameters: tuple[int, int]
    flops: tuple[int, int]
    seconds: tuple[float, float]

    def __repr__(self) -> str:
        """One line per site, and what is saved."""
        rows = [["site", "units", "kept", "dropped units"]]
        for site in self.sites:
            how = site.how or "none"
            how += f": {site.reason}" if site.reason else ""
            rows.append([site.name, str(site.units), str(site.kept), how])
        costs = [["", "before", "after", "ratio"]]
        show: list[tuple[str, Any, Callable[[Any], str]]] = [
            ("parameters", self.parameters, "{:,}".format),
            ("FLOPs", self.flops, "{:,}".format),
            ("latency", self.seconds, lambda seconds: f"{1e3 * seconds:.3g} ms"),
        ]
        for name, (before, after), shown in show:
            ratio = f"{after / before:.2f}" if before else "-"
            costs.append([name, shown(before), shown(after), ratio])
        return "\n".join([*text.aligned(rows), "", *text.aligned(costs)])


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    flops: int = sdpa_flop_count(query, key, value)  # type: ignore[no-untyped-call]
    return flops


_UNCOUNTED = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention}
"""Operations that PyTorch counts on a GPU but not on a CPU."""


def measure(backbone: nn.Module, small: nn.Module, call: BoundCall) -> dict[str, Any]:
    """Parameters, FLOPs and latency of two modules, side by side."""
    pair = (backbone, small)
    flops, times = [], []

    def run(module: nn.Module) -> float:
        args, kwargs = call.repeated(1)
        start = time.perf_counter()
        module(*args, **kwargs)
        return time.perf_counter() - start

    with torch.no_grad():
        for module in pair:
            with FlopCounterMode(display=False, custom_mapping=_UNCOUNTED) as counter:
                run(module)
            flops.append(counter.get_total_flops())
        total = sum(map(run, pair))
        least, most = _ROUNDS
        rounds = min(max(least, int(_SECONDS / max(total, 1e-9))), most)
        times = [tuple(map(run, pair)) for _ in range(rounds)]
    parameters = tuple(sum(p.numel() for p in module.parameters()) for module in pair)
    seconds = tuple(map(median, zip(*times, strict=True)))
    return {"parameters": parameters, "flops": tuple(flops), "seconds": seconds}
