"""The official accuracy of VQA, for texts as the official code has it and for tensors.

An answer scores min(matches / 3, 1), averaged over all ways to leave one annotator out. Knows
nothing of files or models.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gflowout.core import checks
from gflowout.data.vqa.answers import normalise, strip_punctuation

TYPES = ("yes/no", "number", "other")
"""Kinds of questions, as the official evaluation reports them; the position is the id."""
SCORINGS = ("capped", "accuracy")
"""Training targets: min(count / 3, 1), or the official accuracy of the answer."""


def count_accuracy(matches: Tensor, annotators: Tensor | int = 10) -> Tensor:
    r"""Official accuracy of an answer that ``matches`` of the annotators gave.

    Leaving out each of n annotators in turn, an answer of k of them scores

    .. math:: \frac{k \min((k-1)/3, 1) + (n-k) \min(k/3, 1)}{n}.

    With one annotator nobody is left out: a match scores 1. Without any the score is 0.

    Args:
        matches: Number of annotators who gave the answer, any shape.
        annotators: Number of annotators, a number or a shape that fits ``matches``.

    Returns:
        Float32 of the shape of ``matches``.

    Examples:
        >>> count_accuracy(torch.tensor([0, 1, 2, 3, 4, 10]))
        tensor([0.0000, 0.3000, 0.6000, 0.9000, 1.0000, 1.0000])
    """
    k = matches.to(torch.float64)
    n = torch.as_tensor(annotators, dtype=torch.float64, device=k.device)
    left_in = (n - k) * (k / 3).clamp(max=1)
    left_out = k * ((k - 1) / 3).clamp(max=1)
    score = (left_in + left_out) / n.clamp(min=1)
    return torch.where(n == 1, k, score).float()


def soft_scores(counts: Tensor, annotators: Tensor | int = 10, scoring: str = "capped") -> Tensor:
    """Training targets from counts of annotators.

    Args:
        counts: Number of annotators who gave each answer, any shape.
        annotators: Number of annotators, a number or a shape that fits ``counts``.
        scoring: ``"capped"``: min(count / 3, 1). ``"accuracy"``: the official accuracy, that is
            0.3, 0.6, 0.9 and 1 with ten annotators, as the published MCAN code has it.

    Returns:
        Float32 of the shape of ``counts``; the only annotator's answer scores 1.

    Examples:
        >>> soft_scores(torch.tensor([0, 1, 3, 9]))
        tensor([0.0000, 0.3333, 1.0000, 1.0000])
    """
    checks.choice("scoring", scoring, SCORINGS)
    if scoring == "accuracy":
        return count_accuracy(counts, annotators)
    several = torch.as_tensor(annotators, device=counts.device) > 1
    return torch.where(several, (counts / 3).clamp(max=1), counts.float()).float()


def question_accuracy(predicted: Sequence[str], annotators: Sequence[Sequence[str]]) -> Tensor:
    """Official accuracy of each answer, float32 [N].

    As in the official code, predictions are always normalised, and annotators' answers only if
    they differ, and then only their punctuation. So ten times "the dog" is missed by every
    prediction; the published annotations hardly have such answers. Where a question has a single
    annotator, which the official code does not know, both are normalised in full.

    Args:
        predicted: One answer per question.
        annotators: The answers of each question's annotators.

    Examples:
        >>> question_accuracy(["red"], [["red"] * 2 + ["blue"] * 8])
        tensor([0.6000])
    """
    if isinstance(predicted, str):
        raise TypeError(f"predicted must be a list of answers, got the text {predicted!r}")
    if len(predicted) != len(annotators):
        raise ValueError(
            "predicted and annotators must have one entry per question, "
            f"got {len(predicted)} and {len(annotators)}"
        )
    matches = []
    for position, (answer, given) in enumerate(zip(predicted, annotators, strict=True)):
        if isinstance(given, str) or not given:
            raise ValueError(
                f"annotators must hold a list of answers per question, got {given!r} "
                f"for question {position}"
            )
        if len(given) == 1:
            given = [normalise(given[0])]
        elif len(set(given)) > 1:
            given = [strip_punctuation(other) for other in given]
        ours = normalise(answer)
        matches.append(sum(other == ours for other in given))
    total = torch.tensor([len(given) for given in annotators], dtype=torch.int64)
    return count_accuracy(torch.tensor(matches, dtype=torch.int64), total)


def accuracy(
    predicted: Sequence[str],
    annotators: Sequence[Sequence[str]],
    types: Tensor | Sequence[str] | None = None,
) -> dict[str, float]:
    """Mean official accuracy over all questions and over each type of question.

    Args:
        predicted: One answer per question.
        annotators: The answers of each question's annotators.
        types: Type of each question, as ids or names of :data:`TYPES`.

    Returns:
        Fractions: ``"all"``, and every type that occurs.

    Examples:
        >>> ten = [["yes"] * 7 + ["no"] * 3, ["2"] * 9 + ["3"]]
        >>> {k: round(v, 2) for k, v in accuracy(["no", "two"], ten, ["yes/no", "number"]).items()}
        {'all': 0.95, 'yes/no': 0.9, 'number': 1.0}
    """
    return by_type(question_accuracy(predicted, annotators), types)


def by_type(scores: Tensor, types: Tensor | Sequence[str] | None = None) -> dict[str, float]:
    """Mean of scores [N] over all questions (``"all"``) and over each type that occurs.

    Examples:
        >>> by_type(torch.tensor([1.0, 0.0, 1.0]), ["yes/no", "other", "other"])
        {'all': 0.666..., 'yes/no': 1.0, 'other': 0.5}
    """
    if len(scores) == 0:
        raise ValueError("there must be at least one question, got none")
    means = {"all": scores.double().mean().item()}
    if types is None:
        return means
    if not isinstance(types, Tensor):
        types = torch.tensor([TYPES.index(checks.choice("types", kind, TYPES)) for kind in types])
    if len(types) != len(scores):
        raise ValueError(
            f"types must have one entry per question, got {len(types)} for {len(scores)}"
        )
    for position, kind in enumerate(TYPES):
        chosen = scores[types == position]
        if len(chosen):
            means[kind] = chosen.double().mean().item()
    return means
