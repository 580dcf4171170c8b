"""Training: the right steps, the best weights, and the same end however often it is killed."""

import csv
import dataclasses
import itertools
import math
import multiprocessing
import os
import random
import signal
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gflowout as gfo
from gflowout.backbones import MLP
from gflowout.core import atomic_io
from gflowout.core.predictive import Predictive
from gflowout.data.batches import Batches
from gflowout.training import (
    DivergedError,
    FitOptions,
    FitResult,
    TrainingWarning,
    checkpoints,
    fit,
)
from gflowout.training.monitoring import EpochStatistics, alarms
from gflowout.training.options import choose_precision, optimisers, rate_factor

lightning = pytest.importorskip("lightning")

from gflowout.training import module  # noqa: E402
from gflowout.training.checkpoints import as_csv  # noqa: E402

SITES = ["hidden.0.act", "hidden.1.act"]


def problem(rows: int = 240) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(rows, 6, generator=generator)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def wrapped(
    method: str = "gflowout", sites: Sequence[str] = SITES, **options: Any
) -> gfo.MaskedModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return gfo.wrap(
            MLP((6, 12, 8, 3)),
            method,
            sites,
            likelihood=gfo.Categorical(3),
            example=(torch.zeros(2, 6),),
            **options,
        )


def batches(seed: int = 1) -> tuple[Batches, Batches]:
    x, y = problem()
    train = Batches(x[:200], y[:200], batch_size=40, shuffle=True, seed=seed)
    return train, Batches(x[200:], y[200:], batch_size=40)


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    first, second = one.state_dict(), other.state_dict()
    return list(first) == list(second) and all(
        torch.equal(first[name], second[name]) for name in first
    )


def same_numbers(one: list[dict[str, float]], other: list[dict[str, float]]) -> bool:
    def plain(history: list[dict[str, float]]) -> list[dict[str, Any]]:
        return [
            {name: None if math.isnan(value) else value for name, value in numbers.items()}
            for numbers in history
        ]

    return plain(one) == plain(other)


def interrupt(steps: int) -> Any:
    """Takes batches apart as usual, but raises at the n-th that is trained on."""
    left = steps

    def unpack(batch: Any) -> Any:
        nonlocal left
        left -= torch.is_grad_enabled()
        if not left:
            raise InterruptedError
        return module.unpack(batch)

    return unpack


# What a step does.


@pytest.mark.parametrize("method", ["gflowout", "id-gflowout", "mc", "contextual"])
def test_fit_takes_the_steps_of_a_loop_written_by_hand(method: str) -> None:
    options = FitOptions(epochs=3, seed=5, lr=0.01, generator_lr=0.02, schedule="cosine", clip=0.5)
    train, _ = batches()
    needed = {} if method != "id-gflowout" else {"train_size": 200}
    model = wrapped(method, **needed)
    fit(model, train, options=options, progress=False)
    by_hand = wrapped(method, **needed)
    (optimiser,) = optimisers(by_hand, options)
    from gflowout.core import random

    losses = []
    weights = []
    for epoch in range(3):
        torch.manual_seed(random.generator(5, "epoch", epoch, 0).initial_seed())
        for group in optimiser.param_groups:
            group["lr"] = group["base_lr"] * (1 + math.cos(math.pi * epoch / 3)) / 2
        train.set_epoch(epoch)
        total = 0.0
        for x, y in train:
            optimiser.zero_grad()
            found = by_hand(x, y=y)
            found.total.backward()
            parameters = [p for group in optimiser.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(parameters, 0.5)
            optimiser.step()
            total += found.nll.item()
        losses.append(total)
        weights.append({name: value.clone() for name, value in by_hand.state_dict().items()})
    best = weights[losses.index(min(losses))]
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, best[name], rtol=1e-6, atol=1e-7)


