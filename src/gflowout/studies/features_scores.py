"""Scores of predictions and of what a method says of features. Pure functions of arrays."""

from __future__ import annotations

import math

import numpy as np

from gflowout.studies.features_data import Flags, Floats, Ints

LEAST = 1e-4
"""Probabilities are at least this, for all arms: a forest may say 0."""
THRESHOLD = 0.5
"""Inclusion probability from which a feature counts as found."""
BINS = (0.0, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0)
"""Edges of the bins of calibration; most probabilities are near 0 or 1."""


def prediction(probabilities: Floats, y: Ints) -> dict[str, float]:
    """NLL, accuracy and AUROC; of several classes the mean of one against the rest.

    Args:
        probabilities: [rows, classes].
        y: [rows], from 0.

    Examples:
        >>> said = np.array([[0.75, 0.25], [0.5, 0.5], [0.25, 0.75]])
        >>> found = prediction(said, np.array([0, 0, 1]))
        >>> round(found["nll"], 4), round(found["accuracy"], 4), found["auroc"]
        (0.4228, 1.0, 1.0)
    """
    kept = np.clip(probabilities, LEAST, 1)
    kept /= kept.sum(1, keepdims=True)
    classes = range(1, 2) if kept.shape[1] == 2 else range(kept.shape[1])
    areas = [auroc(kept[:, each], y == each) for each in classes]
    known = [area for area in areas if not math.isnan(area)]
    return {
        "nll": float(-np.log(kept[np.arange(len(y)), y]).mean()),
        "accuracy": float((kept.argmax(1) == y).mean()),
        "auroc": float(np.mean(known)) if known else math.nan,
    }


def auroc(score: Floats, right: Flags) -> float:
    """Chance that something right has a higher score than something wrong; ties count half.

    NaN if there is only one kind.

    Examples:
        >>> auroc(np.array([0.9, 0.4, 0.4, 0.1]), np.array([True, True, False, False]))
        0.875
    """
    positive, negative = int(right.sum()), int((~right).sum())
    if not positive or not negative:
        return math.nan
    _, inverse, counts = np.unique(score, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return float((ranks[right].sum() - positive * (positive + 1) / 2) / (positive * negative))


def kept_families(masks: Floats, weights: Floats, family: Ints) -> Floats:
    """Probability that at least one feature of a family is kept, [families].

    Args:
        masks: Of 0 and 1, [chains, draws, features].
        weights: Of the chains, [chains].
        family: Of each feature, [features], from 0.

    Examples:
        >>> masks = np.array([[[1, 0, 0], [0, 1, 0], [1, 1, 1], [0, 0, 1.0]]])
        >>> kept_families(masks, np.ones(1), np.array([0, 0, 1]))
        array([0.75, 0.5 ])
    """
    chosen = [masks[:, :, family == each].max(2).mean(1) for each in range(family.max() + 1)]
    found: Floats = weights @ np.stack(chosen, 1)
    return found


def best_of_families(score: Floats, family: Ints) -> Floats:
    """Highest score in each family, [families]."""
    return np.array([score[family == each].max() for each in range(family.max() + 1)])


def discoveries(
    found: Flags, family: Ints, relevant: Flags | None, irrelevant: Flags
) -> dict[str, float]:
    """How many of the features that a method found are right.

    Args:
        found: [features].
        family: Of each feature, [features].
        relevant: Families that matter, if that is known.
        irrelevant: Features that are known not to matter, [features].

    Returns:
        ``"found"``: features. ``"false"``: those of them known not to matter. Where it is known
        what matters, ``"true"``: relevant families of which a feature was found, and ``"fdr"``: the
        share of what was found that is false; 0 if nothing was found. ``"strict"`` is that share if
        of a family only the first is right, and its copies are false.

    Examples:
        >>> found, family = np.array([True, True, False, True]), np.array([0, 0, 1, 2])
        >>> discoveries(found, family, np.array([True, True, False]), family == 2)
        {'found': 3.0, 'false': 1.0, 'true': 1.0, 'fdr': 0.333..., 'strict': 0.666...}
    """
    false = float((found & irrelevant).sum())
    made = {"found": float(found.sum()), "false": false}
    if relevant is not None:
        made["true"] = float((best_of_families(found.astype(float), family) > 0)[relevant].sum())
        made["fdr"] = false / max(1.0, made["found"])
        originals = np.zeros(len(found), dtype=bool)
        originals[np.unique(family, return_index=True)[1]] = True
        wrong = found & ~(originals & relevant[family])
        made["strict"] = float(wrong.sum()) / max(1.0, made["found"])
    return made


def brier(probability: Floats, right: Flags) -> float:
    """Mean squared difference of inclusion probabilities and the truth."""
    return float(np.mean((probability - right) ** 2))


def reliability(
    probability: Floats, right: Flags, edges: tuple[float, ...] = BINS
) -> list[tuple[float, float, int]]:
    """Of each bin that is not empty: mean probability, share that is right, how many.

    Args:
        probability: Inclusion probabilities, of all seeds together.
        right: Whether each matters.
        edges: Of the bins.

    Examples:
        >>> reliability(np.array([0.0, 0.02, 0.9, 1.0]), np.array([False, True, True, True]))
        [(0.01, 0.5, 2), (0.9, 1.0, 1), (1.0, 1.0, 1)]
    """
    place = np.clip(np.searchsorted(edges, probability, side="right") - 1, 0, len(edges) - 2)
    made = []
    for each in range(len(edges) - 1):
        own = place == each
        if own.any():
            mean, share = float(probability[own].mean()), float(right[own].mean())
            made.append((mean, share, int(own.sum())))
    return made
