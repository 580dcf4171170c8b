"""Files of every likelihood have the answers of ``Predictive``, and those that apply to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from export_answers import assert_answers
from torch import Tensor, nn

import gflowout as gfo
from gflowout.export import Deployed, export

NUMBERS = {"mean", "samples", "epistemic_variance"}
NOISE = {"variance", "aleatoric_variance"}
CLASSES = {"mean", "samples", "variance", "entropy", "mutual_information", "expected_entropy"}

CASES: dict[str, tuple[Any, int, set[str]]] = {
    "poisson": (lambda: gfo.Poisson(2), 2, NUMBERS | NOISE),
    "negative binomial": (gfo.NegativeBinomial, 1, NUMBERS | NOISE),
    "student t": (gfo.StudentT, 1, NUMBERS | NOISE),
    "no variance": (lambda: gfo.StudentT(df=2.0), 1, NUMBERS),
    "quantile": (lambda: gfo.Quantile([0.1, 0.9]), 2, NUMBERS),
    "ordinal": (lambda: gfo.Ordinal(4), 1, CLASSES),
    "cox": (lambda: gfo.Cox([1.0, 2.0]), 1, NUMBERS | NOISE),
    "weighted": (lambda: gfo.Categorical(3, weight=[1, 2, 3], label_smoothing=0.1), 3, CLASSES),
}


class Segmenter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(1, 6, 3, padding=1)
        self.head = nn.Conv2d(6, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x).relu())


def deployed(model: gfo.MaskedModel, x: Tensor) -> tuple[dict[str, Tensor], gfo.Predictive]:
    """Answers of the function that is written to files, and a prediction with the same masks."""
    module = Deployed(model, (x,), {}, masks=True, samples=6)
    source = torch.Generator().manual_seed(1)
    masks = {
        name: torch.randint(2, module.example[name].shape, generator=source).float()
        for name in module.masks
    }
    answers = module.run({**module.example, **masks})
    return answers, model.predict(x, masks=list(masks.values()))


@pytest.mark.parametrize("name", CASES)
def test_those_of_predictive(name: str) -> None:
    torch.default_generator.manual_seed(0)
    build, size, names = CASES[name]
    x = torch.randn(5, 4)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, size))
    model = gfo.wrap(net, "gflowout", ["1"], likelihood=build(), example=(x,))
    with torch.no_grad():
        for part in model.likelihood.parameters():
            part.add_(0.3)  # what is learned is in the file, too
    answers, pred = deployed(model, x)
    assert set(answers) >= names
    assert set(answers) & (NUMBERS | NOISE | CLASSES) == names
    assert_answers(answers, pred, rtol=1e-4)


def test_pixels() -> None:
    torch.default_generator.manual_seed(0)
    x = torch.randn(2, 1, 5, 6)
    likelihood = gfo.Categorical(3, axis=1, ignore_index=255)
    model = gfo.wrap(Segmenter(), "gflowout", ["body"], likelihood=likelihood, example=(x,))
    answers, pred = deployed(model, x)
    assert answers["mean"].shape == (2, 5, 6, 3)
    assert answers["entropy"].shape == (2, 5, 6)
    assert_answers(answers, pred, rtol=1e-4)


def test_scale_is_for_gaussians(tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    model = gfo.wrap(nn.Linear(4, 1), "none", (), likelihood=gfo.Poisson(), example=(x,))
    with pytest.raises(ValueError, match=r"scale is for regression \(Gaussian\).*Poisson"):
        export(model, tmp_path / "model.pt2", (x,), scale=(0.0, 1.0))
