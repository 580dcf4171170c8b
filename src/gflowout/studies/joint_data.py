"""Problems of the study joint: labels with many parts that depend on each other, given the input.

Every problem is a pure function of a seed. Two of them are made from a stated generator, so that
the exact log-likelihood of their labels is known; the others are real data.
"""

from __future__ import annotations

import functools
import hashlib
import math
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gflowout.core import checks
from gflowout.core.likelihoods import Categorical, Gaussian, Likelihood, MultiLabel
from gflowout.core.optional import require
from gflowout.core.random import generator
from gflowout.data import clinical, store
from gflowout.data.clinical.arrivals import Arrivals, read_arrivals
from gflowout.data.images import load_images

TABLES = tomllib.loads(resources.files(__package__).joinpath("joint.toml").read_text("utf-8"))
"""Arms and problems, by name."""
LABELS = 60
"""Drugs that are labels: the most frequent of the training stays."""
TEST_SHARE, VALID_SHARE = 0.3, 0.2
"""Of patients, or of stays of other hospitals; and of the patients that are left."""
TEST_SEED = 1000
"""That of the patients or hospitals of the test, which no trial sees."""
POSITIONS, TAGS, WORDS = 10, 4, 12
STAY = 0.85
"""Probability that a tag is that of the position before."""
CLEAR = 0.15
"""Probability that a word is one that only its tag has."""
BEND, TURN, BLUR = 2.5, 1.0, 0.05
"""Of the arm: largest angle of the elbow, spread of that of the shoulder, noise of the tip."""
_MESH = 250
"""Points per angle of the grid on which the arm's evidence is summed."""
_AT_A_TIME = 25
"""Rows whose evidence is summed at a time."""
COMMON = 8
"""Training stays that must have a word, such as a diagnosis, for it to be an input."""

Rows = tuple[Tensor, Tensor]
"""Inputs and labels."""


@dataclass(frozen=True)
class Problem:
    """Rows to train on, to stop and choose by, and to test on, with what the labels are.

    ``exact``, where the generator is known, gives log p(y | x) of rows, [rows]. ``side`` is the
    width of the pictures of which x is the upper and y the lower half; 0 if there are none.
    """

    train: Rows
    valid: Rows
    test: Rows
    likelihood: Callable[[], Likelihood]
    exact: Callable[[Tensor, Tensor], Tensor] | None = None
    side: int = 0

    @property
    def outputs(self) -> tuple[int, ...]:
        """Shape of what a network gives for an example."""
        likelihood, label = self.likelihood(), self.train[1].shape[1:]
        if isinstance(likelihood, Categorical):
            return (*label, likelihood.classes)
        return (2 * label[0],) if isinstance(likelihood, Gaussian) else tuple(label)

    def checksums(self, test: bool) -> dict[str, str]:
        """Of the rows, those of the test if they were used."""
        parts = {"train": self.train, "valid": self.valid} | ({"test": self.test} if test else {})
        return {
            name: f"sha256:{hashlib.sha256(x.numpy().tobytes() + y.numpy().tobytes()).hexdigest()}"
            for name, (x, y) in parts.items()
        }


Make = Callable[[int, int, int, int], Problem]
"""From a seed and the numbers of training, validation and test rows to the problem."""


@dataclass(frozen=True)
class Source:
    """Where a problem comes from.

    ``rows`` are those of training, validation and test, of eICU at most so many; those of the test
    are the same for all seeds unless it is ``synthetic``, of a stated generator. ``steps`` is what
    a plain network may train for, ``hidden`` its widths. ``needs`` names a data set of
    :mod:`gflowout.data.store`. A problem that is ``like`` another takes its choices and has no
    trials.
    """

    make: Make = field(repr=False)
    title: str
    about: str
    rows: tuple[int, int, int]
    hidden: tuple[int, ...]
    steps: int
    seconds: float
    synthetic: bool = False
    needs: str = ""
    like: str = ""


def load(name: str, seed: int, rows: tuple[int, int, int] | None = None) -> Problem:
    """The draw of a problem that belongs to a seed, with fewer rows if wanted.

    Examples:
        >>> problem = load("tags", 0, (50, 10, 20))
        >>> problem.train[0].shape, problem.train[1].shape, problem.outputs
        (torch.Size([50, 120]), torch.Size([50, 10]), (10, 4))
    """
    source = PROBLEMS[checks.choice("problem", name, PROBLEMS)]
    return source.make(seed, *(rows or source.rows))


# Lower halves of digits


def _halves(images: Tensor) -> Rows:
    """Upper and lower halves of black and white pictures [rows, height, width]."""
    flat = images.flatten(1).float()
    half = flat.shape[1] // 2
    return flat[:, :half].contiguous(), flat[:, half:].contiguous()


