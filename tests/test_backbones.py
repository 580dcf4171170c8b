"""Backbones: sizes, both block orders, and that the sites are where they are said to be."""

import pytest
import torch
from torch import nn

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


def test_resnet_parameters() -> None:
    assert count(ResNet18(classes=10, width=64)) == 11_173_962


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
