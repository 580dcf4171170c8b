"""Leave the least certain patients to a doctor: what remains of the error?

Death in intensive care (the open eICU demo, if ``--data-dir`` or ``$GFLOWOUT_DATA`` has it),
trained on some hospitals and tested on others; else scikit-learn's breast cancer data.

    python examples/defer_to_human.py --data-dir data --out defer.png
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

import gflowout as gfo
from gflowout.data import clinical
from gflowout.data.errors import MissingDataError

SHARES = np.arange(10, 101) / 100  # of patients that are not left to the doctor
METHODS = {"GFlowOut": "gflowout", "plain network": "none"}
COLOURS = {"GFlowOut": "#08519c", "plain network": "#d95f02", "logistic regression": "#4d9221"}


def patients(seed: int, data_dir: str | None) -> tuple[str, Tensor, Tensor, Tensor, Tensor]:
    """Name of the data, inputs and outcomes to train on, inputs and outcomes to test on."""
    try:
        split = clinical.load("eicu-demo", data_dir, test_hospital=0.3, seed=seed)
        train, test = split.train, split.test
        return "eICU demo, death", train.x, train.y, test.x, test.y
    except MissingDataError:
        x, y = (torch.tensor(part).float() for part in load_breast_cancer(return_X_y=True))
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
        train, test = order[:200], order[200:]
        deviation, mean = torch.std_mean(x[train], 0)
        x = (x - mean) / deviation
        return "breast cancer, malignant", x[train], 1 - y[train], x[test], 1 - y[test]


def risk(method: str, x: Tensor, y: Tensor, test_x: Tensor, seed: int, steps: int) -> Tensor:
    """Probability of the outcome, by a network or by a logistic regression."""
    if method == "logistic regression":
        linear = LogisticRegression(C=0.1, max_iter=500).fit(x.numpy(), y.numpy())
        return torch.tensor(linear.predict_proba(test_x.numpy())[:, 1])
    net = nn.Sequential(nn.Linear(x.shape[1], 64), nn.ReLU(), nn.Linear(64, 1))
    model = gfo.wrap(net, METHODS[method], ["1"], likelihood=gfo.Binary(), example=(x[:2],))
    optimizer = torch.optim.Adam(model.parameter_groups(lr=1e-3, weight_decay=1e-4))
    for _ in range(steps):
        batch = torch.randint(len(x), (100,))
        losses = model(x[batch], y=y[batch].float())
        optimizer.zero_grad()
        losses.total.backward()
        optimizer.step()
    return model.predict(test_x, samples=50, generator=torch.Generator().manual_seed(seed)).mean


def kept_error(found: Tensor, y: Tensor) -> np.ndarray:
    """Brier score of the patients that are kept, for every share; the certain ones come first."""
    certain = (found - 0.5).abs().argsort(descending=True)  # the order of the entropy
    squares = ((found - y.float()) ** 2)[certain].cumsum(0)
    counts = torch.tensor([max(1, round(share * len(y))) for share in SHARES])
    return (squares[counts - 1] / counts).double().numpy()


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train on several draws of patients, print what came out, plot it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", help="folder of data sets; see gflowout data list")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--quick", action="store_true", help="seconds; figures mean little")
    parser.add_argument("--out", default="defer.png", help="file of the plot")
    options = parser.parse_args(arguments)
    seeds, steps = (2, 60) if options.quick else (options.seeds, 500)
    curves: dict[str, list[np.ndarray]] = {name: [] for name in COLOURS}
    for seed in range(seeds):
        title, x, y, test_x, test_y = patients(seed, options.data_dir)
        for name, kept in curves.items():
            torch.manual_seed(seed)
            kept.append(kept_error(risk(name, x, y, test_x, seed, steps), test_y))
    figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
    words, at = [], list(SHARES).index(0.8)
    for name, colour in COLOURS.items():
        curve = np.array(curves[name])
        mean, error = curve.mean(0), curve.std(0, ddof=1) / np.sqrt(seeds)
        axes.plot(100 * SHARES, mean, color=colour, label=name)
        band = {"alpha": 0.2, "linewidth": 0, "color": colour}
        axes.fill_between(100 * SHARES, mean - error, mean + error, **band)
        words.append(f"{name} {mean[-1]:.3f} ± {error[-1]:.3f} to {mean[at]:.3f} ± {error[at]:.3f}")
    axes.set(xlabel="patients kept by the model, %", ylabel="Brier score of these", title=title)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    figure.savefig(options.out, dpi=120)
    plt.close(figure)
    print(
        f"{title}, {seeds} seeds: with the 20 % least certain patients left to a doctor, the Brier"
        f" score goes from that of all to that of the others: {'; '.join(words)}."
    )
    return {name: float(np.mean(curve, 0)[at]) for name, curve in curves.items()}


if __name__ == "__main__":
    main()
