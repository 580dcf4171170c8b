"""The test kit passes every likelihood of the library and catches deliberately wrong ones."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gflowout as gfo
from gflowout.core.likelihoods import LIKELIHOODS
from gflowout.testing import check_likelihood

ROWS = 5
REAL = (-math.inf, math.inf)
BASIC = {"labels", "values", "rows", "gradients", "config", "settled", "model"}


def one_hot(classes: int) -> Tensor:
    return torch.eye(classes)


def whole(high: int, *shape: int) -> Tensor:
    return torch.randint(high, (ROWS, *shape))


def times() -> Tensor:
    return torch.stack([torch.rand(ROWS) * 3 + 0.1, (torch.rand(ROWS) < 0.6).float()], 1)


RIGHT: dict[str, tuple[Any, tuple[int, ...], Any, Any]] = {
    "classes": (lambda: gfo.Categorical(4), (4,), lambda: whole(4), torch.arange(4)),
    "soft": (lambda: gfo.Categorical(4), (4,), lambda: torch.rand(ROWS, 4).softmax(-1), one_hot(4)),
    "noisy": (
        lambda: gfo.Categorical(4, label_noise="learned"),
        (4,), lambda: whole(4), torch.arange(4),
    ),
    "weighted": (
        lambda: gfo.Categorical(4, label_smoothing=0.1, weight=[1, 2, 3, 4]),
        (4,), lambda: whole(4), None,
    ),
    "tokens": (lambda: gfo.Categorical(3, ignore_index=-100), (6, 3), lambda: padded(6), None),
    "pixels": (
        lambda: gfo.Categorical(3, ignore_index=-100, axis=1),
        (3, 4, 5), lambda: padded(4, 5), None,
    ),
    "binary": (gfo.Binary, (1,), lambda: whole(2).float(), torch.tensor([0.0, 1.0])),
    "labels": (
        lambda: gfo.MultiLabel(2), (2,), lambda: whole(2, 2).float(),
        torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]),
    ),
    "gaussian": (lambda: gfo.Gaussian(noise=0.5), (1,), lambda: torch.randn(ROWS, 1), REAL),
    "own noise": (
        lambda: gfo.Gaussian(heteroscedastic=True), (2,), lambda: torch.randn(ROWS, 1), REAL,
    ),
    "several numbers": (lambda: gfo.Gaussian(3), (4, 3), lambda: torch.randn(ROWS, 4, 3), None),
    "student t": (lambda: gfo.StudentT(df=8.0), (1,), lambda: torch.randn(ROWS), REAL),
    "one quantile": (lambda: gfo.Quantile([0.8]), (1,), lambda: torch.randn(ROWS), REAL),
    "quantiles": (lambda: gfo.Quantile([0.1, 0.9]), (2,), lambda: torch.randn(ROWS), None),
    "poisson": (gfo.Poisson, (1,), lambda: whole(5, 1), torch.arange(200)),
    "dispersed": (
        lambda: gfo.NegativeBinomial(dispersion=0.3), (1,), lambda: whole(5, 1),
        torch.arange(500),
    ),
    "grades": (lambda: gfo.Ordinal(4), (1,), lambda: whole(4), torch.arange(4)),
    "survival": (lambda: gfo.Cox([1.0, 2.0]), (1,), times, None),
    "hazards": (lambda: gfo.Cox([1.0, 2.0], proportional=False), (3,), times, None),
}  # fmt: skip


def padded(*shape: int) -> Tensor:
    y = whole(3, *shape)
    y[0, :2] = -100
    return y


@pytest.fixture(autouse=True)
def _one_seed() -> None:
    torch.default_generator.manual_seed(0)


@pytest.mark.parametrize("name", RIGHT)
def test_every_likelihood_of_the_library_passes(name: str) -> None:
    build, shape, labels, support = RIGHT[name]
    likelihood = build()
    before = torch.random.get_rng_state()
    state = {key: value.clone() for key, value in likelihood.state_dict().items()}
    outputs, y = torch.randn(ROWS, *shape), labels()
    after = torch.random.get_rng_state()
    done = set(check_likelihood(likelihood, outputs, y, support=support))
    assert done - {"normalised", "moments"} == BASIC
    assert ("normalised" in done) == (support is not None)
    assert not torch.equal(before, after)
    assert torch.equal(torch.random.get_rng_state(), after)  # it draws from a state of its own
    assert all(torch.equal(likelihood.state_dict()[key], state[key]) for key in state)
    assert likelihood.training


def test_no_likelihood_is_left_out() -> None:
    assert {type(build()).__name__ for build, *_ in RIGHT.values()} == set(LIKELIHOODS)


class Exponential(gfo.Likelihood):
    """Waiting times; outputs are log-rates. Right; every subclass is wrong in one place."""

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        return output[:, 0] - target * output[:, 0].exp()

    def samples(self, output: Tensor) -> Tensor:
        return (-output[:, 0]).exp()

    def variance(self, output: Tensor) -> Tensor:
        return (-2 * output[:, 0]).exp()


class Constant(Exponential):
    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        return super().log_prob(output, target) + math.log(2)


class OfTheBatch(Exponential):
    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        return super().log_prob(output - output.mean(), target)


class Averaged(Exponential):
    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        return super().log_prob(output, target).mean()


class Detached(Exponential):
    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        return output[:, 0] - target * output[:, 0].detach().exp()


class Deaf(Exponential):
    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        return super().log_prob(output.detach(), target)


class Rates(Exponential):
    def samples(self, output: Tensor) -> Tensor:
        return output[:, 0].exp()


class Deviation(Exponential):
    def variance(self, output: Tensor) -> Tensor:
        return self.samples(output)


class Flat(Exponential):
    def encode(self, target: Tensor) -> Tensor:
        return target.float()


class Centred(Exponential):
    def encode(self, target: Tensor) -> Tensor:
        return super().encode(target) - target.mean()


class Unchecked(Exponential):
    def target(self, y: Tensor, *, values: bool = True) -> Tensor:
        return y


class Broken(Exponential):
    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        return torch.where(target > target.min(), super().log_prob(output, target), -torch.inf)


class Forgetful(Exponential):
    """Its argument is not in ``arguments``."""

    def __init__(self, unit: float = 1.0) -> None:
        super().__init__()
        self.unit = unit

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        return super().log_prob(output, target / self.unit) - math.log(self.unit)

    def samples(self, output: Tensor) -> Tensor:
        return self.unit * super().samples(output)

    def variance(self, output: Tensor) -> Tensor:
        return self.unit**2 * super().variance(output)


class Unsettled(Exponential):
    """What it has learned stays in it, and so changes with further training."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(()))

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        return super().log_prob(output + self.shift, target)

    def settle(self, output: Tensor) -> tuple[Tensor, gfo.Likelihood]:
        return output, self