def _mnist(seed: int, train: int, valid: int, test: int) -> Problem:
    pictures = _binarised("train", store.root())
    order = torch.randperm(len(pictures), generator=generator(seed, "joint"))
    test_pictures = _binarised("test", store.root())
    fixed = torch.randperm(len(test_pictures), generator=generator(0, "joint test"))[:test]
    parts = (pictures[order[:train]], pictures[order[train : train + valid]], test_pictures[fixed])
    return _pictures(*map(_halves, parts))


@functools.lru_cache(maxsize=2)
def _binarised(split: str, where: object) -> Tensor:
    """MNIST as [rows, 14, 14] of 0 and 1: the mean of 2 x 2 pixels, above one half or not."""
    del where  # another directory is another file
    images = load_images("mnist", split).images.float() / 255
    return F.avg_pool2d(images, 2).squeeze(1) > 0.5


def _small(seed: int, train: int, valid: int, test: int) -> Problem:
    sets = require("sklearn.datasets", extra="sklearn", purpose="the study joint")
    images = torch.from_numpy(sets.load_digits().images).float() >= 8
    fixed = torch.randperm(len(images), generator=generator(0, "joint test"))
    others = fixed[test:]
    order = others[torch.randperm(len(others), generator=generator(seed, "joint"))]
    parts = (images[order[:train]], images[order[train : train + valid]], images[fixed[:test]])
    return _pictures(*map(_halves, parts))


def _pictures(train: Rows, valid: Rows, test: Rows) -> Problem:
    pixels = train[1].shape[1]
    likelihood = functools.partial(MultiLabel, pixels)
    return Problem(train, valid, test, likelihood, side=math.isqrt(2 * pixels))


# Drugs of patients in intensive care


@functools.lru_cache(maxsize=1)
def _stays(where: object) -> tuple[Any, Any]:
    """Stays with what is known at admission, and drugs; reading them takes seconds."""
    del where
    tables = clinical.load_tables("eicu-demo", tables=("medication", "infusion", "admission"))
    stays, _ = clinical.stay_table(tables)
    drugs, _ = clinical.exposures(tables, hours=48)
    return stays.join(read_arrivals(tables.folder)), drugs


def _drugs(home: bool, hospitals: bool) -> Make:
    """Drugs taken at home before, or given in the first 48 hours, from what is known at admission.

    Only stays with at least one such drug: some hospitals record none, which is easily predicted.
    """

    def make(seed: int, train: int, valid: int, test: int) -> Problem:
        stays, drugs = _stays(store.root())
        drugs = drugs[drugs.home == home]
        stays = stays[stays.index.isin(drugs.stay)]
        if hospitals:
            split = clinical.leave_hospital_out(stays, TEST_SHARE, seed=TEST_SEED)
            trained, tested = split.train, split.test
        else:
            trained, tested = clinical.hold_out_patients(stays, TEST_SHARE, seed=TEST_SEED)
        trained, validated = clinical.hold_out_patients(trained, VALID_SHARE, seed=seed)
        parts = (trained[:train], validated[:valid], tested[:test])
        vocabulary = clinical.Vocabulary.fit(drugs, parts[0].index)
        arrivals = Arrivals.fit(parts[0], min_count=COMMON)
        labels = [vocabulary.encode(drugs, part.index)[0] for part in parts]
        frequent = labels[0].sum(0).argsort(descending=True, stable=True)[:LABELS].sort().values
        first, second, third = (
            (arrivals.encode(part), label[:, frequent])
            for part, label in zip(parts, labels, strict=True)
        )
        return Problem(first, second, third, functools.partial(MultiLabel, len(frequent)))

    return make


# Made: tags that follow each other, and an arm with an elbow


def chain() -> tuple[Tensor, Tensor]:
    """Log-probabilities of the next tag [tag, tag], and of a word [tag, word].

    Tags stay as they are with probability 0.85. Each tag has a clear word of its own; all other
    words are shared by two tags and do not tell which, so that neighbours must.
    """
    follow = torch.full((TAGS, TAGS), (1 - STAY) / (TAGS - 1)).fill_diagonal_(STAY)
    words = torch.zeros(TAGS, WORDS)
    words[:, :TAGS] = CLEAR * torch.eye(TAGS)
    shared = (WORDS - TAGS) // 2
    for tag in range(TAGS):
        start = TAGS + tag // 2 * shared
        words[tag, start : start + shared] = (1 - CLEAR) / shared
    return follow.log(), words.log()


