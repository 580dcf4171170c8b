"""Method objects: a method with its options, in place of a name and keywords."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import json
import pickle
from pathlib import Path
from statistics import NormalDist
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn
from zoo import needed, predicted

import gflowout as gfo
from gflowout.core import policy
from gflowout.core.likelihoods import Likelihood
from gflowout.core.method import Losses, Method, Options, Score, likelihood_losses
from gflowout.core.trajectory import Trajectory
from gflowout.core.wrap import chosen
from gflowout.methods import METHODS

OPTIONS: dict[str, dict[str, Any]] = {
    "gflowout": {"beta": 0.5, "hidden": (8,)},
    "id-gflowout": {"train_size": 40, "draws": 2},
    "combined": {"train_size": 40, "draws": 2},
    "mc": {"rescale": "kept"},
    "concrete": {"train_size": 40, "per_unit": True},
    "contextual": {"family": "gaussian"},
    "variational": {"train_size": 40, "per_unit": True},
    "gates": {"strength": 0.01},
    "masksembles": {"members": 3},
    "modes": {"modes": 3},
    "none": {},
}
KEEP = {
    "gflowout": {"prior_keep": 0.8},
    "id-gflowout": {"prior_keep": 0.8},
    "combined": {"prior_keep": 0.8**0.5},
    "mc": {"rate": 0.2},
    "concrete": {"rate": 0.2},
    "contextual": {"prior_keep": 0.8},
    "variational": {"alpha": 0.25},
    "gates": {"start": NormalDist(0, 0.5).inv_cdf(0.8)},
    "modes": {"rate": 0.2},
}
every_method = pytest.mark.parametrize("method", METHODS)


def wrapped(method: Any, **options: Any) -> gfo.MaskedModel:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    likelihood, example = gfo.Categorical(3), (torch.zeros(2, 4),)
    return gfo.wrap(net, method, ["1"], likelihood=likelihood, example=example, **options)


def test_every_method_is_in_the_tables() -> None:
    assert OPTIONS.keys() == METHODS.keys()
    assert KEEP.keys() == METHODS.keys() - {"masksembles", "none"}


@every_method
def test_an_object_is_the_name_with_its_options(method: str) -> None:
    kind, options = METHODS[method].Options, OPTIONS[method]
    assert getattr(gfo, kind.ALIAS) is kind
    assert kind.ALIAS in gfo.__all__
    by_object, by_name = wrapped(kind(**options)), wrapped(method, **options)
    assert by_object.method.options == by_name.method.options == kind(**options)
    x = torch.randn(3, 4)
    assert torch.equal(predicted(by_object, x).outputs, predicted(by_name, x).outputs)


@every_method
def test_repr_has_the_values_that_are_not_defaults_and_reads_back(method: str) -> None:
    kind = METHODS[method].Options
    assert repr(kind()) == f"{kind.ALIAS}()"
    given = kind(**OPTIONS[method])
    names = ", ".join(f"{name}={value!r}" for name, value in vars(given).items()
                      if value != getattr(kind(), name))  # fmt: skip
    assert repr(given) == f"{kind.ALIAS}({names})"
    assert eval(repr(given), vars(gfo)) == given


@every_method
def test_presets_are_those_of_wrap_and_what_is_given_goes_before(method: str) -> None:
    kind = METHODS[method].Options
    for preset, values in kind.PRESETS.items():
        assert (
            kind(preset=preset) == kind(**values) == wrapped(method, preset=preset).method.options
        )
        for name in values:  # also a value that happens to be the default
            default = getattr(kind(), name)
            if name not in ("log_z", "draws"):
                assert getattr(kind(preset=preset, **{name: default}), name) == default
    with pytest.raises(ValueError, match="preset must be one of 'paper'"):
        kind(preset="papers")


@pytest.mark.parametrize("method", KEEP)
def test_keep_is_the_rate_in_the_terms_of_the_method(method: str) -> None:
    kind = METHODS[method].Options
    (name, value), *_ = KEEP[method].items()
    for options in (kind(keep=0.8), wrapped(method, keep=0.8).method.options):
        assert getattr(options, name) == pytest.approx(value)
        assert dataclasses.replace(options, **{name: getattr(kind(), name)}) == kind()
    with pytest.raises(TypeError, match=rf"got keep=0.8 and {name}=0.5.*give one of them"):
        kind(keep=0.8, **{name: 0.5})
    with pytest.raises(TypeError, match=f"method '{method}' got keep=0.8 and {name}=0.5"):
        wrapped(method, keep=0.8, **{name: 0.5})
    for wrong in (0, 1.5, -1):
        with pytest.raises(ValueError, match="keep must be a number"):
            kind(keep=wrong)
    with pytest.raises(TypeError, match="keep must be a number"):
        kind(keep="0.8")


@pytest.mark.parametrize("method", sorted(KEEP.keys() - {"modes", "variational"}))
def test_units_are_kept_at_the_rate_of_keep(method: str) -> None:
    model = wrapped(method, keep=0.8, **needed(method))
    pred = predicted(model, torch.randn(500, 4), samples=50, return_masks=True)
    assert pred.masks is not None
    # Of 50 * 8 draws of a unit at least: 5 standard deviations.
    assert (pred.masks[0] > 0).float().mean().item() == pytest.approx(0.8, abs=5 * 0.02)


def test_gates_start_where_their_noise_gives_the_keep_rate() -> None:
    assert gfo.Gates(keep=0.3, noise=2.0).start == pytest.approx(NormalDist(0, 2).inv_cdf(0.3))


@pytest.mark.parametrize("method", ["masksembles", "none"])
def test_methods_without_a_rate_have_no_keep(method: str) -> None:
    with pytest.raises(TypeError, match="has no option 'keep'"):
        METHODS[method].Options(keep=0.5)


def test_keep_can_change_after_wrapping_where_the_rate_can() -> None:
    model = wrapped("mc", rate=0.5)
    model.set_options(keep=0.9)
    assert model.method.options == gfo.MC(rate=0.1)
    with pytest.raises(ValueError, match="prior_keep is fixed by wrap"):
        wrapped("gflowout").set_options(keep=0.5)


@every_method
def test_a_preset_is_no_option_that_can_be_set_later(method: str) -> None:
    model = wrapped(method)
    with pytest.raises(TypeError, match=f"method '{method}' has no option 'preset'"):
        model.set_options(preset="paper")


def test_an_object_and_keywords_are_an_error_that_says_what_to_do() -> None:
    with pytest.raises(
        TypeError, match=r"beta=2 was given beside .*put it into .*GFlowOut\(beta=2"
    ):
        wrapped(gfo.GFlowOut(), beta=2)
    with pytest.raises(TypeError, match=r"preset='paper' was given beside"):
        wrapped(gfo.GFlowOut(beta=0.5), preset="paper")
    with pytest.raises(TypeError, match=r"got the class MCDropoutOptions: take gfo.MC\(\)"):
        wrapped(gfo.MC)
    with pytest.raises(TypeError, match=r"got the class GFlowOut: take gfo.GFlowOut\(\)"):
        wrapped(METHODS["gflowout"])
    with pytest.raises(TypeError, match=r"GFlowOut has no option 'betas'.*did you mean 'beta'"):
        gfo.GFlowOut(betas=1)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="beta must be a number"):
        gfo.GFlowOut(beta=-1)


@every_method
def test_objects_are_copied_pickled_compared_and_shown(method: str) -> None:
    kind = METHODS[method].Options
    given = kind(**OPTIONS[method])
    assert pickle.loads(pickle.dumps(given)) == copy.deepcopy(given) == dataclasses.replace(given)
    assert hash(given) == hash(kind(**OPTIONS[method]))
    names = [field.name for field in dataclasses.fields(kind)]
    assert list(inspect.signature(kind).parameters) == [*names, *kind.keywords()]
    assert not {"preset", "keep"} & dataclasses.asdict(given).keys()  # nothing new in files
    with pytest.raises(dataclasses.FrozenInstanceError):
        given.anything = 1  # type: ignore[attr-defined]


@dataclasses.dataclass(frozen=True)
class OwnOptions(Options):
    rate: float = 0.2


class Own(Method):
    name = "own"
    Options = OwnOptions

    def __init__(self, sites: Any, likelihood: Likelihood, options: Any) -> None:
        super().__init__(sites, likelihood, options)

    def draw(self, site: int, activation: torch.Tensor, trajectory: Trajectory) -> torch.Tensor:
        rows, units = trajectory.batch, self.sites[site].units
        keep = 1 - self.options.rate
        return trajectory.mask(
            site, lambda: policy.bernoulli(trajectory.noise, keep, rows, units, activation)
        )

    def step(self, score: Score) -> Losses:
        return likelihood_losses(score(self.draw))


def test_methods_of_ones_own_have_objects_once_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="OwnOptions, which is of no registered method"):
        wrapped(OwnOptions(rate=0.5))
    monkeypatch.setitem(METHODS, "own", Own)
    assert chosen(OwnOptions(rate=0.5), None, {}) == (Own, OwnOptions(rate=0.5))
    assert wrapped(OwnOptions(rate=0.5)).method.name == "own"


def test_ensembles_take_objects() -> None:
    ensemble = gfo.Ensemble.of(
        lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), 2,
        method=gfo.MC(keep=0.7), sites=["1"], likelihood=gfo.Categorical(3),
        example=(torch.zeros(2, 4),),
    )  # fmt: skip
    assert [member.method.options.rate for member in ensemble.members] == [0.3, 0.3]


class TestOldSpellings:
    def test_they_work_with_a_warning_that_names_the_callers_line(self) -> None:
        with pytest.warns(FutureWarning, match="noise of Contextual is now called family") as seen:
            options = gfo.Contextual(noise="gaussian")  # type: ignore[call-arg]
        assert options == gfo.Contextual(family="gaussian")
        assert [warning.filename for warning in seen] == [__file__]
        with pytest.warns(FutureWarning, match="noise of method 'contextual'") as seen:
            assert wrapped("contextual", noise="gaussian").method.options == options
        assert [warning.filename for warning in seen] == [__file__]

    def test_both_are_an_error(self) -> None:
        with pytest.raises(TypeError, match=r"got noise and family.*give family only"):
            gfo.Contextual(noise="gaussian", family="gaussian")  # type: ignore[call-arg]

    def test_saved_files_load_without_one(self, tmp_path: Path) -> None:
        model, path = wrapped("contextual", family="gaussian"), tmp_path / "model"
        gfo.save(model, path)
        with safe_open(path, framework="pt") as file:
            config = json.loads(file.metadata()["gflowout"])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        config["options"]["noise"] = config["options"].pop("family")
        save_file(tensors, path, {"gflowout": json.dumps(config)})
        loaded = gfo.load(path, copy.deepcopy(gfo.unwrap(model)))
        assert loaded.method.options == model.method.options
