"""Steps and predictions stay on the device of the model, shown on the meta device.

The meta device has shapes but no numbers, so that no accelerator is needed: an operation that mixes
devices, that makes an array of numbers on the CPU, or that reads a value back, is an error.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import gflowout as gfo
from gflowout.backbones import MLP, ResNet18
from gflowout.bench import count
from gflowout.methods import METHODS

META = torch.device("meta")
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Sequence[int]]] = {
    "mlp": (lambda: MLP((6, 8, 8, 3)), (4, 6)),
    "resnet18": (lambda: ResNet18(3, 2), (4, 3, 8, 8)),
}


class OnMeta(TorchDispatchMode):
    """Refuses operations on, or with, arrays of floating-point numbers elsewhere."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = [each for each in tree_leaves((args, kwargs, result)) if _array(each)]
        places = {tensor.device for tensor in tensors}
        assert len(places) < 2, f"{func} mixes {places}"
        strange = [t for t in tensors if t.device != META and t.is_floating_point()]
        assert not strange, f"{func} has numbers on {places}: {[t.shape for t in strange]}"
        return result


def _array(value: object) -> bool:
    """Scalars may be anywhere; seeds of draws, whole numbers, are on the CPU."""
    return isinstance(value, Tensor) and value.dim() > 0 and value.numel() > 0


def wrapped(method: str, network: str) -> tuple[gfo.MaskedModel, Tensor, Tensor]:
    make, shape = NETWORKS[network]
    net, x = make(), torch.zeros(*shape)
    options = {"train_size": 40} if "train_size" in METHODS[method].Options.names() else {}
    sites = () if method == "none" else list(net.sites)
    likelihood = gfo.Categorical(3)
    model = gfo.wrap(net, method, sites, likelihood=likelihood, example=(x,), **options)
    model.validate = False  # which reads values, and training on accelerators does now and then
    return model.to(META), x.to(META), torch.zeros(len(x), dtype=torch.int64, device=META)


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("method", METHODS)
def test_steps_and_predictions_stay_on_the_device(method: str, network: str) -> None:
    model, x, y = wrapped(method, network)
    with OnMeta():
        model.train()
        losses = model(x, y=y)
        losses.total.backward()
        pred = model.predict(x, samples=3, generator=torch.Generator().manual_seed(0))
        answers = (pred.mean, pred.entropy(), pred.log_prob(y, values=False))
    assert {value.device for value in (losses.nll, *losses.masks, pred.outputs, *answers)} == {META}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            assert parameter.grad.device == META, name
    assert any(parameter.grad is not None for parameter in model.parameters())


def test_ensembles_predict_on_the_device() -> None:
    members = [wrapped(method, "mlp")[0] for method in ("none", "mc")]
    x = wrapped("none", "mlp")[1]
    with OnMeta():
        assert gfo.Ensemble(members).predict(x, samples=4).mean.device == META


def test_passes_on_a_device_are_larger_than_on_a_cpu() -> None:
    model, _, _ = wrapped("mc", "mlp")
    x = torch.zeros(2**14, 6)  # and so 2**17 numbers at a site in each draw

    def passes(samples: int, device: str) -> int:
        inputs, generator = x.to(device), torch.Generator().manual_seed(0)
        moved = model.to_empty(device=device)
        predict = {"samples": samples, "generator": generator}
        return count(lambda: moved.predict(inputs, **predict), moved).passes

    assert passes(1024, "meta") == 3  # one draw first, then at most 2**26 numbers at a time
    assert passes(12, "cpu") == 3  # the same, with 3 * 2**18


def test_validation_waits_for_the_device_at_its_end_only() -> None:
    module = pytest.importorskip("gflowout.training.module")
    model, x, y = wrapped("gflowout", "mlp")
    model.validate = True
    own = module.MaskedModule(model).to(META)
    own._trainer = types.SimpleNamespace(testing=False)
    with OnMeta():
        own.on_validation_epoch_start()
        for batch in (1, 2, 3):
            own.validation_step((x, y), batch)
        assert own._sums.device == META
        with pytest.raises(RuntimeError):
            own.validation_step((x, y), 0)  # the first batch is checked, value by value
        with pytest.raises(RuntimeError):
            own._sums.tolist()


def test_numbers_elsewhere_are_noticed() -> None:
    x = torch.zeros(3, device=META)
    with pytest.raises(AssertionError, match="has numbers on"), OnMeta():
        torch.eye(3)
    with pytest.raises(AssertionError, match="mixes"), OnMeta():
        torch.zeros(3, dtype=torch.int64).to(META)
    with pytest.raises(RuntimeError), OnMeta():
        x.sum().item()
