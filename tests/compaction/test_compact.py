"""A compacted module gives the answers of the masked model, also on inputs that it never saw."""

from __future__ import annotations

import copy
import io
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zoo import ZOO, Entry, seeded

import gflowout as gfo
from gflowout.backbones import MLP, ResNet18
from gflowout.compaction import evidence
from gflowout.compaction.steps import Silent
from gflowout.core import generators
from gflowout.core.call import logits_of


def wrapped(net: nn.Module, sites: Any, x: Tensor, method: str = "mc", **options: Any) -> Any:
    """A wrapped model; its masks are not rescaled unless said otherwise."""
    if method == "mc":
        options.setdefault("rescale", "none")
    return gfo.wrap(net.eval(), method, sites, likelihood="classification", example=(x,), **options)


def half(model: Any, seed: int = 1) -> list[Tensor]:
    """Masks that drop about half of the units, at least one, and keep at least one."""
    generator = torch.Generator().manual_seed(seed)
    masks = []
    for site in model.sites:
        mask = (torch.rand(site.units, generator=generator) < 0.5).float()
        mask[0], mask[-1] = 1.0, 0.0
        masks.append(mask)
    return masks


def largest_difference(small: nn.Module, model: Any, report: Any, args: Any, kwargs: Any) -> float:
    with torch.no_grad():
        expected = model.eval()(*copy.deepcopy(args), masks=report.masks, **copy.deepcopy(kwargs))
        output = small(*copy.deepcopy(args), **copy.deepcopy(kwargs))
    return float((logits_of(output) - logits_of(expected)).abs().max())


def ways(report: Any) -> list[str]:
    return [site.how for site in report.sites]


@pytest.mark.parametrize("entry", ZOO, ids=lambda entry: entry.name)
@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_every_backbone_gives_the_same_answers(entry: Entry) -> None:
    model = entry.wrap("mc")  # divides kept units by the keep rate
    before = copy.deepcopy(model.state_dict())
    modules = repr(model)
    args, kwargs = entry.call(2, seed=7)
    small, report = gfo.compact(
        model, masks=half(model), example=kwargs or args, return_report=True
    )
    assert largest_difference(small, model, report, *entry.call(5, seed=3)) < 1e-5
    assert repr(model) == modules
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert (
        report.parameters[1]
        <= report.parameters[0]
        == sum(parameter.numel() for parameter in model.backbone.parameters())
    )


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU, nn.Tanh, nn.Hardswish, nn.ReLU6])
@pytest.mark.parametrize("site", ["linear", "act"])
@pytest.mark.parametrize("rescale", ["none", "kept", "inverse"])
def test_units_of_an_mlp(activation: Any, site: str, rescale: str) -> None:
    with seeded(0):
        net, x = MLP((5, 12, 9, 3), activation), 3 * torch.randn(64, 5)
    model = wrapped(net, [f"hidden.*.{site}"], x[:2], rescale=rescale, rate=0.2)
    masks = half(model)
    small, report = gfo.compact(model, masks=masks, strict=True, return_report=True)
    assert largest_difference(small, model, report, (x,), {}) < 1e-5
    first, second = ((mask != 0).nonzero().flatten() for mask in masks)
    shapes = [list(layer.linear.weight.shape) for layer in small.hidden]
    assert shapes == [[len(first), 5], [len(second), len(first)]]
    if rescale == "none":  # cut by hand
        weight = net.hidden[1].linear.weight[second][:, first]
        torch.testing.assert_close(small.hidden[1].linear.weight, weight)
        torch.testing.assert_close(small.output.weight, net.output.weight[:, second])
    assert (small.output.in_features, small.output.out_features) == (len(second), 3)


def test_rates_of_single_units_go_into_the_weights() -> None:
    with seeded(0):
        net, x = MLP((5, 6, 3)), torch.randn(16, 5)
    rates = [0.5, 0.6, 0.7, 0.8, 0.9, 0.95]
    sites = {"hidden.0.act": gfo.Units(keep=rates)}
    model = wrapped(net, sites, x[:2], rescale="inverse")
    small, report = gfo.compact(
        model, masks=[torch.tensor([1.0, 0, 1, 1, 0, 1])], strict=True, return_report=True
    )
    assert largest_difference(small, model, report, (x,), {}) < 1e-5


