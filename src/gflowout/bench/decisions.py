"""What alarms for unknown inputs cost beside a prediction: scores from draws and from features."""

from __future__ import annotations

from functools import partial

import torch

import gflowout as gfo
from gflowout.bench.methods import CLASSES, DRAWS, MLP_784, prediction, wrap
from gflowout.bench.timing import Case, Table

PREDICT = "predict"
SCORES = (
    "entropy", "mutual_information", "dempster_shafer", "energy", "max_logit", "gen",
    "variation_ratio", "logit_disagreement",
)  # fmt: skip
DETECTORS = ("Mahalanobis", "RelativeMahalanobis", "ViM", "FDBD")
KNN = "KNN"
STORED = 10_000
"""Training rows that detectors are fitted on, and that kNN keeps."""
_BATCH = 256


def ood_tables(repeats: int) -> list[Table]:
    """Scores of a prediction that is there, and detectors on the same batch."""
    rest = f"prediction with {DRAWS} draws by gflowout, {MLP_784.title}, batch {_BATCH}"
    scores, detectors = (
        f"Scores of a {rest}",
        f"Detectors at the last layer's input beside a {rest}",
    )
    return [
        Table("ood-scores", scores, (PREDICT,), repeats, score_cases, cost=0.2),
        Table("ood-detectors", detectors, (PREDICT,), repeats, detector_cases, cost=0.3),
    ]


def score_cases() -> dict[str, Case]:
    """A prediction with its mean, and every score of one that is there."""
    x = MLP_784.batch(_BATCH)
    model = wrap(MLP_784.build(), "gflowout", x)
    pred = model.predict(x, samples=DRAWS)
    assert len(pred.mean) == _BATCH  # probabilities, which most scores read, are kept with it
    return {PREDICT: prediction(model, x), **{name: getattr(pred, name) for name in SCORES}}


def detector_cases() -> dict[str, Case]:
    """A prediction with its mean, and every detector on the same inputs."""
    x = MLP_784.batch(_BATCH)
    model = wrap(MLP_784.build(), "gflowout", x)
    data = MLP_784.batch(STORED), torch.arange(STORED) % CLASSES
    cases: dict[str, Case] = {PREDICT: prediction(model, x)}
    for name in (*DETECTORS, KNN):
        alarm = getattr(gfo.ood, name)().fit(model, data)
        cases[name] = partial(alarm, x)
    return cases
