"""Detectors against their papers' formulas in NumPy, and what is promised of their fits."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import gflowout as gfo
from gflowout.decisions.ood import scores, streams
from gflowout.ood import FDBD, KNN, Detector, Mahalanobis, RelativeMahalanobis, ViM

KINDS: dict[str, type[Detector]] = {
    kind.__name__: kind for kind in (Mahalanobis, RelativeMahalanobis, KNN, ViM, FDBD)
}


class Net(nn.Module):
    """Two hidden layers, with names for what a detector can read."""

    def __init__(self, classes: int = 3, bias: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(5, 12)
        self.act = nn.ReLU()
        self.second = nn.Linear(12, 8)
        self.tanh = nn.Tanh()
        self.head = nn.Linear(8, classes, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.tanh(self.second(self.act(self.first(x)))))


def setting(rows: int = 300, classes: int = 3) -> tuple[Net, Tensor, Tensor, Tensor]:
    """A network, training rows in clusters with their labels, and rows to score."""
    torch.manual_seed(0)
    y = torch.arange(rows) % classes
    x = torch.randn(rows, 5) + 2 * torch.randn(classes, 5)[y]
    strange = torch.cat([x[:20], 4 * torch.randn(30, 5)])
    return Net(classes), x, y, strange


def hidden(net: Net, x: Tensor) -> np.ndarray:
    """What the head reads, worked out without hooks, as double."""
    with torch.no_grad():
        return net.tanh(net.second(net.act(net.first(x)))).double().numpy()


def wrapped(method: str = "mc", **options: Any) -> tuple[gfo.MaskedModel, Tensor, Tensor, Tensor]:
    net, x, y, strange = setting()
    likelihood = gfo.Categorical(3)
    model = gfo.wrap(
        net, method, ["act", "tanh"], likelihood=likelihood, example=(x[:2],), **options
    )
    return model, x, y, strange


# Formulas


def class_parts(z: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Class means, and the covariance about them."""
    means = np.stack([z[y == label].mean(0) for label in np.unique(y)])
    centred = z - means[y]
    return means, centred.T @ centred / len(z)