class Grouped(nn.Module):
    """Convolutions with groups, then channels that are flattened into a linear layer."""

    def __init__(self, groups: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 8, 3, padding=1)
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=groups)
        self.norm = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.last = nn.Conv2d(8, 4, 3)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.relu(self.norm(self.grouped(torch.relu(self.conv(x)))))
        return self.head(self.pool(torch.relu(self.last(hidden))).flatten(1))


@pytest.mark.parametrize(
    ("groups", "mask", "left"),
    [
        (8, [1, 0, 0, 1, 1, 0, 1, 1], 5),  # depthwise
        (4, [1, 1, 0, 0, 1, 1, 1, 1], 3),  # a whole group
        (4, [1, 0, 0, 1, 1, 0, 1, 0], 4),  # as many of each group
        (2, [1, 0, 0, 1, 1, 1, 1, 1], 2),  # groups would differ in size
    ],
)
def test_channels_and_groups(groups: int, mask: list[int], left: int) -> None:
    with seeded(0):
        net, x = Grouped(groups), torch.randn(5, 2, 6, 6)
        net.norm.running_mean.normal_()
    model = wrapped(net, ["relu", "pool"], x[:2])
    masks = [torch.tensor(mask).float(), torch.tensor([0.0, 1, 1, 0])]
    small, report = gfo.compact(model, masks=masks, return_report=True)
    assert largest_difference(small, model, report, (x,), {}) < 1e-5
    even = left != 2
    assert ways(report) == ["removed" if even else "padded", "removed"] or not even
    if even:
        kept = sum(mask)
        assert small.grouped.groups == left
        assert (small.grouped.out_channels, small.norm.num_features) == (kept, kept)
        assert small.norm.running_mean.shape == (kept,)
    assert small.head.weight.shape == (3, 8)


