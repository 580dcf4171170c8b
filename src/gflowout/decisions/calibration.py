"""Calibration after training: scaled probabilities, fitted on predictions of held-out examples.

A scaler is fitted on predictions with labels that the network was not trained on, and maps a
:class:`gflowout.Predictive` to another one with the same number of draws. It changes the logits of
every draw alike, so that scores of disagreement keep their meaning. What is fitted is the quantity
that users read: ``pred.mean``, the average over draws of the scaled probabilities.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from gflowout.core import checks
from gflowout.core.likelihoods import Binary, Categorical
from gflowout.core.predictive import Predictive
from gflowout.decisions._scaling import interpolate, isotonic, minimum, nll, with_mean
from gflowout.decisions._shared import (
    IGNORED,
    Fitted,
    average,
    check_count,
    class_labels,
    log_probabilities,
    with_logits,
)
from gflowout.decisions.reliability import Reliability, plot_reliability, reliability

__all__ = ["Isotonic", "Reliability", "Temperature", "Vector", "plot_reliability", "reliability"]

LOWEST, HIGHEST = 1e-3, 1e3
"""Temperatures between which the best one is searched."""


class Temperature(Fitted):
    r"""Divide the logits of every draw by one temperature T > 0.

    .. math:: \min_T -\tfrac1N \textstyle\sum_n \log \tfrac1S \sum_s
              \mathrm{softmax}(l_{ns} / T)_{y_n}

    T is the best of a grid of log T between 1e-3 and 1e3, refined by golden-section search, so it
    is always positive and finite. With one draw the loss is convex in 1 / T; with several it need
    not be, hence the grid. T changes neither the predicted class of a draw nor, in most cases, that
    of the mean.

    Two kinds of held-out data have no best temperature. If all labels are predicted right by the
    most probable class of every draw, the loss falls as T falls to 0: T is then 1, which changes
    nothing, with a warning. If predictions are worse than guessing, the loss falls as T grows: T is
    then 1e3, which is all but a uniform guess, with a warning. Labels of a single class are fine.

    Attributes:
        temperature: T, a scalar tensor. Above 1: predictions were too sure.

    Examples:
        >>> from gflowout import Categorical
        >>> sure = torch.tensor([[4.0, 0.0]]).repeat(100, 1)  # 98 % for class 0 ...
        >>> y = torch.tensor([0, 0, 0, 1]).repeat(25)  # ... which is right three times in four
        >>> pred = Predictive(sure[None], Categorical(2))
        >>> scaler = Temperature().fit(pred, y)
        >>> scaler(pred).mean[0]
        tensor([0.7500, 0.2500])
    """

    tensors = ("temperature",)
    temperature: Tensor

    def fit(self, pred: Predictive, y: Tensor) -> Temperature:
        """Find T on held-out examples.

        Args:
            pred: Prediction of examples that the network was not trained on.
            y: Their labels, as in training.
        """
        pred = with_logits(pred, "Temperature")
        logits, labels = _labelled(pred, y)

        def loss(log_t: float) -> float:
            return float(nll(logits * math.exp(-log_t), labels))

        low, high = math.log(LOWEST), math.log(HIGHEST)
        log_t = minimum(loss, low, high)
        if loss(low) <= loss(log_t):
            log_t = 0.0
            warnings.warn(
                "y does not determine a temperature: every label is predicted right, so that the "
                f"loss still falls at T = {LOWEST:g}. T is left at 1; take more held-out examples",
                stacklevel=2,
            )
        elif loss(high) <= loss(log_t):
            log_t = high
            warnings.warn(
                f"predictions are no better than guessing: T is at its bound of {HIGHEST:g}, which "
                "makes them all but uniform. Do predictions and labels belong together?",
                stacklevel=2,
            )
        self.temperature = torch.tensor(math.exp(log_t), dtype=torch.float64)
        return self

    def __call__(self, pred: Predictive) -> Predictive:
        """Return the prediction with scaled logits.

        Args:
            pred: Of the same model.
        """
        pred = with_logits(pred, "Temperature")
        factor = 1 / float(self.state_dict()["temperature"])
        return Predictive(pred.outputs * factor, pred.likelihood, pred.masks)

    def _check_state(self, state: Mapping[str, Tensor]) -> None:
        value = state["temperature"]
        if value.dim() or not 0 < float(value) < math.inf:
            raise ValueError(f"temperature must be one positive number, got {value}")


class Vector(Fitted):
    r"""Multiply the logits of every draw by a weight per class, and add a bias per class.

    .. math:: \min_{a, b} -\tfrac1N \textstyle\sum_n \log \tfrac1S \sum_s
              \mathrm{softmax}(e^a l_{ns} + b)_{y_n} + \lambda (\|a\|^2 + \|b\|^2)

    Weights are positive. For ``Binary`` it is Platt scaling, for ``MultiLabel`` the same for every
    label. The penalty keeps both finite where classes are separable or missing among the labels;
    with the default it is small against the loss of some hundred examples that are not. Labels of
    one class only are an error. It can change the predicted class, unlike :class:`Temperature`.

    Args:
        penalty: :math:`\lambda`, above 0.

    Attributes:
        weight: [classes].
        bias: [classes].

    Examples:
        >>> from gflowout import Categorical
        >>> y = torch.arange(300) % 3
        >>> pred = Predictive(F.one_hot(y, 3)[None] + torch.tensor([0.0, 0.0, 2.0]), Categorical(3))
        >>> (pred.mean.argmax(-1) == y).float().mean()  # class 2 wins always
        tensor(0.3333)
        >>> (Vector().fit(pred, y)(pred).mean.argmax(-1) == y).float().mean()
        tensor(1.)
    """

    arguments = ("penalty",)
    tensors = ("weight", "bias")
    weight: Tensor
    bias: Tensor

    def __init__(self, penalty: float = 1e-3) -> None:
        self.penalty = checks.number("penalty", penalty, low=0, open_low=True)

    def fit(self, pred: Predictive, y: Tensor) -> Vector:
        """Find weights and biases on held-out examples.

        Args:
            pred: Prediction of examples that the network was not trained on.
            y: Their labels, as in training.
        """
        pred = with_logits(pred, "Vector")
        _, labels = _labelled(pred, y)
        _check_classes(labels, "Vector")
        outputs = pred.outputs.detach().double()
        all_labels = class_labels(pred, y)
        size = 1 if isinstance(pred.likelihood, Binary) else outputs.shape[-1]
        log_weight = outputs.new_zeros(size).requires_grad_()
        bias = outputs.new_zeros(size).requires_grad_()
        optimizer = torch.optim.LBFGS(
            [log_weight, bias], max_iter=500, tolerance_grad=1e-9, tolerance_change=1e-12,
            line_search_fn="strong_wolfe",
        )  # fmt: skip

        def closure() -> Tensor:
            optimizer.zero_grad()
            scaled = Predictive(outputs * log_weight.exp() + bias, pred.likelihood)
            logits = scaled.likelihood.class_logits(scaled.outputs.flatten(0, 1))
            logits = logits.reshape(*outputs.shape[:2], *logits.shape[1:])
            counted = all_labels != IGNORED
            loss = nll(logits[:, counted], all_labels[counted])
            loss = loss + self.penalty * (log_weight.square().sum() + bias.square().sum())
            torch.autograd.backward(loss)
            return loss

        with torch.enable_grad():
            optimizer.step(closure)  # type: ignore[no-untyped-call]
        self.weight, self.bias = log_weight.detach().exp(), bias.detach()
        if not bool(torch.isfinite(torch.cat((self.weight, self.bias))).all()):
            raise RuntimeError(
                f"Vector did not converge with penalty={self.penalty:g}: take a larger one"
            )
        return self

    def __call__(self, pred: Predictive) -> Predictive:
        """Return the prediction with scaled logits.

        Args:
            pred: Of the same model.
        """
        pred = with_logits(pred, "Vector")
        weight, bias = (tensor.to(pred.outputs) for tensor in self.state_dict().values())
        size = 1 if isinstance(pred.likelihood, Binary) else pred.outputs.shape[-1]
        if len(weight) != size:
            raise ValueError(f"pred must have {len(weight)} outputs as in fit, got {size}")
        return Predictive(pred.outputs * weight + bias, pred.likelihood, pred.masks)

    def _check_state(self, state: Mapping[str, Tensor]) -> None:
        weight, bias = state["weight"], state["bias"]
        fits = weight.dim() == 1 and weight.shape == bias.shape and bool((weight > 0).all())
        if not fits or not bool(torch.isfinite(torch.cat((weight, bias))).all()):
            raise ValueError("weight and bias must be finite, weight positive, [classes] each")


class Isotonic(Fitted):
    r"""Map the mean probability of each class by an increasing step-free function of its own.

    For class c, :math:`g_c` is the isotonic (increasing least-squares) fit of the indicator
    :math:`[y = c]` to the mean probability :math:`m_c`, by pooling adjacent violators, with linear
    interpolation between its steps. Calibrated probabilities are :math:`g_c(m_c)`, divided by their
    sum over classes. Where :math:`g_c` is 0 the class keeps its probability up to 1 / (N + 2), so
    that no class becomes impossible.

    That is a map of the mean. The draws follow it: the logits of all draws of an example are
    shifted by the same vector, the one for which their probabilities average to the calibrated
    ones. So ``pred.mean`` is calibrated, draws that agreed still agree, and scores of disagreement
    stay available.

    Needs more held-out examples than the others, some hundred per class. It can change the
    predicted class. Labels of one class only are an error; a class without labels gets
    probabilities of at most 1 / (N + 2) before normalisation. For ``Categorical`` and ``Binary``.

    Attributes:
        knots: Mean probabilities where the functions bend, [classes, knots].
        values: The functions there, [classes, knots].
        floor: 1 / (N + 2).

    Examples:
        >>> from gflowout import Binary
        >>> log_odds = torch.tensor([-2.0, -1.0, 1.0, 2.0]).repeat(100)
        >>> y = torch.tensor([0.0, 0.0, 1.0, 1.0]).repeat(100)
        >>> y[::8] = 1.0  # half of the lowest ones
        >>> pred = Predictive(log_odds[None], Binary())
        >>> Isotonic().fit(pred, y)(pred).mean[:4]  # the two lowest are pooled
        tensor([0.2500, 0.2500, 0.9975, 0.9975])
    """

    tensors = ("knots", "values", "floor")
    knots: Tensor
    values: Tensor
    floor: Tensor

    def fit(self, pred: Predictive, y: Tensor) -> Isotonic:
        """Find the functions on held-out examples.

        Args:
            pred: Prediction of examples that the network was not trained on.
            y: Their labels, as in training.
        """
        pred = _one_of_classes(pred)
        logits, labels = _labelled(pred, y)
        _check_classes(labels, "Isotonic")
        mean = average(logits)
        truth = F.one_hot(labels, mean.shape[-1]).double()
        curves = [isotonic(m, t) for m, t in zip(mean.unbind(-1), truth.unbind(-1), strict=True)]
        most = max(len(knots) for knots, _ in curves)

        def padded(column: Tensor) -> Tensor:
            return torch.cat((column, column[-1:].expand(most - len(column))))

        self.knots = torch.stack([padded(knots) for knots, _ in curves])
        self.values = torch.stack([padded(values) for _, values in curves])
        self.floor = torch.tensor(1 / (len(labels) + 2), dtype=torch.float64)
        return self

    def __call__(self, pred: Predictive) -> Predictive:
        """Return the prediction with calibrated means.

        Args:
            pred: Of the same model.
        """
        pred = _one_of_classes(pred)
        device = pred.outputs.device
        knots, values, floor = (tensor.to(device) for tensor in self.state_dict().values())
        log_probs = log_probabilities(pred)
        mean = average(log_probs)
        if mean.shape[-1] != len(knots):
            raise ValueError(f"pred must have {len(knots)} classes as in fit, got {mean.shape[-1]}")
        flat = mean.reshape(-1, len(knots)).T.contiguous()
        mapped = interpolate(flat, knots, values).maximum(flat.minimum(floor))
        target = (mapped / mapped.sum(0)).T.reshape(mean.shape)
        shifted = with_mean(log_probs, target)
        if isinstance(pred.likelihood, Binary):
            shifted = (shifted[..., 1] - shifted[..., 0]).reshape(pred.outputs.shape)
        dtype = torch.promote_types(pred.outputs.dtype, torch.float32)
        return Predictive(shifted.to(dtype), pred.likelihood, pred.masks)

    def _check_state(self, state: Mapping[str, Tensor]) -> None:
        knots, values = state["knots"], state["values"]
        if knots.dim() != 2 or knots.shape != values.shape or not knots.numel():
            raise ValueError("knots and values must have shape [classes, knots]")
        numbers = torch.cat((knots, values)), state["floor"]
        if any(bool(((part < 0) | (part > 1)).any()) for part in numbers):
            raise ValueError("knots, values and floor must be in [0, 1]")


def _labelled(pred: Predictive, y: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities [samples, n, classes] and classes [n] of all labels that count."""
    log_probs, labels = log_probabilities(pred), class_labels(pred, y)
    counted = labels != IGNORED
    check_count(labels[counted])
    return log_probs[:, counted], labels[counted]


def _check_classes(labels: Tensor, name: str) -> None:
    if bool((labels == labels[0]).all()):
        raise ValueError(
            f"y must hold labels of at least two classes to fit {name}, got class "
            f"{int(labels[0])} only; Temperature can be fitted to them"
        )


def _one_of_classes(pred: Predictive) -> Predictive:
    """A prediction of one class per label, its logits classes last."""
    pred = with_logits(pred, "Isotonic")
    if not isinstance(pred.likelihood, Categorical | Binary):
        raise TypeError(
            f"Isotonic is for Categorical and Binary, the prediction has {pred.likelihood}; take "
            "Temperature or Vector"
        )
    return pred
