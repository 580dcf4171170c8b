"""Backbones: sizes, both block orders, and that the sites are where they are said to be."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import gflowout as gfo
from gflowout.backbones import MLP, MNIST_WIDTHS, ResNet18
from gflowout.backbones.resnet import BasicBlock, BNConvBlock

ORDERS = ["conv-bn", "bn-conv"]


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def zero(module: nn.Module, args: object, output: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(output)


def test_mlp_parameters() -> None:
    assert count(MLP(MNIST_WIDTHS)) == 784 * 300 + 300 + 300 * 100 + 100 + 100 * 10 + 10


def test_mlp_is_the_formula() -> None:
    net = MLP((6, 5, 4, 3), nn.Tanh)
    first, second = (layer.linear for layer in net.hidden)
    x = torch.randn(7, 2, 3)
    expected = net.output(torch.tanh(second(torch.tanh(first(x.reshape(7, 6))))))
    assert torch.equal(net(x), expected)


def test_mlp_site_outputs_feed_the_next_layer() -> None:
    net = MLP((6, 5, 4, 3))
    assert [type(net.get_submodule(site)) for site in net.sites] == [nn.ReLU, nn.ReLU]
    net.get_submodule(net.sites[-1]).register_forward_hook(zero)
    assert torch.equal(net(torch.randn(2, 6)), net.output.bias.expand(2, 3))


def test_mlp_presets() -> None:
    assert MLP.mnist().widths == MLP().widths == (784, 300, 100, 10)
    assert count(MLP.mnist()) == 266_610
    net = MLP.clinical(9, hidden=(6, 5, 4))
    assert net.widths == (9, 6, 5, 4, 1)
    assert len(MLP.clinical(9).sites) == 3
    x, died = torch.randn(4, 9), torch.tensor([0.0, 1.0, 0.0, 1.0])
    model = gfo.wrap(net, "mc", net.sites, likelihood=gfo.Binary(), example=(x,))
    assert torch.isfinite(model(x, y=died).total)
    assert model.predict(x).mean.shape == (4,)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((0,), ValueError, "features must be an integer >= 1, got 0"),
        ((9, 128), TypeError, "hidden must be a list of integers, got 128"),
        ((9, (128, 0)), ValueError, "hidden must be an integer >= 1, got 0"),
    ],
)
def test_mlp_clinical_rejects_arguments(
    arguments: tuple[object, ...], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        MLP.clinical(*arguments)  # type: ignore[arg-type]


def test_mlp_without_hidden_layers_is_linear() -> None:
    net = MLP((4, 2))
    assert net.sites == ()
    assert count(net) == 10


@pytest.mark.parametrize(
    ("widths", "error", "words"),
    [
        ((784,), ValueError, "widths must hold at least an input and an output"),
        ((784, 0, 10), ValueError, "widths must be an integer >= 1, got 0"),
        ((784, 3.5, 10), TypeError, "widths must be an integer >= 1, got 3.5"),
        (784, TypeError, "widths must be a list of integers, got 784"),
        ("784", TypeError, "widths must be a list of integers, got '784'"),
    ],
)
def test_mlp_rejects_widths(widths: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        MLP(widths)  # type: ignore[arg-type]


@pytest.mark.parametrize("activation", [nn.ReLU(), "relu", lambda: "relu"])
def test_mlp_rejects_activations(activation: object) -> None:
    with pytest.raises(TypeError, match="activation must make a new"):
        MLP((4, 3, 2), activation)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("classes", "order", "parameters"),
    [
        (10, "conv-bn", 11_173_962),
        (100, "conv-bn", 11_220_132),
        # Published pre-activation ResNet-18s have 11,171,146: no BatchNorm before the pooling.
        (10, "bn-conv", 11_171_146 + 2 * 512),
    ],
)
def test_resnet_parameters(classes: int, order: str, parameters: int) -> None:
    with torch.device("meta"):
        assert count(ResNet18(classes=classes, order=order)) == parameters


def written_out(net: ResNet18, x: torch.Tensor) -> torch.Tensor:
    """Both orders as one list of steps on the weights by name."""
    state = net.state_dict()

    def conv(name: str, x: torch.Tensor, stride: int = 1) -> torch.Tensor:
        weight = state[f"{name}.weight"]
        return F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        keys = ("running_mean", "running_var", "weight", "bias")
        return F.batch_norm(x, *(state[f"{name}.{key}"] for key in keys))

    usual = net.order == "conv-bn"
    x = conv("conv1", x)
    x = norm("bn1", x).relu() if usual else x
    for stage in (1, 2, 3, 4):
        for index in (0, 1):
            block, stride = f"layer{stage}.{index}", 2 if stage > 1 and index == 0 else 1
            if usual:
                inner = norm(f"{block}.bn1", conv(f"{block}.conv1", x, stride)).relu()
                inner = norm(f"{block}.bn2", conv(f"{block}.conv2", inner))
                if stride == 2:
                    x = norm(f"{block}.downsample.1", conv(f"{block}.downsample.0", x, 2))
                x = (inner + x).relu()
            else:
                start = norm(f"{block}.bn1", x).relu()
                inner = norm(f"{block}.bn2", conv(f"{block}.conv1", start, stride)).relu()
                x = conv(f"{block}.downsample", start, 2) if stride == 2 else x
                x = conv(f"{block}.conv2", inner) + x
    x = x if usual else norm("bn2", x).relu()
    return F.linear(F.avg_pool2d(x, 4).flatten(1), state["fc.weight"], state["fc.bias"])


@pytest.mark.parametrize("order", ORDERS)
def test_resnet_is_the_formula(order: str) -> None:
    torch.manual_seed(0)
    net = ResNet18(classes=7, width=4, order=order)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight, module.bias, module.running_mean, module.running_var):
                nn.init.uniform_(tensor, 0.5, 1.5)
    x = torch.randn(3, 3, 32, 32)
    assert torch.allclose(net.eval()(x), written_out(net, x), atol=1e-4, rtol=1e-4)


def test_resnet_orders_differ_only_in_norms() -> None:
    usual, other = (ResNet18(width=8, order=order) for order in ORDERS)
    stem, shortcuts, end = 8, 16 + 32 + 64, 64
    narrower = (16 - 8) + (32 - 16) + (64 - 32)  # first norms of stages 2 to 4 see the input
    scale_and_shift = 2
    difference = scale_and_shift * (stem + shortcuts + narrower - end)
    assert count(usual) - count(other) == difference


@pytest.mark.parametrize("order", ORDERS)
def test_resnet_halves_images_three_times(order: str) -> None:
    net = ResNet18(classes=7, width=4, order=order, in_channels=1).eval()
    shapes = []
    for stage in (net.layer1, net.layer2, net.layer3, net.layer4):
        stage.register_forward_hook(lambda module, args, output: shapes.append(output.shape[1:]))
    assert net(torch.randn(3, 1, 32, 32)).shape == (3, 7)
    assert shapes == [(4, 32, 32), (8, 16, 16), (16, 8, 8), (32, 4, 4)]


@pytest.mark.parametrize("order", ORDERS)
def test_resnet_sites_end_the_residual_branches(order: str) -> None:
    """With a site's output at zero, the block gives its shortcut and nothing else."""
    net = ResNet18(width=4, order=order).eval()
    blocks = [m for m in net.modules() if isinstance(m, BasicBlock | BNConvBlock)]
    assert len(net.sites) == len(blocks) == 8
    for site, block in zip(net.sites, blocks, strict=True):
        place = net.get_submodule(site)
        assert place is (block.bn2 if order == "conv-bn" else block.conv2)
        place.register_forward_hook(zero)
        x = torch.randn(2, block.conv1.in_channels, 8, 8)
        if order == "conv-bn":
            expected = torch.relu(block.downsample(x))
        else:
            active = torch.relu(block.bn1(x))
            expected = x if block.downsample is None else block.downsample(active)
        assert torch.equal(block(x), expected)


