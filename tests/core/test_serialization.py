from __future__ import annotations

import dataclasses
import json
import os
import pickle
import re
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

import gflowout as gfo
import gflowout.methods
from gflowout.core.generators import MaskPolicy

METHODS: dict[str, dict[str, Any]] = {
    "gflowout": {"prior_keep": 0.7, "hidden": (8,), "temperature": 1.5},
    "id-gflowout": {"train_size": 40, "log_z": "learned", "draws": 2},
    "combined": {"train_size": 40, "hidden": (8,), "draws": 2},
    "mc": {"rate": 0.3},
    "contextual": {"prior_keep": 0.7, "reduction": 2, "gain": 2.0, "kl_weight": 0.5},
    "concrete": {"train_size": 40, "rate": 0.3, "per_unit": True, "relaxation": 0.2},
    "variational": {"train_size": 40, "alpha": 0.5},
    "gates": {"start": 0.3, "noise": 0.4, "strength": 0.1, "shared": True},
    "masksembles": {"members": 3, "scale": 1.5, "bound": "marginal"},
    "modes": {"modes": 3, "scale": 1.5, "rate": 0.2, "hidden": (8,)},
    "none": {},
}


def net(width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 3))


def wrapped(method: str = "gflowout") -> gfo.MaskedModel:
    torch.manual_seed(0)
    x = torch.randn(16, 4)
    model = gfo.wrap(
        net(),
        method,
        ["2"],
        likelihood=gfo.Gaussian(3, noise=0.5),
        example=(x,),
        **METHODS[method],
    )
    model(x, y=torch.randn(16, 3)).total.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model.eval()


def predicted(model: gfo.MaskedModel) -> Tensor:
    x = torch.linspace(-1, 1, 24).reshape(6, 4)
    return model.predict(x, generator=torch.Generator().manual_seed(0)).outputs


def state(module: nn.Module) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in module.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_every_method_is_in_the_table() -> None:
    assert sorted(METHODS) == sorted(gflowout.methods.METHODS)


def test_a_method_that_is_not_registered(path: Path) -> None:
    rewrite(path, method="own")
    refuse(path, net(), r"method 'own', which is not registered: .*METHODS\['own'\] to its class")


@pytest.mark.parametrize("method", METHODS)
def test_a_loaded_model_is_the_saved_one(method: str, tmp_path: Path) -> None:
    model = wrapped(method)
    path = tmp_path / "model.safetensors"
    gfo.save(model, path)
    loaded = gfo.load(path, net().eval())
    assert torch.equal(predicted(loaded), predicted(model))
    assert same(state(loaded), state(model))
    assert loaded.method.options == model.method.options
    assert loaded.sites == model.sites
    assert loaded.spec == model.spec
    assert loaded.likelihood.config() == model.likelihood.config()
    assert not loaded.training
    assert [entry.name for entry in tmp_path.iterdir()] == ["model.safetensors"]


def test_a_loaded_model_trains_on(tmp_path: Path) -> None:
    gfo.save(wrapped(), tmp_path / "m")
    loaded = gfo.load(tmp_path / "m", net())
    loaded(torch.randn(8, 4), y=torch.randn(8, 3)).total.backward()
    assert all(parameter.grad is not None for parameter in loaded.parameters())


def test_loading_leaves_the_random_state_alone(tmp_path: Path) -> None:
    gfo.save(wrapped(), tmp_path / "m")
    backbone = net()
    before = torch.get_rng_state()
    gfo.load(tmp_path / "m", backbone)
    assert torch.equal(torch.get_rng_state(), before)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.act, self.other = nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)
        self.other.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.other(self.act(self.one(x)))


def test_tied_weights_survive(tmp_path: Path) -> None:
    x = torch.randn(5, 4)
    model = gfo.wrap(Tied(), "mc", ["act"], likelihood=gfo.Categorical(4), example=(x,))
    gfo.save(model, tmp_path / "m")
    loaded = gfo.load(tmp_path / "m", Tied())
    assert loaded.backbone.one.weight is loaded.backbone.other.weight
    assert torch.equal(predicted(loaded), predicted(model))


