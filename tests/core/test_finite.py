"""Numbers that are not finite, or far from what a model expects, are named."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from zoo import METHODS, MLP, needed

import gflowout as gfo

X = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 0, 1, 2])


@pytest.fixture(autouse=True)
def _one_seed() -> None:
    torch.default_generator.manual_seed(0)


def wrapped(net: nn.Module, x: Tensor = X, method: str = "mc", **changes: Any) -> gfo.MaskedModel:
    given = {"sites": ["fc1", "fc2"], "likelihood": gfo.Categorical(3), "example": (x[:2],)}
    given |= needed(method) | changes
    return gfo.wrap(net, method, given.pop("sites"), **given)


def refused(model: gfo.MaskedModel, *args: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model.predict(*args)
    with pytest.raises(ValueError, match=message):
        model(*args, y=Y)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [float("inf"), -float("inf")])
def test_infinite_inputs(method: str, value: float) -> None:
    x = X.clone()
    x[2, 1] = value
    message = r"argument 'x' must hold finite numbers, got 1 infinite in a tensor of shape \[6, 4\]"
    refused(wrapped(MLP(), method=method), x, message=message)
    unchecked = wrapped(MLP(), method=method, validate=False)
    assert not unchecked.predict(x).outputs.isfinite().all()


class Casting(MLP):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.fc1.weight.dtype))


@pytest.mark.parametrize(
    ("kind", "value", "dtype"),
    [
        (MLP, 3e38, torch.float32),
        (Casting, 1e300, torch.float32),
        (Casting, 70_000, torch.float16),
        (Casting, 70_000.0, torch.float16),
    ],
)
def test_inputs_that_overflow(kind: type[nn.Module], value: float, dtype: torch.dtype) -> None:
    net = kind().to(dtype)
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=2.0)
    x = torch.zeros(6, 4, dtype=torch.int64) if isinstance(value, int) else X.clone()
    x = x.double() if value == 1e300 else x
    model = wrapped(net, x)
    x[1] = value
    limit = (
        rf"must hold numbers that do not overflow in {dtype}.*up to {re.escape(f'{value:g}')} in"
    )
    refused(model, x, message=f"argument 'x' {limit}")


def test_outputs_that_are_infinite_on_purpose() -> None:
    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.act = nn.Embedding(100_000, 8), nn.ReLU()
            self.head = nn.Linear(8, 3)

        def forward(self, ids: Tensor, hide: Tensor) -> Tensor:
            return self.head(self.act(self.words(ids))) + hide

    ids, hide = torch.tensor([5, 70_000]), torch.tensor([0.0, 0.0, -torch.inf])
    model = wrapped(Hidden().half(), sites=["act"], example=(ids, hide))
    assert model.predict(ids, hide).mean[:, 2].tolist() == [0, 0]
    assert model(ids, hide, y=torch.tensor([0, 1])).nll.isfinite()
    assert model(ids, hide, y=torch.tensor([0, 2])).nll == torch.inf


def test_large_outputs_are_no_reason_to_complain() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).half()
    nn.init.constant_(net[2].bias, 60_000.0)
    model = wrapped(net, X.half(), sites=["1"])
    assert model.predict(X.half() + 300).outputs.isfinite().all()


def test_weights_that_diverged_are_not_blamed_on_the_input() -> None:
    model = wrapped(MLP())
    with torch.no_grad():
        model.backbone.fc1.weight[0, 0] = torch.nan
    assert model(X * 1e25, y=Y).nll.isnan()


class Masked(nn.Module):
    """Has a mask of attention in its state."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, 8), nn.Linear(8, 3)
        self.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.fc1((self.mask.softmax(-1) @ x.unsqueeze(-1)).squeeze(-1)))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("key", ["fc1.weight", "mask", "gflowout.method.log_z.layers.0.bias"])
def test_files_with_weights_that_are_not_finite(tmp_path: Path, key: str, value: float) -> None:
    path = tmp_path / "model.safetensors"
    gfo.save(wrapped(Masked(), method="gflowout", sites=["fc1"]), path)
    gfo.load(path, Masked())  # -inf where the backbone has it is no damage
    with safe_open(str(path), framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = {"gflowout": file.metadata()["gflowout"]}
    if key not in tensors:
        key = next(name for name in tensors if name.startswith("gflowout."))
    tensors[key].view(-1)[0] = value
    save_file(tensors, path, metadata=metadata)
    backbone = Masked()
    before = {name: tensor.clone() for name, tensor in backbone.state_dict().items()}
    with pytest.raises(
        ValueError, match=rf"model\.safetensors' has \d+ values in '{key}' that are"
    ):
        gfo.load(path, backbone)
    assert all(torch.equal(before[name], value) for name, value in backbone.state_dict().items())


def regression(**options: Any) -> tuple[gfo.MaskedModel, Tensor]:
    net = MLP(outputs=2 if options.get("heteroscedastic") else 1)
    return wrapped(net, likelihood=gfo.Gaussian(1, **options)), torch.randn(6, 1)


@pytest.mark.parametrize("heteroscedastic", [False, True])
@pytest.mark.parametrize(("mean", "deviation"), [(1e4, 1.0), (-1e4, 1.0), (0.0, 1e4)])
def test_targets_that_are_not_scaled_warn_once(
    mean: float, deviation: float, heteroscedastic: bool
) -> None:
    model, unit = regression(heteroscedastic=heteroscedastic)
    model.train()
    y = mean + deviation * (unit - unit.mean()) / unit.std()
    with pytest.warns(UserWarning, match=r"y has a mean of up to .*Standardise y.* or.* noise="):
        model(X, y=y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(X, y=y)
        model.predict(X).log_prob(y)


def test_targets_that_are_scaled_do_not_warn() -> None:
    model, unit = regression()
    model(X, y=unit)
    outlier = unit.clone()
    outlier[0] = 2e3  # one of them is no scale
    model(X, y=outlier)
    model, unit = regression(noise=100.0)
    model(X, y=unit * 1e4)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_targets_that_are_not_finite(value: float) -> None:
    model, y = regression()
    y[3] = value
    with pytest.raises(ValueError, match="y must hold finite numbers"):
        model(X, y=y)
