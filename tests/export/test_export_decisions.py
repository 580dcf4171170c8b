"""Decisions inside files: those of the fitted objects on the same draws, in both formats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gflowout as gfo
from gflowout.calibration import Isotonic, Temperature, Vector
from gflowout.conformal import Intervals, Sets
from gflowout.export import Deployed, export, formats, read_metadata
from gflowout.selective import Defer

X = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
SAMPLES = 6


def model(likelihood: gfo.Likelihood, size: int, method: str = "mc") -> gfo.MaskedModel:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, size))
        return gfo.wrap(net, method, ["1"], likelihood=likelihood, example=(X[:2],))


def predicted(own: gfo.MaskedModel) -> gfo.Predictive:
    return own.predict(X, samples=SAMPLES, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def classes() -> tuple[gfo.MaskedModel, gfo.Predictive, Tensor]:
    """A model, its prediction, and labels drawn from that after a scaling."""
    own = model(gfo.Categorical(3), 3)
    pred = predicted(own)
    odds = 6 * pred.outputs.mean(0) + torch.tensor([0.0, 1.0, 0.0])
    y = torch.multinomial(odds.softmax(-1), 1, generator=torch.Generator().manual_seed(2))[:, 0]
    return own, pred, y


Case = tuple[gfo.MaskedModel, list[Any], dict[str, Any]]


def sets_case(classes: Any, method: str, **options: Any) -> Case:
    own, pred, y = classes
    first, second = Temperature().fit(pred, y), Vector().fit(pred, y)
    scaled = second(first(pred))
    rule = Defer("max_probability", risk=0.45, delta=0.2).fit(scaled, y)
    assert 0 < rule.coverage < 1
    return own, [first, second, Sets(0.8, method, **options).fit(scaled, y), rule], {}


def numbers_case(likelihood: gfo.Likelihood, size: int, method: str, **options: Any) -> Case:
    own = model(likelihood, size)
    y = (2 * X[:, :1]).round().abs()
    return own, [Intervals(0.9, method).fit(predicted(own), y)], options


def rebuilt(own: gfo.MaskedModel, decisions: list[Any], x: Tensor, masks: Any) -> dict[str, Tensor]:
    """What the objects say themselves."""
    pred, answers = own.predict(x, masks=masks), {}
    for decision in decisions:
        match decision:
            case Sets():
                answers["set"] = decision(pred)
            case Intervals():
                answers["low"], answers["high"] = decision(pred)
            case Defer():
                answers["defer"] = decision(pred)
            case _:
                pred = decision(pred)
    return {"mean": pred.mean, **answers}


CASES: dict[str, Callable[[Any], Case]] = {
    "lac": lambda classes: sets_case(classes, "lac", allow_empty=False),
    "aps": lambda classes: sets_case(classes, "aps", per_class=True),
    "raps": lambda classes: sets_case(classes, "raps", penalty=0.2),
    "spread": lambda _: numbers_case(gfo.Gaussian(), 1, "spread", scale=(30.0, 5.0)),
    "residual": lambda _: numbers_case(gfo.Gaussian(), 1, "residual", scale=(30.0, 5.0)),
    "counts": lambda _: numbers_case(gfo.Poisson(), 1, "spread"),
    "quantiles": lambda _: numbers_case(gfo.Quantile([0.05, 0.95]), 2, "quantile"),
}


@pytest.mark.parametrize("name", CASES)
def test_decisions_are_those_of_the_objects(name: str, classes: Any) -> None:
    own, decisions, options = CASES[name](classes)
    deployed = Deployed(own, (X,), {}, masks=True, samples=SAMPLES, decisions=decisions, **options)
    source = torch.Generator().manual_seed(3)
    masks = torch.randint(2, deployed.example["masks_0"].shape, generator=source).float()
    answers = deployed.run({**deployed.example, "masks_0": masks})
    expected = rebuilt(own, decisions, X, [masks])
    mean, deviation = options.get("scale", (0.0, 1.0))
    for key, value in expected.items():
        if value.dtype == torch.bool:
            assert torch.equal(answers[key], value), key
            assert 0 < value.float().mean() < 1
        else:
            value = value * deviation + mean
            torch.testing.assert_close(answers[key], value, atol=1e-5, rtol=1e-5, msg=key)


@pytest.mark.parametrize(("name", "ending"), [("raps", "onnx"), ("spread", "pt2")])
def test_files_decide(name: str, ending: str, classes: Any, tmp_path: Path) -> None:
    own, decisions, options = CASES[name](classes)
    options |= {"samples": SAMPLES, "decisions": decisions}
    done = export(own, tmp_path / f"model.{ending}", (X[:3],), **options)
    assert done.difference is not None
    assert done.difference < 1e-5
    inputs = {"input": X, "seed": torch.tensor(4)}
    answers = formats.opened(done.path.read_bytes(), done.format)(inputs)
    deployed = Deployed(own, (X[:3],), {}, **options)
    margins = deployed.values(inputs)
    for key, value in deployed.run(inputs).items():
        if value.dtype == torch.bool:
            wrong = answers[key] != value
            assert not (margins[key].abs()[wrong] > 1e-5).any(), key  # but for rounding
        else:
            torch.testing.assert_close(answers[key], value, atol=1e-5, rtol=1e-5, msg=key)
    about = read_metadata(done.path)["decisions"]
    assert [entry["kind"] for entry in about] == [type(decision).__name__ for decision in decisions]
    added = [port for port in done.outputs if port.name in ("set", "defer", "low", "high")]
    assert [port.shape for port in added] == {
        "spread": [["batch", 1], ["batch", 1]],
    }.get(name, [["batch", 3], ["batch"]])


def test_the_check_allows_for_rounding_at_a_threshold_only() -> None:
    margins = {"set": torch.tensor([0.2, 1e-7, -0.2])}
    gaps = [
        next(formats._gaps(margins, {"set": torch.tensor(answer)}))[0]
        for answer in ([True, True, False], [True, False, False], [False, True, False])
    ]
    assert gaps == pytest.approx([0, 1e-7, 0.2])


def test_a_rule_that_defers_all_stays_one(classes: Any) -> None:
    own, pred, y = classes
    with pytest.warns(UserWarning, match="all examples will be deferred"):
        rule = Defer(risk=1e-3).fit(pred, y)
    deployed = Deployed(own, (X,), {}, samples=2, decisions=rule)
    assert deployed.run(deployed.example)["defer"].all()


def test_inputs_give_way_to_outputs_of_decisions(classes: Any) -> None:
    own, pred, y = classes

    class Prepare(nn.Module):
        def forward(self, low: Tensor) -> Tensor:
            return low

    sets = Sets(0.8).fit(pred, y)
    assert "low" in Deployed(own, (X,), {}, prepare=Prepare(), decisions=sets).example
    numbers, decisions, _ = numbers_case(gfo.Gaussian(), 1, "spread")
    deployed = Deployed(numbers, (X,), {}, prepare=Prepare(), decisions=decisions)
    assert "input_low" in deployed.example


def test_errors_say_what_a_file_cannot_hold(classes: Any, tmp_path: Path) -> None:
    own, pred, y = classes
    numbers, spread, _ = numbers_case(gfo.Gaussian(), 1, "spread")
    _, quantile, _ = numbers_case(gfo.Gaussian(), 1, "quantile")
    sets = Sets(0.8).fit(pred, y)

    def refused(error: type[Exception], message: str, decisions: Any, at: Any = own) -> None:
        path = tmp_path / "model.pt2"
        with pytest.raises(error, match=message):
            export(at, path, (X[:3],), decisions=decisions)
        assert not path.exists()

    refused(RuntimeError, "Sets is not fitted", Sets())
    refused(TypeError, r"decisions must be fitted .* got 'sets'", "sets")
    refused(TypeError, r"decisions must be fitted .* got Isotonic", Isotonic().fit(pred, y))
    refused(ValueError, "every output once, got set, set", [sets, sets])
    refused(TypeError, "pred must be a prediction of classes", sets, numbers)
    refused(TypeError, "Intervals are for numbers", spread)
    refused(TypeError, "take method='spread' or 'residual'", quantile, numbers)
    refused(ValueError, "must have 3 outputs as in fit", Vector().fit(pred, y),
            model(gfo.Categorical(4), 4))  # fmt: skip
    rule = Defer(lambda pred: pred.entropy(), risk=0.9).fit(pred, y)
    refused(TypeError, "is a function, which a file cannot hold", rule)