def distances(z: np.ndarray, means: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    away = z[:, None, :] - means[None]
    return np.einsum("ncf,fg,ncg->nc", away, np.linalg.inv(covariance), away)


def test_mahalanobis_is_the_distance_to_the_nearest_class_mean() -> None:
    net, x, y, strange = setting()
    means, covariance = class_parts(hidden(net, x), y.numpy())
    expected = distances(hidden(net, strange), means, covariance).min(1)
    for layer in ("tanh", None):  # by default, what the last linear layer reads
        alarm = Mahalanobis(layer, shrinkage=0.0).fit(net, (x, y))
        np.testing.assert_allclose(alarm(strange), expected, rtol=1e-4)
    # A wrong version: one Gaussian for all classes.
    overall = distances(
        hidden(net, strange), hidden(net, x).mean(0)[None], np.cov(hidden(net, x).T)
    )
    assert not np.allclose(overall.min(1), expected, rtol=0.01)


def test_mahalanobis_without_labels_is_one_gaussian() -> None:
    net, x, _, strange = setting()
    z = hidden(net, x)
    expected = distances(hidden(net, strange), z.mean(0)[None], np.cov(z.T, bias=True))[:, 0]
    alarm = Mahalanobis("tanh", shrinkage=0.0).fit(net, x)
    np.testing.assert_allclose(alarm(strange), expected, rtol=1e-4)


def test_relative_mahalanobis_takes_the_distance_to_all_data_off() -> None:
    net, x, y, strange = setting()
    z, new = hidden(net, x), hidden(net, strange)
    near = distances(new, *class_parts(z, y.numpy())).min(1)
    background = distances(new, z.mean(0)[None], np.cov(z.T, bias=True))[:, 0]
    alarm = RelativeMahalanobis("tanh", shrinkage=0.0).fit(net, (x, y))
    np.testing.assert_allclose(alarm(strange), near - background, rtol=1e-3, atol=1e-3)


def test_shrinkage_is_the_papers_for_many_features() -> None:
    torch.manual_seed(1)
    x = torch.randn(60, 40, dtype=torch.float64) * torch.linspace(0.1, 3, 40)
    covariance = torch.cov(x.T, correction=0)
    s, n, d = covariance.numpy(), 60, 40
    square, trace = np.trace(s @ s), np.trace(s)
    # Equation 23 of Chen et al.; the terms in 2/d are small for large d, and left out.
    weight = ((1 - 2 / d) * square + trace**2) / ((n + 1 - 2 / d) * (square - trace**2 / d))
    assert streams.shrinkage(covariance, n) == pytest.approx(weight, rel=0.01)
    mixed = streams.shrunk(covariance, n, 0.3).numpy()
    np.testing.assert_allclose(mixed, 0.7 * s + 0.3 * trace / d * np.eye(d))
    assert streams.shrinkage(torch.eye(d).double(), n) == 1.0


@pytest.mark.parametrize("normalize", [True, False])
def test_knn_is_the_distance_to_the_kth_neighbour(normalize: bool) -> None:
    net, x, _, strange = setting()
    z, new = hidden(net, x), hidden(net, strange)
    if normalize:
        z, new = (a / np.linalg.norm(a, axis=1, keepdims=True) for a in (z, new))
    apart = np.sort(np.linalg.norm(new[:, None] - z[None], axis=2), axis=1)
    for k in (1, 7):
        alarm = KNN("tanh", k=k, normalize=normalize).fit(net, x)
        # Rows of the training data are their own first neighbours: zero, but for rounding.
        np.testing.assert_allclose(alarm(strange), apart[:, k - 1], rtol=1e-4, atol=1e-5)
        assert not np.allclose(alarm(strange), apart[:, k], rtol=1e-3)


@pytest.mark.parametrize("normalize", [True, False])
def test_neighbours_far_from_zero_are_the_nearest(normalize: bool) -> None:
    """Features such as a year, whose distances are small beside their size."""
    source = torch.Generator().manual_seed(0)
    stored, rows = (2000 + torch.randn(count, 5, generator=source) for count in (400, 50))
    alarm = KNN("input", k=5, normalize=normalize).fit(nn.Linear(5, 2), stored)
    known, new = (z.double().numpy() for z in (stored, rows))
    if normalize:
        known, new = (z / np.linalg.norm(z, axis=1, keepdims=True) for z in (known, new))
    expected = np.sort(np.linalg.norm(new[:, None] - known[None], axis=2), axis=1)[:, 4]
    assert alarm(rows).numpy() == pytest.approx(expected, rel=1e-2)


@pytest.mark.parametrize("count", [3, 400, 1000, 1023])
@pytest.mark.parametrize("k", [1, 3])
def test_neighbours_by_groups_are_those_of_topk(count: int, k: int) -> None:
    values = torch.randn(20, count, generator=torch.Generator().manual_seed(count))
    assert torch.equal(scores._top(values, k), values.topk(k, dim=1).indices)
    tied = torch.randint(3, (20, count), generator=torch.Generator().manual_seed(k)).float()
    best = tied.gather(1, scores._top(tied, k))
    assert torch.equal(best, tied.topk(k, dim=1).values)


@pytest.mark.parametrize("bias", [True, False])
def test_vim_is_the_residual_less_the_energy(bias: bool) -> None:
    _, x, y, strange = setting()
    net = Net(bias=bias)
    z, new = hidden(net, x), hidden(net, strange)
    w = net.head.weight.detach().double().numpy()
    b = net.head.bias.detach().double().numpy() if bias else np.zeros(3)
    origin = -np.linalg.pinv(w) @ b
    values, vectors = np.linalg.eigh((z - origin).T @ (z - origin) / len(z))
    null = vectors[:, np.argsort(-values)][:, 3:]
    residual = np.linalg.norm((z - origin) @ null, axis=1)
    alpha = (z @ w.T + b).max(1).mean() / residual.mean()
    if alpha < 0:
        pytest.skip("the paper's scale is for networks whose largest logits are positive")
    logits = new @ w.T + b
    energy = np.log(np.exp(logits).sum(1))
    expected = alpha * np.linalg.norm((new - origin) @ null, axis=1) - energy
    alarm = ViM(dim=3).fit(net, (x, y))
    np.testing.assert_allclose(alarm(strange), expected, rtol=1e-4, atol=1e-4)


def test_fdbd_is_the_mean_distance_to_boundaries_over_that_to_the_mean() -> None:
    net, x, y, strange = setting()
    mean, new = hidden(net, x).mean(0), hidden(net, strange)
    w, b = net.head.weight.detach().double().numpy(), net.head.bias.detach().double().numpy()
    expected = []
    for row in new:
        logits = w @ row + b
        best = int(logits.argmax())
        boundaries = [
            (logits[best] - logits[other]) / np.linalg.norm(w[best] - w[other])
            for other in range(3)
            if other != best
        ]
        expected.append(-np.mean(boundaries) / np.linalg.norm(row - mean))
    np.testing.assert_allclose(FDBD().fit(net, (x, y))(strange), expected, rtol=1e-4)


def test_one_logit_is_two_classes() -> None:
    _, x, _, strange = setting()
    one, two = Net(1), Net(2)
    two.load_state_dict({**two.state_dict(), **{
        key: value for key, value in one.state_dict().items() if "head" not in key
    }})  # fmt: skip
    with torch.no_grad():
        two.head.weight.copy_(torch.cat([-one.head.weight, one.head.weight]) / 2)
        two.head.bias.copy_(torch.cat([-one.head.bias, one.head.bias]) / 2)
    for kind in (ViM, FDBD):
        torch.testing.assert_close(kind().fit(one, x)(strange), kind().fit(two, x)(strange))


# Fits


@pytest.mark.parametrize("name", KINDS)
def test_a_fit_in_batches_is_that_of_all_rows_at_once(name: str) -> None:
    net, x, y, strange = setting()
    whole = KINDS[name]().fit(net, (x, y))(strange)
    shuffled = torch.randperm(len(x), generator=torch.Generator().manual_seed(3))
    batches = [(x[rows], y[rows]) for rows in shuffled.split(7)]
    torch.testing.assert_close(
        KINDS[name]().fit(net, batches)(strange), whole, rtol=1e-4, atol=1e-5
    )
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=64)
    torch.testing.assert_close(KINDS[name]().fit(net, loader)(strange), whole, rtol=1e-4, atol=1e-5)
    first = [(a, b) for a, b in batches[:1]]
    changed = KINDS[name](**({"k": 5} if name == "KNN" else {})).fit(net, first)(strange)
    assert not torch.allclose(changed, whole, rtol=1e-2)


