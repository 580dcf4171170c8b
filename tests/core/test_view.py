"""A pass leaves the backbone alone, for threads, copies, pickles, forks and interrupts."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import gflowout as gfo
from gflowout.core.view import View, evaluating


class Counting(nn.Module):
    """Keeps a plain attribute and a buffer, as networks with their own state do."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.norm = nn.BatchNorm1d(16)
        self.act = nn.ReLU()
        self.head = nn.Linear(16, 3)
        self.calls = 0
        self.modes: list[bool] = []

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        self.modes.append(self.training)
        return self.head(self.act(self.norm(self.first(x))))


def wrapped(net: nn.Module, sites: Any = ("act",), method: str = "gflowout") -> gfo.MaskedModel:
    return gfo.wrap(
        net, method, list(sites), likelihood=gfo.Categorical(3), example=(torch.randn(2, 6),)
    )


def state(module: nn.Module) -> list[tuple[str, bool, list[str], int]]:
    """All that a pass could leave behind."""
    return [
        (
            name,
            part.training,
            sorted(part.__dict__),
            len(part._forward_hooks) + len(part._forward_pre_hooks),
        )
        for name, part in module.named_modules()
    ]


def test_parameters_and_buffers_are_shared() -> None:
    net = Counting()
    view = View(net, {net.act})
    assert view.root is not net
    assert view.root.act is not net.act
    assert view.root.first is net.first
    assert [id(value) for value in view.root.state_dict(keep_vars=True).values()] == [
        id(value) for value in net.state_dict(keep_vars=True).values()
    ]


def test_nothing_to_change_is_no_view() -> None:
    net = Counting().eval()
    with evaluating(net) as root:
        assert root is net


def test_what_the_network_sets_itself_is_kept() -> None:
    model = wrapped(Counting())
    before = model.backbone.calls
    model(torch.randn(4, 6), y=torch.zeros(4, dtype=torch.long))
    assert model.backbone.calls == before + 1
    mean = model.backbone.norm.running_mean.clone()
    model.predict(torch.randn(4, 6), samples=3, chunk=1)
    assert model.backbone.calls > before + 1
    assert not model.backbone.modes[-1]
    assert torch.equal(model.backbone.norm.running_mean, mean)
    model(torch.randn(4, 6), y=torch.zeros(4, dtype=torch.long))
    assert not torch.equal(model.backbone.norm.running_mean, mean)


def test_a_shared_module_stays_shared() -> None:
    block = nn.Linear(6, 6)
    net = nn.Sequential(block, nn.Tanh(), block, nn.Dropout(0.5), nn.Linear(6, 3))
    view = View(net, {block})
    assert view.root[0] is view.root[2] is not block


def test_bound_methods_kept_as_attributes_act_on_the_view() -> None:
    class Indirect(Counting):
        def __init__(self) -> None:
            super().__init__()
            self.run = self.inside

        def inside(self, x: Tensor) -> Tensor:
            return super().forward(x)

        def forward(self, x: Tensor) -> Tensor:
            return self.run(x)

    model = wrapped(Indirect())
    pred = model.predict(torch.randn(4, 6), samples=8)
    assert float(pred.variance().max()) > 0
    assert model.backbone.run.__self__ is model.backbone


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("doing", ["copy", "pickle", "state"])
def test_in_the_middle_of_a_pass_nothing_is_to_be_seen(training: bool, doing: str) -> None:
    model = wrapped(Counting()).train(training)
    x, y = torch.randn(4, 6), torch.zeros(4, dtype=torch.long)
    expected = state(model)
    seen: list[Any] = []

    def look() -> None:
        if doing == "state":
            seen.append(state(model))
        elif doing == "copy":
            seen.append(state(copy.deepcopy(model)))
        else:
            seen.append(state(pickle.loads(pickle.dumps(model))))

    class Looking(nn.Module):
        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            look() if armed else None
            return self.inner(x)

        def __reduce__(self) -> Any:
            return nn.Linear, (16, 3)

    armed = False
    model.backbone.head = Looking(model.backbone.head)
    expected = state(copy.deepcopy(model)) if doing != "state" else state(model)
    armed = True
    model(x, y=y)
    model.predict(x, samples=3, chunk=1)
    assert seen
    assert all(value == expected for value in seen)


def test_training_goes_on_in_train_mode_while_another_thread_predicts() -> None:
    model = wrapped(Counting())
    x, y = torch.randn(8, 6), torch.randint(3, (8,))
    seen: list[bool] = []
    ended = threading.Event()

    def predict() -> None:
        while not ended.is_set():
            model.predict(x, samples=2)

    model.backbone.norm.register_forward_hook(
        lambda module, *_: seen.append(module.training) if torch.is_grad_enabled() else None
    )
    thread = threading.Thread(target=predict)
    thread.start()
    try:
        for _ in range(100):
            model(x, y=y)
            assert all(part.training for part in model.modules())
    finally:
        ended.set()
        thread.join()
    assert len(seen) == 100
    assert all(seen)