def test_groups_have_their_own_rates_and_optimisers() -> None:
    options = FitOptions(
        optimizer="sgd",
        lr=0.1,
        generator_lr=0.02,
        log_z_lr=0.3,
        weight_decay=5e-4,
        generator_weight_decay=0.1,
        momentum=0.8,
    )
    first, second = optimisers(wrapped(objective="tb"), options)
    assert isinstance(first, torch.optim.SGD)
    assert isinstance(second, torch.optim.Adam)
    found = {
        group["name"]: (group["lr"], group["weight_decay"])
        for group in first.param_groups + second.param_groups
    }
    assert found == {"backbone": (0.1, 5e-4), "generator": (0.02, 0.1), "log_z": (0.3, 0.1)}
    assert first.param_groups[0]["momentum"] == 0.8
    assert len(optimisers(wrapped(), FitOptions())) == 1
    assert isinstance(
        optimisers(wrapped("mc"), FitOptions(optimizer="adamw"))[0], torch.optim.AdamW
    )


def test_rates_follow_the_schedule() -> None:
    def rates(**options: Any) -> list[float]:
        made = FitOptions(epochs=4, **options)
        return [pytest.approx(rate_factor(made, epoch)) for epoch in range(4)]

    assert rates() == [1, 1, 1, 1]
    assert rates(schedule="milestones", milestones=[0.25, 0.75], gamma=0.5) == [1, 0.5, 0.5, 0.25]
    half = math.sqrt(0.5) / 2
    assert rates(schedule="cosine") == [1, 0.5 + half, 0.5, 0.5 - half]
    assert rates(warmup=3) == [0.25, 0.5, 0.75, 1]


def test_precision_is_single_without_an_accelerator() -> None:
    assert choose_precision(FitOptions(accelerator="cpu")) == "32-true"
    assert choose_precision(FitOptions(precision="bf16-mixed")) == "bf16-mixed"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epochs": 0}, "epochs must be an integer >= 1, got 0"),
        ({"lr": -1.0}, r"lr must be a number in \(0, inf\), got -1"),
        ({"optimizer": "adm"}, "did you mean 'adam'"),
        ({"schedule": "step"}, "schedule must be one of"),
        ({"clip": 0.0}, "clip must be a number"),
        ({"patience": 0}, "patience must be an integer >= 1"),
        ({"milestones": "0.5"}, "milestones must be numbers"),
        ({"milestones": (2.0,)}, r"milestones must be a number in \[0, 1\], got 2.0"),
        ({"gamma": 0}, "gamma must be"),
        ({"momentum": 1.0}, "momentum must be"),
        ({"precision": "8"}, "precision must be one of"),
        ({"seed": -1}, "seed must be an integer >= 0"),
        ({"keep": 0}, "keep must be an integer >= 1"),
        ({"min_delta": -0.1}, "min_delta must be"),
        ({"warmup": 1.5}, "warmup must be an integer"),
        (
            {"accelerator": "tpuu"},
            "accelerator must be one of 'auto', 'cpu', .* did you mean 'tpu'",
        ),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        FitOptions(**options)


def test_an_accelerator_that_a_plugin_has_added_is_accepted() -> None:
    registry = lightning.pytorch.accelerators.AcceleratorRegistry
    registry.register("own", lightning.pytorch.accelerators.CPUAccelerator)
    try:
        fit(wrapped(), *batches(), FitOptions(epochs=1, accelerator="own"), progress=False)
    finally:
        registry.remove("own")


def test_wrong_arguments_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    train, _ = batches()
    monkeypatch.setattr(lightning.pytorch.accelerators.CUDAAccelerator, "is_available", bool)
    with pytest.raises(ValueError, match="accelerator 'cuda' is not available on this machine"):
        fit(wrapped(), train, options=FitOptions(accelerator="cuda"))
    with pytest.raises(TypeError, match=r"model must come from gfo\.wrap, got MLP"):
        fit(MLP((6, 3)), train)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="options must be FitOptions or None, got dict"):
        fit(wrapped(), train, options={"epochs": 3})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="patience=3 needs valid"):
        fit(wrapped(), train, options=FitOptions(patience=3))
    with pytest.raises(ValueError, match='loggers must be "tensorboard" or Lightning loggers'):
        fit(wrapped(), train, loggers="csv", progress=False)


