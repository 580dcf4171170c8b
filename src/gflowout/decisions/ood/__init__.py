"""Alarms for inputs unlike the training data, from the features of a layer: ``gfo.ood``.

Fit a detector once on training data; it then gives every input a score, and higher is stranger.
"""

from gflowout.decisions.ood.detector import Detector
from gflowout.decisions.ood.detectors import FDBD, KNN, Mahalanobis, RelativeMahalanobis, ViM
from gflowout.decisions.ood.files import load
from gflowout.decisions.ood.plot import plot_ood

__all__ = [
    "FDBD",
    "KNN",
    "Detector",
    "Mahalanobis",
    "RelativeMahalanobis",
    "ViM",
    "load",
    "plot_ood",
]
