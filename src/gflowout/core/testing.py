"""Checks for parts of your own: ``check_likelihood`` tests that a likelihood keeps its promises."""

from __future__ import annotations

import copy
import json
import math
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from gflowout.core.likelihoods import LIKELIHOODS, Likelihood
from gflowout.core.serialization import load, save
from gflowout.core.wrap import wrap

__all__ = ["check_likelihood"]

Support = Tensor | tuple[float, float]

_STEP = 1e-5
_MOST = 48
"""Elements of an output, or of a parameter, whose gradient is compared."""


def check_likelihood(
    likelihood: Likelihood,
    outputs: Tensor,
    y: Tensor,
    *,
    support: Support | None = None,
    tolerance: float = 1e-4,
) -> tuple[str, ...]:
    """Check a likelihood on outputs and labels; raise an ``AssertionError`` that names what fails.

    Checked are: labels (their count, NaN is refused); shapes, dtypes and finite values; rows
    (nothing depends on other examples of the batch); gradients of the log-likelihood, by outputs
    and by what is learned, against finite differences; that it is normalised, and that ``samples``
    and ``variance`` are the mean and variance (or the probabilities of classes), where the support
    is given; that it is built again from its configuration; that a settled prediction does not
    change; a training pass, a prediction, a file.

    Args:
        likelihood: It is copied, not changed.
        outputs: Of a backbone, [batch, ...], at least two different rows. Take random numbers.
        y: Labels that fit them, [batch, ...].
        support: Labels to sum or integrate over: all labels that one example can have (or, of
            counts, all that are probable), [labels, ...]; or, for labels of one real number, the
            ends of the interval they are from, which may be infinite. ``None`` leaves out what
            needs it.
        tolerance: Relative error that is allowed.

    Returns:
        Names of the checks that were made.

    Examples:
        >>> import gflowout as gfo
        >>> outputs, y = torch.randn(5, 1), torch.tensor([0, 3, 1, 0, 7])
        >>> check_likelihood(gfo.Poisson(), outputs, y, support=torch.arange(100))
        ('labels', 'values', 'rows', 'gradients', 'normalised', 'moments', 'config', 'settled',
         'model')
        >>> class Squared(gfo.Likelihood):  # a loss, which is no likelihood
        ...     def log_prob(self, output, target):
        ...         return -(output[:, 0] - target).square()
        ...     def samples(self, output):
        ...         return output[:, 0]
        >>> check_likelihood(Squared(), outputs, torch.randn(5), support=(-math.inf, math.inf))
        Traceback (most recent call last):
            ...
        AssertionError: Squared() is not normalised: ... integrate to 1.77..., must be 1
    """
    if not isinstance(likelihood, Likelihood):
        raise TypeError(f"likelihood must be a gfo.Likelihood, got {likelihood!r}")
    if len(outputs) < 2 or len(outputs) != len(y):
        raise ValueError(
            "outputs and y must have the same number of rows, at least two, got shapes "
            f"{list(outputs.shape)} and {list(y.shape)}"
        )
    case = _Case(likelihood, outputs.detach(), y, support, tolerance)
    checks: dict[str, Callable[[_Case], None]] = {
        "labels": _labels,
        "values": _values,
        "rows": _rows,
        "gradients": _gradients,
    }
    if support is not None:
        checks["normalised"] = _normalised
        if likelihood.label_noise is None and (likelihood.has_variance or likelihood.has_classes):
            checks["moments"] = _moments  # with label noise, samples are of the true class
    checks |= {"config": _config, "settled": _settled, "model": _model}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for check in checks.values():
            check(case)
    return tuple(checks)


@dataclass
class _Case:
    """What is checked, in double precision."""

    given: Likelihood
    outputs: Tensor
    y: Tensor
    support: Support | None
    tolerance: float

    def __post_init__(self) -> None:
        self.likelihood = copy.deepcopy(self.given).double().eval()
        self.exact = self.outputs.double()
        self.target = self.likelihood.target(self.y)

    def log_prob(self, output: Tensor) -> Tensor:
        return self.likelihood.log_prob(output, self.target)

    def require(self, fine: bool, problem: str) -> None:
        if not fine:
            raise AssertionError(f"{self.given} {problem}")

    def close(self, value: Tensor, expected: Tensor, problem: str) -> None:
        size = expected.abs().amax().clamp(min=1e-3).item()
        gap = (value - expected).abs().amax().item()
        problem = f"{problem}: they differ by up to {gap:.3g}"
        self.require(gap <= self.tolerance * size, problem)


def _labels(case: _Case) -> None:
    case.require(
        isinstance(case.target, Tensor) and len(case.target) == len(case.y),
        f"must return one row per label from target(y), got {case.target!r}",
    )
    if case.y.is_floating_point():
        wrong = case.y.clone()
        wrong[0] = math.nan
        try:
            case.likelihood.target(wrong)
        except ValueError:
            return
        case.require(False, "must raise ValueError in target(y) for labels that are NaN")


