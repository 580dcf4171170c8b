"""Padding named in ``wrap``: masks and answers do not depend on how far sentences are padded."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from zoo import predicted

import gflowout as gfo
from gflowout.core.call import BoundCall
from gflowout.core.sites import Site, mean_of_real
from gflowout.core.units import Layout

BATCH, FEATURES = 3, 6
LENGTHS = [5, 8, 2]

METHODS: dict[str, dict[str, Any]] = {
    "gflowout": {"draws": 3},
    "gflowout summary": {"history": "summary", "blocks": 2},
    "contextual": {},
    "contextual gaussian": {"family": "gaussian"},
    "combined": {"train_size": 10, "draws": 2},
}


class Tagged(nn.Module):
    """Looks at real positions alone: the padding passes by its sites, so draws cannot part."""

    def __init__(self, sequence_first: bool = False) -> None:
        super().__init__()
        self.sequence_first = sequence_first
        self.first, self.second = nn.Linear(4, FEATURES), nn.Linear(FEATURES, FEATURES)
        self.third, self.last = nn.Linear(FEATURES, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        h = x.transpose(0, 1) if self.sequence_first else x
        h = self.second(self.first(h).relu()).relu()
        h = h.transpose(0, 1) if self.sequence_first else h
        weight = torch.ones_like(x[..., :1]) if mask is None else mask.unsqueeze(-1).float()
        output: Tensor = self.last(self.third((h * weight).sum(1) / 4).relu())
        return output


class Parted(nn.Module):
    """Padded positions are 0 from the first site on: draws can part there."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.first = nn.Linear(4, FEATURES), nn.Identity()
        self.second = nn.Linear(FEATURES, FEATURES, bias=False)
        self.last = nn.Linear(FEATURES, 2)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        h = self.embed(x)
        h = self.first(h if mask is None else h * mask.unsqueeze(-1))
        output: Tensor = self.last(self.second(h.relu()).relu().sum(1) / 4)
        return output


NETS: dict[str, Any] = {
    "tagged": (Tagged, ["first", "second", "third"]),
    "sequence first": (lambda: Tagged(sequence_first=True), ["first", "second", "third"]),
    "parted": (Parted, ["first", "second"]),
}


def call(tokens: int) -> dict[str, Tensor]:
    """Sentences of given lengths, padded with what must not be looked at."""
    source = torch.Generator().manual_seed(1)
    x = torch.randn(BATCH, 8, 4, generator=source)
    x = torch.cat([x, 50 * torch.randn(BATCH, tokens - 8, 4, generator=source)], 1)
    mask = (torch.arange(tokens) < torch.tensor(LENGTHS).unsqueeze(1)).long()
    return {"x": torch.where(mask.bool().unsqueeze(-1), x, 50 * x + 7), "mask": mask}


def wrapped(
    method: str = "gflowout", net: str = "tagged", padding: str | None = "mask", tokens: int = 9
) -> gfo.MaskedModel:
    """A model whose generators are far from their start."""
    torch.manual_seed(0)
    build, sites = NETS[net]
    example = {"x": torch.randn(2, tokens, 4), "mask": torch.ones(2, tokens).long()}
    example["mask"][0, -2:] = 0
    model = gfo.wrap(
        build(),
        method.split()[0],
        sites,
        likelihood=gfo.Categorical(2),
        example=example,
        padding=padding,
        **METHODS[method],
    )
    with torch.no_grad():
        for parameter in model.method.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def slow(model: gfo.MaskedModel, **changes: bool) -> gfo.MaskedModel:
    model.spec = dataclasses.replace(model.spec, **changes)
    return model


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("method", METHODS)
def test_predictions_do_not_depend_on_padding(method: str, net: str) -> None:
    model = wrapped(method, net)
    assert model.spec.foldable
    assert model.spec.parts_at_first_site == (net == "parted")
    expected = predicted(model, **call(8), return_masks=True)
    for changes in ({}, {"parts_at_first_site": False}, {"foldable": False}):
        slow(model, **changes)
        for chunk in (None, 3):
            found = predicted(model, **call(12), chunk=chunk, return_masks=True)
            torch.testing.assert_close(found.outputs, expected.outputs)
            torch.testing.assert_close(found.masks, expected.masks)
    replayed = predicted(model, **call(12), masks=expected.masks)
    torch.testing.assert_close(replayed.outputs, expected.outputs)


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("method", METHODS)
def test_training_does_not_depend_on_padding(method: str, net: str) -> None:
    model, y = wrapped(method, net), torch.tensor([0, 1, 1])

    def step(tokens: int, masks: Any = None) -> tuple[gfo.Losses, list[Tensor]]:
        torch.manual_seed(2)
        model.zero_grad()
        losses = model(**call(tokens), y=y, masks=masks)
        losses.total.backward()
        return losses, [p.grad.clone() for p in model.parameters() if p.grad is not None]

    def same(one: gfo.Losses, other: gfo.Losses) -> None:
        for name in ("total", "nll", "tb", "prior", "log_q", "log_reward", "log_z", "masks"):
            torch.testing.assert_close(getattr(one, name), getattr(other, name))

    expected, gradients = step(8)
    for changes in ({}, {"parts_at_first_site": False}, {"foldable": False}):
        slow(model, **changes)
        if changes == {"foldable": False} and METHODS[method].get("draws", 1) > 1:
            continue  # draws in passes of their own take other random numbers
        found, other = step(12)
        same(found, expected)
        torch.testing.assert_close(other, gradients, atol=1e-4, rtol=1e-3)
    given, _ = step(12, expected.masks)
    same(given, step(8, expected.masks)[0])
    torch.manual_seed(3)
    unlabelled = model(**call(8))
    torch.manual_seed(3)
    torch.testing.assert_close(model(**call(12)), unlabelled)


