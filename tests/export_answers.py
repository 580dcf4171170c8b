"""Answers of a file against those of the model."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

import gflowout as gfo


def assert_answers(answers: Mapping[str, Tensor], pred: gfo.Predictive, rtol: float = 1e-5) -> None:
    """Compare answers, by name, with the scores of a prediction of the same masks."""
    for name, answer in answers.items():
        expected = getattr(pred, name)
        expected = expected() if callable(expected) else expected
        torch.testing.assert_close(answer, expected, atol=1e-5, rtol=rtol, msg=name)