def test_the_result_says_how_the_run_ended() -> None:
    result = FitResult([{"train/nll": 0.5}], 0, 0.5, "epochs", 2.0, 0, None)
    assert (
        repr(result) == "FitResult(1 epoch, best 0.5000 at epoch 0, reached the last epoch, 2.0 s)"
    )
    assert ", stopped by patience, " in repr(dataclasses.replace(result, stopped="patience"))


# Batches of any form.


def test_batches_may_be_mappings_or_come_from_a_loader() -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = MLP((6, 12, 3))

        def forward(self, *, values: torch.Tensor) -> Any:
            return self.net(values)

    x, y = problem()
    rows = [{"values": x[i : i + 40], "labels": y[i : i + 40]} for i in range(0, 240, 40)]
    model = gfo.wrap(
        Named(),
        "mc",
        ["net.hidden.0.act"],
        likelihood=gfo.Categorical(3),
        example={"values": x[:2]},
    )
    result = fit(model, rows, rows, FitOptions(epochs=8, lr=0.02), progress=False)
    assert result.history[-1]["valid/accuracy"] > 0.6
    loader = DataLoader(TensorDataset(x, y), batch_size=40, shuffle=True)
    result = fit(wrapped("mc"), loader, loader, FitOptions(epochs=8, lr=0.02), progress=False)
    assert result.history[-1]["valid/accuracy"] > 0.6


def test_a_batch_of_another_form_is_an_error_or_unpacked() -> None:
    x, y = problem()
    with pytest.raises(ValueError, match="with 'y' or 'labels', got dict with x, target"):
        fit(wrapped(), [{"x": x, "target": y}], progress=False)
    with pytest.raises(ValueError, match=r"must be \(input, \.\.\., labels\).*got Tensor"):
        fit(wrapped(), [x], progress=False)
    with pytest.raises(ValueError, match=r"must be \(input, \.\.\., labels\).*got NoneType"):
        fit(wrapped(), [None], progress=False)
    fit(
        wrapped(),
        [{"x": x, "target": y}],
        options=FitOptions(epochs=1),
        progress=False,
        unpack=lambda batch: ((batch["x"],), {}, batch["target"]),
    )


class Shorter(list[Any]):
    def __len__(self) -> int:
        return 5


def test_batches_that_are_fewer_than_their_length_give_a_warning_once() -> None:
    with pytest.warns(TrainingWarning) as caught:
        fit(wrapped(), Shorter([problem()] * 3), options=FitOptions(epochs=3), progress=False)
    (warning,) = (str(record.message) for record in caught)
    assert warning.startswith("Shorter has a length of 5, but yielded 3 batches in epoch 0")
    with pytest.raises(ValueError, match=r"yielded 0 batches in epoch 0: .* iterated repeatedly"):
        fit(wrapped(), Shorter(), progress=False)


# What is recorded.


def test_history_has_every_number_and_the_table_shows_it(tmp_path: Path) -> None:
    result = fit(wrapped(), *batches(), FitOptions(epochs=2), folder=tmp_path, progress=False)
    expected = {"epoch", "lr", "log_q", "log_reward", "log_z", "kl", "elbo", "correlation"}
    expected |= {f"train/{part}" for part in ("total", "nll", "tb", "prior")}
    expected |= {f"keep/{site}" for site in SITES}
    expected |= {f"gradient/{group}" for group in ("backbone", "generator")}
    expected |= {"valid/nll", "valid/accuracy"}
    assert set(result.history[-1]) == expected
    with (tmp_path / "metrics.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [float(row["valid/nll"]) for row in rows] == [
        numbers["valid/nll"] for numbers in result.history
    ]