def test_threads_get_the_answers_of_one() -> None:
    model = wrapped(Counting()).eval()
    inputs = [torch.randn(5, 6) for _ in range(16)]
    expected = [
        model.predict(x, samples=7, chunk=2, generator=torch.Generator().manual_seed(1)).mean
        for x in inputs
    ]

    def predict(x: Tensor) -> Tensor:
        return model.predict(x, samples=7, chunk=2, generator=torch.Generator().manual_seed(1)).mean

    with ThreadPoolExecutor(16) as pool:
        for mean, wanted in zip(pool.map(predict, inputs), expected, strict=True):
            torch.testing.assert_close(mean, wanted)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_in_the_middle_of_a_pass_has_a_clean_model() -> None:
    model = wrapped(Counting())
    x = torch.randn(4, 6)
    expected = state(model)
    codes: list[int] = []

    def fork(*_: Any) -> None:
        if codes:
            return
        child = os.fork()
        if child == 0:
            os._exit(0 if state(model) == expected else 1)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

    handle = model.backbone.norm.register_forward_pre_hook(fork)
    expected = state(model)
    model.predict(x, samples=3, chunk=1)
    handle.remove()
    assert codes == [0]


# Python itself says so if the interrupt comes while a generator is closed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_leaves_nothing_behind() -> None:
    model = wrapped(Counting())
    x = torch.randn(4, 6)
    before, fast = state(model), torch.backends.mha.get_fastpath_enabled()
    for moment in range(0, 400, 7):
        calls = 0

        def stop(frame: Any, event: str, _: Any, moment: int = moment) -> None:
            nonlocal calls
            calls += 1
            if calls == moment:
                signal.raise_signal(signal.SIGINT)

        sys.setprofile(stop)
        try:
            model.predict(x, samples=3, chunk=1)
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
            torch.set_grad_enabled(True)  # PyTorch's own context managers are not safe either
        assert state(model) == before
        assert torch.backends.mha.get_fastpath_enabled() == fast


def test_masks_act_inside_the_fused_encoder_and_the_switch_stays() -> None:
    layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)
    net = nn.Sequential(nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(24, 3)).eval()
    x = torch.randn(2, 4, 6)
    model = gfo.wrap(net, "mc", ["0.layers.0.dropout"], likelihood=gfo.Categorical(3), example=(x,))
    seen: list[bool] = []
    net[2].register_forward_hook(
        lambda *_: seen.append(torch.backends.mha.get_fastpath_enabled()) and None
    )
    assert float(model.predict(x, samples=8).variance().max()) > 0
    assert all(seen)
    layer = net[0].layers[0]
    assert layer.activation_relu_or_gelu
    assert not layer.self_attn.training
    assert layer.self_attn.dropout == 0.1


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool | None) -> None:
        super().__init__()
        self.first = nn.Linear(6, 16)
        self.block = nn.Sequential(nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.3))
        self.head = nn.Linear(16, 3)
        self.reentrant = reentrant
        self.preserve = True

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.reentrant is None:
            return self.head(self.block(h))
        options = {"use_reentrant": self.reentrant, "preserve_rng_state": self.preserve}
        return self.head(checkpoint(self.block, h, **options))


@pytest.mark.parametrize("method", ["mc", "concrete", "gflowout", "id-gflowout", "contextual"])
@pytest.mark.parametrize("draws", [1, 2])
def test_checkpoints_have_the_gradients_of_the_plain_pass(method: str, draws: int) -> None:
    if draws > 1 and method not in ("gflowout", "mc"):
        pytest.skip("one draw per step")
    torch.manual_seed(0)
    more = {"train_size": 100} if method in ("id-gflowout", "concrete") else {}
    more |= {"draws": draws} if method == "gflowout" else {}
    net = Checkpointed(None)
    model = gfo.wrap(
        net, method, ["block.0", "block.2"], likelihood=gfo.Categorical(3),
        example=(torch.randn(2, 6),), **more,
    )  # fmt: skip
    x, y = torch.randn(8, 6), torch.randint(3, (8,))
    gradients = []
    for reentrant in (None, False):
        net.reentrant = reentrant
        model.zero_grad()
        torch.manual_seed(1)
        model(x, y=y).total.backward()
        gradients.append(
            {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        )
    assert gradients[0].keys() == gradients[1].keys()
    for name, expected in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], expected, msg=name)


def test_a_checkpoint_that_keeps_no_random_state_does_not_rewind_it() -> None:
    net = Checkpointed(False)
    net.preserve = False
    model = wrapped(net, ["block.0"])
    losses = model(torch.randn(4, 6), y=torch.zeros(4, dtype=torch.long))
    before = torch.rand(5)
    losses.total.backward()
    assert not torch.equal(torch.rand(5), before)


def test_reentrant_checkpoints_are_refused_by_name() -> None:
    model = wrapped(Checkpointed(None), ["block.0"])
    model.backbone.reentrant = True  # as by gradient_checkpointing_enable, after wrapping
    x = torch.randn(4, 6, requires_grad=True)
    losses = model(x, y=torch.zeros(4, dtype=torch.long))
    with pytest.raises(RuntimeError, match=r"site 'block\.0' is inside activation checkpointing"):
        losses.total.backward()
