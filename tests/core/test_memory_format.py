"""The memory format is chosen so that PyTorch does not crash, and users are warned where it can."""

import copy
import os
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

import gflowout as gfo
from gflowout.backbones import ResNet18
from gflowout.core import memory_format
from gflowout.training import FitOptions, fit

# What a CPU without AVX-512 runs, on any x86 machine.
AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}

STEPS = """
import torch
import gflowout as gfo
from gflowout.backbones import ResNet18
from gflowout.core.memory_format import to_fastest_format

x, y = torch.randn(4, 3, 32, 32), torch.tensor([0, 1, 2, 3])
for width in (2, 6, 8):
    for order in ("conv-bn", "bn-conv"):
        net = to_fastest_format(ResNet18(4, width, order))
        options = {"likelihood": gfo.Categorical(4), "example": (x[:2],)}
        model = gfo.wrap(net, "gflowout", net.sites, **options)
        for _ in range(3):
            model(x, y=y).total.backward()
        assert all(p.grad.isfinite().all() for p in net.parameters())
print("all steps done")
"""


def channels_last(module: nn.Module) -> nn.Module:
    return copy.deepcopy(module).to(memory_format=torch.channels_last)


def narrow() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.Conv2d(4, 6, 1, stride=2), nn.Flatten(1), nn.LazyLinear(2)
    )


def wrapped(net: nn.Module, x: torch.Tensor) -> gfo.MaskedModel:
    return gfo.wrap(net, "mc", ["0"], likelihood=gfo.Categorical(2), example=(x,))


def test_a_step_of_narrow_networks_does_not_crash_without_avx512() -> None:
    environment = {**os.environ, **AVX2, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", STEPS], env=environment, capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout) == (0, "all steps done\n"), done.stderr


@pytest.mark.parametrize(
    ("layer", "unsafe"),
    [
        (nn.Conv2d(7, 4, 1, stride=2), True),
        (nn.Conv2d(1, 4, 1, stride=(1, 2)), True),
        (nn.Conv2d(8, 4, 1, stride=2), False),
        (nn.Conv2d(7, 4, 1), False),
        (nn.Conv2d(7, 4, 3, stride=2), False),
        (nn.Conv1d(7, 4, 1, stride=2), False),
    ],
)
def test_only_narrow_strided_1x1_convolutions_are_unsafe(layer: nn.Module, unsafe: bool) -> None:
    net = nn.Sequential(nn.ReLU(), layer)
    assert memory_format.unsafe_layers(net) == (["1"] if unsafe else [])


@pytest.mark.parametrize(("width", "last"), [(2, False), (4, False), (7, False), (8, True)])
def test_resnets_are_in_channels_last_from_width_8_on(width: int, last: bool) -> None:
    net = memory_format.to_fastest_format(ResNet18(10, width))
    assert net.layer1[0].conv1.weight.is_contiguous(memory_format=torch.channels_last) is last
    assert net.layer1[0].conv1.weight.is_contiguous() is not last


@pytest.mark.parametrize(("net_last", "x_last"), [(True, False), (False, True), (True, True)])
def test_wrap_warns_of_a_users_narrow_network_in_channels_last(
    net_last: bool, x_last: bool
) -> None:
    x, net = torch.randn(2, 3, 8, 8), narrow()
    net(x)
    net = channels_last(net) if net_last else net
    x = x.to(memory_format=torch.channels_last) if x_last else x
    with pytest.warns(UserWarning, match=r"layer '1' is .*contiguous_format") as warned:
        wrapped(net, x)
    assert warned[0].filename == __file__


def test_fit_warns_of_a_model_that_was_converted_after_it_was_wrapped() -> None:
    x, net = torch.randn(2, 3, 8, 8), narrow()
    net(x)
    model = wrapped(net, x).to(memory_format=torch.channels_last)
    with pytest.warns(UserWarning, match="layer '1' is"), pytest.raises(ZeroDivisionError):
        fit(model, Never(), options=FitOptions(epochs=1), progress=False)


class Never(list):  # type: ignore[type-arg]
    """Batches that end the training before its first step, which could crash."""

    def __len__(self) -> int:
        return 1

    def __iter__(self):  # type: ignore[no-untyped-def]
        raise ZeroDivisionError


def test_nothing_is_warned_of_where_nothing_can_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    x, net = torch.randn(2, 3, 8, 8), narrow()
    net(x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wrapped(net, x)  # contiguous
        wide = channels_last(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Conv2d(8, 2, 1, 2)))
        memory_format.warn_of_unsafe_layers(wide)
        monkeypatch.setattr(torch, "__version__", memory_format.FIXED_IN)
        wrapped(channels_last(net), x)
