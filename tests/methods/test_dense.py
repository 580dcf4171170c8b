"""Labels per pixel and per token: one mask per picture, ignored labels count for nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import zoo
from torch import Tensor, nn
from torch.nn import functional as F

import gflowout as gfo

IGNORED = 255
CLASSES = 3


class Segmenter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, 6, 3, stride=2, padding=1), nn.ReLU())
        self.up = nn.Sequential(nn.ConvTranspose2d(6, 5, 2, stride=2), nn.ReLU())
        self.head = nn.Conv2d(5, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.up(self.down(x)))


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 6)
        self.mix = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mix(self.words(x)))


def pictures(rows: int = 4, height: int = 6, width: int = 8) -> tuple[Tensor, Tensor]:
    """Pictures whose class is one of three grey levels; a border has no class."""
    y = torch.randint(CLASSES, (rows, height, width))
    x = y.float().unsqueeze(1) - 1 + 0.1 * torch.randn(rows, 1, height, width)
    y[:, 0] = IGNORED
    return x, y


def sentences(rows: int = 4, tokens: int = 7) -> tuple[Tensor, Tensor]:
    x = torch.randint(20, (rows, tokens))
    y = x % CLASSES
    y[:, -2:] = IGNORED
    return x, y


def segmenter(method: str) -> gfo.MaskedModel:
    return gfo.wrap(
        Segmenter(),
        method,
        ["down", "up"],
        likelihood=gfo.Categorical(CLASSES, axis=1, ignore_index=IGNORED),
        example=(pictures()[0],),
        **zoo.needed(method),
    )


def tagger(method: str) -> gfo.MaskedModel:
    return gfo.wrap(
        Tagger(),
        method,
        ["mix"],
        likelihood=gfo.Categorical(CLASSES, ignore_index=IGNORED),
        example=(sentences()[0],),
        **zoo.needed(method),
    )


KINDS: dict[str, tuple[Any, Any]] = {"pixels": (segmenter, pictures), "tokens": (tagger, sentences)}

every_method = pytest.mark.parametrize("method", zoo.METHODS)
every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(autouse=True)
def _one_seed() -> None:
    torch.default_generator.manual_seed(0)


@every_method
@every_kind
def test_train_predict_and_save(method: str, kind: str, tmp_path: Path) -> None:
    build, data = KINDS[kind]
    model = build(method)
    x, y = data()
    losses = model(x, y=y)
    losses.total.backward()
    assert all(part.grad is None or part.grad.isfinite().all() for part in model.parameters())
    assert model.backbone.head.weight.grad.abs().sum() > 0
    for mask, site in zip(losses.masks, model.sites, strict=True):
        assert mask.shape[-2:] == (len(x), site.units)  # one per example, after any draws
        assert mask.dim() <= 3
    pred = model.predict(x, samples=3, return_masks=True)
    assert pred.mean.shape == (*y.shape, CLASSES)
    assert torch.allclose(pred.mean.sum(-1), torch.ones(y.shape))
    assert pred.entropy().shape == pred.mutual_information().shape == y.shape
    assert pred.log_prob(y).shape == (len(y),)
    path = tmp_path / "model.safetensors"
    gfo.save(model, path)
    again = gfo.load(path, type(model.backbone)())
    assert repr(again.likelihood) == repr(model.likelihood)
    masks = {"masks": pred.masks} if pred.masks else {}
    assert torch.allclose(again.predict(x, samples=3, **masks).mean, pred.mean, atol=1e-6)


@every_method
@every_kind
def test_what_stands_at_ignored_labels_changes_nothing(method: str, kind: str) -> None:
    """Logits there get no gradient, and the loss is that of the other labels."""
    build, data = KINDS[kind]
    model = build(method)
    x, y = data()
    masks = model(x, y=y).masks
    given = {} if method in ("none", "contextual") else {"masks": masks}
    outputs: list[Tensor] = []

    def keep(module: nn.Module, args: Any, output: Tensor) -> None:
        if output.requires_grad:  # of a pass that trains the backbone
            output.retain_grad()
            outputs.append(output)

    handle = model.backbone.head.register_forward_hook(keep)
    losses = model(x, y=y, **given)
    losses.nll.backward()
    handle.remove()
    for output in outputs:
        logits = output if kind == "pixels" else output.movedim(-1, 1)
        assert output.grad is not None
        grad = output.grad if kind == "pixels" else output.grad.movedim(-1, 1)
        copies = len(output) // len(y)
        ignored = (y == IGNORED).repeat(copies, *[1] * (y.dim() - 1)).unsqueeze(1)
        assert not grad.masked_select(ignored).any()
        assert grad.masked_select(~ignored).any()
    if len(outputs) == 1 and len(outputs[0]) == len(y):
        loss = F.cross_entropy(logits, y, ignore_index=IGNORED, reduction="sum") / len(y)
        assert losses.nll.item() == pytest.approx(loss.item(), rel=1e-4)


@pytest.mark.parametrize("method", ["gflowout", "id-gflowout", "mc", "concrete"])
def test_pictures_of_another_size(method: str) -> None:
    model = segmenter(method)
    x, y = pictures(3, 4, 10)
    model(x, y=y).total.backward()
    assert model.predict(x, samples=2).mean.shape == (3, 4, 10, CLASSES)


def test_a_picture_without_labels_has_a_log_likelihood_of_zero() -> None:
    model = segmenter("gflowout")
    x, y = pictures()
    y[1] = IGNORED
    losses = model(x, y=y)
    assert losses.log_likelihood is not None
    assert losses.log_likelihood[1].item() == 0
    assert losses.log_likelihood[0].item() < 0
    assert losses.total.isfinite()
    assert model.predict(x, samples=4).log_prob(y)[1].item() == pytest.approx(0, abs=1e-6)


def test_a_posterior_sees_the_share_of_each_class() -> None:
    _, y = pictures()
    likelihood = gfo.Categorical(CLASSES, axis=1, ignore_index=IGNORED)
    encoded = likelihood.encode(likelihood.target(y))
    for row in range(len(y)):
        counted = y[row][y[row] != IGNORED]
        share = torch.bincount(counted, minlength=CLASSES) / len(counted)
        assert torch.allclose(encoded[row], share)


@pytest.mark.parametrize("method", ["gflowout", "mc", "none"])
def test_a_segmenter_learns(method: str) -> None:
    model = segmenter(method)
    optimiser = torch.optim.Adam(model.parameter_groups(lr=0.02))
    for _ in range(40):
        x, y = pictures()
        optimiser.zero_grad()
        model(x, y=y).total.backward()
        optimiser.step()
    x, y = pictures(16)
    pred, counts = model.predict(x, samples=8), y != IGNORED
    right = (pred.mean.argmax(-1) == y)[counts].float().mean().item()
    assert right > 0.5  # a third by chance
    assert pred.log_prob(y).mean() > -counts[0].sum() * torch.tensor(3.0).log()