@pytest.mark.parametrize("method", METHODS)
def test_without_a_name_padding_is_seen(method: str) -> None:
    model, y = wrapped(method, padding=None), torch.tensor([0, 1, 1])
    short, long = (predicted(model, **call(tokens)).outputs for tokens in (8, 12))
    assert not torch.allclose(short, long, atol=1e-2)
    masks = [torch.ones(BATCH, site.units) for site in model.sites]
    short, long = (model(**call(tokens), y=y, masks=masks).log_q for tokens in (8, 12))
    assert not torch.allclose(short, long, atol=1e-2)


@pytest.mark.parametrize("method", METHODS)
def test_a_call_without_the_argument_counts_every_position(method: str) -> None:
    x = call(12)["x"]
    named, plain = (wrapped(method, padding=padding) for padding in ("mask", None))
    assert torch.equal(predicted(named, x=x).outputs, predicted(plain, x=x).outputs)
    assert torch.equal(predicted(named, x, None).outputs, predicted(plain, x=x).outputs)


def test_all_kinds_of_padding_mean_the_same() -> None:
    model, given = wrapped(), call(8)
    expected = predicted(model, **given).outputs
    for mask in (given["mask"].bool(), given["mask"].float(), 3 * given["mask"].to(torch.int8)):
        found = predicted(model, given["x"], mask.bool().to(mask.dtype), samples=20).outputs
        assert torch.equal(found, expected)
        real = BoundCall(model.backbone, (given["x"], mask), {}, model.spec).real_positions()
        assert real is not None
        assert torch.equal(real, given["mask"].bool())


def by_hand(h: Tensor, real: Tensor) -> Tensor:
    """Averages of [copies * batch, tokens, ...] example by example."""
    rows = []
    for row in range(len(h)):
        keep = real[row % len(real)]
        kept = [h[row, token] for token in range(h.shape[1]) if keep[token]]
        rows.append(torch.stack(kept).mean(0) if kept else torch.zeros_like(h[row, 0]))
    return torch.stack(rows)


def test_pool_against_averages_by_hand() -> None:
    h = torch.randn(2 * BATCH, 4, FEATURES)
    real = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 1], [0, 0, 0, 0]]).bool()
    expected = by_hand(h, real)
    last = Site("h", FEATURES, axis=2, rank=3, tokens=1)
    torch.testing.assert_close(last.pool(h, real), expected)
    early = dataclasses.replace(last, axis=1, tokens=2)
    torch.testing.assert_close(early.pool(h.transpose(1, 2), real), expected)
    turned = dataclasses.replace(last, batch_axis=1, tokens=0)
    torch.testing.assert_close(turned.pool(h.transpose(0, 1), real), expected)
    grouped = dataclasses.replace(last, units=3, layout=Layout((2,), (6,), (0, 0, 1, 1, 2, -1)))
    by_group = torch.stack([expected[:, 0:2].mean(1), expected[:, 2:4].mean(1), expected[:, 4]], 1)
    torch.testing.assert_close(grouped.pool(h, real), by_group)
    torch.testing.assert_close(last.pool(h, real[:1]), by_hand(h, real[:1]))  # one row for all
    assert torch.equal(dataclasses.replace(last, tokens=None).pool(h, real), h.mean(1))
    assert torch.equal(last.pool(h), h.mean(1))