@pytest.mark.parametrize("first", [True, False])
def test_flattened_channels_in_either_order(first: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.act, self.head = nn.Conv1d(2, 6, 3), nn.GELU(), nn.Linear(24, 3)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.act(self.conv(x))
            return self.head((hidden if first else hidden.transpose(1, 2)).flatten(1))

    with seeded(0):
        net, x = Net(), torch.randn(5, 2, 6)
    model = wrapped(net, {"act": 1}, x[:2], rescale="kept")
    small, report = gfo.compact(model, masks=half(model), strict=True, return_report=True)
    assert largest_difference(small, model, report, (x,), {}) < 1e-5


@pytest.mark.filterwarnings("ignore:.*normalisation layers")
def test_channels_of_resnet() -> None:
    with seeded(0):
        net, x = ResNet18(classes=4, width=2), torch.randn(4, 3, 16, 16)
    inner, outer = wrapped(net, ["layer*.*.bn1"], x[:2]), wrapped(net, net.sites, x[:2])
    small, report = gfo.compact(inner, masks=half(inner), strict=True, return_report=True)
    assert largest_difference(small, inner, report, (x,), {}) < 1e-5
    assert report.flops[1] < 0.7 * report.flops[0]
    # What is added to a shortcut keeps its place.
    small, report = gfo.compact(outer, masks=half(outer), return_report=True)
    assert ways(report) == ["padded"] * 8
    assert "without them" in report.sites[0].reason
    assert largest_difference(small, outer, report, (x,), {}) < 1e-5
    assert report.parameters[1] < report.parameters[0]
    with pytest.raises(ValueError, match=r"site 'layer1.0.bn2' cannot be removed, and strict=True"):
        gfo.compact(outer, masks=half(outer), strict=True)


def test_units_that_are_silent_on_the_example() -> None:
    """A rectifier may hide a unit there; on other inputs it must be right all the same."""
    with seeded(0):
        net, x = MLP((4, 8, 3)), torch.rand(64, 4)
    with torch.no_grad():  # all units wake up for negative inputs only
        net.hidden[0].linear.weight.abs_().mul_(-1)
        net.hidden[0].linear.bias.zero_()
    model = wrapped(net, net.sites, x[:2])
    small, report = gfo.compact(
        model, masks=half(model), example=(x[:2],), strict=True, return_report=True
    )
    assert largest_difference(small, model, report, (-x,), {}) < 1e-5
    assert small.hidden[0].linear.out_features == int(half(model)[0].sum())


@pytest.mark.parametrize("activation", [nn.GELU, nn.Sigmoid, nn.Hardswish])
def test_units_that_fall_silent_with_another_one_on_the_example(activation: Any) -> None:
    """Where an activation function is flat, a unit has no gradient, but still belongs to others."""
    with seeded(0):
        net, x = MLP((2, 3, 4, 3), activation), torch.tensor([[2.0, 0.0], [2.5, 0.0]])
    first, second = net.hidden[0].linear, net.hidden[1].linear
    with torch.no_grad():
        first.weight.copy_(torch.tensor([[6.0, 0], [0, 6], [1, 1]]))
        first.bias.copy_(torch.tensor([0.0, -12, 0]))
        # Without the first unit of the layer before, far below 0 on the example.
        second.weight[2] = torch.tensor([1000.0, 1000, 0])
        second.bias[2] = -500.0
    model = wrapped(net, ["hidden.0.act"], x)
    small, report = gfo.compact(
        model, masks=[torch.tensor([0.0, 1, 1])], example=(x,), return_report=True
    )
    assert small.hidden[1].linear.out_features == 4
    assert largest_difference(small, model, report, (x.flip(1),), {}) < 1e-4


def test_zeros_at_the_start_of_training_hide_nothing() -> None:
    with seeded(0):
        net, x = MLP((4, 8, 6, 3)), torch.randn(9, 4)
    nn.init.zeros_(net.output.weight)
    model = wrapped(net, net.sites, x[:2], rescale="kept")
    small, report = gfo.compact(model, masks=half(model), strict=True, return_report=True)
    with torch.no_grad(), seeded(1):
        values = torch.randn(3, 6)
        net.output.weight.copy_(values)
        kept = (report.masks[1][0] != 0).nonzero().flatten()
        # The factor of kept units may be in the weights that write them, or in these.
        written = torch.equal(small.hidden[1].linear.bias, net.hidden[1].linear.bias[kept])
        small.output.weight.copy_(values[:, kept] * (6 / len(kept) if written else 1.0))
    assert largest_difference(small, model, report, (x,), {}) < 1e-5


def test_wrong_slices_are_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    right = evidence.dead_slices

    def shifted(module: nn.Module, *args: Any) -> Any:
        slices = right(module, *args)
        return {
            name: {axis: dead.roll(1) for axis, dead in axes.items()}
            for name, axes in slices.items()
        }

    monkeypatch.setattr(evidence, "dead_slices", shifted)
    with seeded(0):
        net, x = MLP((5, 12, 3)), torch.randn(16, 5)
    model = wrapped(net, net.sites, x[:2])
    small, report = gfo.compact(model, masks=half(model), return_report=True)
    assert ways(report) == ["masked"]
    assert "the output changes by" in report.sites[0].reason
    assert largest_difference(small, model, report, (x,), {}) < 1e-5


class Positions(nn.Module):
    """Sites whose units no weights belong to: positions, and a sum that goes on in two ways."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 6)
        self.tokens, self.stream = nn.Identity(), nn.Identity()
        self.more, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.tokens(self.embed(x))
        stream = self.stream(hidden + torch.tanh(self.more(hidden)))
        return self.head((stream + torch.tanh(self.more(stream))).mean(1))


def test_masks_stay_where_no_weights_are_a_units_own() -> None:
    with seeded(0):
        net, x = Positions(), torch.randn(7, 5, 4)
    model = wrapped(net, {"tokens": gfo.Units(axis=1), "stream": gfo.Units(axis=2)}, x[:2])
    small, report = gfo.compact(model, masks=half(model), return_report=True)
    assert ways(report) == ["masked", "masked"]
    assert all(site.reason for site in report.sites)
    stored = io.BytesIO()
    torch.save(small, stored)
    stored.seek(0)
    loaded = torch.load(stored, weights_only=False)
    assert largest_difference(loaded, model, report, (x,), {}) < 1e-5


def test_sites_without_any_unit_left() -> None:
    with seeded(0):
        net, x = Grouped(8), torch.randn(5, 2, 6, 6)
    model = wrapped(net, ["relu"], x[:2])
    small, report = gfo.compact(model, masks=[torch.zeros(8)], return_report=True)
    assert largest_difference(small, model, report, (x,), {}) < 1e-5
    assert small.grouped.out_channels == 1  # nothing of size 0


def test_a_block_that_is_dropped_becomes_zeros() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branch = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 6))
            self.head = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x + self.branch(x))

    with seeded(0):
        net, x = Block(), torch.randn(5, 6)
    model = wrapped(net, {"branch": gfo.Units(patch=6)}, x[:2])
    small, report = gfo.compact(model, masks=[torch.zeros(1)], strict=True, return_report=True)
    assert isinstance(small.branch, Silent)
    assert report.parameters[1] == 21
    assert largest_difference(small, model, report, (x,), {}) < 1e-5


def test_a_part_that_also_passes_the_residual_on_stays() -> None:
    """As the output of a ViT layer of transformers 4.48, which adds the residual itself."""

    class Output(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense = nn.Linear(12, 6)

        def forward(self, hidden: Tensor, x: Tensor) -> Tensor:
            return self.dense(hidden) + x

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(6, 12), nn.GELU())
            self.output, self.head = Output(), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.output(self.inner(x), x))

    with seeded(0):
        net, x = Layer(), torch.randn(5, 6)
    model = wrapped(net, {"output.dense": gfo.Units(patch=6)}, x[:2])
    small, report = gfo.compact(model, masks=[torch.zeros(1)], strict=True, return_report=True)
    assert isinstance(small.output.dense, Silent)
    assert report.parameters[1] == 21
    assert largest_difference(small, model, report, (x,), {}) < 1e-5


class TestThreshold:
    """Which units a method keeps, where all examples share its masks."""

    @staticmethod
    def model(method: str, **options: Any) -> tuple[Any, Tensor]:
        with seeded(0):
            net, x = MLP((4, 6, 5, 3)), torch.randn(8, 4)
            return wrapped(net, net.sites, x[:2], method, **options), x

    def kept(self, model: Any, x: Tensor, **options: Any) -> list[list[int]]:
        small, report = gfo.compact(model, **options, return_report=True)
        assert largest_difference(small, model, report, (x,), {}) < 1e-5
        widths = [layer.linear.out_features for layer in small.hidden]
        kept = [(mask[0] != 0).nonzero().flatten().tolist() for mask in report.masks]
        assert widths == [len(units) or 1 for units in kept]
        return kept

    @pytest.mark.parametrize("method", ["id-gflowout", "combined"])
    def test_posteriors(self, method: str) -> None:
        model, x = self.model(method, train_size=8, hidden=(), rescale="kept")
        shared = model.method if method == "id-gflowout" else model.method.shared
        logits = [[9.0, -9, 9, -9, 0.5, -9], [9.0, 9, -9, -9, 0.5]]
        with torch.no_grad():
            for site, values in enumerate(logits):
                start, bias = shared.starts.at(site), shared.posterior[site].blocks[0].bias
                bias.copy_((torch.tensor(values) - start) / generators.DIRECT_GAIN)
        assert self.kept(model, x) == [[0, 2, 4], [0, 1, 4]]
        assert self.kept(model, x, threshold=0.9) == [[0, 2], [0, 1]]

    def test_gates_keep_their_value(self) -> None:
        model, x = self.model("gates")
        numbers = model.method.means
        with torch.no_grad():
            wanted = torch.tensor([2.0, -0.3, 0.4, -1, 0.7, -0.1, 0.2, -2, 0.9, 0.5, -0.4])
            numbers.moved.add_((wanted - numbers()) / 10)
        assert self.kept(model, x) == [[0, 2, 4], [0, 2, 3]]
        masks = gfo.compact(model, return_report=True)[1].masks
        torch.testing.assert_close(masks[0][0, [0, 2, 4]], torch.tensor([1.0, 0.4, 0.7]))

    def test_concrete(self) -> None:
        model, x = self.model("concrete", per_unit=True, train_size=8)
        numbers = model.method.keep_logits
        with torch.no_grad():
            wanted = torch.tensor([2.0, -1, 1, -1, 1, -1, 2, 2, -3, -3, 1])
            numbers.moved.add_((wanted - numbers()) / 10)
        assert self.kept(model, x) == [[0, 2, 4], [0, 1, 4]]

    def test_masksembles(self) -> None:
        model, x = self.model("masksembles", members=4, scale=2.0)
        shares = [masks.mean((0, 1)) for masks in model.method.members()]
        expected = [(share >= 0.5).nonzero().flatten().tolist() for share in shares]
        assert self.kept(model, x, threshold=0.5) == expected

    @pytest.mark.parametrize(
        "method", ["gflowout", "contextual", "modes", "mc", "variational", "none"]
    )
    def test_others_need_masks(self, method: str) -> None:
        options = {"train_size": 8} if method == "variational" else {}
        model, x = self.model(method, **options)
        with pytest.raises(ValueError, match=f"masks must be given for method '{method}'"):
            gfo.compact(model)
        if method == "gflowout":  # as the message says
            masks = [model.inclusion(x, site=s.name).support(0.5) for s in model.sites]
            self.kept(model, x, masks=masks)


def test_the_report_is_a_table() -> None:
    with seeded(0):
        net, x = MLP((5, 12, 3)), torch.randn(2, 5)
    model = wrapped(net, ["input", "hidden.0.act"], x)
    masks = [torch.tensor([1.0, 0, 1, 1, 1]), torch.ones(12)]
    _, report = gfo.compact(model, masks=masks, return_report=True)
    lines = repr(report).splitlines()
    assert lines[0].split() == ["site", "units", "kept", "dropped", "units"]
    assert lines[1].startswith("input         5      4     zeroed: without them the module fails")
    assert lines[2] == "hidden.0.act  12     12    none"
    assert [line.split()[0] for line in lines[5:]] == ["parameters", "FLOPs", "latency"]
    assert report.flops == (2 * 2 * (5 * 12 + 12 * 3),) * 2
    assert min(report.seconds) > 0


def test_the_module_alone_and_a_warning_where_units_stay() -> None:
    with seeded(0):
        net, x = MLP((5, 12, 3)), torch.randn(9, 5)
    model = wrapped(net, ["input", "hidden.0.act"], x[:2])
    inputs, hidden = half(model)
    with pytest.warns(UserWarning, match=r"at site 'input' \(zeroed\): .* return_report=True"):
        small = gfo.compact(model, masks=[inputs, hidden])
    with_report, report = gfo.compact(model, masks=[inputs, hidden], return_report=True)
    assert torch.equal(small(x), with_report(x))
    assert largest_difference(small, model, report, (x,), {}) < 1e-5
    assert small.hidden[0].linear.out_features == int(hidden.sum())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gfo.compact(model, masks=[torch.ones(5), hidden])


def test_saved_models_need_no_example(tmp_path: Any) -> None:
    with seeded(0):
        net, x = MLP((5, 12, 3)), torch.randn(4, 5)
    gfo.save(wrapped(net, net.sites, x[:2]), tmp_path / "m.safetensors")
    model = gfo.load(tmp_path / "m.safetensors", MLP((5, 12, 3)))
    small, report = gfo.compact(model, masks=half(model), return_report=True)
    assert largest_difference(small, model, report, (x,), {}) < 1e-5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"threshold": 2.0}, "threshold must be"),
        ({"tolerance": 0.0}, "tolerance must be"),
        ({"masks": []}, r"masks must hold one tensor per site \(1\), got 0"),
        ({"masks": [torch.ones(3)]}, "the one of site 'hidden.0.act' must have shape"),
        ({"masks": [torch.ones(12) / 3], "tolerance": 1e-12}, "differs from the masked model by"),
    ],
)
def test_wrong_arguments_are_named(arguments: Any, words: str) -> None:
    with seeded(0):
        net, x = MLP((5, 12, 3)), torch.randn(2, 5)
    model = wrapped(net, net.sites, x)
    with pytest.raises(ValueError, match=words):
        gfo.compact(model, **arguments)


def test_plain_modules_and_nested_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match=r"model must come from gfo.wrap, got Linear"):
        gfo.compact(nn.Linear(2, 2))  # type: ignore[arg-type]
    entry = next(entry for entry in ZOO if entry.name == "dict input")
    model = entry.wrap("mc")
    with pytest.raises(ValueError, match=r"example must be given: .*argument"):
        gfo.compact(model, masks=half(model))
