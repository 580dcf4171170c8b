"""Print the walk of one training batch and one prediction through the files of gflowout.

The reader of a program follows it from file to file. A switch is counted whenever a call enters
code in another file of the package than the one before, and whenever a return leads back to
another file. PyTorch's own code in between does not count. Run it with ``--summary`` for the
counts alone::

    python tools/trace_walk.py
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

import gflowout as gfo

PACKAGE = Path(gfo.__file__).parent


@dataclass
class Walk:
    """The files that an action visits.

    Attributes:
        steps: Depth, file and function after every switch, and the function that it starts in.
        files: All files that were visited.
    """

    steps: list[tuple[int, str, str]] = field(default_factory=list)
    files: set[str] = field(default_factory=set)

    @property
    def switches(self) -> int:
        """How often the walk goes to another file."""
        return max(0, len(self.steps) - 1)


def walk(action: Callable[[], object]) -> Walk:
    """Run an action and record its walk."""
    result = Walk()
    stack: list[tuple[str, str]] = []

    def visit(file: str, function: str) -> None:
        result.files.add(file)
        if not result.steps or result.steps[-1][1] != file:
            result.steps.append((len(stack), file, function))

    def profile(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event not in ("call", "return") or not path.is_relative_to(PACKAGE):
            return
        if event == "call":
            stack.append((path.relative_to(PACKAGE).as_posix(), frame.f_code.co_qualname))
            visit(*stack[-1])
        else:
            stack.pop()
            if stack:
                visit(*stack[-1])

    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
    return result


def actions() -> dict[str, Callable[[], object]]:
    """One training batch and one prediction of GFlowOut on a small network with two sites."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))
    x, y = torch.randn(32, 8), torch.randint(3, (32,))
    model = gfo.wrap(net, "gflowout", ["1", "3"], likelihood=gfo.Categorical(3), example=(x[:2],))
    optimiser = torch.optim.Adam(model.parameter_groups())

    def train() -> None:
        optimiser.zero_grad()
        model(x, y=y).total.backward()
        optimiser.step()

    return {"training batch": train, "prediction": lambda: model.predict(x)}


def main() -> None:
    """Print both walks, each after a warm-up."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--summary", action="store_true", help="Print the counts alone.")
    summary = parser.parse_args().summary
    for name, action in actions().items():
        action()  # caches are filled
        taken = walk(action)
        print(f"{name}: {taken.switches} switches between {len(taken.files)} files")
        if not summary:
            for depth, file, function in taken.steps:
                print(f"{'  ' * depth}{file}  {function}")


if __name__ == "__main__":
    main()