def _values(case: _Case) -> None:
    rows = len(case.y)
    scores = case.log_prob(case.exact)
    case.require(
        scores.shape == (rows,) and scores.dtype == torch.float64,
        f"must return log_prob of shape [{rows}], in double precision for such outputs, got "
        f"{list(scores.shape)} of {scores.dtype}",
    )
    encoded = case.likelihood.encode(case.target)
    size = case.likelihood.label_size
    case.require(
        encoded.shape == (rows, size) and encoded.is_floating_point(),
        f"must return encode(target) of shape [{rows}, {size}], got {list(encoded.shape)} of "
        f"{encoded.dtype}",
    )
    samples = case.likelihood.samples(case.exact)
    case.require(len(samples) == rows, f"must return {rows} rows of samples, got {len(samples)}")
    values = {"log_prob": scores, "encode": encoded, "samples": samples}
    if case.likelihood.has_classes:
        values["class_logits"] = case.likelihood.class_logits(case.exact)
    if case.likelihood.has_variance:
        variance = case.likelihood.variance(case.exact)
        case.require(
            variance.shape == samples.shape and bool((variance >= 0).all()),
            f"must return a variance >= 0 of the shape of samples, {list(samples.shape)}, got "
            f"{list(variance.shape)} from {variance.min().item():.3g}",
        )
    for name, value in values.items():
        case.require(bool(value.isfinite().all()), f"must return finite values from {name}")


def _rows(case: _Case) -> None:
    order = torch.arange(len(case.y)).flip(0)
    twice = torch.cat([order, order])
    likelihood = case.likelihood
    for name, function in (
        ("log_prob", likelihood.log_prob),
        ("samples", lambda output, _: likelihood.samples(output)),
        ("encode", lambda _, target: likelihood.encode(target)),
    ):
        whole = function(case.exact, case.target)
        moved = function(case.exact[twice], case.target[twice])
        case.close(moved, whole[twice], f"has {name} of an example depend on other examples")
        alone = function(case.exact[:1], case.target[:1])
        case.close(alone, whole[:1], f"has {name} of an example depend on other examples")


def _gradients(case: _Case) -> None:
    output = case.exact.clone().requires_grad_()
    total = case.log_prob(output).sum()
    case.require(total.requires_grad, "has a log_prob that does not depend on the output")
    learned = [part for part in case.likelihood.parameters() if part.requires_grad]
    by_output, *others = torch.autograd.grad(total, [output, *learned], allow_unused=True)
    case.require(
        by_output is not None and bool(by_output.any()),
        "has a log_prob that does not depend on the output",
    )
    with torch.no_grad():
        flat = case.exact.flatten(1)
        for element in torch.randperm(flat.shape[1])[:_MOST].tolist():
            step = torch.zeros_like(flat)
            step[:, element] = _STEP
            step = step.reshape(case.exact.shape)
            slope = case.log_prob(case.exact + step) - case.log_prob(case.exact - step)
            case.close(
                by_output.flatten(1)[:, element],
                slope / (2 * _STEP),
                "has a gradient by the output that is not its finite difference",
            )
        for part, gradient in zip(learned, others, strict=True):
            slope = torch.zeros_like(part).flatten()
            values = part.view(-1)
            for element in range(min(_MOST, len(values))):
                values[element] += _STEP
                above = case.log_prob(case.exact).sum()
                values[element] -= 2 * _STEP
                slope[element] = (above - case.log_prob(case.exact).sum()) / (2 * _STEP)
                values[element] += _STEP
            gradient = torch.zeros_like(part) if gradient is None else gradient
            problem = "has a gradient by a parameter that is not its finite difference"
            case.close(gradient.flatten()[:_MOST], slope[:_MOST], problem)


