"""Data of the study regimes: small training sets on which a network without dropout overfits."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gflowout.app.sources import Part
from gflowout.core.random import generator
from gflowout.data import corruptions, overlays, shifts
from gflowout.data.images import ImageSet, load_images
from gflowout.data.splits import split
from gflowout.data.transforms import Normalize

Rows = tuple[Tensor, Tensor]
"""Inputs as the network takes them, and labels."""
TABLES: dict[str, Any] = tomllib.loads(
    resources.files(__package__).joinpath("regimes.toml").read_text(encoding="utf-8")
)
KNOWN_DIGITS = 8
"""Digits from this one on are held out: networks learn those below."""
DIGITS, LETTERS = "digits", "notmnist"
"""Names of inputs that belong to no class."""
SHIFTS = ("snow", "frost", "gaussian_noise")
SEVERITIES: list[int] = TABLES["severities"]
"""Of corruptions: a fifth of the test images has each."""


@dataclass(frozen=True)
class Regime:
    """A data set of the study, as ``regimes.toml`` describes it."""

    name: str
    title: str
    source: str
    noisy: bool = False
    cpu: Mapping[str, Any] = field(default_factory=dict)
    paper: Mapping[str, Any] = field(default_factory=dict)

    @property
    def needs(self) -> tuple[str, ...]:
        """Names of the data sets that it reads."""
        if self.source == "mnist":
            return ("mnist", LETTERS)
        return (self.source,) if self.stem else (self.source, "frost")

    @property
    def stem(self) -> bool:
        """Whether networks start from features of a stem that is trained once."""
        return self.name == "cifar10-stem"


def _regimes() -> dict[str, Regime]:
    regimes = {}
    for name, entry in TABLES["regimes"].items():
        values = {**TABLES["regimes"].get(entry.get("like"), {}), **entry}
        values.pop("like", None)
        regimes[name] = Regime(name, **values)
    return regimes


REGIMES = _regimes()


@dataclass(frozen=True, eq=False)
class Problem:
    """What a run trains on and is scored with.

    ``others`` are inputs that belong to no class, ``shifted`` corrupted test images. ``clean`` are
    the training inputs with their true labels, where labels are noisy.
    """

    classes: int
    train: Rows
    valid: Rows
    test: Rows
    clean: Rows
    others: Mapping[str, Tensor] = field(default_factory=dict)
    shifted: Mapping[str, Rows] = field(default_factory=dict)

    def checksums(self, test: bool) -> dict[str, str]:
        """Checksum of each part that was used."""
        names = ("train", "valid", *(("test",) if test else ()))
        return {name: Part(*getattr(self, name)).fingerprint() for name in names}


def load(name: str, seed: int, sizes: Mapping[str, Any]) -> Problem:
    """The data of a regime, but for those of the stem; the seed chooses images and noise.

    Validation and test labels are never noisy.
    """
    regime = REGIMES[name]
    problem = _digits(seed, sizes) if regime.source == "mnist" else _pictures(regime, seed, sizes)
    return with_noise(problem, seed) if regime.noisy else problem


def with_noise(problem: Problem, seed: int) -> Problem:
    """The problem with a share of its training labels drawn anew."""
    x, y = problem.train
    noisy, _ = shifts.label_noise(y, TABLES["noise"], problem.classes, seed=seed)
    return replace(problem, train=(x, noisy))


@functools.lru_cache(maxsize=3)
def read(source: str, part: str) -> ImageSet:
    """A part of a data set, kept for the next run of this process; CIFAR-100 with coarse labels."""
    partial = source == "cifar10" and part == "train"
    return load_images(source, part, partial=partial, coarse=source == "cifar100")


def chosen(images: ImageSet, counts: tuple[int, ...], seed: int) -> list[ImageSet]:
    """Disjoint parts of images with all classes in equal shares, each in random order."""
    parts = split(len(images), counts, seed=seed, stratify=images.labels)
    orders = (torch.randperm(len(p), generator=generator(seed, "part", len(p))) for p in parts)
    return [images.subset(part[order]) for part, order in zip(parts, orders, strict=True)]


def _digits(seed: int, sizes: Mapping[str, Any]) -> Problem:
    """MNIST without two of its digits, which are unknown inputs. Test images are the same for all.

    Their order is random, so that every block of them is a random sample.
    """
    whole, test = read("mnist", "train"), read("mnist", "test")
    digits = whole.subset(whole.labels < KNOWN_DIGITS)
    train, valid = chosen(digits, (sizes["train"], sizes["valid"]), seed)
    order = torch.randperm(len(test), generator=generator(0, "test"))[: sizes["test"]]
    test = test.subset(order)
    letters = read(LETTERS, "test")
    rows = torch.randperm(len(letters), generator=generator(0, LETTERS))[: sizes["test"] // 4]
    scale = Normalize.fit(train.images)
    unknown = test.images[test.labels >= KNOWN_DIGITS]
    test = test.subset(test.labels < KNOWN_DIGITS)
    learn, check, score = ((scale(part.images), part.labels) for part in (train, valid, test))
    others = {DIGITS: scale(unknown), LETTERS: scale(letters.images[rows])}
    return Problem(KNOWN_DIGITS, learn, check, score, learn, others)


def _pictures(regime: Regime, seed: int, sizes: Mapping[str, Any]) -> Problem:
    """CIFAR at half its size; other test images for every seed."""
    train, valid, test = pictures(regime, seed, sizes)
    scale = Normalize.fit(halved(train.images))
    learn, check, score = (
        (scale(halved(part.images)), part.labels) for part in (train, valid, test)
    )
    shifted = {}
    for shift in SHIFTS:
        frost = overlays.load_overlays() if shift == "frost" else None
        blocks = zip(test.images.chunk(len(SEVERITIES)), SEVERITIES, strict=False)
        x = torch.cat(
            [corruptions.corrupt(x, shift, s, seed=seed, overlays=frost) for x, s in blocks]
        )
        shifted[shift] = (scale(halved(x)), test.labels)
    return Problem(len(test.classes), learn, check, score, learn, shifted=shifted)


def pictures(
    regime: Regime, seed: int, sizes: Mapping[str, Any], first: int = 0
) -> tuple[ImageSet, ImageSet, ImageSet]:
    """Training, validation and test images; the first so many of a fixed order are left out."""
    whole, test = read(regime.source, "train"), read(regime.source, "test")
    rest = whole.subset(stem_order(len(whole))[first:])
    train, valid = chosen(rest, (sizes["train"], sizes["valid"]), seed)
    (some,) = chosen(test, (min(sizes["test"], len(test)),), seed)
    return train, valid, some


def stem_order(count: int) -> Tensor:
    """A fixed order of images: a stem is trained on the first, networks behind it on others."""
    return torch.randperm(count, generator=generator(0, "stem"))


def halved(images: Tensor) -> Tensor:
    """Images, uint8 [N, C, H, W], with means of 2x2 pixels."""
    return F.avg_pool2d(images.float(), 2).round().to(torch.uint8)
