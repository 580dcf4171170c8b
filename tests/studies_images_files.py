"""Hand-made records and a folder with all image sets, for the tests of the studies on images."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gflowout.data.store import entry

SETS = ("mnist", "cifar10", "cifar100", "notmnist", "frost")


def link(real_data: Callable[[str], Path], folder: Path) -> Path:
    """A data directory in which every set is found; skips where one is missing."""
    for name in SETS:
        place = folder / entry(name).folders[0]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(real_data(name))
    return folder


def record(
    study: str,
    data: str,
    arm: str,
    seed: int,
    metrics: Mapping[str, Any],
    options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What a study reads of a record."""
    base = {"fit.epochs": 4, "samples": 20, "data.limit": 9000, "backbone.width": 8}
    return {
        "study": study, "data": data, "method": arm, "seed": seed, "metrics": dict(metrics),
        "options": {**base, **(options or {})}, "status": "done", "started": f"2026-{seed}",
    }  # fmt: skip


def shifted(
    accuracy: float, rotated: float, slope: float = 0.02, nll: float = 1.0
) -> dict[str, float]:
    """Metrics of a run of robustness: accuracy falls by the slope with each severity."""
    found = {}
    for name, value in (("clean", accuracy), ("unshifted", accuracy), ("rotated", rotated)):
        found |= {f"{name}/accuracy": value, f"{name}/nll": nll, f"{name}/ece": 0.05}
    for kind in ("snow", "frost", "gaussian_noise"):
        for severity in range(1, 6):
            name = f"{kind}-{severity}"
            found[f"{name}/accuracy"] = accuracy - slope * severity
            found |= {f"{name}/nll": nll + severity / 10, f"{name}/ece": 0.1}
    return found
