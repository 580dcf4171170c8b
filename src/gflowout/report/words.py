"""Methods and measures in a line each, for readers who are new to them. Knows no format."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gflowout.studies.framework.arms import ARMS

METHODS = {
    "none": "A plain network, asked once.",
    "mc": "Units are switched off at random, in predictions, too; several answers are averaged.",
    "concrete": "The same, but how many units are switched off is learned.",
    "contextual": "Each unit's chance to be switched off depends on the input, and is learned.",
    "id-gflowout": "Learns which sets of units to switch off, the same for all inputs.",
    "gflowout": "Learns which sets of units to switch off for each input: the method of the paper.",
    "combined": "Both of the last two at once.",
    "control": "A control: GFlowOut that is not told how well a set of units explains the labels.",
    "ensemble": "Several networks, trained each on its own, whose answers are averaged.",
}
"""By label of an arm."""

MEASURES = {
    "accuracy": "Share of right answers.",
    "NLL": "Surprise at the right answer (negative log-likelihood). Low is good.",
    "ECE": "How far confidence is from accuracy (expected calibration error). Low is good.",
    "Brier": "Squared error of the probabilities. Low is good.",
    "AUROC": "Chance that the score ranks a case above a non-case: 0.5 is guessing, 1 perfect.",
    "AUPR": "Precision averaged over all thresholds of the score; also AUPRC. High is good.",
    "FPR95": "False alarms at the threshold that finds 95 % of the cases. Low is good.",
    "F1": "Harmonic mean of precision and recall; macro: averaged over classes. High is good.",
    "entropy": "Doubt as the spread of the mean probabilities over classes.",
    "mutual information": "Doubt as the disagreement between answers of one network.",
    "Dempster-Shafer": "Doubt as the lack of evidence in the network's outputs before the softmax.",
}
"""By the name that tables use."""

_OTHER_NAMES = {
    "ECE": "calibration error",
    "Dempster-Shafer": "Dempster.Shafer",
    "AUPR": "AUPRC?",
}


def methods(names: Iterable[str]) -> dict[str, str]:
    """Those of some names that are arms, by title, with what they are.

    Examples:
        >>> list(methods(["mc", "GFlowOut", "mine"]))
        ['MC dropout', 'GFlowOut']
    """
    there = set(names)
    return {
        ARMS[label].title: text
        for label, text in METHODS.items()
        if label in there or ARMS[label].title in there
    }


def measures(texts: Iterable[str]) -> dict[str, str]:
    """Measures that some headings and labels name, with what they are.

    Examples:
        >>> list(measures(["Accuracy, rotated", "snow: NLL", "test/ece"]))
        ['accuracy', 'NLL', 'ECE']
    """
    told = "\n".join(texts)
    return {
        name: text
        for name, text in MEASURES.items()
        if re.search(rf"\b({name}|{_OTHER_NAMES.get(name, name)})\b", told, re.IGNORECASE)
    }