def test_statistics_agree_with_numpy() -> None:
    model = wrapped()
    x, y = problem()
    with torch.no_grad():
        for parameter in model.method.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape))
    statistics = EpochStatistics(model.sites)
    (optimiser,) = optimisers(model, FitOptions())
    seen = []
    for start in range(0, 240, 60):
        losses = model(x[start : start + 60], y=y[start : start + 60])
        optimiser.zero_grad()
        losses.total.backward()
        statistics.add(losses)
        statistics.look(losses, [optimiser])
        seen.append(losses)
    found = statistics.numbers()
    log_q = torch.cat([losses.log_q for losses in seen]).detach().double().numpy()
    reward = torch.cat([losses.log_reward for losses in seen]).detach().double().numpy()
    log_p = torch.cat([losses.log_p for losses in seen]).double().numpy()
    fit = torch.cat([losses.log_likelihood for losses in seen]).double().numpy()
    assert found["correlation"] == pytest.approx(np.corrcoef(log_q - log_p, fit)[0, 1], abs=1e-6)
    assert found["kl"] == pytest.approx(np.mean([losses.kl.item() for losses in seen]))
    assert found["elbo"] == pytest.approx(fit.mean() - found["kl"], abs=1e-5)
    assert found["log_reward"] == pytest.approx(reward.mean())
    assert found["train/tb"] == pytest.approx(np.mean([losses.tb.item() for losses in seen]))
    keep = np.mean([float(losses.masks[1].mean()) for losses in seen])
    assert found[f"keep/{SITES[1]}"] == pytest.approx(keep)
    norm = torch.cat([p.grad.flatten() for p in model.backbone.parameters()]).norm()
    last = EpochStatistics(model.sites)
    last.add(seen[-1])
    last.look(seen[-1], [optimiser])
    assert last.numbers()["gradient/backbone"] == pytest.approx(float(norm), rel=1e-5)


def test_correlation_of_what_does_not_vary_is_unknown() -> None:
    model = wrapped("id-gflowout", train_size=10, prior_keep=0.5)
    losses = model(torch.randn(4, 6), y=torch.zeros(4).long())
    statistics = EpochStatistics(model.sites)
    statistics.add(losses)
    statistics.look(losses, [])
    assert math.isnan(statistics.numbers()["correlation"])


def test_the_validation_loss_is_that_of_the_average_over_draws() -> None:
    train, valid = batches()
    model = wrapped("none", sites=())
    result = fit(model, train, valid, FitOptions(epochs=1), progress=False)
    assert not [name for name in result.history[0] if name.startswith("keep/")]
    x, y = problem()
    with torch.no_grad():
        logits = model.backbone(x[200:])
    expected = nn.functional.cross_entropy(logits, y[200:])
    assert result.best_score == pytest.approx(float(expected), abs=1e-6)
    hits = (logits.argmax(-1) == y[200:]).float().mean()
    assert result.history[0]["valid/accuracy"] == pytest.approx(float(hits))


def test_tensorboard(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit(
            wrapped(),
            *batches(),
            FitOptions(epochs=1),
            folder=tmp_path,
            progress=False,
            loggers="tensorboard",
        )
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(tmp_path / "tensorboard"))
        events.Reload()
    assert {"train/tb", "valid/nll", "correlation"} <= set(events.Tags()["scalars"])


def test_progress_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    fit(wrapped(), *batches(), FitOptions(epochs=2))
    assert "epoch 2/2" in capsys.readouterr().out


# The best epoch, and when to stop.


