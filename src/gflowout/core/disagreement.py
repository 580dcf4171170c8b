"""A loss term that makes draws disagree on inputs that are made to be unlike the training data.

It is outlier exposure with synthetic outliers: what draws learn to disagree on is what the made
inputs look like, and other unknown inputs profit as far as they resemble them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gflowout.core import checks
from gflowout.core.call import Args, Kwargs, logits_of
from gflowout.core.ensemble import Ensemble
from gflowout.core.model import MaskedModel
from gflowout.core.noise import Noise
from gflowout.core.runner import Runner
from gflowout.core.trajectory import Trajectory
from gflowout.core.view import evaluating

BLOCK = 2
"""Side of the blocks of pixels that are shuffled."""


@dataclass(frozen=True)
class Disagreement:
    r"""Loss term that rewards draws for disagreeing on inputs made from the batch.

    With :math:`p_c` the class probabilities of draw c and :math:`\tilde x` the made inputs,

    .. math:: -\lambda \Big[ H \big( \tfrac1C \textstyle\sum_c p_c(\tilde x) \big)
              - \tfrac1C \sum_c H \big( p_c(\tilde x) \big) \Big]

    is added to the loss: the mutual information that ``Predictive.mutual_information`` reports, so
    that this score is high on inputs like the made ones. No real unknown input is needed, but what
    is learned is about the made ones: call it synthetic outlier exposure when you report it.

    The pass runs in eval mode, as predictions do: statistics of BatchNorm are those of real inputs,
    and layers of dropout in the backbone are off. The term trains the backbone alone: masks that
    learn would otherwise disagree everywhere.

    Args:
        weight: :math:`\lambda`. Larger ones cost accuracy.
        inputs: How to make inputs from those of the batch, of which half are taken.

            - ``"blocks"``: pictures, [batch, ..., height, width], with their blocks of 2x2 pixels
              in random order;
            - ``"blend"``: the mean of a picture and another one of the batch, turned by 180°;
            - ``"columns"``: tables, [batch, columns], with the values of every column in random
              order, so that a row has values of many;
            - ``"auto"``: ``"blocks"`` for [batch, channels, height, width] and ``"columns"`` for
              [batch, columns];
            - a function of the backbone's arguments that returns others: a tensor, a tuple of
              positional or a dict of keyword arguments, of as many examples as it likes.
        draws: Draws of masks. Methods of a few fixed masks run each of them once; an ensemble runs
            as many for each member that draws, and others once.

    Examples:
        >>> import gflowout as gfo
        >>> net = torch.nn.Sequential(
        ...     torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
        ... )
        >>> x, y = torch.randn(16, 4), torch.randint(3, (16,))
        >>> model = gfo.wrap(net, "mc", ["1"], likelihood=gfo.Categorical(3), example=(x[:2],))
        >>> term = gfo.Disagreement(weight=0.1)
        >>> loss = model(x, y=y).total + term(model, x)
        >>> loss.backward()
    """

    weight: float = 0.1
    inputs: str | Callable[..., Any] = "auto"
    draws: int = 4
    _seen: list[bool] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the values."""
        checks.number("weight", self.weight, low=0)
        checks.integer("draws", self.draws, low=2)
        if not callable(self.inputs):
            checks.choice("inputs", self.inputs, ["auto", *MAKERS])

    def __call__(self, model: MaskedModel | Ensemble, *args: Any, **kwargs: Any) -> Tensor:
        """Return the term for a batch, a scalar to be added to the loss.

        For an ensemble, whose loss is a sum over members, the term is multiplied by their number.

        Args:
            model: From :func:`gflowout.wrap`, or an ensemble.
            *args: Positional arguments of the backbone, as in training.
            **kwargs: Keyword arguments of the backbone.
        """
        self.check(model)
        args, kwargs = self._strange(args, kwargs)
        members = model.members if isinstance(model, Ensemble) else [model]
        logits = torch.cat([drawn_logits(member, self.draws, args, kwargs) for member in members])
        self._look(logits)
        # Summed over the labels of an example, as its log-likelihood is.
        information = disagreement(logits)
        if logits.dim() > 3:
            information = information.flatten(1).sum(1)
        return -self.weight * len(members) * information.mean()

    def check(self, model: MaskedModel | Ensemble) -> None:
        """Raise unless draws of the model can disagree about classes."""
        if not isinstance(model, MaskedModel | Ensemble):
            raise TypeError(f"model must come from gfo.wrap, got {type(model).__name__}")
        members = list(model.members) if isinstance(model, Ensemble) else [model]
        if len(members) == 1 and members[0].method.deterministic:
            raise ValueError(
                f"Disagreement needs draws that differ, and those of method "
                f"{members[0].method.name!r} are all the same: take a method that draws masks, or "
                "an Ensemble of several models"
            )
        if not members[0].likelihood.has_classes:
            raise TypeError(
                f"Disagreement is for classes, the model has {members[0].likelihood}: means can "
                "move apart without end, so that this term would grow beyond any other"
            )

    def config(self) -> dict[str, Any]:
        """The values as JSON; of a function its name."""
        named = self.inputs if isinstance(self.inputs, str) else None
        inputs = named or getattr(self.inputs, "__qualname__", type(self.inputs).__qualname__)
        return {"weight": self.weight, "inputs": inputs, "draws": self.draws}

    def _strange(self, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """Arguments of a call on made inputs."""
        if callable(self.inputs):
            inputs = self.inputs(*args, **kwargs)
            if isinstance(inputs, Mapping):
                return (), dict(inputs)
            return (tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)), {}
        name, single = self.inputs, len(args) == 1 and not kwargs
        x = args[0] if single else None
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise TypeError(
                f"inputs={name!r} is for models of one argument, a floating-point tensor: pass a "
                "function as inputs, which makes all arguments of the backbone"
            )
        if name == "auto":
            name = {2: "columns", 4: "blocks"}.get(x.dim(), "")
        if name not in MAKERS:
            raise ValueError(
                "inputs='auto' takes tables [batch, columns] and pictures [batch, channels, "
                f"height, width], got {list(x.shape)}: name one of "
                f"{', '.join(map(repr, MAKERS))}, or pass a function"
            )
        return (MAKERS[name](x.detach())[: max(1, len(x) // 2)],), {}

    def _look(self, logits: Tensor) -> None:
        """Warn, in the first call, of draws that are all the same: nothing is learned then."""
        if not self._seen:
            self._seen.append(True)
            if bool((logits == logits[:1]).all()):
                warnings.warn(
                    "the draws for Disagreement are all the same, so that they have nothing to "
                    "disagree about: do masks of this method differ?",
                    stacklevel=3,
                )


def check_term(term: Any, model: MaskedModel | Ensemble) -> None:
    """Raise unless ``disagreement``, an argument, is a term that fits a model."""
    if not isinstance(term, Disagreement):
        raise TypeError(f"disagreement must be gfo.Disagreement or None, got {term!r}")
    term.check(model)


def disagreement(logits: Tensor) -> Tensor:
    """Mutual information of class and draw in nats, [...], from logits [draws, ..., classes].

    As :func:`gflowout.uncertainty.mutual_information`, with gradients that are finite also where
    probabilities are rounded to 0.

    Examples:
        >>> disagreement(torch.tensor([[[99.0, 0.0]], [[0.0, 99.0]]]))
        tensor([0.6931])
    """
    log_probs = logits.log_softmax(-1)
    mean = log_probs.logsumexp(0) - math.log(len(logits))
    return (log_probs.exp() * (log_probs - mean)).sum(-1).mean(0)


def drawn_logits(model: MaskedModel, draws: int, args: Args, kwargs: Kwargs) -> Tensor:
    """Logits over classes, [draws, batch, ..., classes], as in ``predict`` but with gradients.

    A deterministic method has one draw, and one with a few fixed masks as many as these.
    """
    runner = Runner(model.backbone, model.sites, model.spec, args, kwargs)
    with evaluating(model) as resting:
        runner.backbone, method = resting.backbone, resting.method
        members = method.members()
        given = None if not members else [masks.flatten(0, 1) for masks in members]
        count = 1 if method.deterministic else len(given[0]) if given else draws
        step = count if runner.call.can_fold else 1
        outputs = []

        @torch.no_grad()
        def draw(site: int, activation: Tensor, trajectory: Trajectory) -> Tensor:
            return method.draw(site, activation, trajectory)

        for start in range(0, count, step):
            rows = None if given is None else [masks[start : start + step] for masks in given]
            trajectory = Trajectory(Noise(copies=step), rows)
            outputs.append(logits_of(runner.run(draw, trajectory)))
    logits = model.likelihood.class_logits(torch.cat(outputs))
    return logits.reshape(count, -1, *logits.shape[1:])


def shuffled_blocks(x: Tensor) -> Tensor:
    """Pictures [batch, ..., height, width] with blocks of 2x2 pixels in random order.

    A last row or column beyond whole blocks stays where it is.

    Examples:
        >>> x = torch.arange(16.0).reshape(1, 1, 4, 4)
        >>> shuffled_blocks(x).sort(-1).values.shape
        torch.Size([1, 1, 4, 4])
    """
    _pictures(x, "blocks")
    rows, columns = x.shape[-2] // BLOCK, x.shape[-1] // BLOCK
    whole = (..., slice(rows * BLOCK), slice(columns * BLOCK))
    cut = x[whole].reshape(len(x), -1, rows, BLOCK, columns, BLOCK).permute(0, 2, 4, 1, 3, 5)
    blocks = cut.reshape(len(x), rows * columns, -1)
    order = torch.rand(blocks.shape[:2], device=x.device).argsort(1)
    blocks = blocks.gather(1, order.unsqueeze(-1).expand_as(blocks))
    joined = blocks.reshape(cut.shape).permute(0, 3, 1, 4, 2, 5)
    shuffled = x.clone()
    shuffled[whole] = joined.reshape(x[whole].shape)
    return shuffled


def blended(x: Tensor) -> Tensor:
    """Means of each picture, [batch, ..., height, width], and the one before it, turned by 180°.

    Examples:
        >>> blended(torch.tensor([[[0.0, 2.0]], [[4.0, 6.0]]])).tolist()
        [[[3.0, 3.0]], [[3.0, 3.0]]]
    """
    _pictures(x, "blend")
    return (x + x.roll(1, 0).flip(-2, -1)) / 2


def permuted_columns(x: Tensor) -> Tensor:
    """Tables [batch, columns] with every column in a random order of its own.

    Examples:
        >>> x = torch.arange(6.0).reshape(3, 2)
        >>> torch.equal(permuted_columns(x).sort(0).values, x)
        True
    """
    if x.dim() != 2:
        raise ValueError(f"inputs='columns' takes [batch, columns], got {list(x.shape)}")
    return x.gather(0, torch.rand(x.shape, device=x.device).argsort(0))


def _pictures(x: Tensor, name: str) -> None:
    if x.dim() < 3 or (name == "blocks" and min(x.shape[-2:]) < BLOCK):
        raise ValueError(
            f"inputs={name!r} takes pictures [batch, ..., height, width], got {list(x.shape)}; "
            "for a table take 'columns', for flattened pictures a function"
        )


MAKERS: dict[str, Callable[[Tensor], Tensor]] = {
    "blocks": shuffled_blocks, "blend": blended, "columns": permuted_columns
}  # fmt: skip
"""How inputs are made, by name."""
