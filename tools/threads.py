"""Use one model in many threads at once, and compare every answer with that of a single thread.

Threads predict with it, take gradients, copy, pickle, save and fork it; one more trains a second
model, with which all others predict meanwhile. The exit code is 1 if an answer differs, or if
hooks, modes or attributes of a module do. A fork that hangs inside a kernel of PyTorch, because
another thread was in one when it was made, is counted apart: plain modules do that, too::

    python tools/threads.py --seconds 60 --threads 16
"""

from __future__ import annotations

import argparse
import collections
import copy
import faulthandler
import os
import pickle
import random
import signal
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import gflowout as gfo

SEEDS = 6
BATCH = 12
FORK = 30  # seconds that a fork may take on a busy machine


class Net(nn.Module):
    """A network with all that passes have changed in shared modules: modes, hooks, fast paths.

    Its BatchNorm does not move, so that answers do not depend on which thread came first.
    """

    def __init__(self, momentum: float = 0.0) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.norm = nn.BatchNorm1d(8, momentum=momentum)
        self.act = nn.GELU()
        self.drop = nn.Dropout(0.4)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Classify sequences."""
        hidden = self.encoder(self.embed(x)).mean(1)
        return self.head(self.drop(self.act(self.norm(hidden))))


def wrapped(momentum: float = 0.0) -> gfo.MaskedModel:
    """A model in train mode."""
    torch.manual_seed(0)
    return gfo.wrap(
        Net(momentum), "gflowout", ["encoder.linear2", "act", "drop"],
        likelihood=gfo.Categorical(3), example=(torch.randn(2, 5, 4),),
    )  # fmt: skip


def state(model: nn.Module) -> list[Any]:
    """Modes, attributes and hooks of all modules."""
    return [
        (name, part.training, sorted(vars(part)),
         len(part._forward_hooks) + len(part._forward_pre_hooks))
        for name, part in model.named_modules()
    ]  # fmt: skip


class Work:
    """What the threads do, with the answers of a single thread."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.hung = folder, 0
        self.model = wrapped()
        self.x, self.y = torch.randn(BATCH, 5, 4), torch.randint(3, (BATCH,))
        self.masks = [
            [torch.randint(2, (BATCH, site.units)).float() for site in self.model.sites]
            for _ in range(SEEDS)
        ]
        self.jobs: dict[str, Callable[[int], Tensor | None]] = {
            "predict": lambda seed: self.predict(self.model, seed),
            "train": lambda seed: self.gradients(self.model, seed),
            "copy": lambda seed: self.predict(copy.deepcopy(self.model), seed),
            "pickle": lambda seed: self.predict(pickle.loads(pickle.dumps(self.model)), seed),
            "save": self.saved,
            "fork": self.forked,
        }
        self.state = state(self.model)
        self.expected = {
            name: [self.jobs[name](seed) for seed in range(SEEDS)] for name in ("predict", "train")
        }

    def predict(self, model: gfo.MaskedModel, seed: int) -> Tensor:
        """A prediction that follows from a seed."""
        generator = torch.Generator().manual_seed(seed)
        return model.predict(self.x, samples=4, generator=generator).samples

    def gradients(self, model: gfo.MaskedModel, seed: int) -> Tensor:
        """Gradients of a training pass, which follow from masks."""
        losses = model(self.x, y=self.y, masks=self.masks[seed])
        values = torch.autograd.grad(losses.nll, list(model.backbone.parameters()))
        return torch.cat([value.flatten() for value in values])

    def saved(self, seed: int) -> Tensor:
        """Save, load, predict."""
        path = self.folder / f"{threading.get_ident()}.safetensors"
        gfo.save(self.model, path)
        return self.predict(gfo.load(path, Net()), seed)

    def forked(self, seed: int) -> None:
        """Predict in a fork of the process, which tells by its exit code whether all is right."""
        shown = self.folder / f"{threading.get_ident()}.stack"
        process = os.fork()
        if process == 0:
            faulthandler.register(signal.SIGALRM, shown.open("w"), all_threads=False, chain=True)
            signal.alarm(FORK)  # a fork that hangs shows where, and is killed
            code = 1
            try:
                self.check("predict", seed, self.predict(self.model, seed), self.model)
                code = 0
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if code == -signal.SIGALRM:
            stack = shown.read_text()
            if sysconfig.get_path("stdlib") in stack.splitlines()[1]:  # a lock of Python's
                raise AssertionError(f"a fork hung\n{stack}")
            self.hung += 1
        elif code:
            raise AssertionError(f"a fork ended with {code}")

    def check(self, name: str, seed: int, answer: Tensor, model: gfo.MaskedModel) -> None:
        """Raise unless an answer is that of a single thread, and the model is as it was."""
        expected = self.expected[name][seed]
        assert torch.allclose(answer, expected, rtol=1e-4, atol=1e-5), "the answer differs"
        assert state(model) == self.state, "modes, attributes or hooks changed"

    def do(self, name: str, seed: int) -> None:
        """Do a job and check it."""
        answer = self.jobs[name](seed)
        if answer is not None:
            self.check("train" if name == "train" else "predict", seed, answer, self.model)


