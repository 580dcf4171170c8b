"""The mix-in for LightningModules of one's own, under a real Trainer."""

import warnings
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gflowout as gfo
from gflowout.integrations.lightning import MaskedMixin


class Plain(lightning.LightningModule):
    """A user's module: network, step, metrics and schedule of its own."""

    def __init__(self, width: int = 24, lr: float = 0.02) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.body = nn.ModuleDict({"net": nn.Sequential(nn.Linear(2, width), nn.ReLU())})
        self.head = nn.Linear(width, 3)
        self.net = nn.Sequential(self.body["net"], self.head)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("mine", nn.functional.cross_entropy(self(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        return torch.optim.Adam(self.parameters(), lr=self.hparams.lr)


class Masked(MaskedMixin, Plain):
    def __init__(
        self, method: str = "gflowout", width: int = 24, lr: float = 0.02, **more: Any
    ) -> None:
        super().__init__(width, lr)
        self.save_hyperparameters()
        self.add_masks(
            "net",
            method,
            ["0.1"],
            likelihood=gfo.Categorical(3),
            example=(torch.zeros(2, 2),),
            **more,
        )


def points(count: int = 300, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Three clusters on a circle."""
    source = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (count,), generator=source)
    angle = y * 2.0944
    centres = torch.stack((angle.cos(), angle.sin()), -1)
    return centres + 0.2 * torch.randn(count, 2, generator=source), y


def loader(count: int = 300, seed: int = 0, batch_size: int = 50) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*points(count, seed)), batch_size=batch_size)


def trainer(epochs: int = 8, **more: Any) -> lightning.Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    return lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", **{"enable_checkpointing": False, **quiet, **more}
    )


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        yield


@pytest.fixture(scope="module")
def trained() -> tuple[Masked, lightning.Trainer]:
    torch.manual_seed(0)
    module, runner = Masked(), trainer()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        runner.fit(module, loader(), loader(90, seed=1))
    return module, runner


def test_it_learns_and_logs_own_and_averaged_scores(trained: Any) -> None:
    module, runner = trained
    seen = {name: float(value) for name, value in runner.callback_metrics.items()}
    assert {"train/nll", "train/tb", "train/prior", "valid/nll", "mine"} <= seen.keys()
    assert seen["valid/accuracy"] > 0.95
    x, y = points(90, seed=1)
    pred = module.predict_step((x[:50], y[:50]), 0), module.predict_step((x[50:], y[50:]), 1)
    nll = -gfo.Predictive.join(pred).log_prob(y).mean()
    assert seen["valid/nll"] == pytest.approx(float(nll), abs=1e-5)
    assert seen["mine"] != pytest.approx(float(nll), abs=1e-5)  # one mask, not the average


def test_the_generators_are_trained(trained: Any) -> None:
    torch.manual_seed(0)
    before = dict(Masked().masked.method.named_parameters())
    after = dict(trained[0].masked.method.named_parameters())
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_trainer_predict_gives_uncertainty(trained: Any) -> None:
    module, _ = trained
    x, y = points(90, seed=2)
    with_labels = trainer().predict(module, loader(90, seed=2))
    without = trainer().predict(module, DataLoader(x, batch_size=50))
    assert all(isinstance(part, gfo.Predictive) for part in with_labels)
    pred = gfo.Predictive.join(with_labels)
    assert torch.equal(pred.samples, gfo.Predictive.join(without).samples)
    assert (pred.mean.argmax(-1) == y).float().mean() > 0.95
    assert len(pred.samples) == 20
    between = module.predict_step(torch.zeros(1, 2), 0)  # as far from all three clusters
    assert between.entropy() > pred.entropy().quantile(0.9)
    assert not torch.equal(with_labels[0].samples[:, :40], with_labels[1].samples)


def test_a_checkpoint_resumes_and_loads(tmp_path: Path) -> None:
    torch.manual_seed(1)
    module = Masked("id-gflowout", generator_lr=3e-3, log_z_lr=0.1)
    keeper = ModelCheckpoint(tmp_path, filename="one")
    trainer(1, callbacks=[keeper], enable_checkpointing=True).fit(module, loader())
    assert module.masked.method.options.train_size == 300
    loaded = Masked.load_from_checkpoint(tmp_path / "one.ckpt", weights_only=True)
    x = points()[0]
    assert torch.equal(loaded.predict_step(x, 0).samples, module.predict_step(x, 0).samples)
    second = trainer(2)
    second.fit(loaded, loader(), ckpt_path=tmp_path / "one.ckpt", weights_only=True)
    assert second.global_step == 12  # six of which were taken before
    assert not torch.equal(loaded.predict_step(x, 0).samples, module.predict_step(x, 0).samples)


def test_the_size_of_the_data_is_that_of_each_training() -> None:
    module, told = Masked("id-gflowout"), Masked("id-gflowout", train_size=77)
    for count in (100, 200):
        for each in (module, told):
            trainer(1).fit(each, loader(count))
        assert module.masked.method.options.train_size == count
        assert told.masked.method.options.train_size == 77


class Gated(nn.Module):
    """A network of two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(2, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, gate: torch.Tensor | None = None) -> torch.Tensor:
        h = torch.relu(self.body(x))
        return self.head(h if gate is None else h * gate)


def test_a_second_input_is_no_label() -> None:
    class Two(MaskedMixin):
        def __init__(self) -> None:
            super().__init__()
            self.net = Gated()
            example = (torch.zeros(2, 2), torch.ones(2, 8))
            self.add_masks("net", "mc", ["body"], likelihood=gfo.Categorical(3), example=example)

    module, (x, y) = Two(), points(20)
    gate = (torch.rand(20, 8) > 0.5).float()
    expected = module.predict_step((x, gate, y), 0).samples
    assert torch.equal(module.predict_step((x, gate), 0).samples, expected)
    assert torch.equal(module.predict_step({"x": x, "gate": gate}, 0).samples, expected)
    without = module.predict_step(x, 0).samples
    assert not torch.equal(without, expected)


def test_names_of_parameters_go_with_them() -> None:
    class Own(Plain):
        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.named_parameters(), lr=0.01)

    class Both(MaskedMixin, Own):
        def __init__(self) -> None:
            super().__init__()
            example = (torch.zeros(2, 2),)
            self.add_masks(
                "net",
                "gflowout",
                ["0.1"],
                likelihood=gfo.Categorical(3),
                example=example,
                generator_lr=1e-4,
            )

    module = Both()
    by_name = dict(module.named_parameters())
    groups = module.configure_optimizers().param_groups
    assert [group["lr"] for group in groups] == [0.01, 1e-4]
    for group in groups:
        assert len(group["params"]) == len(group["param_names"]) > 0
        for name, parameter in zip(group["param_names"], group["params"], strict=True):
            assert by_name[name] is parameter


def test_weights_of_the_plain_module_fit() -> None:
    plain, masked = Plain(), Masked("mc", rate=0.0)
    missing, unexpected = masked.load_state_dict(plain.state_dict(), strict=False)
    assert not unexpected
    assert not missing  # MC dropout has no parameters
    x = points()[0]
    assert torch.allclose(masked.predict_step(x, 0).mean, plain(x).softmax(-1), atol=1e-6)


@pytest.mark.parametrize("form", ["one", "schedule"])
def test_own_learning_rates_of_the_generators(form: str) -> None:
    class Scheduled(Masked):
        def configure_optimizers(self) -> Any:
            found = super().configure_optimizers()
            return found if form == "one" else {"optimizer": found}

    module = Scheduled(generator_lr=5e-4, log_z_lr=0.3)
    found = module.configure_optimizers()
    optimiser = found if form == "one" else found["optimizer"]
    rates = {
        id(parameter): group["lr"]
        for group in optimiser.param_groups
        for parameter in group["params"]
    }
    assert len(rates) == len(list(module.parameters()))
    for group in module.masked.parameter_groups(lr=0.02, generator_lr=5e-4, log_z_lr=0.3):
        assert {rates[id(parameter)] for parameter in group["params"]} == {group["lr"]}


def test_a_term_of_ones_own() -> None:
    class Penalised(Masked):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return super().training_step(batch, batch_idx) + 1000 * self.head.weight.square().sum()

    torch.manual_seed(0)
    module = Penalised("mc")
    before = module.head.weight.detach().norm()
    trainer(3).fit(module, loader())
    assert module.head.weight.norm() < 0.5 * before


def test_the_mix_in_comes_first() -> None:
    class Wrong(Plain, MaskedMixin):
        def __init__(self) -> None:
            super().__init__()
            self.add_masks(
                "net", likelihood=gfo.Categorical(3), example=(torch.zeros(2, 2),), sites=["0.1"]
            )

    with pytest.raises(TypeError, match=r"must come before Plain.*\(MaskedMixin, Plain"):
        Wrong()


def test_own_steps_take_what_they_name() -> None:
    seen = []

    class Short(Plain):
        def validation_step(self, batch: Any) -> None:
            seen.append(len(batch[1]))

        def test_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            seen.append((batch_idx, dataloader_idx))

    class Both(MaskedMixin, Short):
        def __init__(self) -> None:
            super().__init__()
            self.add_masks(
                "net", "mc", ["0.1"], likelihood=gfo.Categorical(3), example=(torch.zeros(2, 2),)
            )

    module = Both()
    trainer().validate(module, loader(60), verbose=False)
    assert seen == [50, 10]
    trainer().test(module, loader(60), verbose=False)
    assert seen[2:] == [(0, 0), (1, 0)]


@pytest.mark.parametrize("answer", [(1, 2), ([torch.zeros(2, 2)], {}, torch.zeros(2)), None])
def test_an_unpack_that_gives_something_else_is_told(answer: Any) -> None:
    module = Masked(unpack=lambda batch: answer)
    with pytest.raises(TypeError, match="unpack must return a tuple of three"):
        module.training_step(points(5), 0)
    with pytest.raises(TypeError, match="unpack must be a function of a batch, got 3"):
        Masked(unpack=3)


def test_bad_use_is_told() -> None:
    with pytest.raises(
        ValueError, match=r"network must name a submodule, one of 'body'.*got 'nets'"
    ):
        _with(network="nets")
    with pytest.raises(TypeError, match="network must be the name of an attribute, got 3"):
        _with(network=3)
    with pytest.raises(ValueError, match="samples must be"):
        Masked(samples=0)
    again = Masked()
    with pytest.raises(ValueError, match="'net' of this module has masks already"):
        again.add_masks("head", likelihood=gfo.Categorical(3), example=(torch.zeros(2, 24),))

    class Forgotten(MaskedMixin, Plain):
        pass

    with pytest.raises(ValueError, match=r"Forgotten has no masks yet: call self.add_masks"):
        Forgotten().predict_step(torch.zeros(2, 2), 0)

    class Partial(Masked):
        def parameters(self, recurse: bool = True) -> Any:
            return self.head.parameters(recurse)

    with pytest.raises(ValueError, match=r"leaves out parameters of the masks: .*self.net"):
        Partial().configure_optimizers()

    class Listed(MaskedMixin, Plain):
        def __init__(self) -> None:
            super().__init__()
            self.add_masks("net", "gflowout", ["0.1"], likelihood=gfo.Categorical(3),
                           example=(torch.zeros(2, 2),), generator_lr=0.1)  # fmt: skip

    class Schedule(Plain):
        def configure_optimizers(self) -> Any:
            return [super().configure_optimizers()], []

    class Both(Listed, Schedule):
        pass

    with pytest.raises(TypeError, match="generator_lr needs a configure_optimizers that returns"):
        Both().configure_optimizers()

    by_hand = Masked()
    by_hand.automatic_optimization = False
    with pytest.raises(TypeError, match="optimises by hand"):
        by_hand.training_step(points(), 0)


def _with(network: Any) -> None:
    class Mine(MaskedMixin, Plain):
        pass

    Mine().add_masks(network, likelihood=gfo.Categorical(3), example=(torch.zeros(2, 2),))


def test_disagreement_and_label_noise() -> None:
    class Noisy(MaskedMixin, Plain):
        def __init__(self) -> None:
            super().__init__()
            self.add_masks(
                "net", "mc", ["0.1"], likelihood=gfo.Categorical(3, label_noise="learned"),
                example=(torch.zeros(2, 2),), label_noise_lr=0.1,
                disagreement=gfo.Disagreement(0.5, inputs=lambda x: 10 * x),
            )  # fmt: skip

    module, run = Noisy(), trainer(2)
    run.fit(module, loader(), loader(100, 1))
    assert run.callback_metrics["train/disagreement"] < 0
    groups = module.configure_optimizers().param_groups
    noise = module.masked.likelihood.label_noise
    assert noise is not None
    assert [(group["lr"], group["params"]) for group in groups[1:]] == [(0.1, [noise.log_odds])]
    x, y = points(100, 1)
    pred = module.predict_step(x, 0)
    noisy = gfo.Predictive(pred.outputs, module.masked.likelihood)
    logged = run.callback_metrics["valid/nll"].item()
    losses = [-own.log_prob(y).mean().item() for own in (pred, noisy)]
    assert abs(logged - losses[1]) < abs(logged - losses[0])


def test_a_term_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="method 'none' are all the same"):
        Masked("none", disagreement=gfo.Disagreement())
    with pytest.raises(TypeError, match=r"disagreement must be gfo\.Disagreement or None"):
        Masked("mc", disagreement=0.1)
