"""Label noise: mixtures by brute force, clean predictions, files, and a known rate recovered."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gflowout as gfo
from gflowout.core.predictive import of_labels
from gflowout.data.shifts import label_noise

# Not symmetric, so that rows taken for columns give something else.
MATRIX = [[0.8, 0.2, 0.0], [0.0, 0.5, 0.5], [0.1, 0.0, 0.9]]
GIVEN: list[Any] = ["learned", 0.0, 0.4, MATRIX, torch.tensor(MATRIX)]


@pytest.fixture(autouse=True)
def _one_seed() -> None:
    torch.default_generator.manual_seed(0)


def transitions(given: Any, classes: int) -> Tensor:
    """P(label | true class), [classes, classes]."""
    if isinstance(given, str | float):
        rate = 0.1 if given == "learned" else given
        return (1 - rate) * torch.eye(classes) + rate / classes
    return torch.as_tensor(given)


def wrapped(noise: Any, method: str = "mc", seed: int = 0) -> gfo.MaskedModel:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    likelihood = gfo.Categorical(3, label_noise=noise)
    return gfo.wrap(net, method, ["1"], likelihood=likelihood, example=(torch.zeros(2, 4),))


@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_prob_of_classes_is_that_of_the_mixture(given: Any, dtype: torch.dtype) -> None:
    likelihood = gfo.Categorical(3, label_noise=given)
    output, y = 3 * torch.randn(20, 3, dtype=dtype), torch.randint(3, (20,))
    observed = output.softmax(-1) @ transitions(given, 3).to(dtype)
    expected = observed.gather(1, y[:, None])[:, 0].log()
    scores = likelihood.log_prob(output, likelihood.target(y))
    assert scores.dtype == dtype
    assert torch.allclose(scores, expected, atol=1e-5)


@pytest.mark.parametrize("given", [0.4, [[0.7, 0.3], [0.1, 0.9]]])
def test_log_prob_of_yes_or_no_is_that_of_the_mixture(given: Any) -> None:
    likelihood = gfo.Binary(label_noise=given)
    output, y = 3 * torch.randn(20, 1), torch.rand(20)  # soft labels
    yes = torch.sigmoid(output[:, 0])
    no, yes = (torch.stack([1 - yes, yes], 1) @ transitions(given, 2)).unbind(1)
    expected = y * yes.log() + (1 - y) * no.log()
    assert torch.allclose(likelihood.log_prob(output, likelihood.target(y)), expected, atol=1e-5)


def test_labels_of_a_sequence_add_up_and_ignored_ones_count_for_nothing() -> None:
    likelihood = gfo.Categorical(3, ignore_index=-100, label_noise=0.4)
    output, y = torch.randn(2, 4, 3), torch.tensor([[0, 1, 2, -100], [2, -100, -100, 1]])
    observed = (output.softmax(-1) @ transitions(0.4, 3)).log()
    expected = [
        sum(observed[row, at, label] for at, label in enumerate(labels) if label >= 0)
        for row, labels in enumerate(y.tolist())
    ]
    assert torch.allclose(likelihood.log_prob(output, y), torch.stack(expected))


@pytest.mark.parametrize("given", ["learned", 0.4, MATRIX])
def test_gradients_are_right_and_finite(given: Any) -> None:
    likelihood = gfo.Categorical(3, label_noise=given).double()
    y = torch.tensor([0, 1, 2, 2])
    output = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    own = list(likelihood.parameters())
    assert torch.autograd.gradcheck(lambda out, *_: likelihood.log_prob(out, y), (output, *own))
    extreme = torch.tensor([[1e4, -1e4, 0.0]], requires_grad=True)
    gfo.Categorical(3, label_noise=given).log_prob(extreme, torch.tensor([1])).sum().backward()
    assert extreme.grad is not None
    assert bool(extreme.grad.isfinite().all())


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ("learnt", ValueError, "label_noise must be 'learned', a rate in .* got 'learnt'"),
        (1.0, ValueError, r"label_noise must be a number in \[0, 1\), got 1.0"),
        (-0.1, ValueError, r"label_noise must be a number in \[0, 1\)"),
        (True, TypeError, "label_noise must be 'learned', a rate .*, a matrix of 3 rows or None"),
        ({"rate": 0.1}, TypeError, "got {'rate': 0.1}"),
        ([0.1, 0.2, 0.7], ValueError, "matrix of 3 rows of 3 numbers"),
        (torch.eye(4), ValueError, "matrix of 3 rows .* got 4 rows"),
        ([[0.8, 0.1, 0.0], *MATRIX[1:]], ValueError, "must sum to 1.* got 0.9 in row 0"),
        ([[1.2, -0.2, 0.0], *MATRIX[1:]], ValueError, r"label_noise must be a number in \[0, 1\]"),
        ([[1.0, 0.0, 0.0]] * 3, ValueError, "zeros in column 1"),
    ],
)
def test_wrong_values_are_named(given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        gfo.Categorical(3, label_noise=given)


@pytest.mark.parametrize("given", ["learned", 0.4, MATRIX])
def test_predictions_are_of_the_true_class(given: Any) -> None:
    noisy, clean = wrapped(given), wrapped(None)
    x, y = torch.randn(10, 4), torch.randint(3, (10,))
    pred, plain = (
        model.predict(x, generator=torch.Generator().manual_seed(0)) for model in (noisy, clean)
    )
    assert torch.equal(pred.samples, plain.samples)
    assert torch.equal(pred.log_prob(y), plain.log_prob(y))
    assert torch.equal(pred.entropy(), plain.entropy())
    assert repr(pred.likelihood) == "Categorical(classes=3)"
    assert noisy.likelihood.label_noise is not None
    # With the noise put back: the mean over draws of the mixture.
    observed = (plain.samples @ transitions(given, 3)).mean(0).gather(1, y[:, None])[:, 0].log()
    assert torch.allclose(of_labels(pred, noisy.likelihood).log_prob(y), observed, atol=1e-5)
    assert of_labels(plain, clean.likelihood) is plain


@pytest.mark.parametrize("method", ["none", "mc", "gflowout"])
def test_losses_are_of_labels_as_they_are(method: str) -> None:
    x, y = torch.randn(10, 4), torch.randint(3, (10,))
    model = wrapped(0.4, method)
    losses = model(x, y=y)
    output = model(x, masks=losses.masks)
    observed = (output.softmax(-1) @ transitions(0.4, 3)).gather(1, y[:, None]).log()
    assert torch.allclose(losses.nll, -observed.mean(), atol=1e-5)


@pytest.mark.parametrize("given", ["learned", 0.4, MATRIX])
def test_files_keep_the_noise(given: Any, tmp_path: Path) -> None:
    model = wrapped(given)
    if given == "learned":
        noise = model.likelihood.label_noise
        assert noise is not None
        assert noise.log_odds is not None
        nn.init.constant_(noise.log_odds, 0.7)
    gfo.save(model, tmp_path / "model")
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
    again = gfo.load(tmp_path / "model", net)
    assert repr(again.likelihood) == repr(model.likelihood)
    output, y = torch.randn(10, 3), torch.randint(3, (10,))
    scores = [own.likelihood.log_prob(output, y) for own in (model, again)]
    assert torch.equal(*scores)


def test_a_file_with_a_matrix_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model"
    gfo.save(wrapped(MATRIX), path)
    content = path.read_bytes()
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    config = json.loads(header["__metadata__"]["gflowout"])
    config["likelihood_options"]["label_noise"][0][0] = 0.7
    header["__metadata__"] = {"gflowout": json.dumps(config)}  # without the checksum
    changed = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(changed)) + changed + content[8 + size :])
    with pytest.raises(ValueError, match=r"damaged configuration.*must sum to 1"):
        gfo.load(path, nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)))


def test_an_exported_file_predicts_the_true_class(tmp_path: Path) -> None:
    from gflowout.export import export

    net, x = nn.Linear(4, 3), torch.randn(5, 4)
    noisy = gfo.Categorical(3, label_noise="learned")
    model = gfo.wrap(net, "none", (), likelihood=noisy, example=(x,))
    export(model, tmp_path / "model.pt2", (x,), samples=1)
    program = torch.export.load(tmp_path / "model.pt2").module()
    mean = program(input=x, seed=torch.tensor(0))["mean"]
    assert torch.allclose(mean, net(x).softmax(-1), atol=1e-6)


def test_the_rate_has_a_learning_rate_of_its_own() -> None:
    model = wrapped("learned")
    groups = {group["name"]: group for group in model.parameter_groups(weight_decay=0.1)}
    noise = model.likelihood.label_noise
    assert noise is not None
    assert groups["label_noise"]["params"] == [noise.log_odds]
    assert groups["label_noise"]["lr"] == 3e-2
    assert groups["label_noise"]["weight_decay"] == 0
    assert "likelihood" not in groups
    assert "label_noise" not in {group["name"] for group in wrapped(0.4).parameter_groups()}
    other = model.parameter_groups(label_noise_lr=0.5)
    assert [group["lr"] for group in other if group["name"] == "label_noise"] == [0.5]


def test_members_of_an_ensemble_learn_rates_of_their_own() -> None:
    ensemble = gfo.Ensemble([wrapped("learned", seed=seed) for seed in range(3)])
    groups = {group["name"]: group["params"] for group in ensemble.parameter_groups()}
    assert len(groups["label_noise"]) == 3
    x = torch.randn(5, 4)
    assert repr(ensemble.predict(x).likelihood) == "Categorical(classes=3)"
    gfo.Ensemble([wrapped(0.1), wrapped(0.2, seed=1), wrapped(None, seed=2)]).predict(x)


@pytest.mark.parametrize("kind", ["classes", "yes or no"])
def test_a_known_rate_is_recovered(kind: str) -> None:
    classes = 4 if kind == "classes" else 2
    centres = 4 * torch.eye(4)[:classes]
    truth = torch.randint(classes, (3000,))
    x = centres[truth] + torch.randn(3000, 4)
    y = label_noise(truth, 0.3, classes, seed=0)[0]
    likelihood = (
        gfo.Categorical(4, label_noise="learned")
        if kind == "classes"
        else gfo.Binary(label_noise="learned")
    )
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, likelihood.label_size))
    model = gfo.wrap(net, "mc", ["1"], likelihood=likelihood, example=(x[:2],), rate=0.1)
    optimizer = torch.optim.Adam(model.parameter_groups(lr=1e-2))
    for _ in range(300):
        rows = torch.randint(3000, (200,))
        optimizer.zero_grad()
        model(x[rows], y=y[rows]).total.backward()
        optimizer.step()
    assert likelihood.label_noise is not None
    assert likelihood.label_noise.rate.item() == pytest.approx(0.3, abs=0.05)
    # Sure of the true classes, which a network that fits the labels cannot be.
    assert -model.predict(x).log_prob(truth).mean().item() < 0.15
