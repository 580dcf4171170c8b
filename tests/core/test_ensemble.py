"""Deep ensembles: pooling, training side by side, files, and members that do not fit together."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.testing import assert_close
from training_loop import descend

import gflowout as gfo
from gflowout.methods import METHODS

OPTIONS: dict[str, dict[str, Any]] = {
    name: {"train_size": 40}
    for name, method in METHODS.items()
    if hasattr(method.Options, "train_size")
}


def net(width: int = 8, outputs: int = 3) -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, outputs)
    )


def model_of(
    method: str, likelihood: gfo.Likelihood | None = None, width: int = 8, outputs: int = 3
) -> gfo.MaskedModel:
    return gfo.wrap(
        net(width, outputs),
        method,
        ["2"],
        likelihood=likelihood or gfo.Categorical(3),
        example=(torch.zeros(2, 4),),
        **OPTIONS.get(method, {}),
    )


def ensemble_of(*methods: str) -> gfo.Ensemble:
    torch.manual_seed(0)
    return gfo.Ensemble([model_of(method) for method in methods])


def batch(examples: int = 16) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(1)
    return torch.randn(examples, 4, generator=source), torch.arange(examples) % 3


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def state(module: nn.Module) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in module.state_dict().items()}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


class TestPooling:
    def test_mean_and_log_prob_are_averages_over_the_networks(self) -> None:
        x, y = batch()
        torch.manual_seed(0)
        nets = [net().eval() for _ in range(3)]
        ensemble = gfo.Ensemble(nets, likelihood=gfo.Categorical(3), example=(x[:2],))
        by_hand = torch.stack([one(x).softmax(-1) for one in nets]).mean(0).detach()
        pred = ensemble.predict(x)
        assert pred.samples.shape == (3, 16, 3)
        assert_close(pred.mean, by_hand)
        assert_close(pred.log_prob(y), by_hand[torch.arange(16), y].log())

    @pytest.mark.parametrize("method", METHODS)
    def test_every_kind_of_member_gives_its_own_draws(self, method: str) -> None:
        x, _ = batch()
        ensemble = ensemble_of(method, method)
        pred = ensemble.predict(x, samples=6, generator=seeded())
        source = seeded()
        parts = [one.predict(x, samples=3, generator=source) for one in ensemble.members]
        # Not to the last digit: several threads share a larger batch otherwise.
        assert_close(pred.samples, torch.cat([part.samples for part in parts]))

    def test_an_ensemble_of_one_is_its_member(self) -> None:
        x, _ = batch()
        ensemble = ensemble_of("mc")

        def unseeded() -> None:
            torch.manual_seed(3)

        for source in (unseeded, seeded):
            both = [one.predict(x, generator=source()) for one in (ensemble, ensemble.members[0])]
            assert torch.equal(both[0].samples, both[1].samples)

    @pytest.mark.parametrize(("samples", "each"), [(1, 1), (6, 2), (7, 3), (None, 7)])
    def test_members_weigh_the_same(self, samples: int | None, each: int) -> None:
        x, _ = batch()
        ensemble = ensemble_of("mc", "none", "gflowout")
        pred = ensemble.predict(x, samples=samples)
        assert len(pred.samples) == 3 * each
        of_none = pred.samples[each : 2 * each]
        assert_close(of_none, ensemble.members[1].predict(x, samples=each).samples)

    def test_networks_without_draws_answer_once_each(self) -> None:
        x, _ = batch()
        ensemble = ensemble_of("none", "none")
        assert len(ensemble.predict(x).samples) == 2
        more = ensemble.predict(x, samples=20)
        assert len(more.samples) == 20
        assert_close(more.mean, ensemble.predict(x).mean)

    def test_copies_do_not_disagree_and_different_networks_do(self) -> None:
        x, _ = batch()
        torch.manual_seed(0)
        one = model_of("none")
        alike = gfo.Ensemble([one, copy.deepcopy(one), copy.deepcopy(one)])
        assert_close(alike.predict(x).mutual_information(), torch.zeros(16), atol=1e-6, rtol=0)
        assert (ensemble_of("none", "none").predict(x).mutual_information() > 1e-6).all()

    def test_members_draw_different_masks(self) -> None:
        x, _ = batch()
        torch.manual_seed(0)
        one = model_of("mc")
        twins = gfo.Ensemble([one, copy.deepcopy(one)])
        masks = twins.predict(x, samples=2, return_masks=True).masks
        assert masks is not None
        assert not torch.equal(masks[0][0], masks[0][1])

    def test_gaussian_members_keep_their_own_noise(self) -> None:
        x, _ = batch()
        noises = [0.5, 2.0]
        members = [model_of("none", gfo.Gaussian(3, noise=noise)) for noise in noises]
        members.append(model_of("none", gfo.Gaussian(3, heteroscedastic=True), outputs=6))
        pred = gfo.Ensemble(members).predict(x)
        means, variances = [], []
        for member, noise in zip(members, [*noises, None], strict=True):
            out = member.eval().backbone(x).detach()
            means.append(out[:, :3])
            variances.append(out[:, 3:].exp() if noise is None else torch.full((16, 3), noise**2))
        y = torch.randn(16, 3)
        parts = [
            torch.distributions.Normal(mean, variance.sqrt()).log_prob(y).sum(-1)
            for mean, variance in zip(means, variances, strict=True)
        ]
        expected = torch.stack(parts).exp().mean(0).log()
        assert_close(pred.log_prob(y), expected, atol=1e-5, rtol=1e-5)
        assert_close(pred.aleatoric_variance(), torch.stack(variances).mean(0))
        assert_close(pred.epistemic_variance(), torch.stack(means).var(0, correction=0))

    def test_a_seed_gives_one_answer_whatever_the_chunk(self) -> None:
        x, _ = batch()
        ensemble = ensemble_of("mc", "gflowout", "id-gflowout")
        first = ensemble.predict(x, samples=9, generator=seeded(), chunk=1).samples
        for chunk in (2, 3, None):
            again = ensemble.predict(x, samples=9, generator=seeded(), chunk=chunk).samples
            assert_close(again, first)
        assert not torch.equal(ensemble.predict(x, samples=9, generator=seeded(1)).samples, first)

    def test_prediction_changes_nothing(self) -> None:
        x, _ = batch()
        ensemble = ensemble_of("mc", "gflowout")
        ensemble.members[0].eval()
        modes = [module.training for module in ensemble.modules()]
        before, rng = state(ensemble), torch.get_rng_state()
        first = ensemble.predict(x, generator=seeded()).samples
        assert torch.equal(ensemble.predict(x, generator=seeded()).samples, first)
        assert torch.equal(torch.get_rng_state(), rng)
        assert same(state(ensemble), before)
        assert [module.training for module in ensemble.modules()] == modes

    def test_masks_can_be_replayed(self) -> None:
        x, _ = batch()
        ensemble = ensemble_of("mc", "gflowout", "none")
        pred = ensemble.predict(x, samples=6, return_masks=True)
        assert pred.masks is not None
        assert [list(mask.shape) for mask in pred.masks] == [[6, 16, 8]]
        assert_close(ensemble.predict(x, masks=pred.masks).samples, pred.samples)
        with pytest.raises(ValueError, match="samples is 3, but masks holds 6"):
            ensemble.predict(x, masks=pred.masks, samples=3)
        with pytest.raises(ValueError, match="a multiple of the 3 members, got \\[4, 16, 8\\]"):
            ensemble.predict(x, masks=[pred.masks[0][:4]])

    @pytest.mark.parametrize("method", METHODS)
    def test_masks_of_every_method_can_be_replayed(self, method: str) -> None:
        x, _ = batch()
        ensemble = ensemble_of(method, method)
        pred = ensemble.predict(x, samples=4, return_masks=True)
        assert_close(ensemble.predict(x, masks=pred.masks).samples, pred.samples)

    def test_masks_of_different_sizes_are_not_pooled(self) -> None:
        x, _ = batch()
        ensemble = ensemble_of("mc", "mc")
        ensemble.members[1].method.mask_parts = 2
        with pytest.raises(
            ValueError, match=r"but member 0 has {'2': 8} and member . has {'2': 16}"
        ):
            ensemble.predict(x, return_masks=True)

    def test_keyword_inputs_pass_through(self) -> None:
        x, y = batch()
        ensemble = ensemble_of("none", "none")
        assert torch.equal(ensemble.predict(input=x).samples, ensemble.predict(x).samples)
        assert torch.equal(ensemble(input=x, y=y).total, ensemble(x, y=y).total)


class TestBareMembers:
    def test_a_model_without_sites_is_its_module(self) -> None:
        x, y = batch()
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(4, 64), nn.Dropout(0.5), nn.Linear(64, 3))
        model = gfo.wrap(module, "none", (), likelihood=gfo.Categorical(3), example=(x[:2],))
        assert model.sites == ()
        # The module's own dropout acts in training, as in any module, and not in prediction.
        assert not torch.equal(model(x), model(x))
        pred = model.predict(x, samples=2, return_masks=True)
        assert pred.masks == []
        assert_close(pred.mean, module.eval()(x).softmax(-1).detach())
        assert_close(model.predict(x, masks=[]).mean, pred.mean)
        losses = model(x, y=y)
        assert losses.masks == []
        assert_close(losses.nll, nn.functional.cross_entropy(module(x), y))

    @pytest.mark.parametrize("method", sorted(set(METHODS) - {"none"}))
    def test_other_methods_need_a_site(self, method: str) -> None:
        with pytest.raises(ValueError, match="sites is empty"):
            gfo.wrap(net(), method, (), likelihood=gfo.Categorical(3), example=(torch.zeros(2, 4),))

    def test_bare_and_wrapped_members_mix(self) -> None:
        x, _ = batch()
        likelihood = gfo.Gaussian(3)
        members = [net(), model_of("mc", gfo.Gaussian(3)), net()]
        ensemble = gfo.Ensemble(members, likelihood=likelihood, example=(x[:2],))
        ensemble(x, y=torch.randn(16, 3)).total.backward()
        noises = [member.likelihood.log_variance for member in ensemble.members]
        assert len({id(noise) for noise in noises}) == 3
        assert likelihood.log_variance.grad is None
        with pytest.raises(ValueError, match=r"masks can be pooled only if .* member 0 has {} "):
            ensemble.predict(x, return_masks=True)


class TestTraining:
    def test_the_total_is_the_sum_and_parts_are_found_with_the_members(self) -> None:
        x, y = batch()
        ensemble = ensemble_of("gflowout", "mc")
        losses = ensemble(x, y=y)
        assert isinstance(losses, gfo.EnsembleLosses)
        for name in ("total", "nll", "tb", "prior"):
            parts = [getattr(one, name) for one in losses.members]
            assert_close(getattr(losses, name), parts[0] + parts[1])
        assert losses.members[0].log_q.shape == (16,)

    def test_without_labels_the_output_is_the_mean_of_the_members(self) -> None:
        x, _ = batch()
        ensemble = ensemble_of("none", "none").eval()
        outputs = [member.backbone(x) for member in ensemble.members]
        assert_close(ensemble(x), torch.stack(outputs).mean(0))

    @pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.Adam])
    def test_side_by_side_is_one_after_the_other(
        self, optimiser: Callable[[Any], torch.optim.Optimizer]
    ) -> None:
        x, y = batch(48)
        together = ensemble_of("none", "none", "none")
        apart = copy.deepcopy(together)
        order = torch.randperm(48, generator=seeded()).split(12) * 3
        step = optimiser(together.parameter_groups(lr=0.02))
        for rows in order:
            step.zero_grad()
            together(x[rows], y=y[rows]).total.backward()
            step.step()
        for member in apart.members:
            step = optimiser(member.parameter_groups(lr=0.02))
            for rows in order:
                step.zero_grad()
                member(x[rows], y=y[rows]).total.backward()
                step.step()
        assert not same(state(together), state(ensemble_of("none", "none", "none")))
        assert same(state(together), state(apart))

    def test_side_by_side_with_masks_equals_taking_turns(self) -> None:
        """The members draw from one random state in turn: so do separate optimisers in turn."""
        x, y = batch()
        together = ensemble_of(*METHODS)
        apart = copy.deepcopy(together)
        step = torch.optim.Adam(together.parameter_groups(lr=0.02))
        torch.manual_seed(5)
        descend(together, x, y, step, 4)
        steps = [torch.optim.Adam(one.parameter_groups(lr=0.02)) for one in apart.members]
        torch.manual_seed(5)
        for _ in range(4):
            for member, alone in zip(apart.members, steps, strict=True):
                alone.zero_grad()
                member(x, y=y).total.backward()
                alone.step()
        assert same(state(together), state(apart))

    def test_parameter_groups_hold_every_parameter_once(self) -> None:
        ensemble = ensemble_of("mc", "combined", "none")
        groups = ensemble.parameter_groups(lr=0.1, generator_lr=0.2, weight_decay=0.3)
        assert {group["name"]: group["lr"] for group in groups} == {
            "backbone": 0.1,
            "generator": 0.2,
            "log_z": 0.01,
        }
        held = [id(parameter) for group in groups for parameter in group["params"]]
        assert sorted(held) == sorted(id(parameter) for parameter in ensemble.parameters())

    def test_on_digits_the_ensemble_beats_its_members_mean(self) -> None:
        images, labels = load_digits(return_X_y=True)
        x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)

        def build() -> nn.Module:
            hidden = [nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU()]
            return nn.Sequential(*hidden, nn.Linear(32, 10))

        ensemble = gfo.Ensemble.of(build, likelihood=gfo.Categorical(10), example=(x[:2],))
        step = torch.optim.Adam(ensemble.parameter_groups(lr=1e-2), fused=True)
        for rows in torch.arange(300).split(100) * 40:
            step.zero_grad()
            ensemble(x[rows], y=y[rows]).total.backward()
            step.step()
        x, y = x[300:], y[300:]
        pred = ensemble.predict(x)
        alone = [member.predict(x, samples=1) for member in ensemble.members]
        nll = -pred.log_prob(y)
        nlls = torch.stack([-one.log_prob(y) for one in alone])
        # Jensen: -log of a mean is at most the mean of -log, image by image.
        assert (nll <= nlls.mean(0) + 1e-5).all()
        assert nll.mean() < 0.9 * nlls.mean()
        right = [(one.mean.argmax(-1) == y).float().mean() for one in (pred, *alone)]
        assert right[0] > torch.stack(right[1:]).mean()


class TestOf:
    def build(self) -> nn.Module:
        return net()

    def test_members_differ_and_follow_the_seed(self) -> None:
        rng = torch.get_rng_state()
        make = lambda seed: gfo.Ensemble.of(  # noqa: E731
            self.build,
            3,
            method="gflowout",
            sites=["2"],
            likelihood=gfo.Gaussian(3),
            example=(torch.zeros(2, 4),),
            prior_keep=0.8,
            seed=seed,
        )
        one, again, other = make(0), make(0), make(1)
        assert torch.equal(torch.get_rng_state(), rng)
        assert same(state(one), state(again))
        weights = [member.backbone[0].weight for made in (one, other) for member in made.members]
        for at, weight in enumerate(weights):
            assert not any(torch.equal(weight, rest) for rest in weights[at + 1 :])
        assert one.members[2].method.options.prior_keep == 0.8
        assert one.members[0].likelihood is not one.members[1].likelihood

    def test_a_network_or_one_built_once_is_refused(self) -> None:
        fixed = net()
        options: Any = {"likelihood": gfo.Categorical(3), "example": (torch.zeros(2, 4),)}
        with pytest.raises(TypeError, match=r"build must be a function .* got Sequential"):
            gfo.Ensemble.of(fixed, **options)
        with pytest.raises(ValueError, match="members 0 and 1 share the same module"):
            gfo.Ensemble.of(lambda: fixed, **options)
        with pytest.raises(ValueError, match="members must be an integer >= 1"):
            gfo.Ensemble.of(net, 0, **options)
        with pytest.raises(ValueError, match="sites is empty"):
            gfo.Ensemble.of(net, method="mc", **options)


class TestErrors:
    def refuse(self, members: Any, error: type[Exception], match: str, **options: Any) -> None:
        with pytest.raises(error, match=match):
            gfo.Ensemble(members, **options)

    def test_what_is_no_list_of_models(self) -> None:
        self.refuse([], ValueError, "members is empty")
        self.refuse(model_of("mc"), TypeError, "must be a list of models, got MaskedModel")
        self.refuse(net(), TypeError, "must be a list of models, got Sequential")
        self.refuse(3, TypeError, "must be a list of models, got int")
        self.refuse([model_of("mc"), "mc"], TypeError, "member 1 must be .* got str")
        self.refuse([ensemble_of("mc")], TypeError, "member 0 is an Ensemble: pass its members")
        self.refuse([net()], TypeError, "member 0 is a bare Sequential: give likelihood= and")
        self.refuse([net()], TypeError, "give likelihood= and", likelihood=gfo.Categorical(3))

    def test_different_likelihoods(self) -> None:
        mc = model_of("mc")
        for other in (gfo.MultiLabel(3), gfo.Gaussian(3), gfo.Categorical(3, ignore_index=-1)):
            self.refuse([mc, model_of("mc", other)], ValueError, "member 0 and .* for member 1")
        wider = model_of("mc", gfo.Categorical(4), outputs=4)
        self.refuse(
            [mc, wider], ValueError, r"Categorical\(classes=3\) .* Categorical\(classes=4\)"
        )

    def test_shared_weights(self) -> None:
        one, other = model_of("mc"), model_of("mc")
        self.refuse([one, one], ValueError, "members 0 and 1 share the same module")
        again = gfo.wrap(
            one.backbone,
            "none",
            ["2"],
            likelihood=gfo.Categorical(3),
            example=(torch.zeros(2, 4),),
        )
        self.refuse([other, one, again], ValueError, "members 1 and 2 share the same module")
        other.backbone[3].weight = one.backbone[3].weight
        self.refuse([one, other], ValueError, r"members 0 and 1 share 'backbone\.3\.weight'")
        noise = gfo.Gaussian(3)
        pair = [model_of("mc", noise), model_of("mc", noise)]
        self.refuse(pair, ValueError, "share 'likelihood.log_variance'")

    def test_a_frozen_part_may_be_shared(self) -> None:
        trunk = nn.Linear(4, 8).requires_grad_(False)
        nets = [nn.Sequential(trunk, nn.Linear(8, 3)) for _ in range(2)]
        x, y = batch()
        ensemble = gfo.Ensemble(nets, likelihood=gfo.Categorical(3), example=(x[:2],))
        ensemble(x, y=y).total.backward()

    def test_different_output_shapes(self) -> None:
        x = torch.zeros(2, 4)
        flat = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
        nets = [nn.Linear(4, 1), flat]
        ensemble = gfo.Ensemble(nets, likelihood=gfo.Binary(), example=(x,))
        with pytest.raises(ValueError, match=r"\[2, 1\] from member 0 and \[2\] from member 1"):
            ensemble.predict(x)

    def test_bad_arguments_of_predict(self) -> None:
        ensemble = ensemble_of("mc", "mc")
        x, _ = batch()
        with pytest.raises(ValueError, match="samples must be an integer >= 1, got 0"):
            ensemble.predict(x, samples=0)
        with pytest.raises(ValueError, match="chunk must be an integer >= 1, got 0"):
            ensemble.predict(x, chunk=0)
        with pytest.raises(TypeError, match=r"generator must be a torch\.Generator"):
            ensemble.predict(x, generator=3)  # type: ignore[arg-type]


class TestState:
    def test_state_dict_has_the_members_own_keys(self) -> None:
        ensemble, other = (
            ensemble_of("gflowout", "none"),
            gfo.Ensemble([model_of("gflowout"), model_of("none")]),
        )
        keys = ensemble.state_dict().keys()
        assert "members.1.0.weight" in keys
        assert any(key.startswith("members.0.gflowout.method.") for key in keys)
        other.load_state_dict(ensemble.state_dict())
        assert same(state(other), state(ensemble))

    @pytest.mark.parametrize("method", METHODS)
    def test_copies_and_pickles_predict_the_same(self, method: str) -> None:
        x, y = batch()
        ensemble = ensemble_of(method, "none")
        first = ensemble.predict(x, generator=seeded()).samples
        for other in (copy.deepcopy(ensemble), pickle.loads(pickle.dumps(ensemble))):
            assert torch.equal(other.predict(x, generator=seeded()).samples, first)
            other(x, y=y).total.backward()
        assert all(parameter.grad is None for parameter in ensemble.parameters())


def refuse(path: Path, backbones: list[nn.Module], match: str) -> None:
    """Loading fails with a message and every backbone is as it was."""
    before = [state(backbone) for backbone in backbones]
    with pytest.raises(ValueError, match=match):
        gfo.load(path, backbones)
    assert all(same(state(one), was) for one, was in zip(backbones, before, strict=True))


def rewrite(path: Path, change: Callable[[Any, dict[str, Tensor]], None]) -> None:
    """Write the file again with a changed configuration and changed tensors."""
    with safe_open(str(path), framework="pt") as file:
        config = json.loads(file.metadata()["gflowout"])
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    change(config, tensors)
    save_file(tensors, path, metadata={"gflowout": json.dumps(config)})


class TestFiles:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        gfo.save(ensemble_of("mc", "gflowout", "none"), tmp_path / "m")
        return tmp_path / "m"

    @pytest.mark.parametrize(
        "methods", [["mc", "gflowout", "none"], ["id-gflowout", "id-gflowout"], ["none"]]
    )
    @pytest.mark.parametrize("factory", [True, False])
    def test_a_loaded_ensemble_is_the_saved_one(
        self, methods: list[str], factory: bool, tmp_path: Path
    ) -> None:
        x, y = batch()
        ensemble = ensemble_of(*methods)
        ensemble(x, y=y).total.backward()
        gfo.save(ensemble, tmp_path / "m")
        rng = torch.get_rng_state()
        loaded = gfo.load(tmp_path / "m", net) if factory else None
        assert torch.equal(torch.get_rng_state(), rng)
        loaded = loaded or gfo.load(tmp_path / "m", [net() for _ in methods])
        assert isinstance(loaded, gfo.Ensemble)
        assert same(state(loaded), state(ensemble))
        first, again = (one.predict(x, generator=seeded()).samples for one in (ensemble, loaded))
        assert torch.equal(first, again)
        for one, other in zip(loaded.members, ensemble.members, strict=True):
            assert one.method.options == other.method.options
            assert one.sites == other.sites
        assert [entry.name for entry in tmp_path.iterdir()] == ["m"]

    def test_members_without_sites_are_saved(self, tmp_path: Path) -> None:
        x, _ = batch()
        nets = [nn.Linear(4, 3), net()]
        ensemble = gfo.Ensemble(nets, likelihood=gfo.Gaussian(3), example=(x[:2],)).eval()
        gfo.save(ensemble, tmp_path / "m")
        loaded = gfo.load(tmp_path / "m", [nn.Linear(4, 3), net()])
        assert torch.equal(loaded.predict(x).outputs, ensemble.predict(x).outputs)

    def test_a_model_and_an_ensemble_are_not_confused(self, path: Path, tmp_path: Path) -> None:
        backbone = net()
        with pytest.raises(ValueError, match="holds an ensemble of 3 models: pass a list of 3"):
            gfo.load(path, backbone)
        gfo.save(model_of("mc"), tmp_path / "one")
        refuse(tmp_path / "one", [backbone], "holds one model: pass one backbone")
        with pytest.raises(ValueError, match="holds one model: pass one backbone"):
            gfo.load(tmp_path / "one", net)

    def test_backbones_that_do_not_fit_leave_all_unchanged(self, path: Path) -> None:
        refuse(path, [net(), net()], "ensemble of 3 models, got 2 backbones")
        refuse(path, [], "ensemble of 3 models, got 0 backbones")
        wrong = r"member 2 of .* does not fit .* '0\.bias' has shape \[8\] in the file and \[9\]"
        refuse(path, [net(), net(), net(9)], wrong)
        refuse(path, [net(), net(), nn.Linear(4, 3)], "no submodule '2', which is a site of member")
        twice = net()
        refuse(path, [twice, net(), twice], "members 0 and 2 share the same module")
        fixed = net()
        before = state(fixed)
        with pytest.raises(ValueError, match="share the same module"):
            gfo.load(path, lambda: fixed)
        assert same(state(fixed), before)
        with pytest.raises(TypeError, match=r"bare nn\.Module, got MaskedModel"):
            gfo.load(path, [net(), net(), model_of("mc")])
        with pytest.raises(TypeError, match=r"bare nn\.Module, got str"):
            gfo.load(path, lambda: "net")  # type: ignore[arg-type, return-value]
        with pytest.raises(TypeError, match=r"bare nn\.Module, got int"):
            gfo.load(path, 3)  # type: ignore[call-overload]

    @pytest.mark.parametrize("size", [0, 100, -1])
    def test_a_truncated_file_is_named(self, path: Path, size: int) -> None:
        path.write_bytes(path.read_bytes()[:size])
        refuse(path, [net(), net(), net()], "truncated or not a safetensors file")

    @pytest.mark.parametrize(
        ("change", "match"),
        [
            (lambda config, _: config.update(members=[]), "damaged configuration"),
            (lambda config, _: config.update(members="all"), "damaged configuration"),
            (lambda config, _: config["members"].pop(), "'members.2.*is of no member"),
            (lambda config, _: config["members"].append(1), "ensemble of 4 models, got 3"),
            (lambda config, _: config["members"][2].clear(), "member 2 of .*damaged"),
            (lambda config, _: config["members"].__setitem__(1, 7), "member 1 of .*damaged"),
            (
                lambda config, _: config["members"][0].update(method="os.system"),
                "member 0 .*not registered",
            ),
            (lambda config, _: config["members"][0].update(sites=[]), "there are no sites"),
            (lambda _, tensors: tensors.pop("members.2.0.bias"), "member 2 .* lacks 1 tensors"),
            (lambda _, tensors: tensors.update(x=torch.zeros(1)), "tensor 'x', which is of no"),
            (
                lambda config, _: config["members"][2].update(
                    likelihood="MultiLabel", likelihood_options={"labels": 3}
                ),
                "members must have one likelihood",
            ),
        ],
    )
    def test_a_hostile_file_is_refused(self, path: Path, change: Any, match: str) -> None:
        rewrite(path, change)
        refuse(path, [net(), net(), net()], match)