def _tagged(seed: int, train: int, valid: int, test: int) -> Problem:
    source, rows = generator(seed, "tags"), train + valid + test
    follow, words = (table.exp() for table in chain())
    tags = torch.empty(rows, POSITIONS, dtype=torch.long)
    tags[:, 0] = torch.randint(TAGS, (rows,), generator=source)
    for place in range(1, POSITIONS):
        tags[:, place] = torch.multinomial(follow[tags[:, place - 1]], 1, generator=source).squeeze(
            1
        )
    said = torch.multinomial(words[tags.flatten()], 1, generator=source).reshape(rows, POSITIONS)
    x = F.one_hot(said, WORDS).float().flatten(1)
    parts = _parts(x, tags, train, valid)
    return Problem(
        *parts, functools.partial(Categorical, TAGS, positions=POSITIONS), exact=tags_log_prob
    )


def tags_log_prob(x: Tensor, tags: Tensor) -> Tensor:
    """Exact log p(tags | words), [rows], by the forward algorithm."""
    follow, words = chain()
    said = words.T[x.reshape(len(x), POSITIONS, WORDS).argmax(-1)]  # [rows, positions, tags]
    own = said.gather(-1, tags.unsqueeze(-1)).sum((1, 2)) - math.log(TAGS)
    own = own + follow[tags[:, :-1], tags[:, 1:]].sum(1)
    forward = said[:, 0] - math.log(TAGS)
    for place in range(1, POSITIONS):
        forward = (forward.unsqueeze(-1) + follow).logsumexp(1) + said[:, place]
    return own - forward.logsumexp(-1)


def _parts(x: Tensor, y: Tensor, train: int, valid: int) -> tuple[Rows, Rows, Rows]:
    """Rows to train on, then those for validation, then those of the test."""
    end = train + valid
    return (x[:train], y[:train]), (x[train:end], y[train:end]), (x[end:], y[end:])


def tip(angles: Tensor) -> Tensor:
    """Where an arm of two links of length 1 ends, [..., 2], from shoulder and elbow, [..., 2]."""
    shoulder, elbow = angles.unbind(-1)
    both = shoulder + elbow
    return torch.stack([shoulder.cos() + both.cos(), shoulder.sin() + both.sin()], -1)


def _arm(seed: int, train: int, valid: int, test: int) -> Problem:
    source, rows = generator(seed, "arm"), train + valid + test
    shoulder = TURN * torch.randn(rows, generator=source)
    elbow = BEND * (2 * torch.rand(rows, generator=source) - 1)
    y = torch.stack([shoulder, elbow], -1)
    x = tip(y) + BLUR * torch.randn(rows, 2, generator=source)
    likelihood = functools.partial(Gaussian, 2, heteroscedastic=True)
    return Problem(*_parts(x, y, train, valid), likelihood, exact=arm_log_prob)


def arm_log_prob(x: Tensor, angles: Tensor) -> Tensor:
    """Log-density of the angles given the tip, [rows]; the evidence is summed on a grid."""
    x, angles = x.double(), angles.double()
    half = (torch.arange(_MESH, dtype=torch.double) + 0.5) / _MESH * 2 - 1
    grid = torch.cartesian_prod(5 * TURN * half, BEND * half)
    ends, cell = tip(grid), math.log(5 * TURN * BEND * (2 / _MESH) ** 2)
    # |x - end|^2 as a product of matrices; what is the same for x and y cancels.
    own = _arm_prior(angles) - (x - tip(angles)).square().sum(-1) / (2 * BLUR**2)
    weight = _arm_prior(grid) - ends.square().sum(-1) / (2 * BLUR**2) + cell
    evidence = [
        (rows @ ends.T / BLUR**2 + weight).logsumexp(-1) for rows in torch.split(x, _AT_A_TIME)
    ]
    return (own - torch.cat(evidence) + x.square().sum(-1) / (2 * BLUR**2)).float()


def _arm_prior(angles: Tensor) -> Tensor:
    normal = -0.5 * (angles[..., 0] / TURN).square() - math.log(TURN * math.sqrt(2 * math.pi))
    return normal - math.log(2 * BEND)


_MAKERS: dict[str, Make] = {
    "digits": _mnist,
    "drugs": _drugs(home=False, hospitals=False),
    "drugs-hospitals": _drugs(home=False, hospitals=True),
    "home-drugs": _drugs(home=True, hospitals=False),
    "tags": _tagged,
    "arm": _arm,
    "digits-small": _small,
}


def _source(name: str, table: dict[str, Any]) -> Source:
    lists = {key: tuple(table[key]) for key in ("rows", "hidden")}
    return Source(_MAKERS[name], **{**table, **lists})


PROBLEMS = {name: _source(name, table) for name, table in TABLES["problems"].items()}
"""By name, in the order of the report."""
