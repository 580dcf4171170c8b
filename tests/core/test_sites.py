"""Which submodules become sites, and sites whose first axis is not the batch."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zoo import METHODS, needed

import gflowout as gfo


class ConvNeXtBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dwconv, self.norm = nn.Conv2d(4, 4, 3, padding=1, groups=4), nn.LayerNorm(4)
        self.pwconv1, self.act, self.pwconv2 = nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4)
        self.output = nn.Sequential()
        self.output.add_module("dropout", nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(self.dwconv(x).permute(0, 2, 3, 1))
        return x + self.output(self.pwconv2(self.act(self.pwconv1(h)))).permute(0, 3, 1, 2)


class ConvNeXt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([ConvNeXtBlock() for _ in range(3)])
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


IMAGES = (torch.randn(2, 4, 5, 5, generator=torch.Generator().manual_seed(0)),)


def test_the_outermost_of_nested_matches_is_taken() -> None:
    net = ConvNeXt()
    model = gfo.wrap(net, "mc", ["blocks.*"], likelihood=gfo.Categorical(3), example=IMAGES)
    assert [site.name for site in model.sites] == ["blocks.0", "blocks.1", "blocks.2"]
    assert {(site.units, site.axis) for site in model.sites} == {(4, 1)}
    inner = gfo.sites(net, "*.output.dropout").names
    assert inner == [f"blocks.{at}.output.dropout" for at in range(3)]
    assert gfo.sites(net, ["blocks.1", "blocks.1.act"]).names == ["blocks.1", "blocks.1.act"]
    assert gfo.sites(net, ["blocks.*", "*.act"]).names[3:] == [
        f"blocks.{at}.act" for at in range(3)
    ]


def test_a_table_shows_what_would_be_masked() -> None:
    net = ConvNeXt()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    table = gfo.sites(net, "blocks.*", example=IMAGES)
    assert [(row.name, row.kind, row.shape, row.units, row.axis) for row in table] == [
        (f"blocks.{at}", "ConvNeXtBlock", (2, 4, 5, 5), 4, 1) for at in range(3)
    ]
    assert repr(table).splitlines() == [
        "site      module         shape         units  axis",
        *(f"blocks.{at}  ConvNeXtBlock  [2, 4, 5, 5]  4      1" for at in range(3)),
    ]
    plain = gfo.sites(net)  # sites=None: dropout
    assert plain.names == [f"blocks.{at}.output.dropout" for at in range(3)]
    assert repr(plain).splitlines()[1] == "blocks.0.output.dropout  Dropout"
    assert net.training
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    net.spare = nn.Linear(2, 2)
    table = gfo.sites(net, ["spare", "blocks.0"], example=IMAGES)
    assert repr(table).splitlines()[1:] == [
        "blocks.0  ConvNeXtBlock  [2, 4, 5, 5]  4      1",
        "spare     Linear         did not run",
    ]
    with pytest.raises(ValueError, match="'blcks' matches no submodule"):
        gfo.sites(net, "blcks")
    with pytest.raises(TypeError, match=r"backbone must be an nn\.Module, got str"):
        gfo.sites("net")  # type: ignore[arg-type]


class RootMeanNorm(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / x.square().mean(-1, keepdim=True).sqrt()


@pytest.mark.parametrize(
    "norm",
    [nn.BatchNorm1d(8), nn.LayerNorm(8), nn.GroupNorm(2, 8), nn.RMSNorm(8), RootMeanNorm()],
    ids=lambda norm: type(norm).__name__,
)
def test_a_site_on_a_normalisation_layer_warns(norm: nn.Module) -> None:
    net = nn.Sequential(nn.Linear(4, 8), norm, nn.ReLU(), nn.Linear(8, 3))
    x = torch.randn(3, 4)
    name = type(norm).__name__
    with pytest.warns(UserWarning, match=rf"sites: '1' are norm.* \({name}\).*such as '2'"):
        gfo.wrap(net, "mc", ["1"], likelihood=gfo.Categorical(3), example=(x,))
    with pytest.warns(UserWarning, match=rf"sites: '1' are normalisation layers \({name}\)"):
        assert gfo.sites(net, "[12]").names == ["1", "2"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gfo.wrap(net, "mc", ["0", "2"], likelihood=gfo.Categorical(3), example=(x,))


def test_blocks_with_a_norm_inside_and_sites_that_a_backbone_lists_do_not_warn() -> None:
    class PreNorm(nn.Sequential):
        """Normalises and does more."""

    net = nn.Sequential(PreNorm(nn.LayerNorm(4), nn.Linear(4, 8)), nn.Linear(8, 3))
    assert gfo.sites(net, "0").names == ["0"]
    net.sites = ("0.0",)
    assert gfo.sites(net, "0.0").names == ["0.0"]


class Video(nn.Module):
    """Frames are a batch of images inside; ``time_first`` orders them by time, then by video."""

    def __init__(self, time_first: bool = False) -> None:
        super().__init__()
        self.conv, self.act = nn.Conv2d(2, 6, 3, padding=1), nn.ReLU()
        self.late, self.head = nn.Linear(6, 5), nn.Linear(5, 3)
        self.time_first = time_first

    def forward(self, x: Tensor) -> Tensor:
        batch, steps = x.shape[:2]
        frames = (x.transpose(0, 1) if self.time_first else x).flatten(0, 1)
        h = self.late(self.act(self.conv(frames)).mean((2, 3))).tanh()
        sizes = (steps, batch) if self.time_first else (batch, steps)
        return self.head(h.unflatten(0, sizes).mean(0 if self.time_first else 1))


def video(*, time_first: bool = False, method: str = "mc", **options: Any) -> gfo.MaskedModel:
    torch.manual_seed(0)
    example = (torch.randn(2, 3, 2, 4, 4),)
    sites, own = ["act", "late"], {**needed(method), **options}
    return gfo.wrap(
        Video(time_first), method, sites, likelihood=gfo.Categorical(3), example=example, **own
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("steps", [3, 4])
def test_frames_of_a_video_have_the_mask_of_their_video(method: str, steps: int) -> None:
    model = video(method=method)
    assert [(s.units, s.axis, s.rank, s.folded) for s in model.sites] == [
        (6, 2, 5, "examples"),
        (5, 2, 3, "examples"),
    ]
    x, y = torch.randn(5, steps, 2, 4, 4), torch.tensor([0, 1, 2, 0, 1])
    losses = model(x, y=y)
    losses.total.backward()
    assert [list(mask.shape[-2:]) for mask in losses.masks] == [[5, 6], [5, 5]]

    def predicted(chunk: int | None) -> gfo.Predictive:
        source = torch.Generator().manual_seed(1)
        return model.predict(x, samples=6, chunk=chunk, generator=source, return_masks=True)

    pred = predicted(None)
    torch.testing.assert_close(pred.outputs, predicted(1).outputs, rtol=1e-4, atol=1e-5)
    if method in ("gates", "concrete", "variational", "masksembles", "modes"):
        return
    assert pred.masks is not None
    net, rescale = gfo.unwrap(model).eval(), 1 / 0.9 if method == "mc" else 1.0
    with torch.no_grad():
        for draw in range(6):  # by hand
            masks = [rescale * mask[draw].repeat_interleave(steps, 0) for mask in pred.masks]
            masks = [torch.ones_like(mask) if method == "none" else mask for mask in masks]
            h = net.act(net.conv(x.flatten(0, 1))) * masks[0][:, :, None, None]
            h = (net.late(h.mean((2, 3))) * masks[1]).tanh()
            expected = net.head(h.unflatten(0, (5, steps)).mean(1))
            torch.testing.assert_close(pred.outputs[draw], expected, rtol=1e-4, atol=1e-5)


def test_generators_see_the_average_over_the_frames_of_a_video() -> None:
    model, x = video(method="gflowout"), torch.randn(4, 3, 2, 4, 4)
    site = model.sites[0]
    activation = torch.randn(12, 6, 4, 4)
    pooled = site.pool(site.unfold(activation, 4))
    torch.testing.assert_close(pooled, activation.unflatten(0, (4, 3)).mean((1, 3, 4)))
    with pytest.raises(
        ValueError, match=r"site 'act' gives shape \[7, 6, 4, 4\]: axis 0 must have"
    ):
        site.unfold(torch.zeros(7, 6, 4, 4), 4)
    alone = [model.predict(x[at : at + 1], masks=[torch.ones(1, 1, s.units) for s in model.sites])
             for at in range(4)]  # fmt: skip
    both = model.predict(x, masks=[torch.ones(1, 4, s.units) for s in model.sites])
    torch.testing.assert_close(both.mean, torch.cat([pred.mean for pred in alone]))


@pytest.mark.parametrize("time_first", [False, True])
def test_frames_before_the_first_site_are_those_of_their_video(time_first: bool) -> None:
    class Shortcut(Video):
        """Frames by time first pass by the site, so that draws do not part there."""

        def forward(self, x: Tensor) -> Tensor:
            batch, steps = x.shape[:2]
            frames = (x.transpose(0, 1) if self.time_first else x).flatten(0, 1)
            h = self.conv(frames).mean((2, 3))
            h = h.unflatten(0, (steps, batch) if self.time_first else (batch, steps))
            h = h[-1] if self.time_first else h[:, -1]
            return self.head(self.late(self.act(h))) + h[:, :3]

    x, likelihood = torch.randn(5, 3, 2, 4, 4), gfo.Categorical(3)
    model = gfo.wrap(Shortcut(time_first), "mc", ["act"], likelihood=likelihood, example=(x[:2],))
    assert model.spec.foldable
    one, other = (
        model.predict(x, samples=6, chunk=chunk, generator=torch.Generator().manual_seed(0)).outputs
        for chunk in (None, 1)
    )
    torch.testing.assert_close(one, other)


SHARED = [
    ("id-gflowout", {"train_size": 50, "draws": 2}),
    ("masksembles", {}),
    ("gates", {"shared": True}),
    ("none", {}),
]


@pytest.mark.parametrize(("method", "options"), SHARED)
def test_rows_that_cannot_be_told_apart_take_shared_masks(
    method: str, options: dict[str, Any], tmp_path: Path
) -> None:
    model = video(time_first=True, method=method, **options)
    assert {site.folded for site in model.sites} == {"batch"}
    x, y = torch.randn(5, 4, 2, 4, 4), torch.tensor([0, 1, 2, 0, 1])
    losses = model(x, y=y)
    losses.total.backward()
    assert [list(mask.shape[-2:]) for mask in losses.masks] == [[5, 6], [5, 5]]

    def predicted(model: gfo.MaskedModel, chunk: int | None) -> gfo.Predictive:
        source = torch.Generator().manual_seed(1)
        return model.predict(x, samples=4, chunk=chunk, generator=source, return_masks=True)

    pred = predicted(model, None)
    torch.testing.assert_close(pred.outputs, predicted(model, 1).outputs)
    assert pred.masks is not None
    assert all(bool((mask == mask[:, :1]).all()) for mask in pred.masks)
    again = model.predict(x, masks=pred.masks)
    torch.testing.assert_close(again.outputs, pred.outputs)
    gfo.save(model, tmp_path / "m")
    loaded = gfo.load(tmp_path / "m", Video(time_first=True))
    assert loaded.sites == model.sites
    torch.testing.assert_close(predicted(loaded.eval(), None).outputs, pred.outputs)


@pytest.mark.parametrize("method", ["gflowout", "mc", "concrete", "contextual", "combined"])
def test_rows_that_cannot_be_told_apart_are_refused_for_masks_of_examples(method: str) -> None:
    with pytest.raises(
        ValueError, match=rf"site 'act' has no batch axis: .*{method!r} draws a mask for"
    ):
        video(time_first=True, method=method)
    with pytest.raises(
        ValueError, match=r"'id-gflowout' draws a mask for each example.*draws abov"
    ):
        video(time_first=True, method="id-gflowout", draws=1)
    model = video(time_first=True, method="none")
    masks = [torch.randn(2, site.units) for site in model.sites]
    with pytest.raises(ValueError, match="must be the same for all examples, got 2 that differ"):
        model(torch.randn(2, 3, 2, 4, 4), masks=masks)


class Graphs(nn.Module):
    """Messages along edges; one output per node, or per graph."""

    def __init__(self, per_graph: bool) -> None:
        super().__init__()
        self.first, self.act, self.head = nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)
        self.per_graph = per_graph

    def forward(self, x: Tensor, edges: Tensor, graph: Tensor) -> Tensor:
        h = self.act(self.first(x))
        h = h.index_add(0, edges[1], h[edges[0]])
        if self.per_graph:
            h = h.new_zeros(int(graph.max()) + 1, 8).index_add(0, graph, h)
        return self.head(h)


EDGES = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 0, 4, 5, 3]])
GRAPH = torch.tensor([0, 0, 0, 1, 1, 1, 1])


def test_nodes_are_the_batch_where_the_output_has_them() -> None:
    x = torch.randn(7, 4)
    model = gfo.wrap(
        Graphs(False), "mc", ["act"], likelihood=gfo.Categorical(3), example=(x, EDGES, GRAPH)
    )
    assert model.sites[0].folded is None
    pred = model.predict(x, EDGES, GRAPH, samples=3, return_masks=True)
    assert pred.masks is not None
    net = gfo.unwrap(model)
    h = net.act(net.first(x)) / 0.9 * pred.masks[0][1]
    expected = net.head(h.index_add(0, EDGES[1], h[EDGES[0]]))
    torch.testing.assert_close(pred.outputs[1], expected.detach())


@pytest.mark.parametrize(("method", "options"), SHARED)
def test_nodes_of_graphs_share_a_mask(method: str, options: dict[str, Any]) -> None:
    x, y = torch.randn(7, 4), torch.tensor([0, 1])
    call = (x, EDGES, GRAPH)
    likelihood = gfo.Categorical(3)
    model = gfo.wrap(Graphs(True), method, ["act"], likelihood=likelihood, example=call, **options)
    assert model.sites[0].folded == "batch"
    losses = model(*call, y=y)
    losses.total.backward()
    assert list(losses.masks[0].shape[-2:]) == [2, 8]
    assert model.predict(*call, samples=3).mean.shape == (2, 3)
    with pytest.raises(ValueError, match="site 'act' has no batch axis"):
        gfo.wrap(Graphs(True), "mc", ["act"], likelihood=likelihood, example=call)


class TimeFirst(nn.Module):
    """[time, batch, features] in; out by ``out``: every step, the last one, or batch first."""

    def __init__(self, out: str, kind: type[nn.RNNBase] = nn.LSTM) -> None:
        super().__init__()
        self.rnn, self.act, self.head = kind(4, 6), nn.Identity(), nn.Linear(6, 3)
        self.out = out

    def forward(self, x: Tensor) -> Tensor:
        h = self.head(self.act(self.rnn(x)[0]))
        return {"steps": h, "last": h[-1], "batch": h.transpose(0, 1)}[self.out]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("steps", [2, 5])
def test_time_first_in_and_out_is_refused(kind: type[nn.RNNBase], steps: int) -> None:
    x = torch.randn(steps, 2, 4)
    message = (
        rf"batch on axis 1: argument 'x' of shape \[{steps}, 2, 4\].*output\.transpose\(0, 1\)"
    )
    with pytest.raises(ValueError, match=message):
        gfo.wrap(
            TimeFirst("steps", kind), "mc", ["act"], likelihood=gfo.Categorical(3), example=(x,)
        )


def test_a_transformer_that_is_time_first_is_refused() -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8)
    net = nn.Sequential(layer, nn.Identity(), nn.Linear(4, 3))
    x = torch.randn(5, 2, 4)
    with pytest.raises(ValueError, match="takes and returns the batch on axis 1"):
        gfo.wrap(net, "mc", ["1"], likelihood=gfo.Categorical(3), example=(x,))


@pytest.mark.parametrize("out", ["last", "batch"])
@pytest.mark.parametrize("method", ["mc", "gflowout", "id-gflowout"])
def test_time_first_in_with_the_batch_first_out(out: str, method: str) -> None:
    model = gfo.wrap(
        TimeFirst(out),
        method,
        ["rnn", "act"],
        likelihood=gfo.Categorical(3),
        example=(torch.randn(5, 2, 4),),
        **needed(method),
    )
    assert [site.batch_axis for site in model.sites] == [1, 1]
    x = torch.randn(6, 3, 4)
    y = torch.zeros((3,) if out == "last" else (3, 6), dtype=torch.long)
    losses = model(x, y=y)
    losses.total.backward()
    assert [list(mask.shape[-2:]) for mask in losses.masks] == [[3, 6], [3, 6]]
    assert model.predict(x, samples=3).mean.shape == (*y.shape, 3)


def test_as_many_steps_as_examples_are_not_taken_for_the_batch() -> None:
    model = gfo.wrap(
        TimeFirst("last"), "mc", ["rnn"], likelihood=gfo.Categorical(3),
        example=(torch.randn(3, 3, 4),),
    )  # fmt: skip
    assert model.sites[0].batch_axis == 1
    assert model.predict(torch.randn(7, 2, 4), samples=3).mean.shape == (2, 3)
    model(torch.randn(7, 2, 4), y=torch.tensor([0, 1])).total.backward()
