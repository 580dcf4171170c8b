"""What every method must do on every backbone of the zoo."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from zoo import METHODS, MLP, ZOO, Encoder, Entry, Normed, categorical, needed, predicted

import gflowout as gfo
import gflowout.methods
from gflowout.core import tree
from gflowout.core.call import logits_of

BATCH, SAMPLES = 3, 4

# Every backbone meets one method of each way to draw (at random, for all examples, for each), and
# one of the others in turn; every method meets four backbones at least.
USUAL = ("mc", "id-gflowout", "gflowout")
OTHERS = tuple(method for method in METHODS if method not in USUAL)
PAIRS = [
    (entry, method)
    for number, entry in enumerate(ZOO)
    for method in METHODS
    if method in USUAL or OTHERS.index(method) == number % len(OTHERS)
]


def pairs(chosen: list[tuple[Entry, str]]) -> Any:
    names = [f"{entry.name}-{method}" for entry, method in chosen]
    return pytest.mark.parametrize(("entry", "method"), chosen, ids=names)


every_pair = pairs(PAIRS)
pairs_with_masks = pairs([(entry, method) for entry, method in PAIRS if method != "none"])
every_method = pytest.mark.parametrize("method", METHODS)
learned_methods = pytest.mark.parametrize("method", METHODS[1:])


@pytest.fixture(autouse=True)
def _one_seed() -> None:
    torch.default_generator.manual_seed(0)


def close(left: Tensor, right: Tensor) -> bool:
    return torch.allclose(left, right, rtol=1e-4, atol=1e-5)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def predict(entry: Entry, model: Any, seed: int = 0, **options: Any) -> gfo.Predictive:
    args, kwargs = entry.call(BATCH)
    options.setdefault("samples", SAMPLES)
    return model.predict(*args, generator=seeded(seed), **kwargs, **options)


def footprint(model: nn.Module) -> dict[str, Any]:
    """All that a prediction must leave as it was."""
    hooks = {
        (name, kind): list(value)
        for name, module in model.named_modules()
        for kind, value in vars(module).items()
        if kind.endswith(("_hooks", "_hooks_with_kwargs", "_hooks_always_called"))
    }
    return {
        "tensors": {key: value.clone() for key, value in model.state_dict().items()},
        "training": {name: module.training for name, module in model.named_modules()},
        "hooks": hooks,
        "forward": [name for name, module in model.named_modules() if "forward" in vars(module)],
        "random": torch.get_rng_state(),
        "fastpath": torch.backends.mha.get_fastpath_enabled(),
    }


def assert_unchanged(before: dict[str, Any], after: dict[str, Any]) -> None:
    for key, value in before["tensors"].items():
        assert torch.equal(value, after["tensors"][key]), key
    assert torch.equal(before["random"], after["random"])
    for key in ("training", "hooks", "forward", "fastpath"):
        assert before[key] == after[key], key
    assert after["forward"] == []


def test_every_method_is_in_the_table() -> None:
    assert sorted(METHODS) == sorted(gflowout.methods.METHODS)
    assert all(sum(other == method for _, other in PAIRS) >= 4 for method in METHODS)


@every_pair
def test_every_site_is_found_and_fires(entry: Entry, method: str) -> None:
    model = entry.shared(method)
    assert [(site.name, site.units, site.axis) for site in model.sites] == list(entry.expected)
    drawn = predict(entry, model, return_masks=True)
    assert [tuple(mask.shape) for mask in drawn.masks] == [
        (SAMPLES, BATCH, units) for _, units, _ in entry.expected
    ]
    ones = [torch.ones(1, BATCH, units) for _, units, _ in entry.expected]
    args, kwargs = entry.call(BATCH)
    full = model.predict(*args, masks=ones, **kwargs).samples
    for index in range(len(ones)):
        cut = [mask * (at != index) for at, mask in enumerate(ones)]
        assert not close(model.predict(*args, masks=cut, **kwargs).samples, full)


@every_pair
def test_seeds_chunks_and_replay(entry: Entry, method: str) -> None:
    model = entry.shared(method).eval()
    first = predict(entry, model, samples=20, return_masks=True)
    for chunk in (1, 3, 20):
        again = predict(entry, model, samples=20, chunk=chunk, return_masks=True)
        assert close(again.samples, first.samples)
        assert all(torch.equal(a, b) for a, b in zip(again.masks, first.masks, strict=True))
    distinct = len(torch.unique(first.samples, dim=0))
    other = predict(entry, model, seed=1, samples=20)
    if method == "none":
        assert close(first.samples, first.samples[:1].expand_as(first.samples))
        assert all(bool((mask == 1).all()) for mask in first.masks)
    else:
        assert distinct > 2
        assert not close(other.samples, first.samples)
    args, kwargs = entry.call(BATCH)
    replayed = model.predict(*args, masks=first.masks, **kwargs)
    assert close(replayed.samples, first.samples)
    with torch.no_grad():
        for draw in range(3):
            masks = [mask[draw] for mask in first.masks]
            output = logits_of(model(*args, masks=masks, **kwargs))
            assert close(model.likelihood.samples(output), first.samples[draw])


@pairs_with_masks
def test_masks_multiply_the_site(entry: Entry, method: str) -> None:
    """Against hooks of our own on the bare backbone: a second implementation."""
    model = entry.shared(method).eval()
    drawn = predict(entry, model, samples=2, return_masks=True)
    net = gfo.unwrap(model)
    args, kwargs = entry.call(BATCH)
    handles = []

    def scale(index: int) -> float:
        rate = model.sites[index].rate
        keep = torch.tensor(0.9 if rate is None else 1 - rate)
        if method == "mc":
            return 1 / keep.item()
        if method == "modes":
            return 1 / model.method.get_buffer(f"masks{index}").mean().item()
        if method == "concrete":
            moved = model.method.keep_logits.moved[index]
            return 1 / torch.sigmoid(keep.logit() + 10 * moved).item()
        return 1.0

    def multiply(output: Any, place: Any, mask: Tensor, factor: float) -> Any:
        value = output[0] if isinstance(output, tuple) else output
        shape = [1] * value.dim()
        shape[place.batch_axis], shape[place.axis] = mask.shape
        value = value * mask.reshape(shape) * factor
        return (value, *output[1:]) if isinstance(output, tuple) else value

    for index, site in enumerate(model.sites):
        factor, mask = scale(index), drawn.masks[index][1]
        if site.name == "input":
            handles.append(
                net.register_forward_pre_hook(
                    lambda module, args, site=site, mask=mask, factor=factor: (
                        multiply(args[0], site, mask, factor),
                    )
                )
            )
        else:
            handles.append(
                net.get_submodule(site.name).register_forward_hook(
                    lambda module, args, out, site=site, mask=mask, factor=factor: multiply(
                        out, site, mask, factor
                    )
                )
            )
    with torch.enable_grad():  # keeps the fused path of nn.TransformerEncoder away
        output = logits_of(net(*tree.clone(args), **kwargs)).detach()
    for handle in handles:
        handle.remove()
    assert close(model.likelihood.samples(output), drawn.samples[1])


@every_pair
def test_prediction_leaves_everything_as_it_was(entry: Entry, method: str) -> None:
    model = entry.wrap(method)
    results = []
    for training in (True, False):
        model.train(training)
        frozen = next(m for m in model.backbone.modules() if not list(m.children()))
        frozen.eval()
        args, kwargs = entry.call(BATCH)
        kept = tree.clone((args, kwargs))
        before = footprint(model)
        results.append(predict(entry, model, samples=3).samples)
        assert_unchanged(before, footprint(model))
        pairs = zip(tree.tensors(kept), tree.tensors((args, kwargs)), strict=True)
        assert all(torch.equal(a, b) for (_, a), (_, b) in pairs)
    assert close(results[0], results[1])


@every_pair
def test_training_step_reaches_every_parameter(entry: Entry, method: str) -> None:
    model = entry.wrap(method).train()
    args, kwargs = entry.call(6)
    losses = model(*args, y=entry.targets(6), **kwargs)
    losses.total.backward()
    assert torch.isfinite(losses.total)
    assert torch.allclose(losses.total, losses.nll + losses.tb + losses.prior)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
    again = model.eval()(*args, y=entry.targets(6), masks=losses.masks, **kwargs)
    if not any(
        isinstance(m, nn.modules.batchnorm._BatchNorm | nn.Dropout) for m in model.modules()
    ):
        assert torch.allclose(again.nll, losses.nll, rtol=1e-4)


@every_pair
def test_checkpoints_pass_both_ways(entry: Entry, method: str) -> None:
    model = entry.wrap(method)
    other = entry.backbone(seed=1)
    checkpoint = other.state_dict()
    result = model.load_state_dict(checkpoint, strict=False)
    assert result.unexpected_keys == []
    assert all(key.startswith("gflowout.") for key in result.missing_keys)
    state = model.state_dict()
    assert set(checkpoint) <= set(state)
    assert all(key in checkpoint or key.startswith("gflowout.") for key in state)
    fresh = entry.backbone(seed=2)
    own = {key: value for key, value in state.items() if not key.startswith("gflowout.")}
    fresh.load_state_dict(own)
    assert all(torch.equal(fresh.state_dict()[key], checkpoint[key]) for key in checkpoint)
    nested = nn.ModuleDict({"inner": model, "other": nn.Linear(2, 2)})
    plain = nn.ModuleDict({"inner": entry.backbone(seed=3), "other": nn.Linear(2, 2)})
    result = nested.load_state_dict(plain.state_dict(), strict=False)
    assert result.unexpected_keys == []
    assert all(key.startswith("inner.gflowout.") for key in result.missing_keys)
    state = nested.state_dict()
    assert all(torch.equal(state[key], value) for key, value in plain.state_dict().items())
    nested.load_state_dict(state)


@every_pair
def test_copies_predict_the_same(entry: Entry, method: str, tmp_path: Any) -> None:
    model = entry.shared(method)
    expected = predict(entry, model, return_masks=True)
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    restored = entry.wrap(method, seed=1)
    restored.load_state_dict(torch.load(buffer, weights_only=True))
    gfo.save(model, tmp_path / "model.safetensors")
    copies = {
        "deepcopy": copy.deepcopy(model),
        "pickle": pickle.loads(pickle.dumps(model)),
        "state_dict": restored,
        "gfo.load": gfo.load(tmp_path / "model.safetensors", entry.backbone(seed=3)),
    }
    for name, other in copies.items():
        assert torch.equal(predict(entry, other).samples, expected.samples), name
    doubled = copy.deepcopy(model).to(torch.float64)
    call = tree.map_tensors(
        lambda _, tensor: tensor.double() if tensor.is_floating_point() else tensor,
        entry.call(BATCH),
    )
    wide = doubled.predict(*call[0], samples=SAMPLES, generator=seeded(), **call[1])
    assert torch.allclose(wide.samples.float(), expected.samples, rtol=1e-3, atol=1e-4)
    labels = entry.targets(BATCH)
    doubled(*call[0], y=labels, **call[1]).total.backward()


class Counting(nn.Module):
    """Counts its calls and the size of the batches it saw; fails in a chosen call."""

    def __init__(self, fails_at: int | None = None) -> None:
        super().__init__()
        self.batches: list[int] = []
        self.fails_at = fails_at

    def forward(self, x: Tensor) -> Tensor:
        self.batches.append(len(x))
        if len(self.batches) == self.fails_at:
            raise RuntimeError("fails on purpose")
        return x * 1


def counted(fails_at: int | None = None, inplace: bool = False) -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 8),
        nn.ReLU(inplace=inplace),
        Counting(),
        nn.Linear(8, 8),
        nn.Dropout(0.5),
        nn.BatchNorm1d(8),
        Counting(fails_at),
        nn.Linear(8, 3),
    )


def wrapped(net: nn.Module, method: str, sites: Any = None, **options: Any) -> gfo.MaskedModel:
    options = {**needed(method), **options}
    return gfo.wrap(
        net, method, sites, likelihood=categorical(), example=(torch.randn(2, 4),), **options
    )


@every_method
@pytest.mark.parametrize(("chunk", "later"), [(None, [100]), (1, [5] * 20), (6, [30, 30, 30, 10])])
@pytest.mark.parametrize("inplace", [False, True])
def test_layers_before_the_first_mask_run_once(
    method: str, chunk: int | None, later: list[int], inplace: bool
) -> None:
    net = counted(inplace=inplace)
    model = wrapped(net, method)
    net[2].batches.clear()
    net[6].batches.clear()
    model.predict(torch.randn(5, 4), samples=20, chunk=chunk)
    assert net[2].batches == [5]
    assert net[6].batches == ([5] if method == "none" else later)  # all its draws are one


@every_method
def test_training_pass_is_one_forward_and_one_backward(method: str) -> None:
    net = counted()
    model = wrapped(net, method).train()
    forwards, backwards = [], []
    handles = [
        net.register_forward_hook(lambda *_: forwards.append(1)),
        net[3].register_full_backward_hook(lambda *_: backwards.append(1)),
    ]
    for counter in (net[2], net[6]):
        counter.batches.clear()
    model(torch.randn(5, 4), y=torch.randint(3, (5,))).total.backward()
    passes = 2 if method == "contextual" else 1  # true masks and pseudo masks
    assert (len(forwards), len(backwards)) == (passes, 1)
    options = model.method.options
    draws = options.modes if method == "modes" else getattr(options, "draws", 1)
    assert net[2].batches == [5] * passes  # copies of the batch part at the first mask
    assert net[6].batches == [5 * draws] * passes
    for handle in handles:
        handle.remove()


@every_method
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    ("call", "run"),
    [
        ("predict", lambda model, x: predicted(model, x, samples=4, chunk=2)),
        ("train", lambda model, x: model(x, y=torch.zeros(5, dtype=torch.long))),
    ],
    ids=["predict", "train"],
)
def test_a_failure_half_way_leaves_everything_as_it_was(
    method: str, training: bool, call: str, run: Any
) -> None:
    net = counted()
    model = wrapped(net, method).train(training)
    x = torch.randn(5, 4)
    counter = net[6]
    counter.batches.clear()
    counter.fails_at = 2 if call == "predict" and method != "none" else 1
    before = footprint(model)
    with pytest.raises(RuntimeError, match="on purpose"):
        run(model, x)
    after = footprint(model)
    if call == "train":  # what ran before the failure may draw and count as in any module
        before["random"] = after["random"]
        before["tensors"] = after["tensors"]
    assert_unchanged(before, after)
    assert len(model.predict(x, samples=2).samples) == 2


def test_wrapping_changes_no_flag_and_no_weight() -> None:
    net = Normed().train()
    net.bn.eval()
    x = torch.randn(2, 4)
    before = footprint(net)
    model = gfo.wrap(net, "mc", ["act"], likelihood=categorical(), example=(x,))
    assert_unchanged(before, footprint(net))
    assert model.training
    assert not net.bn.training


def test_a_bare_backbone_stays_itself() -> None:
    net = Encoder().eval()
    x = torch.randn(3, 5, 4)
    before = net(x)
    model = gfo.wrap(
        net, "mc", ["encoder.layers.*.linear2"], likelihood=categorical(), example=(x[:2],)
    )
    model.predict(x)
    assert gfo.unwrap(model) is net
    assert torch.equal(net(x), before)


@pytest.mark.parametrize("build", [Normed, Encoder], ids=["batchnorm", "transformer"])
@every_method
def test_two_threads_at_once_give_what_they_give_alone(build: Any, method: str) -> None:
    entry = next(entry for entry in ZOO if entry.build is build)
    model = entry.wrap(method).train()
    args, kwargs = entry.call(BATCH)

    def draw(seed: int) -> Tensor:
        return model.predict(
            *args, samples=SAMPLES, chunk=1, generator=seeded(seed), **kwargs
        ).samples

    alone = [draw(seed) for seed in range(4)]
    before = footprint(model)
    found: dict[int, Tensor] = {}

    def work(seed: int) -> None:
        found[seed] = draw(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert_unchanged(before, footprint(model))
    assert all(close(found[seed], alone[seed]) for seed in range(4))


class Gate(nn.Module):
    """Holds a thread until another has got somewhere, so that an interleaving is certain."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: dict[int, tuple[threading.Event, threading.Event]] = {}

    def forward(self, x: Tensor) -> Tensor:
        entered, proceed = self.waits.get(threading.get_ident(), (None, None))
        if entered is not None and proceed is not None:
            entered.set()
            assert proceed.wait(10)
        return x


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()
        self.fc = nn.Linear(4, 8)
        self.bn = nn.BatchNorm1d(8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.bn(self.fc(self.gate(x)))
        return self.head(self.encoder(hidden.unsqueeze(1)).squeeze(1))


def test_a_thread_that_ends_first_does_not_disturb_one_still_running() -> None:
    net = Gated().train()
    model = wrapped(net, "mc", ["fc", "encoder.linear2", "encoder.dropout1"])
    x = torch.randn(6, 4)
    alone = model.predict(x, samples=3, generator=seeded()).samples
    before = footprint(model)
    first_in, first_go, second_in, second_go = (threading.Event() for _ in range(4))
    found = {}

    def work(name: str, entered: threading.Event, proceed: threading.Event) -> None:
        net.gate.waits[threading.get_ident()] = (entered, proceed)
        found[name] = model.predict(x, samples=3, generator=seeded()).samples

    first = threading.Thread(target=work, args=("first", first_in, first_go))
    second = threading.Thread(target=work, args=("second", second_in, second_go))
    first.start()
    assert first_in.wait(10)
    second.start()
    assert second_in.wait(10)
    first_go.set()
    first.join()
    second_go.set()
    second.join()
    assert close(found["first"], alone)
    assert close(found["second"], alone)
    assert_unchanged(before, footprint(model))


def test_two_wraps_of_one_backbone_work_side_by_side() -> None:
    net = MLP()
    left = wrapped(net, "mc", ["fc1"], rate=0.9)
    right = wrapped(net, "gflowout", ["fc2"])
    x, y = torch.randn(6, 4), torch.randint(3, (6,))
    alone = left.predict(x, generator=seeded()).samples
    right(x, y=y).total.backward()
    assert right.predict(x).samples.std(0).max() > 0
    assert torch.equal(left.predict(x, generator=seeded()).samples, alone)
    assert [key for key in left.state_dict() if key.startswith("gflowout.")] == []
    with torch.no_grad():
        net.head.bias.add_(5 * torch.eye(3)[0])
    assert not close(left.predict(x, generator=seeded()).samples, alone)


@pytest.mark.parametrize("pooled", [False, True])
def test_without_a_generator_the_global_state_decides_and_advances(pooled: bool) -> None:
    x = torch.randn(3, 4)
    one = wrapped(MLP(), "mc", ["fc1"])
    model = gfo.Ensemble([one, wrapped(MLP(), "mc", ["fc1"])]) if pooled else one
    torch.manual_seed(5)
    first, second = (model.predict(x).samples for _ in range(2))
    after = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(model.predict(x).samples, first)
    assert torch.equal(model.predict(x).samples, second)
    assert torch.equal(torch.rand(3), after)
    torch.manual_seed(6)
    assert not close(model.predict(x).samples, first)
    assert not close(first, second)


def test_the_global_state_gives_what_a_generator_of_its_seed_gives() -> None:
    model, x = wrapped(MLP(), "mc", ["fc1"]), torch.randn(3, 4)
    torch.manual_seed(5)
    loop = [model.predict(x).samples for _ in range(3)]
    generator = torch.Generator().manual_seed(5)
    for samples in loop:
        assert torch.equal(model.predict(x, generator=generator).samples, samples)


def test_what_draws_nothing_leaves_the_global_state_alone() -> None:
    x, before = torch.randn(3, 4), torch.get_rng_state()
    model, none = wrapped(MLP(), "mc", ["fc1"]), wrapped(MLP(), "none", ["fc1"])
    before = torch.get_rng_state()
    model.predict(x, masks=[torch.ones(2, 3, site.units) for site in model.sites])
    model.predict(x, generator=seeded())
    none.predict(x)
    assert torch.equal(torch.get_rng_state(), before)
    model.predict(x)
    assert not torch.equal(torch.get_rng_state(), before)


def test_one_draw_and_training_use_the_global_state() -> None:
    model = wrapped(MLP(), "mc", ["fc1"])
    x = torch.randn(3, 4)
    torch.manual_seed(5)
    first, second = model(x), model(x)
    torch.manual_seed(5)
    assert torch.equal(model(x), first)
    assert not close(first, second)


def test_labels_cannot_reach_a_prediction() -> None:
    model = wrapped(MLP(), "gflowout", ["fc1"])
    with pytest.raises(TypeError):
        model.predict(torch.randn(3, 4), y=torch.zeros(3, dtype=torch.long))


def test_a_batch_of_one() -> None:
    for entry in ZOO:
        model = entry.wrap("mc")
        args, kwargs = entry.call(1)
        pred = model.predict(*args, samples=4, **kwargs)
        assert pred.samples.shape[:2] == (4, 1), entry.name
        assert pred.mean.shape[0] == 1, entry.name
        assert pred.log_prob(entry.targets(1)).shape == (1,), entry.name


def test_batch_arguments_that_broadcast_are_not_folded_apart() -> None:
    class Scaled(MLP):
        def forward(self, x: Tensor, scale: Tensor) -> Tensor:
            return super().forward(x * scale)

    model = gfo.wrap(
        Scaled(),
        "mc",
        ["fc1"],
        likelihood=categorical(),
        example=(torch.randn(2, 4), torch.rand(2, 1)),
    )
    x, scale = torch.randn(3, 4), torch.rand(1, 1)
    broadcast = model.predict(x, scale, samples=6, generator=seeded()).samples
    spelled = model.predict(x, scale.expand(3, 1), samples=6, generator=seeded()).samples
    assert close(broadcast, spelled)


def test_print_shows_the_sites() -> None:
    text = str(wrapped(MLP(), "mc", ["fc*"]))
    assert "site 'fc1': 8 units on axis 1" in text
    assert "method='mc'" in text


@pytest.mark.parametrize(
    "method", ["mc", "concrete", "variational", "gates", "masksembles", "modes"]
)
def test_half_precision_replays(method: str) -> None:
    model = wrapped(MLP(), method, ["fc1"]).to(torch.bfloat16)
    x = torch.randn(3, 4, dtype=torch.bfloat16)
    drawn = model.predict(x, return_masks=True)
    whole = [mask.float() for mask in drawn.masks]
    assert torch.equal(model.predict(x, masks=whole).samples, drawn.samples)
    assert torch.isfinite(model(x, y=torch.tensor([0, 1, 2])).total)


def test_every_kind_of_dropout_is_found() -> None:
    kinds = [getattr(nn, name) for name in dir(nn) if "Dropout" in name]
    assert len(kinds) >= 6
    for kind in kinds:
        axes = next((axes for axes in (2, 3) if f"{axes}d" in kind.__name__), 1)
        conv = getattr(nn, f"Conv{axes}d")(2, 4, 1)
        net = nn.Sequential(conv, kind(0.3), nn.Flatten(), nn.Linear(4 * 3**axes, 3))
        x = torch.randn(3, 2, *[3] * axes)
        model = gfo.wrap(net, "mc", likelihood=categorical(), example=(x[:2],)).train()
        assert [(site.name, site.units, site.rate) for site in model.sites] == [("1", 4, 0.3)]
        ones = [torch.ones(3, 4)]
        assert torch.equal(model(x, masks=ones), model(x, masks=ones))
        assert net[1].training


def test_a_module_of_two_names_is_found_by_both() -> None:
    net = MLP()
    net.alias = net.fc1
    assert [site.name for site in wrapped(net, "mc", ["alias"]).sites] == ["fc1"]
    assert [site.name for site in wrapped(net, "mc", ["alias", "fc1"]).sites] == ["fc1"]


@learned_methods
def test_autocast_leaves_the_accounts_of_masks_in_full_precision(method: str) -> None:
    model = wrapped(MLP(), method, ["fc1", "fc2"])
    x, y = torch.randn(6, 4), torch.randint(3, (6,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = model(x, y=y)
        drawn = model.predict(x, return_masks=True, generator=seeded())
    losses.total.backward()
    plain = model(x, y=y, masks=losses.masks)
    assert drawn.samples.dtype == torch.float32
    if losses.log_q is not None:
        assert losses.log_q.dtype == losses.log_reward.dtype == torch.float32
        if method == "id-gflowout":  # its masks do not depend on activations
            assert torch.allclose(plain.log_q, losses.log_q, atol=1e-5)
    assert torch.allclose(plain.nll, losses.nll, rtol=0.05)


@pytest.mark.parametrize("method", ["id-gflowout", "gflowout", "combined", "contextual"])
def test_rewards_are_in_single_precision_whatever_the_model_is_in(method: str) -> None:
    model = wrapped(MLP(), method, ["fc1", "fc2"]).to(torch.bfloat16)
    losses = model(torch.randn(6, 4, dtype=torch.bfloat16), y=torch.randint(3, (6,)))
    for name in ("log_q", "log_p", "log_likelihood", "log_reward"):
        assert getattr(losses, name).dtype == torch.float32, name
    losses.total.backward()
    gradients = [parameter.grad for parameter in model.method.parameters()]
    assert all(g is None or torch.isfinite(g).all() for g in gradients)
    assert any(g is not None for g in gradients)


@pytest.mark.parametrize("method", ["id-gflowout", "gflowout"])
def test_generators_learn_inside_a_part_without_gradient(method: str) -> None:
    class Frozen(MLP):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                hidden = torch.relu(self.fc1(x))
            return self.head(torch.relu(self.fc2(hidden)))

    model = wrapped(Frozen(), method, ["fc1", "fc2"])
    model(torch.randn(6, 4), y=torch.randint(3, (6,))).total.backward()
    assert model.backbone.fc1.weight.grad is None
    assert all(parameter.grad is not None for parameter in model.method.parameters())


def test_inference_mode_changes_nothing() -> None:
    for entry in ZOO:
        model = entry.shared("mc")
        expected = predict(entry, model).samples
        with torch.inference_mode():
            assert close(predict(entry, model).samples, expected), entry.name


def test_a_module_shared_with_one_that_cannot_be_repeated() -> None:
    class Cell(nn.Module):
        def __init__(self, act: nn.Module) -> None:
            super().__init__()
            self.act, self.fc = act, nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.fc(x)).transpose(0, 1)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.act = nn.Tanh()
            self.cell = Cell(self.act)
            self.fc, self.drop, self.head = nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.act(self.fc(self.cell(x).transpose(0, 1)))
            return self.head(self.drop(hidden))

    model = wrapped(Net(), "mc")
    assert model.spec.unfoldable == ("cell",)
    x = torch.randn(5, 4)
    folded = model.predict(x, generator=seeded()).samples
    assert close(model.predict(x, generator=seeded(), chunk=1).samples, folded)