WRONG: list[tuple[gfo.Likelihood, str]] = [
    (Constant(), r"Constant\(\) is not normalised: .* example 0 sum or integrate to 2.*must be 1"),
    (OfTheBatch(), "has log_prob of an example depend on other examples"),
    (Averaged(), r"must return log_prob of shape \[5\]"),
    (Detached(), "has a gradient by the output that is not its finite difference"),
    (Deaf(), "has a log_prob that does not depend on the output"),
    (Rates(), "has samples .* for example 0, its density gives"),
    (Deviation(), "has variance .* for example 0, its density gives"),
    (Flat(), r"must return encode\(target\) of shape \[5, 1\], got \[5\]"),
    (Centred(), "has encode of an example depend on other examples"),
    (Unchecked(), r"must raise ValueError in target\(y\) for labels that are NaN"),
    (Broken(), "must return finite values from log_prob"),
    (Forgetful(2.0), "has another log_prob when it is built again"),
    (Unsettled(), "changes what it has settled when it is trained further"),
]


@pytest.mark.parametrize(("likelihood", "message"), WRONG, ids=repr)
def test_a_wrong_likelihood_is_caught(likelihood: gfo.Likelihood, message: str) -> None:
    outputs, y = torch.randn(ROWS, 1), torch.rand(ROWS) + 0.1
    with pytest.raises(AssertionError, match=message):
        check_likelihood(likelihood, outputs, y, support=(0, math.inf))


def test_a_right_likelihood_of_ones_own_passes() -> None:
    outputs, y = torch.randn(ROWS, 1), torch.rand(ROWS) + 0.1
    done = check_likelihood(Exponential(), outputs, y, support=(0, math.inf))
    assert set(done) == BASIC | {"normalised", "moments"}
    assert "Exponential" not in LIKELIHOODS


class Uniform(gfo.Likelihood):
    """Shares between 0 and 1: (1 + f (2 y - 1)) with a slope f = tanh(output)."""

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        return torch.log1p(output[:, 0].tanh() * (2 * target - 1))

    def samples(self, output: Tensor) -> Tensor:
        return 0.5 + output[:, 0].tanh() / 6

    def variance(self, output: Tensor) -> Tensor:
        return 1 / 12 - output[:, 0].tanh().square() / 36


@pytest.mark.parametrize("support", [(0, 1), (0, 0.9)])
def test_bounded_supports(support: tuple[float, float]) -> None:
    outputs, y = torch.randn(ROWS, 1), torch.rand(ROWS)
    if support == (0, 1):
        assert "moments" in check_likelihood(Uniform(), outputs, y, support=support)
        return
    with pytest.raises(AssertionError, match="is not normalised"):
        check_likelihood(Uniform(), outputs, y, support=support)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((nn.Identity(), torch.zeros(2, 1), torch.zeros(2)), TypeError, "must be a gfo.Likelihood"),
        ((gfo.Binary(), torch.zeros(1, 1), torch.zeros(1)), ValueError, "at least two, got shapes"),
        ((gfo.Binary(), torch.zeros(3, 1), torch.zeros(2)), ValueError, r"\[3, 1\] and \[2\]"),
    ],
)
def test_wrong_arguments(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        check_likelihood(*arguments)


def test_an_interval_is_for_one_number() -> None:
    with pytest.raises(ValueError, match=r"support must be a tensor of labels, or None"):
        check_likelihood(gfo.Gaussian(2), torch.randn(3, 2), torch.randn(3, 2), support=REAL)


class OfPairs(gfo.Likelihood):
    """A common slip: [batch, 1] minus [batch] is [batch, batch]."""

    def log_prob(self, output: Tensor, target: Tensor) -> Tensor:
        return -(output - target).square()

    def samples(self, output: Tensor) -> Tensor:
        return output[:, 0]


@pytest.mark.parametrize("method", ["mc", "gflowout"])
def test_training_refuses_a_log_prob_of_another_shape(method: str) -> None:
    x = torch.randn(5, 3)
    model = gfo.wrap(nn.Linear(3, 1), method, ["input"], likelihood=OfPairs(), example=(x,))
    message = r"OfPairs\(\) must return one number per example, shape \[5\], got \[5, 5\]"
    with pytest.raises(ValueError, match=message):
        model(x, y=torch.randn(5))