@pytest.mark.parametrize("members", [1, 2])
def test_a_failed_save_leaves_the_old_file_and_nothing_else(
    members: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [wrapped("mc") for _ in range(members)]
    path = tmp_path / "m"
    gfo.save(wrapped(), path)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        gfo.save(gfo.Ensemble(models) if members > 1 else models[0], path)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["m"]


def test_saving_into_nowhere_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no folder"):
        gfo.save(wrapped(), tmp_path / "missing" / "m")
    with pytest.raises(IsADirectoryError, match="must be a file"):
        gfo.save(wrapped(), tmp_path)
    with pytest.raises(TypeError, match=r"must come from gfo\.wrap"):
        gfo.save(net(), tmp_path / "m")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="path must be a string or a path, got 3"):
        gfo.save(wrapped(), 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="path must be a string or a path, got None"):
        gfo.load(None, net())  # type: ignore[call-overload]


def rewrite(path: Path, **changes: Any) -> None:
    """Write the file again with a changed configuration."""
    with safe_open(str(path), framework="pt") as file:
        config = json.loads(file.metadata()["gflowout"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    save_file(tensors, path, metadata={"gflowout": json.dumps({**config, **changes})})


def refuse(path: Path, backbone: nn.Module, match: str) -> None:
    """Loading fails with a message and the backbone is as it was."""
    before, hooks = state(backbone), len(backbone._forward_hooks)
    with pytest.raises(ValueError, match=match):
        gfo.load(path, backbone)
    assert same(state(backbone), before)
    assert len(backbone._forward_hooks) == hooks


@pytest.fixture
def path(tmp_path: Path) -> Path:
    gfo.save(wrapped(), tmp_path / "m")
    return tmp_path / "m"


@pytest.mark.parametrize("size", [0, 4, 100, -1, -1000])
def test_a_truncated_file_is_named(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])
    refuse(path, net(), "truncated or not a safetensors file")


def test_other_versions_are_named(path: Path) -> None:
    rewrite(path, format=99)
    refuse(path, net(), "format version 99, this gflowout reads version 1")


def test_another_backbone_is_named(path: Path) -> None:
    refuse(path, net(width=9), r"'0\.bias' has shape \[8\] in the file and \[9\]")
    refuse(path, nn.Linear(4, 3), "no submodule '2'.*another architecture")
    longer = nn.Sequential(*net(), nn.Linear(3, 3))
    refuse(path, longer, r"lacks 2 tensors: 4\.bias, 4\.weight")
    shorter = nn.Sequential(*list(net())[:3])
    refuse(path, shorter, "no linear or convolutional layer '3', which reads site '2'")
    bare = nn.Sequential(nn.Linear(4, 8), nn.Identity(), nn.ReLU(), nn.Linear(8, 3))
    refuse(path, bare, r"beyond the model's, 5 tensors: 1\.bias")


def test_foreign_files_are_named(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    save_file({"weight": torch.zeros(2)}, foreign)
    refuse(foreign, net(), "not written by gflowout.save")
    foreign.write_bytes(b"not at all")
    refuse(foreign, net(), "truncated or not a safetensors file")
    with pytest.raises(FileNotFoundError, match="no file"):
        gfo.load(tmp_path / "missing", net())
    with pytest.raises(TypeError, match="bare"):
        gfo.load(foreign, wrapped())


SPEC = dataclasses.asdict(wrapped("mc").spec)
SITE = {"name": "2", "units": 8, "axis": 1, "rank": 2, "batch_axis": 0, "rate": None}


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "os.system"},
        {"method": ["gflowout"]},
        {"likelihood": "__import__"},
        {"likelihood_options": {"dim": 10**15}},
        {"options": {"unknown": 1}},
        {"options": {"hidden": [10**12]}},
        {"options": {"temperature": "hot"}},
        {"options": None},
        {"sites": [{**SITE, "units": 10**15}]},
        {"sites": [{**SITE, "axis": 7}]},
        {"sites": [{**SITE, "name": 3}]},
        {"sites": [{**SITE, "consumer": 3}]},
        {"sites": [{**SITE, "consumer": "2"}]},
        {"sites": [{**SITE, "consumer": "nothing"}]},
        {"sites": "all"},
        {"sites": []},
        {"sites": [{**SITE, "batch_axis": 1}]},
        {"sites": [{**SITE, "rate": "x"}]},
        {"spec": {}},
        {"spec": {**SPEC, "footprint": 0}},
        {"spec": {**SPEC, "footprint": "x"}},
        {"spec": {**SPEC, "shapes": 3}},
        {"spec": {**SPEC, "foldable": "no"}},
        {"validate": "x"},
        {"spec": [1, 2]},
    ],
    ids=str,
)
def test_a_hostile_configuration_is_refused(path: Path, changes: dict[str, Any]) -> None:
    rewrite(path, **changes)
    refuse(path, net(), "damaged configuration|not registered|does not fit|no submodule|no linear")


