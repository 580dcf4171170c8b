"""From uncertainty to a decision: calibrate, predict sets, ring an alarm, defer, and export.

A small network on scikit-learn's digits, trained on 500 of them, too long and so too sure. What is
fitted to held-out digits is tested on new ones and on patches of photographs, and written to a file
that needs PyTorch alone.

    python examples/decisions.py --out decisions.png
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import gflowout as gfo
from gflowout.demo.data import photo_patches
from gflowout.export import export

TRAIN, CALIBRATION, HELD_OUT = 500, 397, 500  # and 400 new digits, which test the decisions


def digits() -> tuple[Tensor, Tensor, Tensor]:
    """Digits in random order, their labels, and patches of photographs; noise makes them hard."""
    images, labels = load_digits(return_X_y=True)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(images), generator=generator)
    x, photographs = torch.tensor(images).float()[order] / 16, photo_patches(400, seed=0) / 16
    x += 0.25 * torch.randn(x.shape, generator=generator)
    photographs += 0.25 * torch.randn(photographs.shape, generator=generator)
    return x, torch.tensor(labels)[order], photographs


def train(x: Tensor, y: Tensor, steps: int) -> gfo.MaskedModel:
    """Train an MLP with masks on its hidden layer."""
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model = gfo.wrap(net, "gflowout", ["1"], likelihood="classification", example=(x[:2],))
    optimizer = torch.optim.Adam(model.parameter_groups(lr=3e-3))
    for _ in range(steps):
        optimizer.zero_grad()
        model(x, y=y).total.backward()
        optimizer.step()
    return model


def main(arguments: Sequence[str] | None = None) -> dict[str, float]:
    """Train, fit the decisions on held-out digits, print what they do on new ones, plot it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    parser.add_argument("--out", default="decisions.png", help="file of the plot")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    x, y, photographs = digits()
    parts = (TRAIN, CALIBRATION, HELD_OUT, len(x) - TRAIN - CALIBRATION - HELD_OUT)
    x_train, x_cal, x_held, x_new = x.split(parts)
    y_train, y_cal, y_held, y_new = y.split(parts)
    model = train(x_train, y_train, steps=200 if options.quick else 400)

    # Each step is fitted on digits that nothing before it has seen.
    scaler = gfo.calibration.Temperature().fit(model.predict(x_cal), y_cal)
    held, plain = scaler(model.predict(x_held)), model.predict(x_new)
    new = scaler(plain)
    sets = gfo.conformal.Sets(coverage=0.9).fit(held, y_held)
    report = gfo.conformal.report_sets(sets(new), y_new)
    rule = gfo.selective.Defer("entropy", risk=0.05, delta=0.1).fit(held, y_held)
    answered, wrong = ~rule(new), new.mean.argmax(-1) != y_new
    # Which detector is best depends on what is strange: compare several.
    alarms = {}
    for detector in (gfo.ood.Mahalanobis(), gfo.ood.KNN()):
        detector.fit(model, (x_train, y_train))
        limit = detector.threshold(x_held, false_alarms=0.05)
        scores = {"new digits": detector(x_new), "photographs": detector(photographs)}
        alarms[type(detector).__name__] = [
            (values > limit).float().mean().item() for values in scores.values()
        ]

    # Temperature, sets and rule go into the file; it draws masks of its own.
    path = Path(options.out).with_suffix(".pt2")
    decisions = [scaler, sets, rule]
    file = export(model, path, (x[:2],), decisions=decisions, overwrite=True)
    answer = torch.export.load(path).module()(input=x_new, seed=torch.tensor(0))

    figure, axes = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
    gfo.calibration.plot_reliability(new, y_new, bins=10, ax=axes[0])
    gfo.selective.plot_risk_coverage(new, y_new, ["entropy", "mutual_information"], ax=axes[1])
    gfo.ood.plot_ood(scores, threshold=limit, ax=axes[2])
    figure.savefig(options.out, dpi=120)
    plt.close(figure)
    numbers = {
        "nll_before": -plain.log_prob(y_new).mean().item(),
        "nll": -new.log_prob(y_new).mean().item(),
        "coverage": report["coverage"],
        "answered": answered.float().mean().item(),
        "risk": wrong[answered].float().mean().item(),
        "false_alarms": alarms["KNN"][0],
        "alarms": alarms["KNN"][1],
        "file_coverage": gfo.conformal.report_sets(answer["set"], y_new)["coverage"],
        "file_deferred": answer["defer"].float().mean().item(),
    }
    error = [gfo.calibration.reliability(pred, y_new, bins=10).error for pred in (plain, new)]
    print(
        f"{len(y_new)} new digits, {wrong.float().mean():.1%} of the answers wrong. Temperature "
        f"{scaler.temperature:.2f}: NLL {numbers['nll_before']:.3f} to {numbers['nll']:.3f}, "
        f"calibration error {error[0]:.3f} to {error[1]:.3f}. Sets for a coverage of 90 %: they "
        f"hold the digit in {report['coverage']:.1%}, with {report['size']:.2f} classes on "
        f"average, one in {report['single']:.0%}. Deferring for a risk of 5 %: "
        f"{numbers['answered']:.1%} are answered, of which {numbers['risk']:.1%} are wrong. Alarm "
        f"for 5 % false ones: kNN rings for {alarms['KNN'][0]:.1%} of the new digits and "
        f"{alarms['KNN'][1]:.1%} of 400 patches of photographs, Mahalanobis for "
        f"{alarms['Mahalanobis'][0]:.1%} and {alarms['Mahalanobis'][1]:.1%}. A file of "
        f"{file.size / 1e3:.0f} kB, with draws of its own: sets hold the digit in "
        f"{numbers['file_coverage']:.1%}, {numbers['file_deferred']:.1%} are deferred."
    )
    return numbers


if __name__ == "__main__":
    main()