class Spoil(lightning.Callback):
    """Ruins the weights from an epoch on."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.before: dict[str, torch.Tensor] = {}

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch == self.epoch - 1:
            state = pl_module.model.state_dict()
            self.before = {name: value.clone() for name, value in state.items()}

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch >= self.epoch:
            with torch.no_grad():
                for parameter in pl_module.model.backbone.parameters():
                    parameter.mul_(-3)


def test_the_best_weights_stay_and_patience_ends_training(tmp_path: Path) -> None:
    spoil = Spoil(3)
    model = wrapped("mc")
    result = fit(
        model,
        *batches(),
        FitOptions(epochs=20, patience=2, lr=0.01),
        folder=tmp_path,
        progress=False,
        callbacks=[spoil],
    )
    assert (result.best_epoch, result.stopped, len(result.history)) == (2, "patience", 5)
    assert all(torch.equal(spoil.before[name], value) for name, value in model.state_dict().items())
    assert sorted(checkpoints.epochs(tmp_path / "checkpoints")) == [2, 3, 4]


def test_as_many_of_the_best_are_kept_as_asked_for(tmp_path: Path) -> None:
    options = FitOptions(epochs=6, keep=3, lr=0.01)
    result = fit(wrapped("mc"), *batches(), options, folder=tmp_path, progress=False)
    losses = [numbers["valid/nll"] for numbers in result.history]
    best = sorted(range(6), key=losses.__getitem__)[:3]
    assert set(checkpoints.epochs(tmp_path / "checkpoints")) == {*best, 4, 5}


def test_fit_leaves_the_random_state_alone() -> None:
    torch.manual_seed(9)
    expected = torch.rand(3)
    torch.manual_seed(9)
    fit(wrapped(), *batches(), FitOptions(epochs=1), progress=False)
    assert torch.equal(torch.rand(3), expected)


def test_the_seed_decides() -> None:
    def run(seed: int) -> gfo.MaskedModel:
        model = wrapped()
        fit(model, *batches(), FitOptions(epochs=2, seed=seed), progress=False)
        return model

    assert same_weights(run(0), run(0))
    assert not same_weights(run(0), run(1))


# Killed and taken up again.


@pytest.mark.parametrize("method", ["gflowout", "id-gflowout", "concrete", "combined"])
@pytest.mark.parametrize("loader", [False, True])
def test_a_run_that_was_interrupted_ends_in_the_same_weights(
    tmp_path: Path, method: str, loader: bool
) -> None:
    options = FitOptions(epochs=5, optimizer="sgd", schedule="cosine", patience=3, lr=0.02)
    needed = {"train_size": 200} if method in ("id-gflowout", "concrete", "combined") else {}

    def data() -> tuple[Any, Any]:
        if not loader:
            return batches()
        x, y = problem()
        rows = TensorDataset(x[:200], y[:200])
        return DataLoader(rows, batch_size=40, shuffle=True), batches()[1]

    whole = wrapped(method, **needed)
    undisturbed = fit(whole, *data(), options, folder=tmp_path / "whole", progress=False)
    for steps in (3, 8, 1, 12):
        with pytest.raises(InterruptedError):
            fit(
                wrapped(method, **needed),
                *data(),
                options,
                folder=tmp_path / "parts",
                progress=False,
                unpack=interrupt(steps),
            )
    model = wrapped(method, **needed)
    result = fit(model, *data(), options, folder=tmp_path / "parts", progress=False)
    assert same_weights(model, whole)
    assert same_numbers(result.history, undisturbed.history)
    assert result.resumed == 3
    table = (tmp_path / "parts" / "metrics.csv").read_text()
    assert table == (tmp_path / "whole" / "metrics.csv").read_text()


def test_ctrl_c_is_an_interrupt_and_not_the_end_of_the_process(tmp_path: Path) -> None:
    class CtrlC(lightning.Callback):
        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            if trainer.current_epoch == 1:
                signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        fit(wrapped(), *batches(), FitOptions(epochs=3), folder=tmp_path, progress=False,
            callbacks=[CtrlC()])  # fmt: skip
    assert signal.getsignal(signal.SIGINT) is before
    result = fit(wrapped(), *batches(), FitOptions(epochs=3), folder=tmp_path, progress=False)
    assert result.resumed == 1


def test_a_finished_run_is_not_done_again(tmp_path: Path) -> None:
    options = FitOptions(epochs=2)
    first = wrapped()
    fit(first, *batches(), options, folder=tmp_path, progress=False)
    again = wrapped()
    result = fit(again, *batches(), options, folder=tmp_path, progress=False, unpack=interrupt(1))
    assert same_weights(first, again)
    assert (result.resumed, len(result.history)) == (2, 2)
    with pytest.raises(InterruptedError):
        fit(
            again,
            *batches(),
            options,
            folder=tmp_path,
            progress=False,
            resume=False,
            unpack=interrupt(1),
        )
    assert not checkpoints.epochs(tmp_path / "checkpoints")


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    fit(wrapped(), *batches(), FitOptions(epochs=1), folder=tmp_path, progress=False)
    with pytest.raises(ValueError, match=r"run: options\.epochs \(was 1, is 2\), options\.lr"):
        fit(wrapped(), *batches(), FitOptions(epochs=2, lr=0.1), folder=tmp_path, progress=False)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"beta": 5.0}, r"method\.beta \(was 1\.0, is 5\.0\)"),
        ({"method": "mc"}, r"method\.name \(was 'gflowout', is 'mc'\)"),
        ({"scale": 100}, r"train\.first batch \(was"),
        ({"rows": 120}, r"train\.batches \(was 5, is 3\)"),
        ({"labels": 1}, r"train\.first batch \(was"),
    ],
)
def test_a_folder_of_another_model_or_other_data_is_refused(
    tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    options = FitOptions(epochs=1)
    fit(wrapped(), *batches(), options, folder=tmp_path, progress=False)
    x, y = problem()
    rows = changed.get("rows", 200)
    train = Batches(
        x[:rows] * changed.get("scale", 1),
        (y[:rows] + changed.get("labels", 0)) % 3,
        batch_size=40,
        shuffle=True,
        seed=1,
    )
    method = {key: value for key, value in changed.items() if key in ("beta", "method")}
    with pytest.raises(ValueError, match=f"holds another run: .*{message}"):
        fit(wrapped(**method), train, batches()[1], options, folder=tmp_path, progress=False)


def test_a_run_that_patience_has_ended_is_over_however_it_was_killed(tmp_path: Path) -> None:
    options = FitOptions(epochs=30, patience=1, lr=0.3)
    whole = wrapped("mc")
    first = fit(whole, *batches(), options, folder=tmp_path, progress=False)
    assert first.stopped == "patience"
    again = wrapped("mc")  # nothing but the checkpoints says that it is over
    second = fit(again, *batches(), options, folder=tmp_path, progress=False, unpack=interrupt(1))
    assert same_numbers(first.history, second.history)
    assert second.stopped == "patience"
    assert same_weights(whole, again)


def test_a_damaged_checkpoint_is_left_out(tmp_path: Path) -> None:
    options = FitOptions(epochs=4, keep=4)
    whole = wrapped()
    fit(whole, *batches(), options, folder=tmp_path, progress=False)
    last = tmp_path / "checkpoints" / "epoch-00003.ckpt"
    last.write_bytes(last.read_bytes()[:1000])
    again = wrapped()
    with pytest.warns(UserWarning, match=r"epoch-00003\.ckpt: cannot be read"):
        result = fit(again, *batches(), options, folder=tmp_path, progress=False)
    assert result.resumed == 3
    assert same_weights(whole, again)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"run\.json: missing or damaged.*resume=False"):
        fit(wrapped(), *batches(), options, folder=tmp_path, progress=False)


def test_a_model_in_eval_mode_is_trained_in_training_mode() -> None:
    def net() -> gfo.MaskedModel:
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        example = (torch.zeros(2, 6),)
        return gfo.wrap(layers, "mc", ["2"], likelihood=gfo.Categorical(3), example=example)

    trained, evaluated = net(), net().eval()
    for model in (trained, evaluated):
        fit(model, *batches(), FitOptions(epochs=2), progress=False)
    assert same_weights(trained, evaluated)
    assert int(evaluated.backbone[1].num_batches_tracked) == 10
    assert not any(part.training for part in evaluated.modules())
    frozen = net()
    frozen.backbone[1].eval()
    fit(frozen, *batches(), FitOptions(epochs=2), progress=False)
    assert int(frozen.backbone[1].num_batches_tracked) == 0
    assert frozen.training
    assert not frozen.backbone[1].training


def test_double_precision_ends_with_the_training() -> None:
    model = wrapped()
    options = FitOptions(epochs=1, precision="64-true")
    fit(model, *batches(), options, progress=False)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    model.predict(problem()[0])


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        yield from ()


@pytest.mark.parametrize(
    ("train", "valid", "error", "message"),
    [
        (
            (batch for batch in ()),
            None,
            TypeError,
            "train must be an iterable .* iterated repeatedly",
        ),
        ([], None, ValueError, "train must hold at least one batch"),
        (
            [(torch.zeros(2, 6), torch.zeros(2).long())],
            [],
            ValueError,
            "valid must hold at least one batch",
        ),
        (3, None, TypeError, "train must be an iterable of batches .* got int"),
        (
            DataLoader(Endless()),
            None,
            TypeError,
            "train must have a length, got DataLoader without one",
        ),
    ],
)
def test_batches_that_cannot_be_trained_on(
    train: Any, valid: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        fit(wrapped(), train, valid, progress=False)


def test_an_ensemble_is_told_how() -> None:
    ensemble = gfo.Ensemble([wrapped("mc"), wrapped("mc")])
    with pytest.raises(TypeError, match=r"a call of fit for each of its \.members"):
        fit(ensemble, *batches())  # type: ignore[arg-type]


def test_weights_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    class Spoiled(lightning.Callback):
        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            with torch.no_grad():
                next(pl_module.model.backbone.parameters()).fill_(math.nan)

    with pytest.raises(DivergedError, match="parameters are not finite after epoch 0"):
        fit(wrapped(), *batches(), folder=tmp_path, progress=False, callbacks=[Spoiled()])
    assert not checkpoints.epochs(tmp_path / "checkpoints")


def test_a_trainer_of_ones_own_can_test_and_predict() -> None:
    model = wrapped()
    train, valid = batches()
    fit(model, train, options=FitOptions(epochs=2), progress=False)
    lit = module.MaskedModule(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False
        )
        data = module.MaskedDataModule(train, test=valid)
        (tested,) = trainer.test(lit, datamodule=data, verbose=False)
        rows = DataLoader(TensorDataset(problem()[0][200:]), batch_size=40)
        predicted = trainer.predict(lit, rows)
    pred = Predictive.join(predicted)
    nll = -pred.log_prob(problem()[1][200:]).mean()
    assert tested["test/nll"] == pytest.approx(float(nll), abs=1e-5)


def _train_in(folder: Path) -> None:
    torch.set_num_threads(1)
    fit(wrapped(), *batches(), KILL_OPTIONS, folder=folder, progress=False)


KILL_OPTIONS = FitOptions(epochs=60, lr=0.02, schedule="cosine", keep=2)


def test_twenty_kills_change_nothing(tmp_path: Path) -> None:
    """SIGKILL at random moments, also while a checkpoint is written."""
    fork = multiprocessing.get_context("fork")  # the parent has imported everything already
    undisturbed = wrapped()
    expected = fit(undisturbed, *batches(), KILL_OPTIONS, folder=tmp_path / "a", progress=False)
    chance = random.Random(1)
    kills = 0
    for _ in range(400):
        child = fork.Process(target=_train_in, args=(tmp_path / "b",))
        child.start()
        if kills < 20:
            _wait_for_work(child, tmp_path / "b" / "checkpoints")
            time.sleep(chance.uniform(0, 0.08))
            if child.is_alive():
                os.kill(child.pid or 0, signal.SIGKILL)
                kills += 1
        child.join()
        if child.exitcode == 0:
            break
    assert kills == 20
    model = wrapped()
    result = fit(model, *batches(), KILL_OPTIONS, folder=tmp_path / "b", progress=False)
    assert result.resumed == 60
    assert same_weights(model, undisturbed)
    assert same_numbers(result.history, expected.history)
    left = {path.name for path in (tmp_path / "b" / "checkpoints").iterdir()}
    assert left == {path.name for path in (tmp_path / "a" / "checkpoints").iterdir()}


def _wait_for_work(child: Any, folder: Path) -> None:
    """Wait until the child writes something, or ends."""
    before = _state(folder)
    until = time.monotonic() + 20
    while child.is_alive() and _state(folder) == before and time.monotonic() < until:
        time.sleep(0.001)


def _state(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def _killed_while_writing(folder: Path) -> None:
    class Deadly:
        def __init__(self, stream: Any) -> None:
            stream.write(b"half")
            stream.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    atomic_io.write_file(folder / "epoch-00001.ckpt", Deadly)


def test_a_kill_while_writing_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    checkpoints.write(tmp_path / "epoch-00001.ckpt", {"a": torch.ones(2)})
    child = multiprocessing.get_context("fork").Process(
        target=_killed_while_writing, args=(tmp_path,)
    )
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2
    assert checkpoints.last(tmp_path) == tmp_path / "epoch-00001.ckpt"
    assert torch.equal(checkpoints.read(tmp_path / "epoch-00001.ckpt")["a"], torch.ones(2))
    atomic_io.remove_unfinished(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["epoch-00001.ckpt"]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(stream: Any) -> None:
        stream.write(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        atomic_io.write_file(tmp_path / "a.ckpt", fail)
    assert not list(tmp_path.iterdir())


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("true",))


def test_checkpoints_do_not_run_code(tmp_path: Path) -> None:
    torch.save({"state_dict": _Evil()}, tmp_path / "epoch-00000.ckpt")
    with pytest.raises(Exception, match=r"(?i)weights.?only"):
        checkpoints.read(tmp_path / "epoch-00000.ckpt")


# When it goes wrong.


def history(**series: list[float]) -> list[dict[str, float]]:
    names = {name.replace("__", "/"): values for name, values in series.items()}
    rows = itertools.zip_longest(*names.values())
    return [dict(zip(names, row, strict=True)) for row in rows]


def test_alarms_ring_when_they_should() -> None:
    assert "grew for 3 epochs, to 19 from 1" in alarms(history(train__tb=[1, 2, 5, 19]))["tb"]
    assert not alarms(history(train__tb=[1, 2, 15]))
    assert not alarms(history(train__tb=[1, 2, 5, 9]))
    assert not alarms(history(train__tb=[9, 5, 3, 40]))
    assert not alarms(history(train__tb=[1, 2, 5, 19]), balance=False)  # a divergence may grow
    high = alarms([{"log_q": -1.0, "keep/fc": 0.995, "keep/b": 0.5}])
    assert "'fc' are all-on (keep rate 0.9950)" in high["keep/fc"]
    assert "Lower prior_keep" in high["keep/fc"]
    assert "all-off" in alarms([{"log_q": -1.0, "keep/fc": 0.005}])["keep/fc"]
    assert not alarms([{"keep/fc": 1.0}])  # no posterior: "none" keeps everything
    assert not alarms([])


def test_collapsed_masks_give_a_warning_once() -> None:
    model = wrapped("id-gflowout", prior_keep=0.999, train_size=200)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(model, *batches(), FitOptions(epochs=4), progress=False)
    told = [str(warning.message) for warning in caught if warning.category is TrainingWarning]
    assert len(told) == 2  # one per site
    assert all("are all-on" in message for message in told)


def test_a_loss_that_is_not_finite_stops_with_advice() -> None:
    train, _ = batches()
    with pytest.raises(DivergedError, match="Lower lr and generator_lr, set clip"):
        fit(wrapped("none"), train, options=FitOptions(lr=1e30, optimizer="sgd"), progress=False)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_the_table_has_a_column_per_number_that_any_epoch_has():
    history = [{"epoch": 0, "train/nll": 2.5}, {"epoch": 1, "valid/nll": 2.25}]
    assert as_csv(history) == "epoch,train/nll,valid/nll\n0,2.5,\n1,,2.25\n"


def test_of_equal_epochs_the_earlier_is_better_and_nan_comes_last():
    scores = {0: 0.5, 1: 0.3, 2: 0.3, 3: math.nan}
    assert checkpoints.best_epochs(scores, keep=2) == [1, 2]
    assert checkpoints.best_epochs(scores, keep=4) == [1, 2, 0, 3]
