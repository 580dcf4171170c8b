"""Region features of VQA v2 in shards, at its real size, beside a training step of MCAN-small."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

import gflowout as gfo
from gflowout.backbones import MCAN
from gflowout.bench.timing import Case, Table
from gflowout.data.vqa import Answers, PackedRegions, VQABatches, VQASet, pack
from gflowout.data.vqa.inputs import FEATURES, LENGTH, REGIONS
from gflowout.runs.environment import cores

STEP, DATA, AHEAD = "training step", "data", "read ahead"
SHARE = 0.15
"""Of the step that data may take."""
SHORTEST = "ms of a step of which data are 15 %"
PICTURES, BATCH, WORKERS = 100_000, 64, 2
WORDS, ANSWERS = 20_000, 3129
FEWEST = 10
"""Regions of a picture, at least, as published; 100 at most."""
_POOL = 1 << 24  # random numbers that the features of all pictures are taken from


def shard_tables(quick: bool) -> list[Table]:
    """A batch of region features beside the step that it is for; ``quick`` has few pictures.

    The whole table writes 22 GB into the folder for temporary files, so it is left out unless it is
    asked for by name.
    """
    pictures, rounds = (20, 1) if quick else (PICTURES, 3)
    small = "MCAN-tiny" if quick else "MCAN-small"
    title = f"A batch of {BATCH} questions, {pictures:,} pictures in shards; step of {small}"
    cases = partial(_cases, pictures, quick)
    return [Table("data-vqa", title, (STEP,), rounds, cases, _figures, cost=90, large=not quick)]


def _cases(pictures: int, quick: bool) -> dict[str, Case]:
    folder = tempfile.TemporaryDirectory(prefix="gflowout-")
    questions = made(Path(folder.name), pictures)
    alone, ahead = (_endless(questions, workers, folder) for workers in (0, min(WORKERS, cores())))
    visual, tokens, scores = next(alone)
    net = (MCAN.tiny if quick else MCAN.small)(WORDS, ANSWERS, FEATURES)
    likelihood, example = gfo.MultiLabel(ANSWERS), (visual[:2], tokens[:2])
    model = gfo.wrap(net, "mc", net.sites, likelihood=likelihood, example=example)
    optimizer = torch.optim.Adam(model.parameter_groups(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        model(visual, tokens, y=scores).total.backward()
        optimizer.step()

    return {STEP: step, DATA: lambda: next(alone), AHEAD: lambda: next(ahead)}


def _figures(_: dict[str, Case], seconds: dict[str, float]) -> dict[str, dict[str, float]]:
    return {
        name: {"questions/s": BATCH / taken, SHORTEST: 1e3 * taken / SHARE}
        for name, taken in seconds.items()
    }


def _endless(
    questions: VQASet, workers: int, folder: tempfile.TemporaryDirectory[str]
) -> Iterator[tuple[Tensor, ...]]:
    """Batches of one epoch after the other; the folder goes when they do."""
    batches = VQABatches(questions, batch_size=BATCH, shuffle=True, seed=0, workers=workers)
    try:
        yield from itertools.chain.from_iterable(itertools.repeat(batches))
    finally:
        folder.cleanup()


def made(folder: Path, pictures: int) -> VQASet:
    """As many questions as pictures, each of 10 to 100 regions of random numbers."""
    source = torch.Generator().manual_seed(0)
    names = [f"{number}.npz" for number in range(pictures)]
    pool = torch.rand(_POOL, generator=source).half()
    rows = torch.randint(FEWEST, REGIONS + 1, (pictures,), generator=source).tolist()
    starts = torch.randint(_POOL - REGIONS * FEATURES, (pictures,), generator=source).tolist()
    features = (
        pool[start : start + count * FEATURES].view(count, FEATURES)
        for start, count in zip(starts, rows, strict=True)
    )
    pack(names, features, folder)
    answers = Answers(tuple(f"answer {number}" for number in range(ANSWERS)))
    given = [answers.names[number % ANSWERS] for number in range(pictures)]
    counts = answers.count([[name] * 10 for name in given])
    return VQASet(
        name="made", split="train", questions=("?",) * pictures,
        question_ids=torch.arange(pictures), picture_names=tuple(names),
        image_index=torch.randperm(pictures, generator=source),
        answers=tuple((name,) * 10 for name in given), types=torch.zeros(pictures).long(),
        tokens=torch.randint(2, WORDS, (pictures, LENGTH), generator=source),
        visual=PackedRegions(folder, names), counts=counts, classes=ANSWERS,
    )  # fmt: skip