def test_moments_keep_their_digits_far_from_zero() -> None:
    torch.manual_seed(0)
    x = torch.randn(1000, 3, dtype=torch.float64) + 1e6
    moments = streams.Moments()
    for part in x.split(13):
        moments.add(part)
    torch.testing.assert_close(moments.within, torch.cov(x.T, correction=0), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", KINDS)
def test_what_is_kept_does_not_grow_with_the_data(name: str) -> None:
    net, x, y, _ = setting(900)
    options = {"size": 200} if name == "KNN" else {}
    sizes = [
        {key: tensor.shape for key, tensor in KINDS[name](**options).fit(net, data).state.items()}
        for data in ((x[:300], y[:300]), (x, y))
    ]
    assert sizes[0] == sizes[1]


def test_every_row_is_as_likely_to_be_kept() -> None:
    counts = torch.zeros(40)
    for turn in range(300):
        reservoir = streams.Reservoir(8)
        reservoir._generator.manual_seed(turn)
        for part in torch.arange(40.0)[:, None].split(6):
            reservoir.add(part)
        kept = reservoir.stored[:, 0].long()
        assert len(kept.unique()) == 8
        counts[kept] += 1
    # 60 times each, with a standard deviation of 6.9: five of them are 1 in 10^6.
    assert (counts - 60).abs().max() < 35


def test_features_of_images_are_means_over_pixels() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))
    x, y = torch.randn(60, 2, 5, 5), torch.arange(60) % 3
    with torch.no_grad():
        z = net[:2](x).mean((2, 3)).double().numpy()
    expected = distances(z, *class_parts(z, y.numpy())).min(1)
    alarm = Mahalanobis("1", shrinkage=0.0).fit(net, (x, y))
    np.testing.assert_allclose(alarm(x), expected, rtol=1e-3)


