"""Questions of the VQA study: pictures as regions with fixed features, and parts of the sets.

Every method sees the same features, as the paper's methods all see those of one detector: so noise
on them is the same noise for all.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gflowout.core import random
from gflowout.data import store, vqa
from gflowout.data.vqa import VQASet, VQASplit
from gflowout.studies import images

DIRECTIONS = 8
"""Bins of the direction of edges."""
BATCH = 256
STORE = "regions"
"""Folder of the features, beside the folders of the runs."""
GLOVE = "glove"
"""Folder of word vectors in the data directory."""
FORMAT = 1
"""Of the features: another one makes them again."""


@dataclass(frozen=True)
class Prepared:
    """Questions of a run, and how many tokens and classes there are.

    ``single``: each question has one annotator, so a single right answer. ``vectors`` are those
    that words start from, [words, numbers], and ``vectors_of`` the file that they are from.
    """

    train: VQASet
    valid: VQASet
    test: VQASet
    words: int
    answers: int
    single: bool
    vectors: Tensor | None = None
    vectors_of: str = ""

    @property
    def known(self) -> float:
        """Share of the words that have a vector to start from."""
        if self.vectors is None:
            return 0.0
        return float((self.vectors[2:] != 0).any(-1).double().mean())  # 2: padding and unknown


def load(name: str, seed: int, options: Mapping[str, Any], kept: Path) -> Prepared:
    """Read a data set and make its regions.

    ``"vqa-v2"`` has region features of its own; those of other pictures are made once and kept in a
    folder. The seed chooses training and validation questions; the test questions are always the
    same. Options are ``grid`` (cells per side), ``size`` (of pictures), ``length`` (words per
    question), ``train``, ``valid``, ``test`` (questions at most, ``None`` for all). VQA v2 has no
    grid and size, but ``features`` (per region), ``held_out`` and ``min_count``, see
    :func:`gflowout.data.vqa.load`. With the option ``vectors``, words start from GloVe vectors if
    :func:`glove` finds any.
    """
    if name == "vqa-v2":
        split = vqa.load(
            name,
            length=options["length"],
            seed=seed,
            scoring="accuracy",  # as the published MCAN is trained
            valid=options["held_out"],
            min_count=options["min_count"],
            features=options["features"],
        )
    else:
        sizes = (options[key] for key in ("length", "size", "grid"))
        split = _regions(name, os.environ.get(store.VARIABLE), seed, *sizes, kept)
    train, valid = (_part(getattr(split, part), seed, part, options) for part in ("train", "valid"))
    test = _part(split.test, 0, "test", options)
    single = bool((split.train.counts.annotators == 1).all())
    if single:  # a class is needed where a loss is taken, not where answers are counted
        train, valid = (part.subset(part.counts.counts.sum(1) > 0) for part in (train, valid))
    prepared = Prepared(train, valid, test, len(split.tokenizer), len(split.answers), single)
    file = glove(options["net.embedding_size"]) if options.get("vectors") else None
    if file is None:
        return prepared
    words, facts = "\n".join(split.tokenizer.vocabulary), f"{file.name} {file.stat().st_size}"
    digest = hashlib.sha256(f"{facts}\n{words}".encode()).hexdigest()[:16]
    # Reading millions of lines takes minutes; runs of one split share the table.
    path = kept / STORE / f"words-{digest}.safetensors"
    table = images.kept_tensor(path, "vectors", lambda: split.tokenizer.embeddings(file))
    return replace(prepared, vectors=table, vectors_of=facts)


def glove(size: int) -> Path | None:
    """A file of GloVe vectors with so many numbers, in the folder ``glove`` of the data directory.

    Of several, such as ``glove.6B.300d.txt`` and ``glove.840B.300d.txt``, the largest.
    """
    files = list((store.root() / GLOVE).glob(f"glove.*{size}d.txt"))
    return max(files, key=lambda file: file.stat().st_size, default=None)


def region_features(pictures: Tensor, grid: int) -> Tensor:
    """Describe every cell of a grid: mean and spread of its colours, and its edges by direction.

    From uint8 [M, C, H, W] to [M, grid * grid, 2 * C + DIRECTIONS]. Cells without any light, such
    as the border that makes a picture square, are all zero: padding.
    """
    return torch.cat(
        [_described(part.float() / 255, grid) for part in torch.split(pictures, BATCH)]
    )


def question_only(data: Prepared) -> Tensor:
    """Classes that follow from the test questions' texts alone.

    The most frequent answer of training to the same tokens; else to the same first token; else of
    all. Of answers that are equally frequent, the first class.
    """
    seen: dict[tuple[int, ...], Counter[int]] = {}
    best = data.train.scores(slice(None)).argmax(-1).tolist()
    for tokens, answer in zip(data.train.tokens.tolist(), best, strict=True):
        for key in (tuple(tokens), tuple(tokens[:1]), ()):
            seen.setdefault(key, Counter())[answer] += 1
    usual = {key: max(sorted(counts), key=counts.__getitem__) for key, counts in seen.items()}
    return torch.tensor(
        [
            usual.get(tuple(tokens), usual.get(tuple(tokens[:1]), usual[()]))
            for tokens in data.test.tokens.tolist()
        ]
    )


def checksum(questions: VQASet) -> str:
    """Checksum of tokens, indices of pictures and answers; pictures themselves are large."""
    state = hashlib.sha256()
    for part in (questions.tokens, questions.image_index, questions.question_ids):
        state.update(part.contiguous().numpy().tobytes())
    state.update("\n".join("|".join(answers) for answers in questions.answers).encode())
    return f"sha256:{state.hexdigest()}"


def _part(questions: VQASet, seed: int, name: str, options: Mapping[str, Any]) -> VQASet:
    count = options[name]
    if count is None or count >= len(questions):
        return questions
    order = torch.randperm(len(questions), generator=random.generator(seed, "questions", name))
    return questions.subset(order[:count].sort().values)


@functools.lru_cache(maxsize=2)
def _regions(
    name: str, where: str | None, seed: int, length: int, size: int, grid: int, kept: Path
) -> VQASplit:
    """A split with regions; kept, since runs in one process ask for it again and again."""

    def visual(folder: Path, names: tuple[str, ...]) -> Tensor:
        """Read the features from their file, or make them and write it."""
        files = "\n".join(f"{file} {(folder / file).stat().st_size}" for file in names)
        text = f"{FORMAT} {size} {grid} {folder.resolve()}\n{files}"
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        path = kept / STORE / f"{name}-{digest}.safetensors"
        return images.kept_tensor(
            path, "features", lambda: _decoded(name, folder, names, size, grid)
        )

    split = vqa.load(name, where, length=length, seed=seed, visual=visual)
    features = split.train.visual
    assert isinstance(features, Tensor)
    features = _standardised(features, torch.unique(split.train.image_index))
    parts = (split.train, split.valid, split.test)
    train, valid, test = (replace(part, visual=features) for part in parts)
    return replace(split, train=train, valid=valid, test=test)


def _decoded(name: str, folder: Path, names: tuple[str, ...], size: int, grid: int) -> Tensor:
    pictures = vqa.SOURCES[name].visual(folder, names, size=size, progress=False)
    assert isinstance(pictures, Tensor)
    return region_features(pictures, grid)


def _standardised(features: Tensor, seen: Tensor) -> Tensor:
    """Mean 0 and variance 1 over the real regions of training pictures, and each region's place."""
    real = (features != 0).any(-1, keepdim=True)
    regions = features[seen][real[seen].squeeze(-1)]
    scaled = (features - regions.mean(0)) / regions.std(0).clamp(min=1e-6)
    side = math.isqrt(features.shape[1])
    line = torch.linspace(-1, 1, side) if side > 1 else torch.zeros(1)
    place = torch.stack(torch.meshgrid(line, line, indexing="ij"), -1).reshape(1, -1, 2)
    return torch.cat([scaled, place.expand(len(features), -1, -1)], -1) * real


def _described(pictures: Tensor, grid: int) -> Tensor:
    grey = pictures.mean(1, keepdim=True)
    across = F.pad(grey[..., 2:] - grey[..., :-2], (1, 1, 0, 0))
    down = F.pad(grey[..., 2:, :] - grey[..., :-2, :], (0, 0, 1, 1))
    strength = (across.square() + down.square()).sqrt()
    turn = torch.atan2(down, across).remainder(2 * math.pi) / (2 * math.pi)
    bins = (turn * DIRECTIONS).long().clamp(max=DIRECTIONS - 1)
    edges = torch.zeros(len(pictures), DIRECTIONS, *pictures.shape[2:]).scatter_(1, bins, strength)
    mean = F.adaptive_avg_pool2d(pictures, grid)
    spread = (F.adaptive_avg_pool2d(pictures.square(), grid) - mean.square()).clamp(min=0).sqrt()
    cells = torch.cat([mean, spread, F.adaptive_avg_pool2d(edges, grid)], 1)
    dark = mean.amax(1, keepdim=True) == 0
    return cells.masked_fill(dark, 0.0).flatten(2).transpose(1, 2).contiguous()