def small(tmp_path: Path, method: str, **changes: Any) -> Path:
    """A file of a few kilobytes with a changed configuration."""
    model = gfo.wrap(
        nn.Sequential(nn.Linear(4, 3), nn.Tanh()),
        method,
        ["0"],
        likelihood=gfo.Categorical(3),
        example=(torch.zeros(2, 4),),
    )
    gfo.save(model, tmp_path / "m")
    with safe_open(str(tmp_path / "m"), framework="pt") as file:
        config = json.loads(file.metadata()["gflowout"])
    for key in ("options", "likelihood_options"):
        changes[key] = {**config[key], **changes.get(key, {})}
    rewrite(tmp_path / "m", **changes)
    return tmp_path / "m"


HUGE = {"name": "0", "units": 5 * 10**7, "axis": 1, "rank": 2, "batch_axis": 0, "consumer": None}


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("gates", {"sites": [HUGE]}),
        ("concrete", {"sites": [HUGE], "options": {"per_unit": True}}),
        ("gates", {"sites": [HUGE, {**HUGE, "units": 1, "keep": [0.5]}]}),
        ("mc", {"sites": [{**HUGE, "layout": {"axes": [1], "shape": [1], "unit": [0]}}]}),
        ("mc", {"sites": [{**HUGE, "layout": {"axes": [1], "shape": [-1, -1], "unit": [0]}}]}),
        ("masksembles", {"sites": [HUGE], "options": {"members": 10**6}}),
        ("masksembles", {"options": {"members": 10**30}}),
        ("modes", {"options": {"modes": 10**30}}),
        ("contextual", {"sites": [HUGE]}),
        ("gflowout", {"sites": [{**HUGE, "units": 20_000}], "options": {"blocks": 20_000}}),
        ("id-gflowout", {"sites": [HUGE], "options": {"blocks": 10**9}}),
        ("combined", {"sites": [HUGE] * 40, "options": {"blocks": 2, "hidden": [1] * 1500}}),
        ("gflowout", {"options": {"hidden": [10**30]}}),
        ("gflowout", {"likelihood_options": {"classes": 10**30}}),
        ("gflowout", {"options": {"temperature": int("9" * 400)}}),
    ],
)
def test_a_small_file_cannot_ask_for_a_huge_model(
    tmp_path: Path, method: str, changes: dict[str, Any]
) -> None:
    path = small(tmp_path, method, **changes)
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"damaged configuration|does not fit") as raised:
        gfo.load(path, nn.Sequential(nn.Linear(4, 3), nn.Tanh()))
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert used < 20e6  # a list of 5e7 numbers takes 400e6
    assert str(path) in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1
    assert len(str(raised.value)) < 800


def test_more_blocks_than_units_are_no_more_work() -> None:
    tracemalloc.start()
    policy = MaskPolicy([], units=3, hidden=(), start=0.0, blocks=10**7)
    used = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert policy.parts == [slice(0, 1), slice(1, 2), slice(2, 3)]
    assert used < 20e6