@pytest.mark.parametrize("method", ["mc", "gflowout"])
@pytest.mark.parametrize("name", KINDS)
def test_draws_average_scores_and_the_model_stays_as_it_was(name: str, method: str) -> None:
    model, x, y, strange = wrapped(method)
    model.train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state = torch.get_rng_state()
    alarm = KINDS[name](draws=3).fit(model, (x, y))
    plain = KINDS[name]().fit(model, (x, y))
    assert torch.equal(alarm(strange), alarm(strange))  # the same masks in every call
    other = alarm(strange, generator=torch.Generator().manual_seed(5))
    assert not torch.allclose(other, alarm(strange))
    assert not torch.allclose(plain(strange), alarm(strange))
    assert torch.equal(plain(strange), plain(strange))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(part.training for part in model.modules())
    assert not any(part._forward_hooks for part in model.backbone.modules())
    after = model.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_a_score_over_draws_is_the_mean_of_the_scores_of_each() -> None:
    model, x, y, strange = wrapped()
    alarm = Mahalanobis(draws=4).fit(model, (x, y))
    z = []
    hook = model.backbone.head.register_forward_pre_hook(lambda _, args: z.append(args[0]))
    from gflowout.core import random

    for seed in random.draw_seeds(4, torch.Generator().manual_seed(9)):
        model.predict(strange, samples=1, generator=torch.Generator().manual_seed(seed))
    hook.remove()
    state = alarm.state
    drawn = [scores.mahalanobis(d.double(), state["means"], state["whitening"]) for d in z]
    expected = torch.stack(drawn).mean(0).float()
    torch.testing.assert_close(
        alarm(strange, generator=torch.Generator().manual_seed(9)), expected, rtol=1e-4, atol=1e-4
    )


def test_scoring_ends_the_pass_at_the_layer() -> None:
    net, x, y, strange = setting()
    alarm = Mahalanobis("act").fit(net, (x, y))
    passes: list[str] = []
    net.second.register_forward_hook(lambda *_: passes.append("second"))
    alarm(strange)
    assert not passes


# Thresholds, files, errors


def test_thresholds_keep_the_rate_of_false_alarms() -> None:
    net, x, _, _ = setting(3000)
    alarm = Mahalanobis("tanh").fit(net, x[:1000])
    level = alarm.threshold(x[1000:2000], false_alarms=0.1)
    values = alarm(x[1000:2000]).sort().values
    assert level == pytest.approx(float(values[math.ceil(1001 * 0.9) - 1]))
    rate = float((alarm(x[2000:]) > level).float().mean())
    # Both samples vary: a standard deviation of 0.0134 for 0.1 and 1,000 rows each.
    assert abs(rate - 0.1) < 0.06
    assert alarm.threshold(x[:19]) == float(alarm(x[:19]).max())
    with pytest.raises(ValueError, match=r"at least 19 rows for false_alarms=0\.05, got 18"):
        alarm.threshold(x[:18])


def test_the_rate_of_false_alarms_is_exact_on_average() -> None:
    net, x, _, _ = setting()
    alarm = KNN("input", normalize=False).fit(net, x)
    torch.manual_seed(0)
    rates, wrong = [], []
    for _ in range(60):
        known = torch.randn(9, 5)
        new = alarm(torch.randn(200, 5))
        rates.append(float((new > alarm.threshold(known, false_alarms=0.2)).float().mean()))
        level = alarm(known).double().quantile(0.8, interpolation="lower")
        wrong.append(float((new > level).float().mean()))
    # The 8th smallest of 9 is exceeded with probability 2/10; standard error of the mean 0.015.
    assert np.mean(rates) == pytest.approx(0.2, abs=0.06)
    assert np.mean(wrong) > 0.26  # without the + 1