def test_nothing_at_padded_positions_is_read() -> None:
    h, real = torch.full((1, 3, 2), float("nan")), torch.tensor([[True, False, False]])
    h[:, 0] = torch.tensor([1.0, 2.0])
    assert mean_of_real(h, real, 0, 1).tolist() == [[1.0, 2.0]]
    half = torch.full((1, 4, 1), 6e4, dtype=torch.float16)
    assert mean_of_real(half, torch.ones(1, 4).bool(), 0, 1).item() == half[0, 0, 0].item()


@pytest.mark.parametrize("method", ["gflowout", "contextual", "combined"])
def test_a_row_of_padding_alone_gives_numbers(method: str) -> None:
    model, given = wrapped(method), call(8)
    given["mask"][1] = 0
    assert predicted(model, **given).outputs.isfinite().all()
    assert model(**given, y=torch.tensor([0, 1, 1])).total.isfinite()


class Regions(nn.Module):
    """Sentences beside pictures, whose regions are no tokens, and a pooled site."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.regions = nn.Linear(4, FEATURES), nn.Linear(3, FEATURES)
        self.joint = nn.Linear(FEATURES, FEATURES)
        self.map, self.last = nn.Conv2d(1, 2, 1), nn.Linear(FEATURES, 2)

    def forward(self, x: Tensor, picture: Tensor, mask: Tensor) -> Tensor:
        words = (self.words(x) * mask.unsqueeze(-1)).sum(1)
        maps = self.map(picture.unsqueeze(1)).mean((1, 2, 3)).unsqueeze(-1)
        output: Tensor = self.last(self.joint(words + self.regions(picture).mean(1)) + maps)
        return output


def test_other_axes_are_averaged_in_full() -> None:
    """Also where a batch has by chance as many tokens as there are regions."""
    sites = ["words", "regions", "joint", "map"]
    model = gfo.wrap(
        Regions(), "gflowout", sites, likelihood=gfo.Categorical(2), padding="mask",
        example=(torch.randn(2, 9, 4), torch.randn(2, 5, 3), torch.ones(2, 9)),
    )  # fmt: skip
    assert {site.name: site.tokens for site in model.sites} == {
        "words": 1, "regions": None, "joint": None, "map": None,
    }  # fmt: skip
    assert "axis 2, real tokens on axis 1" in repr(model)
    seen: list[Tensor] = []
    index = [site.name for site in model.sites].index("regions")
    model.method.prior[index].register_forward_pre_hook(lambda _, args: seen.append(args[0][1]))
    picture, mask = torch.randn(BATCH, 5, 3), torch.zeros(BATCH, 5)
    mask[:, 0] = 1
    predicted(model, torch.randn(BATCH, 5, 4), picture, mask, samples=1)
    torch.testing.assert_close(seen[0], model.backbone.regions(picture).mean(1).detach())


def test_bad_values() -> None:
    model, given = wrapped(), call(8)
    for method in ("gflowout", "mc"):
        options: dict[str, Any] = {"likelihood": gfo.Categorical(2), "example": call(8)}
        with pytest.raises(
            ValueError, match=r"padding must be one of 'x', 'mask', got 'maks'; did"
        ):
            gfo.wrap(Tagged(), method, ["first"], padding="maks", **options)
        with pytest.raises(ValueError, match=r"'x', which padding names, must have shape"):
            gfo.wrap(Tagged(), method, ["first"], padding="x", **options)
    with pytest.raises(ValueError, match="padding must be one of"):
        gfo.wrap(
            Tagged(), "mc", ["first"], likelihood=gfo.Categorical(2), example=(given["x"],),
            padding="mask",
        )  # fmt: skip
    for wrong in (given["mask"][:, 0], given["mask"][:2], given["mask"].unsqueeze(1)):
        with pytest.raises(
            ValueError, match=r"'mask', which padding names, must have shape \[3, t"
        ):
            predicted(model, given["x"], wrong)
        with pytest.raises(
            ValueError, match=r"'mask', which padding names, must have shape \[3, t"
        ):
            model(given["x"], wrong, y=torch.tensor([0, 1, 1]))
    with pytest.raises(ValueError, match=r"down to -inf: is it a mask that is added"):
        predicted(model, given["x"], given["mask"].float().log())
    unequal = wrapped(net="parted")
    without_mask = MethodType(lambda self, x, mask: Parted.forward(self, x), unequal.backbone)
    unequal.backbone.forward = without_mask
    with pytest.raises(ValueError, match=r"axis 1 must have the 7 positions of the padding"):
        unequal.predict(given["x"], given["mask"][:, :7])


def test_files(tmp_path: Path) -> None:
    model, path = wrapped(), tmp_path / "model.safetensors"
    gfo.save(model, path)
    loaded = gfo.load(path, Tagged())
    assert loaded.spec.padding == "mask"
    assert torch.equal(predicted(loaded, **call(12)).outputs, predicted(model, **call(12)).outputs)
    with safe_open(str(path), framework="pt") as file:
        config = json.loads(file.metadata()["gflowout"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    for place, value in (("spec", 3), ("sites", 2)):
        bad = json.loads(json.dumps(config))
        if place == "spec":
            bad["spec"]["padding"] = value
        else:
            bad["sites"][0]["tokens"] = value  # the axis of the units
        save_file(tensors, path, metadata={"gflowout": json.dumps(bad)})
        with pytest.raises(ValueError, match="damaged configuration"):
            gfo.load(path, Tagged())
    del config["spec"]["padding"]  # a file of the time before
    for site in config["sites"]:
        del site["tokens"]
    save_file(tensors, path, metadata={"gflowout": json.dumps(config)})
    old = gfo.load(path, Tagged())
    assert old.spec.padding is None
    plain = predicted(wrapped(padding=None), **call(12)).outputs
    assert torch.equal(predicted(old, **call(12)).outputs, plain)


def test_files_without_the_backbone(tmp_path: Path) -> None:
    model, path = wrapped(), tmp_path / "masks.safetensors"
    gfo.save(model, path, backbone=False)
    with safe_open(str(path), framework="pt") as file:
        assert all(key.startswith("gflowout.") for key in file.keys())  # noqa: SIM118
    same, other = Tagged(), Tagged()
    same.load_state_dict(model.backbone.state_dict())
    expected = predicted(model, **call(8)).outputs
    assert torch.equal(predicted(gfo.load(path, same), **call(8)).outputs, expected)
    before = {key: value.clone() for key, value in other.state_dict().items()}
    assert not torch.equal(predicted(gfo.load(path, other), **call(8)).outputs, expected)
    assert all(torch.equal(value, before[key]) for key, value in other.state_dict().items())
    with pytest.raises(ValueError, match="of another architecture"):
        gfo.load(path, Parted())
    with pytest.raises(TypeError, match="backbone must be True or False, got 'no'"):
        gfo.save(model, path, backbone="no")  # type: ignore[arg-type]
    ensemble = gfo.Ensemble([model, wrapped("gflowout", padding=None)])
    gfo.save(ensemble, path, backbone=False)
    copies = [Tagged(), Tagged()]
    for copied, member in zip(copies, ensemble.members, strict=True):
        copied.load_state_dict(member.backbone.state_dict())
    found = predicted(gfo.load(path, copies), **call(8)).outputs
    assert torch.equal(found, predicted(ensemble, **call(8)).outputs)


def test_labels_to_be_ignored_do_not_dilute_the_others() -> None:
    likelihood = gfo.Categorical(3, ignore_index=-100)
    short = torch.tensor([[0, 2, 2], [-100, 1, -100], [-100, -100, -100]])
    expected = torch.tensor([[1 / 3, 0, 2 / 3], [0, 1, 0], [0, 0, 0]])
    torch.testing.assert_close(likelihood.encode(short), expected)
    long = torch.nn.functional.pad(short, (0, 4), value=-100)
    torch.testing.assert_close(likelihood.encode(long), expected)
    plain = torch.tensor([[0, 2, 2]])
    torch.testing.assert_close(gfo.Categorical(3).encode(plain), expected[:1])