def test_units_are_those_of_the_backbone(tmp_path: Path) -> None:
    gfo.save(wrapped("mc"), tmp_path / "m")
    rewrite(tmp_path / "m", sites=[{**SITE, "units": 5 * 10**7, "consumer": "3"}])
    refuse(tmp_path / "m", net(), r"m' .*site '2' has 50000000 elements in the file.*'3' reads 8")


def test_members_are_checked_before_backbones_are_built(tmp_path: Path) -> None:
    path = tmp_path / "m"
    gfo.save(gfo.Ensemble([wrapped("mc")]), path)
    rewrite(path, members=[0] * 1000, weights=[])

    def build() -> nn.Module:
        raise AssertionError("a backbone was built")

    with safe_open(str(path), framework="pt") as file:
        config = file.metadata()
    save_file({}, path, metadata=config)
    with pytest.raises(ValueError, match=r"member 0 of .*m' has a damaged configuration"):
        gfo.load(path, build)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("method", ["gflowout", "masksembles"])
def test_a_converted_model_is_loaded_as_it_was_saved(
    method: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    model = wrapped(method).to(dtype)
    gfo.save(model, tmp_path / "m")
    loaded = gfo.load(tmp_path / "m", net().to(dtype))
    types = {key: value.dtype for key, value in model.state_dict().items()}
    assert {key: value.dtype for key, value in loaded.state_dict().items()} == types
    assert same(state(loaded), state(model))


@pytest.mark.parametrize("place", [60, -3, -40])
def test_a_single_flipped_bit_is_noticed(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 0x40
    path.write_bytes(content)
    refuse(path, net(), r"m' (is damaged|is truncated|was not written|has a damaged|has format)")


def test_a_file_without_a_checksum_is_read(path: Path) -> None:
    rewrite(path)
    gfo.load(path, net())


def test_dtypes_are_compared(path: Path) -> None:
    refuse(path, net().double(), r"m' .*'0\.bias' has dtype torch\.float32 in the file and torch\.")
    with safe_open(str(path), framework="pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        metadata = {"gflowout": file.metadata()["gflowout"]}
    key = "gflowout.likelihood.log_variance"
    save_file(tensors | {key: tensors[key].long()}, path, metadata=metadata)
    refuse(path, net(), r"m' .*log_variance' has dtype torch\.int64 in the file and torch\.float32")


def test_every_error_names_the_file(path: Path) -> None:
    name = re.escape(repr(str(path)))
    shorter = nn.Sequential(*list(net())[:3])
    refuse(path, shorter, f"which reads site '2' of {name}")
    taken = net()
    taken.gflowout = 3
    refuse(path, taken, f"{name} does not fit the backbone .* attribute 'gflowout'")
    with safe_open(str(path), framework="pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        config = file.metadata()["gflowout"]
    nested = config.replace('"options": {', '"options": {"x": ' + "[" * 900 + "]" * 900 + ", ")
    for text in ('{"format": ' + "9" * 5000 + "}", nested, '{"format": "' + "x" * 10**6 + '"}'):
        save_file(tensors, path, metadata={"gflowout": text})
        refuse(path, net(), name)
        with pytest.raises(ValueError, match=name) as raised:
            gfo.load(path, net())
        assert len(str(raised.value)) < 800


def test_deep_json_and_a_huge_header_are_refused(path: Path) -> None:
    with safe_open(str(path), framework="pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    save_file(tensors, path, metadata={"gflowout": "[" * 100_000})
    refuse(path, net(), "damaged configuration")
    save_file(tensors, path, metadata={"gflowout": "[1]"})
    refuse(path, net(), "format version None")
    path.write_bytes(struct.pack("<Q", 2**62) + b"{}")
    refuse(path, net(), "truncated or not a safetensors file")


def test_a_pickle_is_never_executed(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "executed"),))

    bomb = tmp_path / "bomb"
    bomb.write_bytes(pickle.dumps(Bomb()))
    refuse(bomb, net(), "truncated or not a safetensors file")
    torch.save({"x": Bomb()}, bomb)
    refuse(bomb, net(), "truncated or not a safetensors file")
    assert not (tmp_path / "executed").exists()