def _densities(case: _Case) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Rows of some examples, with labels of the support and how much each weighs."""
    for row in range(min(4, len(case.y))):
        if isinstance(case.support, Tensor):
            labels, weights = case.support, torch.ones(len(case.support), dtype=torch.float64)
        else:
            assert case.support is not None
            labels, weights = _nodes(case.y, case.support)
        target = case.likelihood.target(labels)
        repeated = case.exact[row : row + 1].expand(len(target), *case.exact.shape[1:])
        yield row, labels, weights * case.likelihood.log_prob(repeated, target).exp()


def _normalised(case: _Case) -> None:
    with torch.no_grad():
        for row, _, masses in _densities(case):
            total = masses.sum().item()
            case.require(
                abs(total - 1) <= 10 * case.tolerance,
                f"is not normalised: probabilities of all labels of example {row} sum or "
                f"integrate to {total:.6g}, must be 1",
            )


def _moments(case: _Case) -> None:
    with torch.no_grad():
        samples = case.likelihood.samples(case.exact).reshape(len(case.y), -1)
        for row, labels, masses in _densities(case):
            if case.likelihood.has_classes:
                if samples.shape[1:] == masses.shape:  # one probability per label
                    problem = "has samples that are not the probabilities of the classes"
                    case.close(samples[row], masses, problem)
                continue
            values, variance = labels.double().flatten(), case.likelihood.variance(case.exact)
            if len(values) != len(masses) or samples.shape[1] != 1:
                continue  # not one number
            mean = (masses * values).sum()
            spread = (masses * (values - mean).square()).sum()
            pairs = (("samples", samples[row], mean), ("variance", variance[row].sum(), spread))
            for name, value, expected in pairs:
                if bool(value.isfinite().all()):
                    gap = (value - expected).abs().max().item()
                    case.require(
                        gap <= 100 * case.tolerance * max(1.0, abs(expected.item())),
                        f"has {name} {value.item():.6g} for example {row}, its density gives "
                        f"{expected.item():.6g}",
                    )


def _nodes(y: Tensor, support: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """Labels and weights of double-exponential quadrature over an interval."""
    if y[:1].numel() != 1:
        raise ValueError(
            f"support must be a tensor of labels, or None, for labels of shape {list(y.shape)}: "
            "only labels of one number can be integrated over an interval"
        )
    low, high = support
    t = torch.linspace(-4, 4, 8001, dtype=torch.float64)
    inner, slope = math.pi / 2 * t.sinh(), math.pi / 2 * t.cosh()
    if math.isinf(low) and math.isinf(high):
        centre = y.double().mean()
        labels, slope = centre + inner.sinh(), slope * inner.cosh()
    elif math.isinf(high):
        labels, slope = low + inner.exp(), slope * inner.exp()
    elif math.isinf(low):
        labels, slope = high - inner.exp(), slope * inner.exp()
    else:
        half = (high - low) / 2
        labels, slope = low + half * (1 + inner.tanh()), slope * half / inner.cosh().square()
    return labels.reshape(-1, *y.shape[1:]), slope * (t[1] - t[0])


def _config(case: _Case) -> None:
    config = json.loads(json.dumps(case.given.config()))
    again = type(case.given)(**config).double().eval()
    again.load_state_dict(case.likelihood.state_dict())
    case.require(repr(again) == repr(case.likelihood), f"is built as {again!r} from {config}")
    scores = again.log_prob(case.exact, again.target(case.y))
    problem = "has another log_prob when it is built again from its configuration and state"
    case.close(scores, case.log_prob(case.exact), problem)


def _settled(case: _Case) -> None:
    likelihood = copy.deepcopy(case.likelihood)
    with torch.no_grad():
        output, settled = likelihood.settle(case.exact)
        before = settled.log_prob(output, settled.target(case.y))
        if not _differs_in_training(likelihood):
            problem = "has another log_prob after settle"
            case.close(before, case.log_prob(case.exact), problem)
        for part in likelihood.parameters():
            part.add_(1.0)
        after = settled.log_prob(output, settled.target(case.y))
        case.close(after, before, "changes what it has settled when it is trained further")


def _differs_in_training(likelihood: Likelihood) -> bool:
    names = ("label_noise", "label_smoothing", "weight")
    return any(getattr(likelihood, name, None) for name in names)


class _Reshape(nn.Module):
    """A backbone whose input is its output."""

    def __init__(self, shape: torch.Size) -> None:
        super().__init__()
        self.shape = shape
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return (self.scale * x).reshape(len(x), *self.shape)


def _model(case: _Case) -> None:
    x = case.outputs.float().flatten(1) if case.outputs.dim() > 1 else case.outputs.float()[:, None]
    shape = case.outputs.shape[1:]
    likelihood = copy.deepcopy(case.given).float()
    with torch.no_grad():
        for part in likelihood.parameters():
            part.add_(0.1)  # not as it starts, so that a file must bring it back
    model = wrap(_Reshape(shape), "gflowout", ["input"], likelihood=likelihood, example=(x,))
    losses = model(x, y=case.y)
    losses.total.backward()
    case.require(math.isfinite(losses.total.item()), "gives a loss that is not finite")
    pred = model.predict(x, samples=4, return_masks=True)
    assert pred.masks is not None
    outputs = [(x * masks).reshape(-1, *shape) for masks in pred.masks[0]]
    if not _differs_in_training(likelihood):
        with torch.no_grad():
            target = likelihood.target(case.y)
            scores = torch.stack([likelihood.log_prob(output, target) for output in outputs])
            expected = scores.logsumexp(0) - math.log(4)
        problem = "has a prediction whose log_prob is not that of its draws"
        case.close(pred.log_prob(case.y), expected, problem)
    with _registered(type(likelihood)), tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.safetensors")
        save(model, path)
        again = load(path, _Reshape(shape)).predict(x, masks=pred.masks)
    case.close(again.mean, pred.mean, "predicts something else when it is loaded from a file")


@contextmanager
def _registered(kind: type[Likelihood]) -> Iterator[None]:
    """Enter a likelihood that is not, for as long as its file is written and read."""
    new = kind.__name__ not in LIKELIHOODS
    if new:
        LIKELIHOODS[kind.__name__] = kind
    try:
        yield
    finally:
        if new:
            del LIKELIHOODS[kind.__name__]