@pytest.mark.parametrize("order", ORDERS)
def test_resnet_gradients_reach_every_parameter(order: str) -> None:
    net = ResNet18(width=2, order=order)
    net(torch.randn(4, 3, 32, 32)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"classes": 0}, "classes must be an integer >= 1, got 0"),
        ({"width": 0}, "width must be an integer >= 1, got 0"),
        ({"in_channels": 0}, "in_channels must be an integer >= 1, got 0"),
        ({"order": "conv-nb"}, "order must be one of .* did you mean 'conv-bn'"),
    ],
)
def test_resnet_rejects_arguments(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ResNet18(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (MLP((12, 8, 6, 10)), (12,)),
        (ResNet18(width=2), (3, 32, 32)),
        (ResNet18(width=2, order="bn-conv"), (3, 32, 32)),
    ],
)
def test_sites_are_found_by_wrap(net: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.randn(2, *shape)
    model = gfo.wrap(net, "mc", net.sites, likelihood=gfo.Categorical(10), example=(x,))
    assert tuple(site.name for site in model.sites) == net.sites
    assert {site.axis for site in model.sites} == {1}


def test_page_runs_and_its_counts_are_measured(
    capsys: pytest.CaptureFixture[str],
) -> None:
    page = (Path(__file__).parents[2] / "docs/reference/api/backbones.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    torch.manual_seed(0)
    exec(compile(code, "docs/reference/api/backbones.md", "exec"), {"__name__": "page"})
    printed = re.findall(r"^[\d,]+$", capsys.readouterr().out, re.MULTILINE)
    table = re.findall(r"^\| `[^|]+` \| ([\d,]+) \|", page, re.MULTILINE)
    assert len(table) == 9
    assert printed == table