@pytest.mark.parametrize("name", KINDS)
def test_files_bring_a_detector_back(name: str, tmp_path: Path) -> None:
    model, x, y, strange = wrapped()
    path = tmp_path / "alarm.safetensors"
    for options in ({}, {"layer": "tanh", "draws": 2}):
        alarm = KINDS[name](**options).fit(model, (x, y))
        alarm.save(path)
        again = gfo.ood.load(path, model)
        assert type(again) is type(alarm)
        assert repr(again) == repr(alarm)
        assert torch.equal(again(strange), alarm(strange))
        assert load_file(path).keys() == alarm.state.keys()


def test_damaged_and_other_files_are_refused(tmp_path: Path) -> None:
    net, x, y, _ = setting()
    path = tmp_path / "alarm.safetensors"
    alarm = Mahalanobis("tanh").fit(net, (x, y))
    alarm.save(path)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        gfo.ood.load(path, net)
    save_file({"a": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match="not written by a detector's save"):
        gfo.ood.load(path, net)
    with pytest.raises(FileNotFoundError):
        gfo.ood.load(tmp_path / "none", net)
    alarm.state["means"] = alarm.state["means"][:, :3]
    alarm.save(path)
    with pytest.raises(ValueError, match="whitening has shape"):
        gfo.ood.load(path, net)
    alarm = Mahalanobis("tanh").fit(net, (x, y))
    alarm.save(path)
    with pytest.raises(ValueError, match="'tanh' is no submodule of Sequential"):
        gfo.ood.load(path, nn.Sequential(nn.Linear(5, 3)))


def test_strange_numbers_are_alarms_and_no_basis_for_a_fit() -> None:
    net, x, y, _ = setting()
    bad = x[:3].clone()
    bad[1, 0] = math.nan
    bad[2, 0] = math.inf
    for kind in KINDS.values():
        result = kind("input" if kind is Mahalanobis else None).fit(net, (x, y))(bad)
        assert math.isinf(result[1])
        assert result[0].isfinite()
    with pytest.raises(ValueError, match=r"must be finite to fit, got NaN or infinity in 2 of 3"):
        Mahalanobis("input").fit(net, (bad, y[:3]))


def test_a_threshold_that_nothing_exceeds_is_an_error() -> None:
    net, x, _, _ = setting()
    alarm = Mahalanobis("tanh").fit(net, x[:200])
    known = x[200:].clone()
    known[:6] = math.nan
    with pytest.raises(ValueError, match=r"finite features in at least 96 of 100 rows .* got 94"):
        alarm.threshold(known)
    assert math.isfinite(alarm.threshold(known[3:]))


@pytest.mark.parametrize("kind", [Mahalanobis, RelativeMahalanobis])
def test_rows_without_a_class_are_left_out(kind: type[Detector]) -> None:
    net, x, y, strange = setting()
    likelihood = gfo.Categorical(3, ignore_index=-100)
    model = gfo.wrap(net, "mc", ["tanh"], likelihood=likelihood, example=(x[:2],))
    labels = y.clone()
    labels[::4] = -100
    labels[256:] = -100  # all of the second batch
    rows = labels != -100
    expected = kind().fit(model, (x[rows], y[rows]))(strange)
    torch.testing.assert_close(kind().fit(model, (x, labels))(strange), expected)
    with pytest.raises(ValueError, match="no rows with a label that counts"):
        kind().fit(model, (x, torch.full_like(y, -100)))


def test_counts_are_no_classes() -> None:
    net, x, y, _ = setting()
    model = gfo.wrap(net, "mc", ["tanh"], likelihood=gfo.Poisson(3), example=(x[:2],))
    with pytest.raises(ValueError, match=r"labels of Poisson\(dim=3\) are no classes"):
        Mahalanobis().fit(model, (x, y))


def test_errors_say_what_would_be_right() -> None:
    net, x, y, strange = setting()
    with pytest.raises(RuntimeError, match=r"KNN is not fitted: call fit\(model, data\) first"):
        KNN("tanh")(strange)
    with pytest.raises(ValueError, match=r"'tahn' is no submodule of Net.*did you mean 'tanh'"):
        KNN("tahn").fit(net, x)
    with pytest.raises(TypeError, match="layer must be the name of a submodule or None, got 3"):
        KNN(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="needs labels of two classes or more, got 1"):
        RelativeMahalanobis("tanh").fit(net, x)
    with pytest.raises(ValueError, match="at least k=10 rows, got 4"):
        KNN("tanh").fit(net, x[:4])
    with pytest.raises(ValueError, match="k must be at most size"):
        KNN("tanh", k=9, size=8)
    with pytest.raises(TypeError, match=r"draws=2 needs a model from gfo\.wrap, got Net"):
        KNN("tanh", draws=2).fit(net, x)
    with pytest.raises(ValueError, match="gives 12 features, but the last linear layer, 'head'"):
        ViM("act").fit(net, x)
    with pytest.raises(ValueError, match="dim must be below the number of features, 8, got 8"):
        ViM(dim=8).fit(net, x)
    with pytest.raises(ValueError, match="do not vary within classes"):
        Mahalanobis("tanh").fit(net, x[:1])
    with pytest.raises(ValueError, match="labels must be classes as whole numbers"):
        Mahalanobis("tanh").fit(net, (x, torch.rand(len(x))))
    with pytest.raises(TypeError, match=r"data must hold tensors, such as \(x, y\), got ndarray"):
        Mahalanobis("tanh").fit(net, (x.numpy(), y.numpy()))
    with pytest.raises(ValueError, match="data has no rows"):
        Mahalanobis("tanh").fit(net, [])
    with pytest.raises(
        ValueError, match=r"normalize=True makes the only feature of layer .* 1 or -1"
    ):
        KNN("input").fit(nn.Linear(1, 2), x[:, :1])
    alarm = Mahalanobis("tanh").fit(net, (x, y))
    with pytest.raises(
        ValueError, match="'input' gives 4 features, the detector was fitted with 5"
    ):
        Mahalanobis("input").fit(net, (x, y))(x[:, :4])
    with pytest.raises(ValueError, match="false_alarms"):
        alarm.threshold(x, false_alarms=1.5)
    twice = nn.ReLU()
    with pytest.raises(ValueError, match="'1' ran 2 times in one forward pass"):
        KNN("1").fit(nn.Sequential(nn.Linear(5, 4), twice, nn.Linear(4, 4), twice), x)


@pytest.mark.parametrize("kind", [KNN, ViM, FDBD])
@pytest.mark.parametrize("shape", [(), (2,), (4, 4)])
def test_labels_that_are_no_classes_matter_to_those_that_read_them(
    kind: type[Detector], shape: tuple[int, ...]
) -> None:
    """A loader of a regression, of counts or of pixels fits a detector that needs no classes."""
    net, x, _, strange = setting()
    labels = torch.rand(len(x), *shape)
    batches = [(x[rows], labels[rows]) for rows in torch.arange(len(x)).split(100)]
    assert torch.equal(kind().fit(net, batches)(strange), kind().fit(net, x)(strange))
    with pytest.raises(ValueError, match="pass inputs alone to fit without classes"):
        Mahalanobis().fit(net, batches)


def test_a_fit_that_fails_leaves_the_earlier_one() -> None:
    net, x, y, strange = setting()
    alarm = Mahalanobis("tanh").fit(net, (x, y))
    before = alarm(strange)
    with pytest.raises(ValueError, match="whole numbers"):
        alarm.fit(Net(), (x, torch.rand(len(x))))
    assert torch.equal(alarm(strange), before)


def test_the_plot_says_how_well_sets_are_told_apart() -> None:
    torch.manual_seed(0)
    known, unknown = torch.randn(80).round(decimals=1), torch.randn(50).round(decimals=1) + 1
    import matplotlib

    matplotlib.use("Agg")
    ax = gfo.ood.plot_ood({"MNIST": known, "letters": unknown}, threshold=1.5)
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    higher, same = unknown[:, None] > known, unknown[:, None] == known
    auroc = float((higher.double() + same.double() / 2).mean())
    alarms = float((unknown > 1.5).double().mean())
    assert labels[1] == f"letters: AUROC {auroc:.3f}, {alarms:.1%} alarms"
    assert labels[0].startswith("MNIST, ")
    again = gfo.ood.plot_ood({"MNIST": known}, ax=ax)
    assert again is ax
    with pytest.raises(ValueError, match="scores of 'MNIST' must be a tensor"):
        gfo.ood.plot_ood({"MNIST": torch.zeros(2, 2)})