def trained(work: Work, model: gfo.MaskedModel, steps: int | None, end: float) -> int:
    """Train until a time, or for some steps; return their number."""
    optimizer = torch.optim.SGD(model.backbone.parameters(), lr=1e-3)
    done = 0
    while done < steps if steps is not None else time.monotonic() < end:
        optimizer.zero_grad()
        model(work.x, y=work.y, masks=work.masks[done % SEEDS]).nll.backward()
        optimizer.step()
        done += 1
    return done


def run(seconds: float, threads: int, seed: int) -> tuple[collections.Counter[str], list[str]]:
    """Let the threads work; return how often each job was done, and what went wrong."""
    counts: collections.Counter[str] = collections.Counter()
    problems: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        work, student = Work(Path(folder)), wrapped(momentum=0.1)
        alone, start, end = copy.deepcopy(student), threading.Event(), 0.0
        trained(work, wrapped(), 1, end)  # PyTorch imports more in the first step

        def watched(name: str, action: Callable[[], None]) -> None:
            try:
                action()
            except BaseException as error:
                problems.append(f"{name}: {type(error).__name__}: {error}")
            counts[name] += 1

        def worker(number: int) -> None:
            rng = random.Random(f"{seed} {number}")
            start.wait()
            while time.monotonic() < end:
                name, choice = rng.choice([*work.jobs, "disturb"]), rng.randrange(SEEDS)
                if name == "disturb":
                    watched(name, lambda c=choice: _finite(work.predict(student, c)))
                else:
                    watched(name, lambda n=name, c=choice: work.do(n, c))

        pool = [threading.Thread(target=worker, args=(n,)) for n in range(max(1, threads - 1))]
        for thread in pool:
            thread.start()
        end = time.monotonic() + seconds
        start.set()
        steps = trained(work, student, None, end)
        for thread in pool:
            thread.join()
        counts["steps"] = steps
        counts["forks that hung in PyTorch"] = work.hung
        trained(work, alone, steps, end)
        for key, value in alone.state_dict().items():
            if not torch.equal(value, student.state_dict()[key]):
                problems.append(f"steps: {key} is not that of training alone")
    return counts, problems


def _finite(value: Tensor) -> None:
    assert bool(value.isfinite().all()), "a prediction holds NaN"


def main() -> int:
    """Parse the command line, run, and print what was done."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    faulthandler.dump_traceback_later(options.seconds + 600, exit=True)  # a hang
    torch.set_num_threads(1)
    sys.setswitchinterval(1e-3)
    counts, problems = run(options.seconds, options.threads, options.seed)
    for name, count in sorted(counts.items()):
        wrong = sum(problem.startswith(f"{name}:") for problem in problems)
        print(f"{name:<28}{count:>8} done{wrong:>8} wrong")
    for problem in problems[:10]:
        print(problem)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
